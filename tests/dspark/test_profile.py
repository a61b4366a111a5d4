"""Measured steps and drafts: what is run for each point of a curve, and that a step leaves the cache as it was."""

import pytest
import torch
from drafting_model import CONFIG, pair

from ds41.dspark import profile
from ds41.dspark.profile import profile_drafts, profile_steps

SIZE = CONFIG.dspark_block_size + 1
CONTEXT = 12


@pytest.fixture
def both():
    return pair()


@pytest.fixture
def timed(monkeypatch):
    """Runs every step once; it takes these seconds, one after the other."""
    times = [float(number) for number in range(1, 20)]

    def median(step, repeats, device):
        step()
        return times.pop(0)

    monkeypatch.setattr(profile, "_median", median)
    return times


def watch(monkeypatch, model):
    """The tokens of each row and the wanted logits of every step, and how long the rows were before it."""
    real, seen = model.extend, []

    def extend(rows, cache, wanted):
        logits = real(rows, cache, wanted)
        counts = [len(row) for row in rows]
        seen.append((counts, wanted, [after - count for after, count in zip(cache.lengths, counts, strict=True)]))
        assert len(logits) == sum(counts)
        return logits

    monkeypatch.setattr(model, "extend", extend)
    return seen


def test_tokens_are_spread_over_the_sequences(both, timed, monkeypatch):
    model, drafter = both
    seen = watch(monkeypatch, model)
    curve = profile_steps(model, drafter, CONTEXT, counts=(1, 2, 3, 5, 8, 15, 99), requests=3)
    assert curve.tokens == (1, 2, 3, 5, 8, 15)
    assert curve.seconds == (1, 2, 3, 4, 5, 6)
    assert [counts for counts, _, _ in seen] == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 2, 1], [3, 3, 2], [5, 5, 5]]
    for counts, wanted, before in seen:
        assert wanted == {row: count for row, count in enumerate(counts) if count}
        assert before == [CONTEXT] * 3


def test_the_largest_step_is_a_block_and_the_token_before_it_of_each(both, timed, monkeypatch):
    model, drafter = both
    seen = watch(monkeypatch, model)
    curve = profile_steps(model, drafter, CONTEXT, counts=range(1, 40), requests=2)
    assert curve.tokens == tuple(range(1, 2 * SIZE + 1))
    assert seen[-1][0] == [SIZE, SIZE]
    with pytest.raises(ValueError, match=rf"13 tokens for 2 sequences; expected {2 * SIZE} or fewer"):
        profile._spread(13, 2, SIZE)


def test_times_out_of_order_are_smoothed(both, timed):
    model, drafter = both
    timed[:] = [1.0, 4.0, 2.0, 6.0]
    curve = profile_steps(model, drafter, CONTEXT, counts=(1, 2, 3, 4), requests=1)
    assert curve.seconds == (1.0, 3.0, 3.0, 6.0)


def test_drafts_are_of_so_many_sequences(both, timed, monkeypatch):
    model, drafter = both
    real, seen = drafter.draft, []

    def draft(model, cache, tokens, rows):
        assert set(cache.lengths) == {CONTEXT}
        found = real(model, cache, tokens, rows)
        seen.append(len(found.ids))
        return found

    monkeypatch.setattr(drafter, "draft", draft)
    curve = profile_drafts(model, drafter, CONTEXT, requests=(1, 3, 4))
    assert curve.tokens == (1, 3, 4)
    assert seen == [1, 3, 4]


@pytest.mark.parametrize("context", [1, 5, 70])
def test_real_times(both, context):
    """At contexts shorter than a window and longer than a page."""
    model, drafter = both
    for curve in (
        profile_steps(model, drafter, context, (1, 4), requests=2, repeats=1),
        profile_drafts(model, drafter, context, (1, 2), repeats=1),
    ):
        assert 0 < curve.seconds[0] <= curve.seconds[1]


def test_the_median_leaves_out_the_first_run(monkeypatch):
    times = iter([0.0, 100.0, 0.0, 1.0, 0.0, 5.0, 0.0, 3.0])
    monkeypatch.setattr(profile.time, "perf_counter", lambda: next(times))
    runs = []
    assert profile._median(lambda: runs.append(1), 3, torch.device("cpu")) == 3.0
    assert len(runs) == 4
