"""A day of sessions: what is drawn against the spans, what is held against plain sums, and the moment pointed at."""

from __future__ import annotations

import math
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds41.viz.serving_day import serving_day
from ds41.viz.serving_day_picture import clock
from ds41.viz.serving_day_spans import DOES, LIES, STATES
from ds41.viz.style import readable_bytes

HOUR = 3600


def span(session, state, begin, end):
    return {"session": session, "state": state, "from_s": begin, "to_s": end}


DAY = [
    span("ann", "queue", 0, 10),
    span("ann", "prefill", 10, 400),
    span("ann", "decode", 400, 1_000),
    span("ann", "windows", 1_000, 1_600),
    span("ann", "store", 1_000, 4 * HOUR),
    span("ann", "prefill", 2 * HOUR, 2 * HOUR + 100),
    span("ann", "decode", 2 * HOUR + 100, 3 * HOUR),
    span("<bob>", "encoder", HOUR, HOUR + 600),
    span("<bob>", "engine", HOUR + 600, 2 * HOUR),
]
HELD = {
    "decode 0": [(0, 0), (400, 60_000_000), (3 * HOUR, 0)],
    "decode 1": [(0, 0), (HOUR, 30_000_000), (2 * HOUR, 10_000_000)],
    "windows": [(0, 0), (1_000, 2_700_000), (1_600, 0)],
    "store": [(0, 0), (1_000, 400_000_000)],
}


def paths(figure, lane):
    """Of a lane, the stretches of each state in the units of the picture."""
    svg = figure.body.split('class="ds-lane"')[1 + lane].split("</svg>")[0]
    return {
        state: [(int(start), int(length)) for start, length in re.findall(r"M(\d+) [\d.]+h(\d+)", line)]
        for state, line in re.findall(r'class="ds-(\w+)" d="([^"]*)"', svg)
    }


def cells(figure):
    return [re.findall(r">([^<>]+)</t[hd]>", row) for row in figure.table.split("<tr>")[2:]]


def test_stretches_lie_where_the_spans_lie():
    drawn = paths(serving_day(DAY), 0)
    unit = 4 * HOUR / 4_000
    assert drawn["decode"] == [(round(400 / unit), 167), (round(7_300 / unit), 972)]
    assert drawn["windows"] == [(278, 166)]
    assert drawn["store"] == [(278, 3_722)]
    # Ten seconds are less than can be seen.
    assert drawn["queue"] == [(0, 5)]
    # What a session does between its spans is to wait, so it does something all the time.
    assert drawn["tool"] == [(0, 3_000)]


