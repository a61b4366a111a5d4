"""How many drafts to verify: greedy against every choice there is, where it may miss, and what it must not look at."""

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds41.dspark.schedule import (
    Always,
    Never,
    Optimum,
    Threshold,
    admit,
    drafting_pays,
    expected_tokens,
    survival,
    throughput,
)
from ds41.dspark.throughput_curve import ThroughputCurve

FLAT = ThroughputCurve((1, 64), (0.01, 0.01))
# Waves of four tokens: within one, a token more costs nothing.
WAVES = ThroughputCurve((1, 4, 5, 8, 9, 12), (1.0, 1.0, 2.0, 2.0, 3.0, 3.0))

probabilities = st.integers(0, 20).map(lambda number: number / 20)
# Products of powers of two are exact, and there are few of them: ties are common.
halves = st.sampled_from((0.0, 0.25, 0.5, 1.0))
spare_seconds = st.sampled_from((0.0, 0.1, 1.0, 7.0))


@st.composite
def confidences(draw, entries=probabilities, most: int = 3) -> torch.Tensor:
    requests, drafts = draw(st.integers(1, most)), draw(st.integers(0, 3))
    rows = draw(st.lists(entries, min_size=requests * drafts, max_size=requests * drafts))
    return torch.tensor(rows, dtype=torch.float64).view(requests, drafts)


@st.composite
def curves(draw, shape: str) -> ThroughputCurve:
    """For up to 12 tokens; "convex": each token costs as much as the one before it, or more."""
    steps = draw(st.lists(st.integers(0, 12).map(lambda number: number / 4), min_size=11, max_size=11))
    if shape == "convex":
        steps = sorted(steps)
    first = draw(st.sampled_from((0.25, 1.0, 4.0)))
    return ThroughputCurve(tuple(range(1, 13)), tuple(itertools.accumulate(steps, initial=first)))


def every_choice(drafts: int, limits: list[int]):
    return itertools.product(*(range(min(drafts, most) + 1) for most in limits))


def best_throughput_exhaustive(products, curve, draft_seconds, limits) -> float:
    return max(
        throughput(products, list(lengths), curve, draft_seconds) for lengths in every_choice(products.shape[1], limits)
    )


@given(confidences(), curves("convex"), spare_seconds, st.data())
def test_greedy_is_the_optimum_where_each_token_costs_as_much_or_more(rows, curve, draft_seconds, data):
    limits = data.draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows)))
    products = survival(rows)
    lengths = admit(products, curve, draft_seconds, limits)
    assert all(length <= min(most, rows.shape[1]) for length, most in zip(lengths, limits, strict=True))
    best = best_throughput_exhaustive(products, curve, draft_seconds, limits)
    assert throughput(products, lengths, curve, draft_seconds) == pytest.approx(best, rel=1e-12)


@given(confidences(), curves("any"), spare_seconds)
def test_greedy_is_never_worse_than_no_drafts(rows, curve, draft_seconds):
    products = survival(rows)
    none = throughput(products, [0] * len(rows), curve, draft_seconds)
    lengths = admit(products, curve, draft_seconds)
    assert throughput(products, lengths, curve, draft_seconds) >= none * (1 - 1e-12)


@given(confidences(), st.sampled_from(["flat", "line"]), spare_seconds)
def test_greedy_is_never_worse_than_all_drafts_on_a_line(rows, kind, draft_seconds):
    curve = FLAT if kind == "flat" else ThroughputCurve((1, 2), (0.5, 0.75))
    products = survival(rows)
    everything = throughput(products, [rows.shape[1]] * len(rows), curve, draft_seconds)
    lengths = admit(products, curve, draft_seconds)
    assert throughput(products, lengths, curve, draft_seconds) >= everything * (1 - 1e-12)


