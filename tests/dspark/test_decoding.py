"""Rounds of drafting and verification on a tiny model: what comes out is what the model alone would give."""

import dataclasses

import pytest
import torch
from drafting_model import CONFIG, Oracle, pair, prompt
from test_drafter_golden import build as build_golden

from ds41.cache import CacheError
from ds41.dspark import Always, Drafter, Drafting, Draw, Never, Threshold, propose, settle, speculate
from ds41.generation import generate
from ds41.sampling import distribution

POLICIES = (Always(4), Always(1), Threshold(0.5))


# Where the inputs of matrices are rounded too ("full"), the last bits of a sum decide on codes, and a step of several
# tokens sums in another order than one of a single token.
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("quantization", ["none", "cache"])
def test_greedy_output_is_the_same_with_and_without_drafts(quantization, policy):
    model, drafter = pair(quantization=quantization)
    alone = list(generate(model, prompt(), 24, temperature=0, stop_ids=()))
    drafting = Drafting(drafter, policy)
    assert list(generate(model, prompt(), 24, temperature=0, stop_ids=(), drafting=drafting)) == alone


def test_greedy_output_of_the_reference_model():
    model, drafter = build_golden("fp32_cacheq")
    alone = list(generate(model, prompt(), 30, temperature=0, stop_ids=()))
    for policy in (Always(4), Threshold(0.5)):
        drafted = generate(model, prompt(), 30, temperature=0, stop_ids=(), drafting=Drafting(drafter, policy))
        assert list(drafted) == alone


@pytest.mark.parametrize("wrong_at", [None, 0, 1, 3])
def test_good_drafts_are_taken_and_bad_ones_taken_back(wrong_at):
    model, _ = pair()
    truth = list(generate(model, prompt(), 31, temperature=0, stop_ids=()))
    oracle = Oracle(CONFIG).requires_grad_(False)
    oracle.truth, oracle.wrong_at = prompt() + truth, wrong_at
    drafting = Drafting(oracle, Always(4))
    assert list(generate(model, prompt(), 31, temperature=0, stop_ids=(), drafting=drafting)) == truth
    stands = 4 if wrong_at is None else wrong_at
    whole = 30 // (stands + 1)
    assert all(count >= whole - 1 for count in drafting.counts.accepted[:stands])
    assert drafting.counts.accepted[stands:].sum() == 0


def test_the_cache_after_a_rejection_is_that_of_the_tokens_that_stand():
    """Windows of the model and of the drafter, open groups, pages: the next drafts and logits tell of all of them."""
    model, drafter = pair()
    chosen = Draw(0, 1.0, torch.Generator())
    drafting, cache = Drafting(drafter, Always(4)), drafter.new_cache(model, 120)
    first = int(model.prefill([prompt()], cache)[0].argmax())
    tokens = [first]
    for found in speculate(model, drafting, cache, first, chosen, 40):
        tokens += found
        fresh = drafter.new_cache(model, 120)
        model.prefill([prompt() + tokens[:-1]], fresh)
        assert fresh.lengths == cache.lengths
        ours = drafter.draft(model, cache, tokens[-1:])
        expected = drafter.draft(model, fresh, tokens[-1:])
        assert torch.equal(ours.ids, expected.ids)
        assert torch.allclose(ours.logits, expected.logits, atol=1e-4)
    assert len(tokens) == 41


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_no_token_more_than_asked_for(most):
    model, drafter = pair()
    assert len(list(generate(model, prompt(), most, 0, stop_ids=(), drafting=Drafting(drafter, Always(4))))) == most


def test_a_stop_inside_of_a_round_ends_the_text():
    model, _ = pair()
    truth = list(generate(model, prompt(), 20, temperature=0, stop_ids=()))
    oracle = Oracle(CONFIG).requires_grad_(False)
    oracle.truth, oracle.wrong_at = prompt() + truth, None
    stop = truth[7]
    ended = generate(model, prompt(), 20, 0, stop_ids={stop}, drafting=Drafting(oracle, Always(4)))
    assert list(ended) == truth[: truth.index(stop)]


def test_several_sequences_draft_together_as_alone():
    model, drafter = pair()
    together = drafter.new_cache(model, 80, batch=3)
    rows = [prompt(30, 1), prompt(5, 2), prompt(17, 3)]
    model.prefill(rows, together)
    drafts = drafter.draft(model, together, [7, 9], rows=(2, 1))
    for place, row in enumerate((2, 1)):
        alone = drafter.new_cache(model, 80)
        model.prefill([rows[row]], alone)
        expected = drafter.draft(model, alone, [[7, 9][place]])
        assert torch.equal(drafts.ids[place], expected.ids[0])
        assert torch.allclose(drafts.logits[place], expected.logits[0], atol=1e-5)
        assert torch.allclose(drafts.confidence[place], expected.confidence[0], atol=1e-5)


def test_the_block_sees_itself_and_the_window_alone():
    """Not causal inside of the block: the last noise token moves the first guess. Nothing before the window does."""
    model, drafter = pair()
    reach = CONFIG.sliding_window
    ids = prompt(40)
    cache, other = (drafter.new_cache(model, 60) for _ in range(2))
    model.prefill([ids], cache)
    model.prefill([ids], other)
    with torch.no_grad():
        for block in drafter.mtp:
            layer = block.plan.index
            far = torch.arange(40 - reach)
            other.write_window(layer, torch.zeros_like(far), far, torch.randn(len(far), CONFIG.head_dim))
            near = torch.arange(40 - reach, 40)
            rows = cache.read_window(layer, torch.zeros_like(near), near)
            other.write_window(layer, torch.zeros_like(near), near, rows)
    assert torch.equal(drafter.draft(model, cache, [3]).logits, drafter.draft(model, other, [3]).logits)
    noise = dataclasses.replace(CONFIG, dspark_noise_token_id=CONFIG.dspark_noise_token_id - 1)
    before = drafter.draft(model, cache, [3]).logits
    drafter.config = noise
    assert not torch.allclose(drafter.draft(model, cache, [3]).logits[:, 0], before[:, 0])


