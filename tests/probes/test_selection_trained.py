"""The probe of selection end to end: forced selections, what is watched, and what the report counts."""

import dataclasses
import json

import pytest
import tiny_model
import torch

from ds41 import ModelConfig
from ds41.attention import SequenceMemory
from ds41.probes.forced_selection import Force, forced_selection
from ds41.probes.needle_rows import NeedleRows, readers
from ds41.probes.selection_trained import layer_sets, probe_trained, wrong_picks

CONFIG = tiny_model.CONFIG
LENGTH = 96
# Layers that attend to entries, in the order in which they run, and the source of each.
READING = {1: 1, 2: 1, 3: 3, 4: 3}


@pytest.fixture(scope="module")
def model():
    return tiny_model.build()


def made(rows=3, question=0):
    ids = torch.randint(0, CONFIG.vocab_size, (rows, LENGTH), generator=torch.Generator().manual_seed(1))
    needle = torch.zeros(rows, LENGTH, dtype=torch.bool)
    for row in range(rows):
        needle[row, 10 + 8 * row : 12 + 8 * row] = True
    answers = torch.tensor([[LENGTH - 2, LENGTH - 1]]).expand(rows, -1)
    return NeedleRows(ids, answers, needle, question)


class Recorder(SequenceMemory):
    """Keeps which entries each layer attends to, in the order of the layers."""

    def __init__(self, step):
        super().__init__(CONFIG, step, True)
        self.asked = []

    def main_entries(self, layer, sequence, entry):
        self.asked.append(entry)
        return super().main_entries(layer, sequence, entry)


def run(model, rows, force):
    """Logits, what was watched, and by reading layer the entries [B, T, K] that it attended to."""
    memories = []

    def memory(step):
        memories.append(Recorder(step))
        return memories[-1]

    with forced_selection(model, rows, force) as watch:
        logits = model(rows.ids, memory=memory)
    entries = [asked.unflatten(0, (len(rows), LENGTH)) for asked in memories[0].asked]
    return logits, watch, dict(zip(READING, entries, strict=True))


def holds(rows, entries, layer):
    """How many of the needle's entries each changed token attends to, and how many there are: [B, A + question]."""
    carrying = rows.carrying(CONFIG.layers[layer].ratio)
    line = torch.arange(len(rows))[:, None]
    chosen = entries[line, rows.changed]
    found = carrying[line[..., None], chosen.clamp(min=0)] & (chosen >= 0)
    return found.sum(-1), carrying.sum(1, keepdim=True).expand(-1, rows.changed.shape[1])


def test_without_force_nothing_changes(model):
    rows = made()
    logits, watch, _ = run(model, rows, Force())
    assert torch.equal(logits, model(rows.ids))
    assert list(watch.seen) == [1, 3, 4]


@pytest.mark.parametrize("hidden", [{1}, {2}, {3}, {4}, {1, 2}, {2, 3}, {1, 2, 3, 4}])
def test_a_needle_is_hidden_from_the_layers_that_are_named(model, hidden):
    rows = made(question=2)
    force = Force(frozenset(hidden), frozenset(READING) - hidden)
    logits, _, entries = run(model, rows, force)
    for layer in READING:
        found, there = holds(rows, entries[layer], layer)
        assert torch.equal(found, torch.zeros_like(found) if layer in hidden else there), layer
        chosen = entries[layer]
        assert ((chosen[..., 1:] > chosen[..., :-1]) | (chosen[..., 1:] < 0)).all()
    # Tokens before the question select and answer as ever.
    plain, _, before = run(model, rows, Force())
    first = int(rows.changed.min())
    assert torch.equal(logits[:, :first], plain[:, :first])
    assert not torch.equal(logits[:, first:], plain[:, first:])
    for layer in READING:
        assert torch.equal(entries[layer][:, :first], before[layer][:, :first])


def test_a_hidden_needle_gives_its_places_to_the_next_entries(model):
    rows = made()
    _, _, shown = run(model, rows, Force(shown=frozenset({1})))
    _, _, hidden = run(model, rows, Force(hidden=frozenset({1})))
    for row in range(len(rows)):
        needle = rows.carrying(2)[row].nonzero().flatten().tolist()
        for token in rows.asking[row].tolist():
            with_it, without = (set(part[1][row, token].tolist()) for part in (shown, hidden))
            assert set(needle) <= with_it
            assert len(without) == len(with_it) == CONFIG.index_topk
            assert with_it - set(needle) < without


def test_the_pool_can_lack_the_needle(model):
    rows = made()
    _, watch, entries = run(model, rows, Force(shown=frozenset({3}), pool_hidden=True))
    assert not watch.seen[4].in_pool.any()
    assert not watch.seen[4].selected.any()
    assert not holds(rows, entries[4], 4)[0].any()
    found, there = holds(rows, entries[3], 3)
    assert torch.equal(found, there)
    # The pool is as large as ever, and the rank does not know of it.
    _, plain, _ = run(model, rows, Force(shown=frozenset({3})))
    assert torch.equal(watch.seen[4].rank, plain.seen[4].rank)


