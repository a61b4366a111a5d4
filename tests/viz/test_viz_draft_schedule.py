"""What the scheduler makes of a curve: the library's numbers in the picture, and the script that switches them."""

from __future__ import annotations

import re

import pytest
import torch

from ds41.dspark.schedule import Optimum, admit
from ds41.dspark.throughput_curve import ThroughputCurve
from ds41.viz.draft_schedule import TOGETHER, admission_order, draft_schedule, picture, plan_of

CURVE = ThroughputCurve((1, 8, 16, 64, 192), (0.010, 0.011, 0.013, 0.030, 0.082))
# A step of 9 tokens costs a second pass; those up to 16 come with it.
STAIRCASE = ThroughputCurve((1, 8, 9, 16), (0.010, 0.010, 0.018, 0.018))
DRAFTER = ThroughputCurve((1, 8, 32), (0.0011, 0.0013, 0.0020))
GENERATOR = torch.Generator().manual_seed(5)
SURVIVAL = (0.5 + 0.5 * torch.rand(8, 5, generator=GENERATOR, dtype=torch.float64)).cumprod(1)


@pytest.fixture
def schedule_page(look):
    return look(draft_schedule(CURVE, SURVIVAL, DRAFTER)._repr_html_())


def still(page, figure, part):
    return page.evaluate(
        "([html, part]) => new DOMParser().parseFromString(html, 'text/html').querySelector(part).innerHTML",
        [figure._repr_html_(), part],
    )


# Numbers


@pytest.mark.parametrize("drafter", [None, DRAFTER], ids=["free", "timed"])
@pytest.mark.parametrize("curve", [CURVE, STAIRCASE], ids=["smooth", "staircase"])
@pytest.mark.parametrize("requests", [1, 2, 3, 8, 20])
def test_rates_are_those_of_plain_counting(curve, drafter, requests):
    plan = plan_of(curve, SURVIVAL, requests, drafter)
    rows = [SURVIVAL[request % 8].tolist() for request in range(requests)]
    likeliest = sorted((value for row in rows for value in row), reverse=True)
    drafting = drafter.step_seconds(requests) if drafter else 0.0
    expected = [
        (requests + sum(likeliest[:drafts])) / (curve.step_seconds(requests + drafts) + drafting)
        for drafts in range(5 * requests + 1)
    ]
    assert plan.rates == pytest.approx(expected, rel=1e-12)
    assert plan.never == requests / curve.step_seconds(requests)
    # The greedy rule: up to the first that does not raise the rate.
    stop = next((n for n in range(5 * requests) if not expected[n + 1] > expected[n] * (1 + 1e-12)), 5 * requests)
    assert plan.admitted == stop


@pytest.mark.parametrize("curve", [CURVE, STAIRCASE], ids=["smooth", "staircase"])
def test_the_order_is_the_scheduler_s(curve):
    # Equal survivals, within a request and between requests, are where orders could differ.
    tied = torch.tensor([[0.9, 0.5, 0.5], [0.9, 0.9, 0.1], [0.5, 0.5, 0.0]])
    for rows in (SURVIVAL, tied, torch.ones(4, 5)):
        lengths = admit(rows, curve)
        order = admission_order(rows.double())[: sum(lengths)]
        assert [order.count(request) for request in range(len(rows))] == lengths
    assert plan_of(curve, SURVIVAL, 8).lengths == tuple(Optimum(curve).lengths(_confidences(SURVIVAL)))


def _confidences(survival):
    before = torch.cat((torch.ones(len(survival), 1, dtype=survival.dtype), survival[:, :-1]), 1)
    return survival / before


# The picture


def test_the_picture_shows_the_plan():
    plan = plan_of(CURVE, SURVIVAL, 8, DRAFTER)
    html = picture(plan, 5)
    values = re.findall(r"</dt><dd>([\d,]+)</dd>", html)
    assert values == [f"{rate:,.0f}" for rate in (plan.never, plan.rates[-1], plan.rates[plan.admitted])]
    lines = [points.split() for points in re.findall(r'points="([^"]*)"', html)]
    # The two lines meet at the last draft that is admitted.
    assert lines[0][-1] == lines[1][0]
    assert [len(line) for line in lines] == [plan.admitted + 1, 41 - plan.admitted]
    top = float(re.search(r'style="top:calc\(100% \* 0 / \d\)">([\d.]+)<', html).group(1))
    assert max(plan.rates) <= top < 2 * max(plan.rates)
    for point, rate in zip([*lines[0], *lines[1][1:]], plan.rates, strict=True):
        assert float(point.split(",")[1]) == pytest.approx(1000 - 1000 * rate / top, abs=0.06)
    marks = dict(re.findall(r'ds-mark ds-(\w+)" style="left:calc\(([\d.]+)% / 10\)', html))
    assert {name: float(at) for name, at in marks.items()} == pytest.approx(
        {"never": 0, "every": 1000, "best": 1000 * plan.admitted / 40}
    )
    heights = re.findall(r'<i class="ds-fill" style="height:calc\(100% \* (\d) / 5\)', html)
    assert tuple(map(int, heights)) == plan.lengths


