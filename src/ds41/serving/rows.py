"""Who has which row of the cache, and which pages: turns that run, and sessions that wait for their next turn."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ds41.cache import Cache
from ds41.serving.resident import ResidentPages
from ds41.serving.turn import Turn

if TYPE_CHECKING:
    from ds41.serving.session import Session


class Rows:
    """The rows of a cache, each free, active (a turn runs in it) or parked (its session may come back)."""

    def __init__(self, cache: Cache, resident: ResidentPages) -> None:
        self._cache, self._resident = cache, resident
        self._free = list(range(cache.batch - 1, -1, -1))
        self.active: dict[int, Turn] = {}
        # The one that was parked first comes first.
        self._parked: OrderedDict[int, Session] = OrderedDict()

    def pages_for(self, turn: Turn) -> int:
        """Pages of the sequence at its longest, one more for a last page that it shares and has to copy."""
        return self._cache.pool.layout.pages_for(turn.most_tokens) + 1

    def room_for(self, turn: Turn) -> int | None:
        """A row, and pages for all that a turn may become, taken from whoever only waits; None if others need them.

        What the running turns may still need counts as taken, so none of them runs out of pages on its way.
        """
        if turn.session.row is None and not self._free:
            idle = self._longest_parked()
            if idle is None:
                return None
            self.take_back(idle)
        row = self._free[-1] if turn.session.row is None else turn.session.row
        wanted = [(row, turn), *self.active.items()]
        promised = sum(max(0, self.pages_for(one) - self._cache.held_pages(its)) for its, one in wanted)
        while (missing := promised - self._cache.pool.free_pages) > 0:
            if self._resident.let_go(missing):
                continue
            idle = self._longest_parked(but=turn.session)
            if idle is None:
                return None
            self.take_back(idle)
        return row

    def start(self, row: int, turn: Turn) -> None:
        """Let a turn run in a free row, or in the one that its session parked."""
        if self._parked.pop(row, None) is None:
            self._free.remove(row)
        self.active[row] = turn

    def park(self, row: int) -> None:
        """The turn has ended; its session keeps the row."""
        session = self.active.pop(row).session
        self._parked[row] = session

    def empty(self, row: int) -> None:
        """Nobody has the row, nor what was in it."""
        turn = self.active.pop(row, None)
        session = self._parked.pop(row, None) if turn is None else turn.session
        session.row = None
        self._cache.reset(row)
        self._free.append(row)

    def take_back(self, session: Session) -> None:
        """Take the row of a session that is not being answered; what it held is in the tiers below."""
        if session.row is not None:
            self.empty(session.row)

    def take_back_all(self) -> None:
        """Take the rows of all sessions that wait."""
        for session in list(self._parked.values()):
            self.take_back(session)

    def _longest_parked(self, but: Session | None = None) -> Session | None:
        return next((session for session in self._parked.values() if session is not but), None)