def test_drafts_follow_a_bounded_and_an_exact_prefill():
    model, drafter = pair()
    ids = prompt(70)
    full, exact, bounded = (drafter.new_cache(model, 90) for _ in range(3))
    for cache, how in ((full, "full"), (exact, "exact"), (bounded, "bounded")):
        model.prefill([ids], cache, decoder=how, chunk_tokens=16)
    first = CONFIG.num_hidden_layers
    assert exact.window_start[first:].unique().tolist() == [70 - CONFIG.sliding_window]
    assert bounded.window_start[first:].unique().tolist() == [70 - CONFIG.sliding_window]
    expected = drafter.draft(model, full, [5])
    assert torch.allclose(drafter.draft(model, exact, [5]).logits, expected.logits, atol=1e-3)
    assert torch.isfinite(drafter.draft(model, bounded, [5]).logits).all()


def test_sampled_tokens_follow_the_model():
    """The joint distribution of the three tokens after a prompt, by chi-square over its cells of five or more."""
    config = dataclasses.replace(CONFIG, vocab_size=4, dspark_noise_token_id=3, image_token_id=3, initializer_range=0.3)
    model, drafter = pair(config, "none")
    ids, first, tokens, temperature = [1, 2, 0, 3, 2, 1], 2, 3, 0.8
    sequences, batches = 100, 12
    cache = drafter.new_cache(model, 16, batch=sequences + 1)
    nothing = torch.tensor([], dtype=torch.int64)
    model.extend([torch.tensor(ids), *[nothing] * sequences], cache, ())
    draws = {row: Draw(temperature, 1.0, torch.Generator().manual_seed(row)) for row in range(1, sequences + 1)}
    drafting, seen = Drafting(drafter, Threshold(0.5)), torch.zeros((4,) * tokens)
    for _ in range(batches):
        found = {row: [first] for row in draws}
        for row in draws:
            cache.fork(0, row)
        while running := [row for row, drawn in found.items() if len(drawn) <= tokens]:
            limits = {row: tokens - len(found[row]) for row in running}
            last = {row: found[row][-1] for row in running}
            proposals = drafting.propose(model, cache, last, draws, limits)
            fed = [nothing] * (sequences + 1)
            for row, proposal in proposals.items():
                fed[row] = torch.tensor([last[row], *proposal.ids])
            counts = {row: len(fed[row]) for row in running}
            logits = model.extend(fed, cache, counts).split(list(counts.values()))
            for row, rows_logits in zip(running, logits, strict=True):
                new = drafting.settle(proposals[row], rows_logits, draws[row])
                cache.truncate(row, cache.lengths[row] - (counts[row] - len(new)))
                found[row] += new
        for drawn in found.values():
            seen[tuple(drawn[1 : tokens + 1])] += 1
    assert 0 < drafting.counts.accepted.sum() < drafting.counts.verified.sum()
    expected = torch.zeros((4,) * tokens, dtype=torch.float64)
    for path in torch.cartesian_prod(*[torch.arange(4)] * tokens).tolist():
        logits = model(torch.tensor([[*ids, first, *path]]))[0]
        rows = distribution(logits[len(ids) : len(ids) + tokens], temperature, 1.0)
        expected[tuple(path)] = rows[torch.arange(tokens), torch.tensor(path)].prod()
    assert float(expected.sum()) == pytest.approx(1)
    cells, wanted = seen.flatten().double(), expected.flatten() * sequences * batches
    large = wanted >= 5
    cells = torch.stack([*cells[large], cells[~large].sum()])
    wanted = torch.stack([*wanted[large], wanted[~large].sum()])
    used = wanted > 0
    chi = ((cells - wanted)[used] ** 2 / wanted[used]).sum()
    freedom = used.sum() - 1
    assert freedom > 10
    assert torch.special.gammaincc(freedom / 2, chi / 2) > 1e-3


def test_never_leaves_the_drafter_out():
    model, drafter = pair()
    drafter.draft = None
    drafting = Drafting(drafter, Never())
    assert list(generate(model, prompt(), 5, 0, stop_ids=(), drafting=drafting))
    assert drafting.counts.rounds == 0


def test_a_drafter_of_another_model_is_refused():
    model, _ = pair()
    other = Drafter(dataclasses.replace(CONFIG, dspark_block_size=3))
    with pytest.raises(ValueError, match="another configuration"):
        other.new_cache(model, 20)


def test_drafting_needs_a_token_before_and_windows():
    model, drafter = pair()
    cache = drafter.new_cache(model, 20)
    with pytest.raises(ValueError, match="no sequence empty"):
        drafter.draft(model, cache, [1])
    plain = model.new_cache(20)
    model.prefill([[1, 2, 3]], plain)
    with pytest.raises(CacheError, match="windows for 0 draft layers, the drafter 2 layers"):
        drafter.draft(model, plain, [1])


def test_logits_that_are_not_finite_are_refused():
    model, drafter = pair()
    cache = drafter.new_cache(model, 20)
    model.prefill([[1, 2, 3]], cache)
    chosen = Draw(0, 1.0, torch.Generator())
    proposal = propose(drafter, model, cache, {0: 4}, {0: chosen})[0]
    with pytest.raises(FloatingPointError, match="nan"):
        settle(proposal, torch.full((5, CONFIG.vocab_size), torch.nan), chosen)