def test_ranks_and_selections_agree(model):
    rows = made(rows=8)
    _, watch, entries = run(model, rows, Force())
    for layer in (1, 3):
        seen = watch.seen[layer]
        assert torch.equal(seen.selected, seen.rank <= CONFIG.index_topk)
        assert seen.in_pool.all()
        assert torch.equal(seen.selected, holds(rows, entries[layer], layer)[0] > 0)
    reindex = watch.seen[4]
    assert (reindex.in_pool | ~reindex.selected).all()
    assert torch.equal(reindex.selected, holds(rows, entries[4], 4)[0] > 0)
    assert int(reindex.rank.min()) >= 1


def test_hooks_are_gone_afterwards(model):
    rows = made()
    with pytest.raises(RuntimeError, match="stop"), forced_selection(model, rows, Force(frozenset({1, 2}))):
        raise RuntimeError("stop")
    hooks = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert hooks == []


def test_forces_that_cannot_be(model):
    rows = made()
    with (
        pytest.raises(ValueError, match=r"hidden \[0\].*read a selection: \[1, 2, 3, 4\]"),
        forced_selection(model, rows, Force(frozenset({0}))),
    ):
        pass
    both = Force(frozenset({1}), frozenset({1}))
    with pytest.raises(ValueError, match="expected different layers"), forced_selection(model, rows, both):
        pass
    # 20 entries are no more than the pool's 5 blocks of 4.
    needle = torch.zeros(1, 20, dtype=torch.bool)
    needle[0, 2] = True
    short = NeedleRows(rows.ids[:1, :20], torch.tensor([[19]]), needle)
    with (
        pytest.raises(ValueError, match="it holds every entry"),
        forced_selection(model, short, Force(pool_hidden=True)),
    ):
        model(short.ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": torch.tensor([[LENGTH]] * 3)}, "answers are at positions 96 to 96; expected 1 to 95"),
        ({"answers": torch.tensor([[5]] * 3)}, r"row 0: the needle ends at position 11 .* question at 4"),
        ({"needle": torch.zeros(3, LENGTH, dtype=torch.bool)}, "row 0: the needle ends at position -1"),
        ({"needle": torch.zeros(3, 5, dtype=torch.bool)}, r"needle \[3, 5\]"),
        ({"needle": torch.zeros(3, LENGTH)}, "needle is torch.float32"),
        ({"question": -1}, "question is -1"),
        ({"question": 90}, "question at 3"),
    ],
)
def test_rows_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(made(), **change)


def test_entries_that_carry_a_needle():
    rows = made()
    assert rows.carrying(1).nonzero().tolist() == [[0, 10], [0, 11], [1, 18], [1, 19], [2, 26], [2, 27]]
    assert rows.carrying(2).nonzero().tolist() == [[0, 5], [1, 9], [2, 13]]
    assert made(question=2).changed.tolist() == [[93, 94, 92, 91]] * 3


def test_who_reads_the_full_layers_pick():
    flash = ModelConfig.flash()
    assert readers(flash, 20) == (20, 21, 22, 23)
    assert sum(plan.mode == "reuse" and plan.half == "decoder" for plan in flash.layers) == 15
    with pytest.raises(ValueError, match="layer 21 makes no selection"):
        readers(flash, 21)


def test_changes_of_the_published_decoder():
    changes = dict(wrong_picks(ModelConfig.flash()))
    assert changes["out at its Reuse layers alone"].hidden == {21, 22, 23}
    assert changes["out at the Reindex layers and theirs"].hidden == set(range(24, 40))
    assert changes["out in the whole decoder"].hidden == set(range(20, 40))
    assert changes["out everywhere"].hidden == changes["in everywhere"].shown == set(range(2, 40))
    assert len(set(changes.values())) == len(changes)


def test_sets_of_layers():
    assert layer_sets((1, 3, 4), 2, 16) == [(1, 3), (1, 4), (3, 4)]
    drawn = layer_sets(range(8), 4, 5)
    assert drawn == layer_sets(range(8), 4, 5)
    assert len(set(drawn)) == 5


@pytest.fixture(scope="module")
def report(model):
    return probe_trained(model, made(rows=5), batch=2)


def test_outcomes_are_those_of_forced_passes(model, report):
    rows = made(rows=5)
    by_name = {outcome.name: outcome for outcome in report.outcomes}
    line = torch.arange(5)[:, None]
    wanted = rows.ids.gather(1, rows.answers)
    for name in ("as it is", "out at the Full layer alone", "in everywhere"):
        logits, _, _ = run(model, rows, dict(wrong_picks(CONFIG))[name])
        expected = logits[line, rows.asking].softmax(-1).gather(2, wanted[..., None]).squeeze(2).prod(1)
        assert by_name[name].probability.mean == pytest.approx(float(expected.mean()), rel=1e-4)
    assert by_name["as it is"].change.mean == 0
    assert any(outcome.change.mean != 0 for outcome in report.outcomes)


def test_counts_of_misses_reach_from_all_shown_to_all_hidden(report):
    forced = [miss for miss in report.misses if miss.forced]
    assert [miss.missed for miss in forced] == [0, 1, 2, 3]
    assert [miss.samples for miss in forced] == [5, 15, 15, 5]
    assert sum(miss.samples for miss in report.misses if not miss.forced) == 5
    for rank_bins in ([b for b in report.ranks if b.layer == layer] for layer in report.selecting):
        assert sum(b.right.samples for b in rank_bins) == 5


def test_reports_are_plain(report):
    json.dumps(dataclasses.asdict(report))
    assert (report.shared_by_full, report.reuse) == (0, 0)