def test_on_a_staircase_greedy_may_miss_what_lies_behind_a_step():
    # Four requests fill a wave. One draft starts a second wave and does not pay for it; four would.
    waves = ThroughputCurve((1, 4, 5, 8), (1.0, 1.0, 1.5, 1.5))
    products = survival(torch.full((4, 1), 0.99))
    assert admit(products, waves) == [0, 0, 0, 0]
    greedy = throughput(products, [0] * 4, waves)
    assert throughput(products, [1] * 4, waves) == best_throughput_exhaustive(products, waves, 0.0, [1] * 4)
    assert throughput(products, [1] * 4, waves) > 1.3 * greedy


def test_within_a_wave_drafts_are_free():
    products = survival(torch.tensor([[0.1, 0.1, 0.1, 0.1, 0.1]]))
    assert admit(products, WAVES) == [3]


def test_greedy_by_hand():
    # Each token costs 1/2 beside a fixed 1: seconds 2, 2.5, 3, ... of 2, 3, 4, ... tokens.
    curve = ThroughputCurve((1, 2), (1.5, 2.0))
    products = survival(torch.tensor([[0.9, 0.5], [0.6, 0.9]]))
    # 2/2, 2.9/2.5, 3.5/3, 4.04/3.5 = 1.154: the third, 0.54 of request 1, does not pay.
    assert admit(products, curve) == [1, 1]
    # With a drafter of 1.5 s it does: 3.5/4.5 and 4.04/5, and then 4.49/5.5.
    assert admit(products, curve, draft_seconds=1.5) == [2, 2]
    assert expected_tokens(products, [1, 2]) == pytest.approx(2 + 0.9 + 0.6 + 0.54)
    assert throughput(products, [1, 2], curve, 1.5) == pytest.approx(4.04 / 5)


def test_ties_go_to_the_lower_request_and_the_lower_position():
    # Up to four tokens cost the same, a fifth ten times that.
    curve = ThroughputCurve((1, 4, 5, 6), (3.0, 3.0, 30.0, 60.0))
    assert admit(survival(torch.ones(2, 3)), curve) == [2, 0]
    assert admit(survival(torch.tensor([[0.5, 1.0], [0.5, 1.0], [0.75, 1.0]])), curve) == [0, 0, 1]


def test_a_draft_that_changes_nothing_is_left_out():
    assert admit(survival(torch.tensor([[1.0, 0.0, 1.0]])), FLAT) == [1]


@given(confidences(halves), curves("any"), st.data())
def test_later_confidences_do_not_change_what_is_admitted_before(rows, curve, data):
    if not rows.shape[1]:
        return
    request = data.draw(st.integers(0, len(rows) - 1))
    first = data.draw(st.integers(0, rows.shape[1] - 1))
    other = rows.clone()
    for place in range(first + 1, rows.shape[1]):
        other[request, place] = data.draw(halves)
    for policy in (Optimum(curve), Threshold(0.4), Always(2), Never()):
        before, after = policy.lengths(rows)[request], policy.lengths(other)[request]
        # Draft number first + 1 is the last whose confidence did not change.
        assert min(before, first + 1) == min(after, first + 1)


def test_choosing_the_best_of_all_does_look_at_later_confidences():
    # What the test above would catch: the first draft is taken only for the sake of the second.
    curve = ThroughputCurve((1, 2, 3), (1.0, 2.0, 2.01))
    chosen = [
        max(range(3), key=lambda count: throughput(products, [count], curve))
        for products in (survival(torch.tensor([[0.6, later]])) for later in (0.95, 0.1))
    ]
    assert chosen == [2, 0]


