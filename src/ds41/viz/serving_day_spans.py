"""The spans of a day and the bytes in each tier, checked and made ready to be drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


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
# The chart has one step for each of so many stretches of the day.
STRETCHES = 120


@dataclass(frozen=True)
class Span:
    """A session was in a state from one second to another."""

    session: str
    state: str
    from_s: float
    to_s: float


def seconds_in(spans: Sequence[Span], states: Sequence[str]) -> float:
    """Seconds that spans of some states have in all."""
    return sum(span.to_s - span.from_s for span in spans if span.state in states)


def checked_span(given: Mapping) -> Span:
    """One span as :func:`~ds41.viz.serving_day` is given it."""
    span = Span(given["session"], given["state"], given["from_s"], given["to_s"])
    if span.state not in STATES:
        raise ValueError(f"state is {span.state!r}; expected one of: {', '.join(STATES)}")
    if not -math.inf < span.from_s < span.to_s < math.inf:
        raise ValueError(
            f"a span of session {span.session!r} goes from {span.from_s} to {span.to_s} s; expected an end after its "
            "beginning"
        )
    return span


def with_gaps(spans: Sequence[Span]) -> list[Span]:
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


def levels_of(held: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
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


def thinned(points: Sequence[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    """Of each stretch of the day the most that is held in it, as a staircase; where nothing changes, one step."""
    width, found, following = (end - begin) / STRETCHES, [], 0
    level = 0.0
    for number in range(STRETCHES):
        start, most = begin + number * width, level
        while following < len(points) and points[following][0] < start + width:
            level = points[following][1]
            # What was held until the very beginning of a stretch was there at no time in it.
            most = level if points[following][0] <= start else max(most, level)
            following += 1
        if not found or most != found[-1][1]:
            found.append((start, most))
    return found
