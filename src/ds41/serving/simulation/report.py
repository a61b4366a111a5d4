"""What a simulation found: a record for each turn, totals, bytes in each tier over time, and who was where when.

Source: ds41's own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from ds41.serving.simulation.tiers import Level
from ds41.serving.turn_counts import TurnCounts

Where = Literal["queue", "encoder", "prefill", "transfer", "decode", "engine", "row", "windows", "store"]
WINDOWS = ("live", "restored", "replayed", "cold")


@dataclass(kw_only=True)
class TurnRecord(TurnCounts):
    """One turn; the counts are those of :class:`ds41.serving.TurnReport`, the times are the simulation's seconds.

    transfer_bytes: that went from prefill to decode. first_token_s: from the arrival. waited_s: in queues, for a row.
    seconds: from the arrival to the end. finish: "length", "refused" where a queue was full, None while it runs.
    """

    session: str
    turn: int
    arrived_s: float
    transfer_bytes: int = 0
    store_refused: bool = False
    waited_s: float = 0.0
    first_token_s: float | None = None
    seconds: float | None = None
    finish: str | None = None


@dataclass(frozen=True)
class Span:
    """A session was, or its state lay, ``where`` from ``begin_s`` to ``end_s``; by: the worker, if there is one."""

    session: str
    turn: int
    where: Where
    by: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class PoolUse:
    """A pool of workers: how many, and the seconds that all of them together were busy; steps that they ran."""

    name: str
    workers: int
    busy_s: float
    steps: int
    longest_queue: int

    def utilisation(self, seconds: float) -> float:
        """The share of all workers' time that was busy."""
        return self.busy_s / (self.workers * seconds) if seconds else 0.0


@dataclass
class Report:
    """Everything of one run. seconds: from 0 to the end of the last turn."""

    seconds: float
    turns: list[TurnRecord]
    pools: list[PoolUse]
    levels: dict[str, Level]
    counts: dict[str, dict[str, int]]
    spans: list[Span] = field(default_factory=list)

    @property
    def served(self) -> list[TurnRecord]:
        """Turns that came to their end."""
        return [turn for turn in self.turns if turn.finish == "length"]

    @property
    def refused(self) -> int:
        """Turns that found a queue full."""
        return sum(turn.finish == "refused" for turn in self.turns)

    def total(self, name: str) -> int:
        """A count of :class:`TurnRecord` over all turns, ``hit_tokens`` among them."""
        return sum(getattr(turn, name) for turn in self.served)

    def windows(self) -> dict[str, int]:
        """Turns by where their windows came from."""
        return {name: sum(turn.windows == name for turn in self.served) for name in WINDOWS}

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers a second, over the whole run."""
        return self.total("generated_tokens") / self.seconds if self.seconds else 0.0

    def mean(self, name: str) -> float:
        """The mean of a time over the turns that ended; 0 if there is none."""
        values = [getattr(turn, name) for turn in self.served]
        return statistics.fmean(values) if values else 0.0

    def quantile(self, name: str, share: float) -> float:
        """The time that ``share`` of the turns do not exceed."""
        return quantile([getattr(turn, name) for turn in self.served], share)

    def mean_level(self, tier: str) -> float:
        """Bytes in a tier, in the mean over the run."""
        return self.levels[tier].byte_seconds / self.seconds if self.seconds else 0.0

    def totals(self) -> dict[str, float]:
        """The run in one row of numbers."""
        found: dict[str, float] = {
            "seconds": self.seconds,
            "turns": len(self.served),
            "refused": self.refused,
            "first_token_mean_s": self.mean("first_token_s"),
            "first_token_p95_s": self.quantile("first_token_s", 0.95),
            "turn_mean_s": self.mean("seconds"),
            "waited_mean_s": self.mean("waited_s"),
            "tokens_per_s": self.tokens_per_s,
        }
        for name in ("new", "live", "resident", "store", "hit", "replayed", "computed", "generated", "verified"):
            found[f"{name}_tokens"] = self.total(f"{name}_tokens")
        found |= {f"windows_{name}": count for name, count in self.windows().items()}
        for name in ("stored_bytes", "kept_window_bytes", "store_bytes", "transfer_bytes"):
            found[name] = self.total(name)
        for pool in self.pools:
            found[f"{pool.name}_busy_s"] = pool.busy_s
            found[f"{pool.name}_utilisation"] = pool.utilisation(self.seconds)
        for name, level in self.levels.items():
            found[f"{name}_mean_bytes"], found[f"{name}_peak_bytes"] = self.mean_level(name), level.peak
        return found

    def timeline(self, sessions: Iterable[str] | None = None) -> list[Span]:
        """Spans of some sessions, or of all that were watched, by session and time."""
        wanted = None if sessions is None else set(sessions)
        spans = [span for span in self.spans if wanted is None or span.session in wanted]
        order = {name: number for number, name in enumerate(dict.fromkeys(span.session for span in self.spans))}
        return sorted(spans, key=lambda span: (order[span.session], span.begin_s, span.end_s, span.where))

    def to_dict(self, points: int = 400) -> dict:
        """For diagrams, as JSON: totals, turns, spans, and levels of at most ``points`` points each."""
        return {
            "totals": self.totals(),
            "turns": [asdict(turn) | {"hit_tokens": turn.hit_tokens} for turn in self.turns],
            "pools": [asdict(pool) | {"utilisation": pool.utilisation(self.seconds)} for pool in self.pools],
            "levels": {name: thinned(level.points, points) for name, level in self.levels.items()},
            "counts": self.counts,
            "spans": [asdict(span) for span in self.timeline()],
        }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that ``share`` of them do not exceed; 0 of none."""
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; expected more than 0 and at most 1")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else 0.0


def thinned(points: Sequence[tuple[float, int]], most: int) -> list[tuple[float, int]]:
    """At most ``most`` points of a staircase: of each stretch of time the highest."""
    if len(points) <= most:
        return list(points)
    first, last = points[0][0], points[-1][0]
    width = (last - first) / most or 1.0
    found: dict[int, tuple[float, int]] = {}
    for when, nbytes in points:
        place = min(most - 1, int((when - first) / width))
        if place not in found or nbytes > found[place][1]:
            found[place] = when, nbytes
    return list(found.values())


class Spans:
    """Collects spans of the sessions that are watched."""

    def __init__(self, clock: Callable[[], float], watched: Iterable[str]) -> None:
        self.found: list[Span] = []
        self._clock, self._watched = clock, set(watched)
        self._open: dict[tuple[str, Where], tuple[int, str, float]] = {}

    def begin(self, session: str, turn: int, where: Where, by: str = "") -> None:
        """From now on; a stay that is open under that name ends."""
        if session in self._watched:
            self.end(session, where)
            self._open[session, where] = turn, by, self._clock()

    def end(self, session: str, where: Where, when: float | None = None) -> None:
        """Until now, or until ``when``; nothing happens if none is open."""
        if (stay := self._open.pop((session, where), None)) is not None:
            turn, by, begin = stay
            end = self._clock() if when is None else when
            if end > begin:
                self.found.append(Span(session, turn, where, by, begin, end))

    def close(self) -> None:
        """End all that are open."""
        for session, where in list(self._open):
            self.end(session, where)