def test_policies():
    rows = torch.tensor([[0.9, 0.4, 0.9], [0.3, 0.9, 0.9], [0.9, 0.9, 0.9]])
    assert Never().lengths(rows) == [0, 0, 0]
    assert Always(2).lengths(rows) == [2, 2, 2]
    assert Always(5).lengths(rows, limits=[1, 9, 0]) == [1, 3, 0]
    assert Threshold(0.5).lengths(rows) == [1, 0, 3]
    assert Threshold(0.5).lengths(rows, limits=[3, 3, 1]) == [1, 0, 1]
    assert Threshold(0).lengths(rows) == [3, 3, 3]
    assert Threshold(0.4).lengths(rows.double().round(decimals=1)) == [3, 0, 3]
    assert Optimum(FLAT).lengths(rows) == [3, 3, 3]
    assert Optimum(FLAT).lengths(rows, limits=[2, 0, 7]) == [2, 0, 3]
    steep = ThroughputCurve((1, 2), (1.0, 2.0))
    assert Optimum(steep).lengths(rows) == [0, 0, 0]
    assert (
        Optimum(steep, ThroughputCurve((1, 2), (10.0, 10.0))).lengths(rows)
        == admit(survival(rows), steep, 10.0)
        != [0, 0, 0]
    )


@pytest.mark.parametrize("policy", [Never(), Always(3), Threshold(0.5), Optimum(FLAT)], ids=repr)
def test_no_requests_and_no_drafts(policy):
    assert policy.lengths(torch.zeros(0, 3)) == []
    assert policy.lengths(torch.zeros(2, 0)) == [0, 0]


def test_survival_is_the_product_so_far():
    found = survival(torch.tensor([[0.5, 0.5, 1.0], [1.0, 0.0, 0.5]]))
    assert found.dtype == torch.float64
    assert found.tolist() == [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]


def test_drafting_pays_while_tokens_are_cheap():
    # Flat up to 8 tokens, then a line: as many tokens, as many seconds.
    curve = ThroughputCurve((1, 8, 16), (8.0, 8.0, 16.0))
    shares = [0.8, 0.6, 0.4]
    assert [requests for requests in range(1, 12) if drafting_pays(curve, 1.0, shares, requests)] == [1, 2, 3, 4, 5, 6]
    # With one draft each, six requests give 10.8 tokens in 13 s, against 6 in 8; seven 12.6 in 15, against 7 in 8.
    assert not drafting_pays(curve, 1.0, [], 1)
    assert not drafting_pays(curve, 1.0, [0.0, 0.0], 1)
    assert not drafting_pays(curve, 100.0, shares, 1)
    # A drafter that costs 60% of a step: one draft is expected to give 1.5 tokens, two 1.9.
    assert not drafting_pays(FLAT, 0.006, [0.5], 1)
    assert drafting_pays(FLAT, 0.006, [0.5, 0.4], 1)


def test_a_curve_is_read_between_and_beyond_its_points():
    curve = ThroughputCurve((1, 4, 8), (1.0, 2.5, 3.5))
    assert [curve.step_seconds(count) for count in (1, 2, 3, 4, 6, 8, 12)] == [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.5]
    assert curve.steps_per_second(6) == 1 / 3
    falling = ThroughputCurve((1, 4, 8), (1.0, 2.0, 1.5))
    assert [falling.step_seconds(count) for count in (6, 8, 100)] == [1.75, 1.5, 1.5]
    with pytest.raises(ValueError, match="tokens is 0"):
        curve.step_seconds(0)


@given(curves("any"))
def test_measured_points_are_given_back_as_they_are(curve):
    assert tuple(curve.step_seconds(count) for count in curve.tokens) == curve.seconds
    assert ThroughputCurve.from_dict(json.loads(json.dumps(curve.to_dict()))) == curve


def test_smoothing_pools_what_is_out_of_order():
    curve = ThroughputCurve((1, 2, 3, 4, 5, 6), (2.0, 1.0, 3.0, 5.0, 4.0, 3.0))
    assert curve.smoothed().seconds == (1.5, 1.5, 3.0, 4.0, 4.0, 4.0)
    assert curve.smoothed().tokens == curve.tokens


