"""The probe of selection on synthetic keys: needles at their ranks, the library's own selection, predictions."""

import dataclasses
import json

import pytest
import torch

from ds41 import ModelConfig
from ds41.attention import Indexer
from ds41.formats import INDEX_KEY
from ds41.ops.index_scores import index_scores
from ds41.ops.selection import candidate_blocks, top_entries
from ds41.probes.selection_context import CLUSTERED, ISOTROPIC, KeyLaw, SyntheticContext, mix_queries, round_query
from ds41.probes.selection_needles import MissCounter, crossing_width, plant_keys
from ds41.probes.selection_pool import PoolCounter, select_from_pool
from ds41.probes.selection_prediction import hidden_probability, miss_probability, noisy_edge, score_error
from ds41.probes.selection_synthetic import probe_selection
from ds41.rope import layer_frequencies, turns
from ds41.step import Step

# Nano with a pool that holds more blocks than the selection has entries, and with heads enough, as published.
CONFIG = dataclasses.replace(ModelConfig.nano(), candidate_topk_blocks=64, index_n_heads=16)
ENTRIES = 1100


def made(law=ISOTROPIC, entries=ENTRIES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return SyntheticContext(CONFIG, entries, law, generator), generator


@pytest.fixture(scope="module")
def report():
    return probe_selection(CONFIG, ENTRIES, 24, ISOTROPIC, contexts=2)


def test_neighbours_of_a_clustered_law_have_its_share_in_common():
    law = KeyLaw("test", share=0.6, run=64, topics=50)
    latents = law.latents(4000, 64, torch.Generator().manual_seed(0))
    assert torch.allclose(latents.square().mean(1), torch.ones(4000), atol=1e-4)
    near = (latents[1:] * latents[:-1]).mean(1).mean()
    assert abs(float(near) - 0.6) < 0.03
    alone = ISOTROPIC.latents(4000, 64, torch.Generator().manual_seed(0))
    assert abs(float((alone[1:] * alone[:-1]).mean())) < 0.01


@pytest.mark.parametrize("law", [{"share": 1.0}, {"share": -0.1}, {"run": 0}, {"topics": 0}])
def test_laws_that_cannot_be(law):
    with pytest.raises(ValueError, match=f"{next(iter(law))} "):
        KeyLaw("wrong", **law)


def test_stored_scores_are_those_of_rounded_keys():
    context, generator = made()
    asked = round_query(context.queries(5, generator))
    expected = index_scores(*asked, INDEX_KEY.fake_quantize(context.keys))
    torch.testing.assert_close(context.stored_scores(asked), expected)
    torch.testing.assert_close(context.true_scores(asked), index_scores(*asked, context.keys))


def test_the_indexer_selects_the_same():
    context, generator = made()
    states = torch.randn(1, CONFIG.hidden_size, generator=generator)
    latent = torch.randn(1, CONFIG.q_lora_rank, generator=generator)
    turn = turns(torch.tensor([ENTRIES - 1]), layer_frequencies(CONFIG, 1))
    step, visible = Step.of([1], [ENTRIES - 1]), torch.tensor([ENTRIES])
    full = context.indexer(states, latent, turn, step, context.memory, None)
    asked = context.indexer.query(states, latent, turn)
    scores = context.stored_scores(asked)
    pool = candidate_blocks(scores, visible, CONFIG.candidate_block_size, CONFIG.candidate_topk_blocks)
    assert torch.equal(full.entries, top_entries(scores, CONFIG.index_topk))
    assert torch.equal(full.candidates, pool)
    reindex = Indexer(CONFIG, CONFIG.layers[CONFIG.decoder_start + 2], "cache", torch.float32).requires_grad_(False)
    chosen = reindex(states, latent, turn, step, context.memory, pool)
    other = reindex.query(states, latent, turn)
    assert torch.equal(chosen.entries, select_from_pool(context, other, pool, visible, CONFIG.index_topk))


def test_a_planted_key_has_its_rank():
    context, generator = made(CLUSTERED)
    asked, ranks = context.queries(6, generator), (2, 31, 32, 33, 100)
    true = context.true_scores(asked)
    order = true.sort(dim=1, descending=True)
    old = context.keys[order.indices[:, 500:505]]
    keys = plant_keys(asked, order.values, context.keys[order.indices[:, 0]], old, ranks)
    torch.testing.assert_close(keys.norm(dim=-1), torch.full((6, 5), CONFIG.index_head_dim**0.5))
    for row in range(6):
        scores = index_scores(asked.query[row : row + 1], asked.weight[row : row + 1], keys[row])[0]
        assert [1 + int((true[row] > score).sum()) for score in scores] == list(ranks)
    with pytest.raises(ValueError, match="expected 2 or more"):
        plant_keys(asked, order.values, context.keys[order.indices[:, 0]], old, (1, 5, 6, 7, 8))


def test_planting_leaves_the_pages_as_they_were():
    context, generator = made()
    before = context.cache.pool.data.clone()
    counter = MissCounter((8, 32, 64), CONFIG.index_topk)
    counter.add(context, context.queries(4, generator), generator)
    assert torch.equal(context.cache.pool.data, before)
    assert {(p.needle, p.rank) for p in counter.points()} == {(n, r) for n in ("found", "planted") for r in (8, 32, 64)}


def test_score_errors_follow_from_the_format():
    context, generator = made(entries=4096)
    asked = context.queries(40, generator)
    near = context.true_scores(asked).topk(64, dim=1).indices
    for rounds in (False, True):
        stored = context.stored_scores(round_query(asked) if rounds else asked)
        moved = (stored - context.true_scores(asked)).gather(1, near)
        predicted = score_error(asked, context.keys[near], rounds)
        assert float((moved.std(1) / predicted).mean()) == pytest.approx(1, abs=0.1)


def test_predicted_misses_are_those_of_normal_noise():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 2000, generator=generator).sort(dim=1, descending=True).values
    error, trials = torch.tensor([0.2]), 2000
    noisy = scores + error * torch.randn(trials, 2000, generator=generator)
    selected = torch.zeros(trials, 2000).scatter_(1, top_entries(noisy, 32), 1.0)
    predicted = miss_probability(scores, error, 32)[0, :128]
    assert float((1 - selected.mean(0)[:128] - predicted).abs().max()) < 0.05
    assert predicted[0] < 0.01
    assert predicted[127] > 0.9


