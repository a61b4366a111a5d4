"""A day of sessions: what each of them did when, where its state lay meanwhile, and how many bytes each tier held.

The spans come from a simulation or from a log; the figure knows nothing of where. ``js/day.js`` reads what was drawn
at the moment that a reader points at.

Source: ds41's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import NamedTuple

from ds41.viz.diagram import Diagram, table
from ds41.viz.style import readable_bytes


class Look(NamedTuple):
    """Where the line of a state lies in a lane, in pixels from the top, and what the state is called."""

    middle: float
    words: str


# What a session does: one at a time. "engine": a worker that reads prompts and writes answers alike.
DOES = {
    "tool": Look(10, "waits for a tool or a person"),
    "queue": Look(16, "waits for a worker"),
    "encoder": Look(6, "has a picture encoded"),
    "prefill": Look(10, "prompt is read"),
    "transfer": Look(8, "is handed over"),
    "decode": Look(13, "answer is written"),
    "engine": Look(10, "is computed"),
}
# Where its state lies: any of them at once.
LIES = {
    "row": Look(22.5, "pages and windows in device memory"),
    "windows": Look(27.5, "windows in DRAM"),
    "store": Look(32.5, "pages on disk"),
}
STATES = DOES | LIES
COMPUTED = ("encoder", "prefill", "decode", "engine")
TIERS = {"device": "device memory", "windows": "windows in DRAM", "store": "pages on disk"}
# Lengths along the day are counted in this many units; what is shorter than the least is drawn with it, to be seen.
_UNITS, _LEAST = 4_000, 5
_LANE, _CHART = 36, 110
_MOST_DECADES, _MOST_STRETCHES, _MOST_TICKS = 6, 120, 6
_TICKS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


@dataclass(frozen=True)
class Span:
    """A session was in a state from one second to another."""

    session: str
    state: str
    from_s: float
    to_s: float


def serving_day(
    spans: Sequence[Mapping],
    held: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    title: str | None = None,
) -> Diagram:
    """Lanes of sessions over one axis of time, and the bytes in each tier under them.

    Args:
        spans: ``{"session": str, "state": str, "from_s": float, "to_s": float}``, the state one of ``STATES``. Where a
            session does nothing between two spans, it waits for a tool.
        held: (second, bytes) from which on a tier holds so much, of these sessions and of any others. "windows" and
            "store" are those tiers; all other names are workers, whose device memory is added up. Drawn is the most
            in each of 120 stretches of time.
        title: the message; the part of their time for which sessions are computed if None.

    Raises:
        ValueError: no spans, an unknown state, a span that ends before it begins, two things done at once, or bytes
            that are negative or not in the order of time.
    """
    day = [_checked(span) for span in spans]
    if not day:
        raise ValueError("spans is empty; expected one or more")
    begin, end = min(span.from_s for span in day), max(span.to_s for span in day)
    sessions = {name: _with_gaps([span for span in day if span.session == name]) for name in _names(day)}
    levels = {name: _thinned(points, begin, end) for name, points in _levels(held or {}).items()}
    states = [state for state in STATES if any(span.state == state for one in sessions.values() for span in one)]
    return Diagram(
        kind="day",
        title=title or _message(sessions),
        body=_plot(sessions, levels, begin, end) + _controls() + _legend(states) + _peaks(levels),
        caption=_overview(sessions, end - begin),
        table=_table(sessions, states),
        table_title="Seconds of each session as a table",
        data={
            "from": begin,
            "to": end,
            "words": {state: STATES[state].words for state in states},
            "does": [state for state in states if state in DOES],
            "lies": [state for state in states if state in LIES],
            "tiers": {name: TIERS[name] for name in levels},
            "held": {name: [[round(when, 1), round(nbytes)] for when, nbytes in at] for name, at in levels.items()},
        },
    )


def seconds_in(spans: Sequence[Span], states: Sequence[str]) -> float:
    """Seconds that spans of some states have in all."""
    return sum(span.to_s - span.from_s for span in spans if span.state in states)


def clock(seconds: float) -> str:
    """Seconds as "1:02:03"."""
    whole = math.floor(seconds + 0.5)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _checked(given: Mapping) -> Span:
    span = Span(given["session"], given["state"], given["from_s"], given["to_s"])
    if span.state not in STATES:
        raise ValueError(f"state is {span.state!r}; expected one of: {', '.join(STATES)}")
    if not -math.inf < span.from_s < span.to_s < math.inf:
        raise ValueError(
            f"a span of session {span.session!r} goes from {span.from_s} to {span.to_s} s; expected an end after its "
            "beginning"
        )
    return span


def _names(day: Sequence[Span]) -> list[str]:
    return list(dict.fromkeys(span.session for span in day))


def _with_gaps(spans: Sequence[Span]) -> list[Span]:
    """A session's spans in the order of time, with the waits for its tools in between."""
    ordered = sorted(spans, key=lambda span: (span.from_s, span.to_s))
    done = [span for span in ordered if span.state in DOES]
    for before, after in pairwise(done):
        if after.from_s < before.to_s - 1e-6:
            raise ValueError(
                f"session {after.session!r} is in {before.state!r} until {before.to_s} s and in {after.state!r} from "
                f"{after.from_s} s; expected one after the other"
            )
        if after.from_s > before.to_s:
            ordered.append(Span(after.session, "tool", before.to_s, after.from_s))
    return ordered


