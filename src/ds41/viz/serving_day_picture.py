"""The drawing of a day: a lane for each session, bytes by tier under them, one axis of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from ds41.viz.serving_day_spans import DOES, STATES, STRETCHES, TIERS, Span
from ds41.viz.style import readable_bytes

# Lengths along the day are counted in this many units; what is shorter than the least is drawn with it, to be seen.
_UNITS, _LEAST = 4_000, 5
_LANE, _CHART = 36, 110
_MOST_DECADES, _MOST_TICKS = 6, 6
_TICKS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


def clock(seconds: float) -> str:
    """Seconds as "1:02:03"."""
    whole = math.floor(seconds + 0.5)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def plot(sessions: Mapping[str, Sequence[Span]], levels: dict, begin: float, end: float) -> str:
    lanes = "".join(_lane(name, spans, begin, end) for name, spans in sessions.items())
    return (
        f'<div class="ds-plot" aria-hidden="true">{lanes}{_chart(levels, begin, end) if levels else ""}'
        f'<p class="ds-times">{_ticks(begin, end)}</p><i class="ds-at" hidden></i></div>'
    )


def _ticks(begin: float, end: float) -> str:
    step = next((step for step in _TICKS_S if end - begin <= step * _MOST_TICKS), _TICKS_S[-1])
    times = range(math.ceil(begin / step) * step, math.floor(end) + 1, step)
    short = 0 if step < 60 else 3
    return "".join(
        f'<span style="left:{100 * (at - begin) / (end - begin):.4g}%">{clock(at)[: -short or None]}</span>'
        for at in times
    )


def _lane(name: str, spans: Sequence[Span], begin: float, end: float) -> str:
    paths = ""
    for state in STATES:
        # Waiting is what is left where nothing else is done, so one line under all of it says the same.
        drawn = DOES if state == "tool" else (state,)
        runs = _runs([span for span in spans if span.state in drawn], begin, end)
        if runs:
            line = "".join(f"M{start} {STATES[state].middle:g}h{length}" for start, length in runs)
            paths += f'<path class="ds-{state}" d="{line}"/>'
    return (
        f'<div class="ds-lane"><span>{escape(name)}</span><svg viewBox="0 0 {_UNITS} {_LANE}" '
        f'preserveAspectRatio="none">{paths}</svg></div>'
    )


def _runs(spans: Sequence[Span], begin: float, end: float) -> list[tuple[int, int]]:
    """Start and length of each stretch, in units; what touches is one stretch, and none is too short to be seen."""
    runs: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda span: span.from_s):
        start, stop = (round(_UNITS * (at - begin) / (end - begin)) for at in (span.from_s, span.to_s))
        stop = max(stop, start + _LEAST)
        if runs and start <= sum(runs[-1]):
            start, length = runs.pop()
            stop = max(stop, start + length)
        runs.append((start, stop - start))
    return runs


def _chart(levels: Mapping[str, Sequence[tuple[float, float]]], begin: float, end: float) -> str:
    """Bytes by tier on a log axis; nothing lies on the axis itself."""
    positive = [nbytes for points in levels.values() for _, nbytes in points if nbytes > 0]
    high = math.ceil(math.log10(max(positive, default=10)))
    low = max(math.floor(math.log10(min(positive, default=1))), high - _MOST_DECADES, 0)
    high = max(high, low + 1)

    def height(nbytes: float) -> int:
        part = (math.log10(nbytes) - low) / (high - low) if nbytes > 0 else 0
        return round(_CHART * (1 - min(max(part, 0), 1)))

    def line(points: Sequence[tuple[float, float]]) -> str:
        places = [(round(_UNITS * (when - begin) / (end - begin)), height(nbytes)) for when, nbytes in points]
        (x, y), *rest = places
        return f"M{x} {y}" + "".join(f"H{x}V{y}" for x, y in rest) + f"H{_UNITS}"

    lines = "".join(f'<path class="ds-{name}" d="{line(points)}"/>' for name, points in levels.items())
    grid = "".join(
        f'<i class="ds-decade" style="top:{100 * (high - power) / (high - low):.4g}%">{readable_bytes(10**power)}</i>'
        for power in range(low, high + 1)
    )
    return (
        f'<p class="ds-label">bytes held, log axis: the most in each of {STRETCHES} stretches of time</p>'
        f'<div class="ds-chart">{grid}<svg viewBox="0 0 {_UNITS} {_CHART}" preserveAspectRatio="none">{lines}</svg>'
        "</div>"
    )


def peaks(levels: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    if not levels:
        return ""
    items = "".join(
        f'<li><i class="ds-key ds-{name}"></i>{TIERS[name]}: at most {readable_bytes(max(b for _, b in points))}</li>'
        for name, points in levels.items()
    )
    return f'<ul class="ds-legend">{items}</ul>'


def legend(states: Sequence[str]) -> str:
    items = "".join(
        f'<li><svg class="ds-key" aria-hidden="true"><path class="ds-{state}" d="M0 9h18"/></svg>'
        f"{STATES[state].words}</li>"
        for state in states
    )
    return f'<ul class="ds-legend">{items}</ul>'


def controls() -> str:
    return (
        '<form class="ds-controls"><label class="ds-field"><span>Moment of the day</span>'
        f'<input type="range" name="moment" min="0" max="{_UNITS}" step="1" value="0"></label></form>'
    )