def test_without_noise_the_edge_lies_between_two_ranks():
    scores = torch.arange(100.0, 0, -1)[None]
    edge = float(noisy_edge(scores, torch.tensor([1e-4]), 10))
    assert 90 < edge < 91.01
    assert miss_probability(scores, torch.tensor([1e-4]), 10)[0, :9].max() < 1e-6
    assert miss_probability(scores, torch.tensor([1e-4]), 10)[0, 10:].min() > 1 - 1e-6


def test_predicted_blindness_is_that_of_joint_normals():
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(1, 400_000, generator=generator)
    other = 0.8 * own + 0.6 * torch.randn(1, 400_000, generator=generator)
    edge = torch.tensor([1.5])
    hidden = (other.unflatten(1, (-1, 8)).amax(-1) < edge).repeat_interleave(8, dim=1)
    for height in (0.5, 1.0, 2.0):
        near = (own - height).abs() < 0.05
        measured = float(hidden[near].to(torch.float32).mean())
        predicted = float(hidden_probability(own, other, torch.tensor([[height]]), edge, 8))
        assert measured == pytest.approx(predicted, abs=0.02)


def test_width_of_a_known_curve():
    # Misses rise from none at rank 100 to all at rank 300: 16 % and 84 % lie 136.5 ranks apart.
    share = ((torch.arange(400) - 100) / 200).clamp(0, 1)
    missed = (torch.arange(1000)[:, None] + 0.5) / 1000 < share
    assert crossing_width(missed, 10) == pytest.approx(136.5, abs=2)
    assert crossing_width(missed[:, :200], 10) is None


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
def test_mixed_queries_correlate_as_stated(correlation):
    context, generator = made()
    first, second = context.queries(200, generator), context.queries(200, generator)
    mixed = mix_queries(first, second, correlation)
    for a, b in zip(first, mixed, strict=True):
        found = torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]
        assert float(found) == pytest.approx(correlation, abs=0.1)
    with pytest.raises(ValueError, match=r"correlation is 1\.1"):
        mix_queries(first, second, 1.1)