def _levels(held: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """Bytes over time by tier; device memory is the sum of the workers'."""
    for name, points in held.items():
        times = [when for when, _ in points]
        if not points or times != sorted(times) or min(nbytes for _, nbytes in points) < 0:
            raise ValueError(f"held[{name!r}] has {len(points)} points; expected bytes of 0 or more in order of time")
    workers = [points for name, points in held.items() if name not in TIERS or name == "device"]
    levels = {"device": _sum(workers)} if workers else {}
    return levels | {name: list(held[name]) for name in ("windows", "store") if name in held}


def _sum(staircases: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    steps = sorted(
        (when, nbytes - before)
        for points in staircases
        for (when, nbytes), before in zip(points, [0, *(nbytes for _, nbytes in points)], strict=False)
    )
    total, found = 0.0, {}
    for when, change in steps:
        total += change
        found[when] = total
    return list(found.items())


def _thinned(points: Sequence[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    """Of each stretch of the day the most that is held in it, as a staircase; where nothing changes, one step."""
    width, found, following = (end - begin) / _MOST_STRETCHES, [], 0
    level = 0.0
    for number in range(_MOST_STRETCHES):
        start, most = begin + number * width, level
        while following < len(points) and points[following][0] < start + width:
            level = points[following][1]
            # What was held until the very beginning of a stretch was there at no time in it.
            most = level if points[following][0] <= start else max(most, level)
            following += 1
        if not found or most != found[-1][1]:
            found.append((start, most))
    return found


def _message(sessions: Mapping[str, Sequence[Span]]) -> str:
    return (
        f"Sessions are computed for {_share(sessions, COMPUTED)} of their time; meanwhile their state waits in cheaper "
        "and cheaper memory"
    )


def _share(sessions: Mapping[str, Sequence[Span]], states: Sequence[str]) -> str:
    """Of the time in which sessions do anything, the part that they are in some states."""
    done = sum(seconds_in(spans, tuple(DOES)) for spans in sessions.values())
    part = sum(seconds_in(spans, states) for spans in sessions.values())
    return _percent(part / done) if done else "0 %"


def _percent(share: float) -> str:
    """In percent, with two digits of whichever of the share and its rest is smaller."""
    value, rest = 100 * share, 100 * (1 - share)
    if value < 10:
        return f"{value:.2g} %"
    return f"{value:.{max(0, 1 - math.floor(math.log10(rest))) if 0 < rest < 10 else 0}f} %"


def _overview(sessions: Mapping[str, Sequence[Span]], seconds: float) -> str:
    return (
        f"<b>{len(sessions)} session{'' if len(sessions) == 1 else 's'} in {seconds / 3600:.3g} hours.</b> Of "
        f"their time they wait {_share(sessions, ('tool',))} for tools and {_share(sessions, ('queue',))} for workers; "
        f"{_share(sessions, ('prefill', 'encoder'))} goes into prompts, {_share(sessions, ('decode',))} into answers."
    )


def _plot(sessions: Mapping[str, Sequence[Span]], levels: dict, begin: float, end: float) -> str:
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
        f'<p class="ds-label">bytes held, log axis: the most in each of {_MOST_STRETCHES} stretches of time</p>'
        f'<div class="ds-chart">{grid}<svg viewBox="0 0 {_UNITS} {_CHART}" preserveAspectRatio="none">{lines}</svg>'
        "</div>"
    )


def _peaks(levels: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    if not levels:
        return ""
    items = "".join(
        f'<li><i class="ds-key ds-{name}"></i>{TIERS[name]}: at most {readable_bytes(max(b for _, b in points))}</li>'
        for name, points in levels.items()
    )
    return f'<ul class="ds-legend">{items}</ul>'


def _legend(states: Sequence[str]) -> str:
    items = "".join(
        f'<li><svg class="ds-key" aria-hidden="true"><path class="ds-{state}" d="M0 9h18"/></svg>'
        f"{STATES[state].words}</li>"
        for state in states
    )
    return f'<ul class="ds-legend">{items}</ul>'


def _controls() -> str:
    return (
        '<form class="ds-controls"><label class="ds-field"><span>Moment of the day</span>'
        f'<input type="range" name="moment" min="0" max="{_UNITS}" step="1" value="0"></label></form>'
    )


def _table(sessions: Mapping[str, Sequence[Span]], states: Sequence[str]) -> str:
    rows = [(name, *(f"{seconds_in(spans, (state,)):,.1f}" for state in states)) for name, spans in sessions.items()]
    header = ("session", *(STATES[state].words for state in states))
    return table(header, rows, numeric=tuple(range(1, len(header))))