@given(st.lists(st.integers(1, 40).map(float), min_size=2, max_size=7))
def test_smoothing_is_the_nearest_curve_that_never_falls(seconds):
    smooth = ThroughputCurve(tuple(range(1, len(seconds) + 1)), tuple(seconds)).smoothed().seconds
    assert all(after >= before for before, after in itertools.pairwise(smooth))
    # The min-max formula of isotonic regression, which shares no line with pooling.
    count = len(seconds)
    for place in range(count):
        expected = max(
            min(sum(seconds[low : high + 1]) / (high + 1 - low) for high in range(place, count))
            for low in range(place + 1)
        )
        assert smooth[place] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("tokens", "seconds", "message"),
    [
        ((1, 2), (1.0,), "2 token counts and 1 times"),
        ((1,), (1.0,), "has 1 points"),
        ((2, 3), (1.0, 1.0), "begins at 2 tokens"),
        ((1, 3, 3), (1.0, 1.0, 1.0), "tokens go from 3 to 3"),
        ((1, 2), (1.0, 0.0), r"a step of 2 tokens takes 0\.0 s"),
        ((1, 2), (float("nan"), 1.0), "a step of 1 tokens takes nan s"),
        ((1, 2), (1.0, float("inf")), "a step of 2 tokens takes inf s"),
    ],
)
def test_curves_that_are_none(tokens, seconds, message):
    with pytest.raises(ValueError, match=message):
        ThroughputCurve(tokens, seconds)


def test_fields_that_are_no_curve():
    with pytest.raises(ValueError, match=r"fields \['tokens'\]"):
        ThroughputCurve.from_dict({"tokens": [1, 2]})


@pytest.mark.parametrize("policy", [Never(), Always(1), Threshold(0.5), Optimum(FLAT)], ids=repr)
@pytest.mark.parametrize(
    ("rows", "limits", "message"),
    [
        ([[0.5, float("nan")]], None, r"confidences\[0, 1\] is nan"),
        ([[0.5], [1.5]], None, r"confidences\[1, 0\] is 1\.5"),
        ([[-0.5]], None, r"confidences\[0, 0\] is -0\.5"),
        ([0.5], None, r"shape \[1\]"),
        ([[0.5]], [1, 1], "2 limits for 1 requests"),
        ([[0.5]], [-1], r"limits\[0\] is -1"),
    ],
)
def test_policies_refuse_what_they_cannot_use(policy, rows, limits, message):
    with pytest.raises(ValueError, match=message):
        policy.lengths(torch.tensor(rows), limits)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: admit(torch.tensor([[0.5, 0.6]]), FLAT), r"survival\[0\] rises from 0\.5"),
        (lambda: admit(torch.tensor([[torch.nan]]), FLAT), r"survival\[0, 0\] is nan"),
        (lambda: admit(torch.tensor([0.5]), FLAT), r"survival has shape \[1\]"),
        (lambda: admit(torch.tensor([[0.5]]), FLAT, draft_seconds=-1.0), r"draft_seconds is -1\.0"),
        (lambda: Always(-1), "count is -1"),
        (lambda: Threshold(1.5), r"confidence is 1\.5"),
        (lambda: Threshold(float("nan")), "confidence is nan"),
        (lambda: drafting_pays(FLAT, 0.0, [0.5], 0), "requests is 0"),
        (lambda: drafting_pays(FLAT, 0.0, [0.5, 0.7], 1), r"survival\[0\] rises"),
    ],
)
def test_values_out_of_range(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_policies_say_whether_to_draft():
    survived = torch.tensor([0.9, 0.8])
    dear = ThroughputCurve((1, 2), (5.0, 5.0))
    assert [policy.drafts(survived, 1) for policy in (Never(), Always(0), Always(1), Threshold(0.9))] == [
        False,
        False,
        True,
        True,
    ]
    assert Optimum(FLAT).drafts(survived, 3)
    assert not Optimum(FLAT, dear).drafts(survived, 3)
    # A drafter whose time grows with the requests pays for few of them and not for many.
    growing = ThroughputCurve((1, 100), (0.01, 100.0))
    assert Optimum(FLAT, growing).drafts(survived, 1)
    assert not Optimum(FLAT, growing).drafts(survived, 50)
