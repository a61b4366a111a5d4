"""Inputs of the probe, its sums over seeds, and what its findings say of numbers that are known."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from ds41.probes.replay_distance import Answer, Divergence, Recall
from ds41.probes.replay_findings import findings
from ds41.probes.replay_inputs import KINDS, Shape, Texts, requests, with_needle
from ds41.probes.replay_positions import standard_ways
from ds41.probes.replay_probe import compare_runs, control_samples, probe_positions
from ds41.probes.replay_summary import Sample, TextSample, curve_rows, needle_rows, place_rows, text_rows
from ds41.training.corpus import Corpus

sys.path.insert(0, str(Path(__file__).parent))
import replay_model

CODE = Corpus({"a.py": b"".join(b"x%d = %d\n" % (n, n * n) for n in range(400))})
TEXTS = Texts(CODE, Corpus({"b": b"A sentence of words. Another one, longer than the first.\n" * 30}))
SHAPE = Shape(32)
OFFSETS = (0, 16, 40)


def text_of(ids):
    return bytes(token - 16 for token in ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_hits_lie_where_they_should(kind, seed):
    drawn = requests(kind, TEXTS, seed, SHAPE)
    assert drawn == requests(kind, TEXTS, seed, SHAPE)
    assert drawn != requests(kind, TEXTS, seed + 1, SHAPE)
    hits = {place: request.hit for place, request in drawn.items()}
    assert hits["page edge"] % 16 == 0
    assert hits["even"] % 2 == 0
    assert hits["even"] % 16
    assert hits["odd"] % 2 == 1
    assert {hit // 16 for place, hit in hits.items() if place != "short"} == {hits["page edge"] // 16}
    assert all(len(request.ids) == SHAPE.tokens > request.hit + SHAPE.reach for request in drawn.values())
    if kind.startswith("needle"):
        assert "short" not in drawn
    else:
        assert 2 <= hits["short"] < 32
        assert all(request.answer is None for request in drawn.values())


@pytest.mark.parametrize("seed", range(8))
def test_needles_lie_outside_or_within_what_is_fed_again(seed):
    outside, within = (requests(f"needle {where}", TEXTS, seed, SHAPE) for where in ("outside", "within"))
    for place, request in outside.items():
        first, last = request.answer
        key, value = text_of(request.ids[first - 3 : first - 1]), text_of(request.ids[first:last])
        assert text_of(request.ids[first - 4 : last + 1]) == b"?" + key + b"=" + value + b"\n"
        assert value[1:2] == b"-"
        line = b"\n@" + key + b"=" + value + b"\n"
        for drawn, low, high in ((request, -32 - 12, -32), (within[place], -32, 0)):
            begin = text_of(drawn.ids[1:]).index(line) + 2
            assert begin % 2 == 1
            assert low <= begin + 8 - drawn.hit <= high
        assert within[place].hit == request.hit
        assert within[place].ids[first - 4 : last] == request.ids[first - 4 : last]
        # The query is the first thing that is new; a blank brings it to an odd position.
        assert first - 4 == request.hit + 1 - request.hit % 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((40, 30, ("a", "bb")), "two bytes for each key"),
        ((40, 30, ("aa", "bb"), ("aa", "cc")), "different keys"),
        ((40, 12, ("aa", "bb"), ("ac", "cc")), "no room"),
        ((40, 41, ("aa", "bb")), "no room"),
        ((58, 30, ("aa", "bb")), "no room"),
    ],
)
def test_needles_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        with_needle([16] * 64, *arguments)


@pytest.mark.parametrize("options", [{"page_tokens": 3}, {"page_tokens": 5}, {"window": 8}, {"reach": 8}])
def test_shapes_that_cannot_be(options):
    with pytest.raises(ValueError, match="expected 16 or more for window"):
        Shape(**({"window": 32} | options))
    with pytest.raises(ValueError, match="latest is 90; expected 96"):
        Shape(32, latest=90)


def made(kl, extra=0.0, recall=None):
    return Divergence(tuple(kl), tuple(kl), tuple(one < 0.5 for one in kl), (extra,) * len(kl), recall)


def samples(replay=(0.2, 0.1, 0.02), absent=(0.8, 0.7, 0.3), short=0.0, odd=1.0, extra=0.0, right=True, seeds=80):
    """Two kinds, seeds that differ by a tenth; odd: factor on the KL there; right: whether replay answers."""
    found = []
    for kind in ("code", "needle outside"):
        for seed in range(seeds):
            scale = 1 + 0.1 * (seed % 3)
            for place in ("short", "page edge", "even", "odd"):
                if kind == "code" or place != "short":
                    factor = {"short": short, "odd": odd}.get(place, 1.0) * scale
                    recall = Recall(1.0, right, 0.5, True) if kind != "code" else None
                    ways = {
                        "absent": made([one * scale for one in absent], extra, recall),
                        "replay": made([one * factor for one in replay], extra, recall),
                    }
                    found.append(Sample(kind, seed, place, 100, ways))
    return found


def control(exact=0.0):
    return [Sample("code", 0, "odd", 100, {"replay": made([0.2]), "exact": made([exact])})]


def verdicts(found):
    return {(one.prediction.split(" ")[0], one.kind): one.verdict for one in found}


def test_findings_of_a_design_that_holds():
    found = findings(samples(), control(), OFFSETS, 32)
    assert {one.verdict for one in found} == {"holds"}
    assert len(found) == 2 + 2 + 2 + 4 + 2 + 1


@pytest.mark.parametrize(
    ("numbers", "exact", "prediction"),
    [
        ({}, 0.01, "as many tokens as exact windows"),
        ({"short": 0.1}, 0.0, "a hit of less than a window"),
        ({"absent": (0.15, 0.08, 0.01)}, 0.0, "replay is nearer"),
        ({"replay": (0.02, 0.1, 0.2)}, 0.0, "what replay changes fades"),
        ({"odd": 1.7}, 0.0, "a hit at a place of the kind 'odd'"),
        ({"odd": 0.3}, 0.0, "a hit at a place of the kind 'odd'"),
        ({"extra": 0.02}, 0.0, "replay costs the next window"),
        ({"right": False}, 0.0, "what global entries hold"),
    ],
)
def test_each_prediction_can_be_falsified(numbers, exact, prediction):
    found = findings(samples(**numbers), control(exact), OFFSETS, 32)
    falsified = [one.prediction for one in found if one.verdict == "falsified"]
    assert falsified
    assert all(one.startswith(prediction) for one in falsified)


def test_few_seeds_decide_little():
    few = findings(samples(seeds=8), control(), OFFSETS, 32)
    needle = next(one for one in few if one.prediction.startswith("what global entries"))
    assert needle.verdict == "undecided"
    assert "0 lost" in needle.found


def test_a_model_that_finds_no_needles_says_nothing_about_them():
    blind = [
        dataclasses.replace(
            one,
            ways={way: dataclasses.replace(d, recall=Recall(5.0, False, 5.0, False)) for way, d in one.ways.items()},
        )
        for one in samples()
        if one.kind != "code"
    ]
    needle = next(one for one in findings(blind, control(), OFFSETS, 32) if one.prediction.startswith("what global"))
    assert needle.verdict == "undecided"
    assert "does not find needles" in needle.found


def test_rows_are_means_over_seeds():
    drawn = samples(odd=2.0, seeds=3)
    curve = {(row.kind, row.way, row.offset): row for row in curve_rows(drawn, OFFSETS)}
    # Three places, of which one has twice the KL; three seeds of 1, 1.1 and 1.2; short hits do not count.
    assert curve["code", "replay", 0].kl.mean == pytest.approx(0.2 * 4 / 3 * 1.1)
    assert curve["code", "replay", 0].kl.samples == 3
    assert curve["code", "absent", 40].kl.mean == pytest.approx(0.3 * 1.1)
    assert curve["code", "absent", 0].same_top.mean == 0
    assert curve["code", "replay", 16].same_top.mean == 1
    place = {(row.kind, row.place, row.way): row for row in place_rows(drawn, OFFSETS, 32)}
    assert place["code", "even", "replay"].kl.mean == pytest.approx(0.15 * 1.1)
    assert place["code", "even", "replay"].beyond_even is None
    assert place["code", "odd", "replay"].beyond_even.mean == pytest.approx(0.15 * 1.1)
    assert place["code", "short", "replay"].kl.mean == 0
    (needle, _) = needle_rows(samples(right=False, seeds=3))
    assert (needle.right.mean, needle.kept_right.mean, needle.lost.mean, needle.won.mean) == (0, 1, 1, 0)
    assert needle.loss.mean - needle.kept_loss.mean == pytest.approx(0.5)


def test_rows_of_texts():
    ways = [Answer(0.1, 1.0, True, None, 1.0), Answer(0.3, 1.0, False, 0, 0.5)]
    (row,) = text_rows([TextSample("code", n, 16, 90, {"replay": one}) for n, one in enumerate(ways)], 8)
    assert (row.kl.mean, row.same_top.mean, row.equal.mean) == (pytest.approx(0.2), 0.5, 0.5)
    assert (row.equal_share.mean, row.equal_tokens.mean, row.after) == (0.75, 4, 16)


def test_the_probe_runs_and_serialises():
    model = replay_model.build()
    run = probe_positions(model, "tiny", TEXTS, seeds=2, kinds=("code", "needle outside"), new_tokens=3, stride=20)
    assert json.loads(json.dumps(dataclasses.asdict(run), allow_nan=False))["label"] == "tiny"
    assert run.sweep.hits == tuple(range(1, 5 * replay_model.WINDOW + 1))
    short = [max(row) for hit, row in zip(run.sweep.hits, run.sweep.kl["replay"], strict=True) if hit <= 16]
    assert max(short) < 1e-9 < max(run.sweep.kl["replay"][-1])
    assert run.findings[0].verdict == "holds"
    same = compare_runs(run, run)
    assert [row.smaller for row in same] == ["undecided", "undecided"]
    half = {kind: {way: [v / 2 for v in vs] for way, vs in ways.items()} for kind, ways in run.near_kl.items()}
    assert all(row.difference.mean < 0 for row in compare_runs(run, dataclasses.replace(run, near_kl=half)))
    with pytest.raises(ValueError, match="expected the same"):
        compare_runs(run, dataclasses.replace(run, seeds=3))


def test_the_control_leaves_tokens_out():
    ways = standard_ways(replay_model.CONFIG)
    drawn = control_samples(replay_model.build(), TEXTS, ways, Shape(replay_model.WINDOW, latest=80), prompts=1)
    assert all(sample.hit > ways["exact"] for sample in drawn)
    assert all(set(sample.ways) == {"replay", "exact"} for sample in drawn)


def test_one_seed_is_too_few():
    with pytest.raises(ValueError, match="seeds is 1; expected 2 or more"):
        probe_positions(replay_model.build(), "tiny", TEXTS, seeds=1)