@given(st.lists(st.integers(1, 4_000), min_size=2, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_all_of_a_session_s_time_is_accounted_for(lengths, chance):
    at, day = 0, []
    for number, length in enumerate(lengths):
        if number in (0, len(lengths) - 1) or chance.random() < 0.7:
            day.append(span("s", chance.choice(list(DOES)), at, at + length))
        at += length
    figure = serving_day(day)
    (row,) = cells(figure)
    assert sum(float(cell.replace(",", "")) for cell in row[1:]) == pytest.approx(at)
    for runs in paths(figure, 0).values():
        ends = [start + length for start, length in runs]
        assert all(end < start for end, (start, _) in zip(ends, runs[1:], strict=False))
        assert min(length for _, length in runs) >= 5


def test_seconds_of_each_session_stand_in_the_table():
    figure = serving_day(DAY)
    ann, bob = cells(figure)
    assert ann == ["ann", "6,200.0", "10.0", "0.0", "490.0", "4,100.0", "0.0", "600.0", "13,400.0"]
    assert bob[0] == "&lt;bob&gt;"
    assert "&lt;bob&gt;" in figure.body
    # Computed: 490 + 4,100 + 3,600 of 10,800 + 3,600 seconds.
    assert figure.title.startswith(f"Sessions are computed for {100 * 8_190 / 14_400:.2g} % of their time")
    assert figure.caption.startswith("<b>2 sessions in 4 hours.</b>")


def test_device_memory_is_the_sum_of_the_workers():
    data = serving_day(DAY, HELD).data
    assert list(data["held"]) == ["device", "windows", "store"]
    stretch = 4 * HOUR / 120
    for name, workers in (("device", ("decode 0", "decode 1")), ("windows", ("windows",)), ("store", ("store",))):
        for number in range(120):
            moments = [number * stretch + part for part in range(int(stretch))]
            most = max(sum(level(HELD[worker], moment) for worker in workers) for moment in moments)
            assert level(data["held"][name], moments[0]) == most, (name, number)


def level(points, moment):
    return [nbytes for when, nbytes in points if when <= moment][-1]


def test_bytes_are_drawn_on_a_log_axis():
    body = serving_day(DAY, HELD).body
    decades = re.findall(r'ds-decade" style="top:([\d.]+)%">([^<]+)<', body)
    assert decades[0] == ("100", "1 MB")
    assert decades[-1] == ("0", "1 GB")
    line = re.search(r'class="ds-store" d="([^"]+)"', body.split("ds-chart")[1]).group(1)
    height = int(re.findall(r"V(\d+)", line)[-1])
    assert height == round(110 * (9 - math.log10(400_000_000)) / 3)
    assert f"pages on disk: at most {readable_bytes(400_000_000)}" in body
    assert "ds-chart" not in serving_day(DAY).body


def test_the_axis_has_round_times():
    ticks = re.search(r'class="ds-times">(.*?)</p>', serving_day(DAY).body).group(1)
    assert re.findall(r">([^<]+)<", ticks) == ["0:00", "1:00", "2:00", "3:00", "4:00"]
    short = [span("a", "decode", 17, 23)]
    ticks = re.search(r'class="ds-times">(.*?)</p>', serving_day(short).body).group(1)
    assert re.findall(r'left:([\d.]+)%">([^<]+)<', ticks)[:2] == [("0", "0:00:17"), ("16.67", "0:00:18")]
    assert clock(86_399.6) == "24:00:00"


def test_a_day_of_a_dozen_agents_stays_light():
    chance = random.Random(0)
    day, held = [], {name: [(0.0, 1.0)] for name in ("decode 0", "windows", "store")}
    for number in range(12):
        at = chance.uniform(0, HOUR)
        while at < 24 * HOUR:
            for state, length in (("queue", 4), ("prefill", 10), ("decode", 90)):
                day.append(span(f"session {number}", state, at, at + length))
                at += length
            day.append(span(f"session {number}", "windows", at, at + 600))
            at += chance.lognormvariate(7, 1)
            for points in held.values():
                points.append((max(at, points[-1][0]), chance.uniform(1e6, 1e9)))
    assert len(day) > 1_000
    assert len(serving_day(day, held)._repr_html_().encode()) < 60_000


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="spans is empty"):
        serving_day([])
    with pytest.raises(ValueError, match="state is 'lunch'; expected one of: tool, queue"):
        serving_day([span("a", "lunch", 0, 1)])
    with pytest.raises(ValueError, match="a span of session 'a' goes from 2 to 2 s"):
        serving_day([span("a", "decode", 2, 2)])
    with pytest.raises(ValueError, match="goes from 2 to inf s"):
        serving_day([span("a", "decode", 2, math.inf)])
    with pytest.raises(ValueError, match="session 'a' is in 'decode' until 5 s and in 'prefill' from 4 s"):
        serving_day([span("a", "decode", 0, 5), span("a", "prefill", 4, 6)])
    for points in ([], [(2, 1), (1, 1)], [(0, -1)]):
        with pytest.raises(ValueError, match=rf"held\['store'\] has {len(points)} points"):
            serving_day(DAY, {"store": points})


# What a reader can do


@pytest.fixture
def page(look):
    return look(serving_day(DAY, HELD)._repr_html_())


def caption(page):
    return page.locator("figcaption").inner_text()


@pytest.mark.browser
def test_keys_move_the_moment(page):
    assert caption(page).startswith("2 sessions in 4 hours.")
    assert not page.locator(".ds-at").is_visible()
    slider = page.locator("input[name=moment]")
    slider.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "0:00:04"
    assert "waits for a worker: ann" in caption(page)
    page.keyboard.press("End")
    assert caption(page).startswith("4:00:00 no session does anything")
    assert "pages on disk: 1 of 2" in caption(page)


@pytest.mark.browser
def test_every_moment_is_told_as_it_was(page):
    """A span's own middle is told with its own words, however short it is drawn."""
    show = """at => {
      const slider = document.querySelector("input");
      slider.value = at;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    }"""
    for one in DAY:
        middle = (one["from_s"] + one["to_s"]) / 2
        page.evaluate(show, round(4_000 * middle / (4 * HOUR)))
        name = one["session"]
        told = name if one["state"] in DOES else "1 of 2"
        assert f"{STATES[one['state']].words}: {told}" in caption(page)
    page.evaluate(show, 4_000 * 5_000 // (4 * HOUR))
    assert "waits for a tool or a person: ann" in caption(page)
    assert "has a picture encoded" not in caption(page)
    assert "windows in DRAM: 0 of 2; pages on disk: 1 of 2" in caption(page)
    assert "held: device memory 90 MB; windows in DRAM 0 B; pages on disk 400 MB" in caption(page)


@pytest.mark.browser
def test_pointing_does_what_the_slider_does(page):
    box = page.locator(".ds-plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    assert page.locator("input[name=moment]").input_value() == "2000"
    assert caption(page).startswith("2:00:00 ")
    assert page.locator(".ds-at").is_visible()


@pytest.mark.browser
def test_lanes_say_by_place_and_thickness_what_colours_say(look):
    every = [span("s", state, number, number + 1) for number, state in enumerate(STATES)]
    page = look(serving_day(every)._repr_html_())
    thick = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".ds-lane path")].map((path) =>
          [path.getAttribute("class").slice(3), parseFloat(getComputedStyle(path).strokeWidth)]))"""
    )
    assert list(thick) == list(STATES)
    # A worker that does both and workers that do one of them are not in one picture.
    shapes = [(STATES[state].middle, thick[state]) for state in STATES if state != "engine"]
    assert len(set(shapes)) == len(shapes)
    tops, feet = ([STATES[state].middle + side * thick[state] / 2 for state in STATES] for side in (-1, 1))
    assert min(tops[len(DOES) :]) > max(feet[: len(DOES)])
    for above, below in pairwise(range(len(DOES), len(STATES))):
        assert feet[above] < tops[below]
    assert len(LIES) == len(STATES) - len(DOES)