def test_needles_far_inside_are_kept_and_far_outside_missed(report):
    points = {(p.needle, p.rounded, p.rank): p for p in report.misses}
    for needle in ("found", "planted"):
        for rounded in ("keys", "keys and queries"):
            assert points[needle, rounded, 4].missed.mean <= 0.05
            assert points[needle, rounded, 96].missed.mean >= 0.8
            assert 0.2 < points[needle, rounded, 32].missed.mean < 0.9
    # The prediction knows neither FP4 key nor FP4 query, and lies within the noise of 24 seeds.
    off = [abs(p.missed.mean - p.predicted) for p in report.misses]
    assert sum(off) / len(off) < 0.08
    assert all(p.shift_low <= p.shift_median <= p.shift_high for p in report.misses)


def test_rounding_queries_too_makes_the_edge_wider(report):
    keys, both = report.widths
    assert (keys.rounded, both.rounded) == ("keys", "keys and queries")
    assert both.error.mean > 1.2 * keys.error.mean
    assert both.predicted_width > 1.2 * keys.predicted_width
    assert both.kept.mean < keys.kept.mean < 1


def test_the_same_query_sees_all_that_its_pool_holds(report):
    same = [p for p in report.sights if p.correlation == 1]
    # Everything that the Full layer selects is in its pool, so the Reindex layer selects the same.
    assert all(p.missed_by_reindex == p.missed_by_full for p in same)
    every = {p.correlation: p for p in report.sights if p.rank == 0}
    assert every[0.0].hidden.mean > every[0.8].hidden.mean > every[1.0].hidden.mean
    assert every[0.9].missed_by_reindex.mean < every[0.9].missed_by_full.mean
    assert all(p.missed_by_reindex.mean >= p.hidden.mean for p in report.sights)


def test_blocks_far_from_the_edge_are_safe_or_lost(report):
    dropped = {p.block_rank: p.dropped.mean for p in report.pool_edge}
    assert dropped[32] < 0.3 < dropped[64] < 0.95
    assert dropped[max(dropped)] > 0.9


def test_reports_are_plain_and_repeat(report):
    text = json.dumps(dataclasses.asdict(report))
    assert text == json.dumps(dataclasses.asdict(probe_selection(CONFIG, ENTRIES, 24, ISOTROPIC, contexts=2)))


def test_a_context_that_the_pool_holds_whole_has_no_pool_to_miss():
    found = probe_selection(CONFIG, 500, 2, CLUSTERED, contexts=1)
    assert found.pool_edge == found.sights == found.pairs == []
    assert found.misses
    context, generator = made(entries=500)
    with pytest.raises(ValueError, match="63 blocks, and the pool holds 64"):
        PoolCounter((1,), (1,), (0.5,), 32).add(context, context.queries(1, generator), context.queries(1, generator))


def test_what_cannot_be_asked():
    with pytest.raises(ValueError, match="2 seeds for 3 contexts"):
        probe_selection(CONFIG, ENTRIES, 2, contexts=3)
    with pytest.raises(ValueError, match="pool_seeds is 9"):
        probe_selection(CONFIG, ENTRIES, 8, pool_seeds=9)
    with pytest.raises(ValueError, match="entries is 32"):
        made(entries=32)
    with pytest.raises(ValueError, match="ranks are 0 to 33"):
        PoolCounter((0, 33), (1,), (0.5,), 32)
    context, generator = made()
    with pytest.raises(ValueError, match="ranks are 2 to 128"):
        MissCounter((2, 128), 32).add(context, context.queries(1, generator), generator)
    with pytest.raises(ValueError, match="expected one layer, of ratio 1"):
        SyntheticContext(dataclasses.replace(CONFIG, candidate_source_layer_id=-1), ENTRIES, ISOTROPIC, generator)