def test_the_title_and_the_table_cover_all_numbers_of_requests():
    figure = draft_schedule(CURVE, SURVIVAL, DRAFTER)
    alone, many = (plan_of(CURVE, SURVIVAL, requests, DRAFTER) for requests in (1, 32))
    found = re.fullmatch(
        r"Of 5 drafts a request, ([\d.]+) are worth verifying when 1 request runs, ([\d.]+) when 32 run", figure.title
    )
    assert [float(one) for one in found.groups()] == pytest.approx([alone.admitted, many.admitted / 32], rel=0.05)
    assert alone.admitted > many.admitted / 32
    rows = re.findall(r'<th scope="row"[^>]*>(\d+)</th>(.*?)</tr>', figure.table)
    assert [int(requests) for requests, _ in rows] == list(TOGETHER)
    for requests, cells in rows:
        plan = plan_of(CURVE, SURVIVAL, int(requests), DRAFTER)
        assert re.findall(r">([^<>]+)</td>", cells)[3] == str(plan.admitted)


def test_a_draft_behind_one_that_does_not_pay_is_told():
    sure = torch.ones(2, 7)
    figure = draft_schedule(STAIRCASE, sure, together=(2,))
    plan = plan_of(STAIRCASE, sure, 2)
    assert plan.admitted == 6
    assert plan.rates.index(max(plan.rates)) == 14
    assert "The rule admits 6 of 14 drafts" in figure.caption
    assert "14 drafts would bring 889 tokens a second" in figure.caption
    assert "would bring" not in draft_schedule(CURVE, SURVIVAL).caption


def test_drafting_that_does_not_pay_is_told():
    slow = ThroughputCurve((1, 2), (0.05, 0.05))
    caption = draft_schedule(CURVE, SURVIVAL, slow, together=(8,)).caption
    assert caption.endswith("<span>Plain decoding is at least as fast.</span>")
    assert "50 ms of drafting before it" in caption
    assert "Plain" not in draft_schedule(CURVE, SURVIVAL, together=(8,)).caption
    flat = ThroughputCurve((1, 2), (0.01, 0.01))
    assert "All 10 raise the rate." in draft_schedule(flat, torch.full((2, 5), 0.5), together=(2,)).caption
    assert "One more would not raise the rate." in draft_schedule(flat, torch.zeros(2, 5), together=(2,)).caption


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"survival": torch.ones(5)}, "survival has shape [5]; expected [requests, drafts]"),
        ({"survival": torch.ones(0, 5)}, "survival has shape [0, 5]"),
        ({"survival": torch.tensor([[0.5, 0.75]])}, "survival[0] rises from 0.5 to 0.75"),
        ({"together": (0, 1)}, "together is [0, 1]; expected rising numbers of requests"),
        ({"together": (2, 1)}, "together is [2, 1]; expected rising"),
        ({"together": ()}, "together is []; expected rising"),
        ({"shown": 3}, "shown is 3; expected one of: 1, 2, 4, 8, 16, 32"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        draft_schedule(**{"curve": CURVE, "survival": SURVIVAL, **arguments})


# What a reader can do


@pytest.mark.browser
def test_every_number_of_requests_is_drawn_as_in_python(schedule_page):
    for requests in TOGETHER:
        schedule_page.locator(f"input[name=together][value='{requests}']").check()
        figure = draft_schedule(CURVE, SURVIVAL, DRAFTER, shown=requests)
        for part in (".ds-picture", "figcaption"):
            assert schedule_page.locator(part).inner_html() == still(schedule_page, figure, part), requests


@pytest.mark.browser
def test_keys_change_the_number_of_requests(schedule_page):
    schedule_page.keyboard.press("Tab")
    schedule_page.keyboard.press("ArrowRight")
    assert schedule_page.locator("figcaption").inner_text().startswith("16 requests.")
    assert schedule_page.locator(".ds-request").count() == 16


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 760])
def test_bars_fill_their_requests_to_scale(look, width):
    page = look(draft_schedule(CURVE, SURVIVAL, DRAFTER, shown=32)._repr_html_(), width=width)
    shares = page.evaluate(
        "[...document.querySelectorAll('.ds-request')].map(e => e.firstElementChild.offsetHeight / e.clientHeight)"
    )
    lengths = plan_of(CURVE, SURVIVAL, 32, DRAFTER).lengths
    assert shares == pytest.approx([length / 5 for length in lengths], abs=0.03)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
