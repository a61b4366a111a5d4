"""What a tier holds over time, and the first of the two below a model's memory: windows for minutes.

The rules are those of :class:`ds41.serving.HostWindowPool`; what is kept is only how much there is of whom.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from ds41.serving.windows import LIFETIME_S

Clock = Callable[[], float]


@dataclass
class Level:
    """Bytes in a tier over time: (seconds, bytes) where they changed, and their integral in byte-seconds.

    to_come: byte-seconds that what is there at the end will still take, if nobody asks for it until it expires.
    """

    clock: Clock
    points: list[tuple[float, int]] = field(default_factory=list)
    byte_seconds: float = 0.0
    to_come: float = 0.0

    def set(self, nbytes: int, when: float | None = None) -> None:
        """The tier holds ``nbytes`` from now on, or since ``when``, if that has not been told yet."""
        now = self.clock() if when is None else when
        if self.points:
            then, before = self.points[-1]
            self.byte_seconds += (now - then) * before
            if then == now:
                self.points.pop()
        self.points.append((now, nbytes))

    def close(self) -> None:
        """Count up to now."""
        self.set(self.points[-1][1] if self.points else 0)

    @property
    def peak(self) -> int:
        """The most bytes there ever were."""
        return max((nbytes for _, nbytes in self.points), default=0)


@dataclass
class _Window:
    length: int
    nbytes: int
    expires_s: float


class WindowTier:
    """Windows of sessions: one entry each, for ``lifetime_s`` seconds, within ``budget_bytes``.

    lifetime_s: 0 keeps nothing. budget_bytes: None for no limit. The entry unused for longest makes room.
    on_end: called with a session and why its entry ended: "taken over" by a newer one, "expired" or "evicted".
    """

    def __init__(
        self,
        clock: Clock,
        lifetime_s: float = LIFETIME_S,
        budget_bytes: int | None = None,
        on_end: Callable[[str, str, float], None] | None = None,
    ) -> None:
        if not lifetime_s >= 0:
            raise ValueError(f"lifetime_s is {lifetime_s}; expected 0 or more seconds")
        if budget_bytes is not None and budget_bytes < 0:
            raise ValueError(f"budget_bytes is {budget_bytes}; expected 0 or more, or None for no limit")
        self.lifetime_s, self.budget_bytes = lifetime_s, math.inf if budget_bytes is None else budget_bytes
        self.level, self.counts = Level(clock), dict.fromkeys(("puts", "refused", "hits", "expired", "evicted"), 0)
        self._clock, self._on_end = clock, on_end
        # By when they were put, and so by when they expire; and by when they were last used.
        self._entries: OrderedDict[str, _Window] = OrderedDict()
        self._used: OrderedDict[str, None] = OrderedDict()
        self._held = 0

    def put(self, session: str, length: int, nbytes: int) -> bool:
        """Keep a session's windows at ``length`` tokens in place of its older ones; False if there is no room."""
        self._settle()
        now = self._clock()
        if nbytes > self.budget_bytes or not self.lifetime_s:
            self.counts["refused"] += 1
            return False
        # The session's older windows go once the new ones are there, so for a moment both have to fit.
        while self._held + nbytes > self.budget_bytes:
            self.counts["evicted"] += 1
            self._forget(next(iter(self._used)), "evicted", now)
        if session in self._entries:
            self._forget(session, "taken over", now)
        self._used[session] = None
        self._entries[session] = _Window(length, nbytes, now + self.lifetime_s)
        self._held += nbytes
        self.counts["puts"] += 1
        self.level.set(self._held)
        return True

    def take(self, session: str, tokens: int, window: int) -> tuple[int, int] | None:
        """Length and bytes of the session's windows if they end at ``tokens`` or less than a window before."""
        self._settle()
        entry = self._entries.get(session)
        if entry is None or not max(0, tokens - window) < entry.length <= tokens:
            return None
        self.counts["hits"] += 1
        self._used.move_to_end(session)
        return entry.length, entry.nbytes

    def close(self) -> None:
        """The run is over: recycle what has expired, and count what will."""
        self._settle()
        self.level.close()
        now = self._clock()
        self.level.to_come = sum(entry.nbytes * (entry.expires_s - now) for entry in self._entries.values())

    def _settle(self) -> None:
        now = self._clock()
        while self._entries:
            session, entry = next(iter(self._entries.items()))
            if entry.expires_s > now:
                return
            self.counts["expired"] += 1
            self._forget(session, "expired", entry.expires_s)

    def _forget(self, session: str, reason: str, when: float) -> None:
        self._held -= self._entries.pop(session).nbytes
        del self._used[session]
        self.level.set(self._held, when)
        if self._on_end:
            self._on_end(session, reason, when)
