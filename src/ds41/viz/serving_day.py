"""A day of sessions: what each of them did when, where its state lay meanwhile, and how many bytes each tier held.

The spans come from a simulation or from a log; the figure knows nothing of where. ``js/day.js`` reads what was drawn
at the moment that a reader points at.

Source: ds41's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ds41.viz.diagram import Diagram, table
from ds41.viz.serving_day_picture import controls, legend, peaks, plot
from ds41.viz.serving_day_spans import (
    COMPUTED,
    DOES,
    LIES,
    STATES,
    TIERS,
    Span,
    checked_span,
    levels_of,
    seconds_in,
    thinned,
    with_gaps,
)


def serving_day(
    spans: Sequence[Mapping],
    held: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    title: str | None = None,
) -> Diagram:
    """Lanes of sessions over one axis of time, and the bytes in each tier under them.

    Args:
        spans: ``{"session": str, "state": str, "from_s": float, "to_s": float}``, the state one of
            ``serving_day_spans.STATES``. Where a session does nothing between two spans, it waits for a tool.
        held: (second, bytes) from which on a tier holds so much, of these sessions and of any others. "windows" and
            "store" are those tiers; all other names are workers, whose device memory is added up. Drawn is the most
            in each of 120 stretches of time.
        title: the message; the part of their time for which sessions are computed if None.

    Raises:
        ValueError: no spans, an unknown state, a span that ends before it begins, two things done at once, or bytes
            that are negative or not in the order of time.
    """
    day = [checked_span(span) for span in spans]
    if not day:
        raise ValueError("spans is empty; expected one or more")
    begin, end = min(span.from_s for span in day), max(span.to_s for span in day)
    names = dict.fromkeys(span.session for span in day)
    sessions = {name: with_gaps([span for span in day if span.session == name]) for name in names}
    levels = {name: thinned(points, begin, end) for name, points in levels_of(held or {}).items()}
    states = [state for state in STATES if any(span.state == state for one in sessions.values() for span in one)]
    return Diagram(
        kind="day",
        title=title or _message(sessions),
        body=plot(sessions, levels, begin, end) + controls() + legend(states) + peaks(levels),
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


def _table(sessions: Mapping[str, Sequence[Span]], states: Sequence[str]) -> str:
    rows = [(name, *(f"{seconds_in(spans, (state,)):,.1f}" for state in states)) for name, spans in sessions.items()]
    header = ("session", *(STATES[state].words for state in states))
    return table(header, rows, numeric=tuple(range(1, len(header))))
