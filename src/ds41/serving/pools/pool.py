"""A pool of workers of one kind: who has which of their slots, and who waits for one.

Source: ds41's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ds41.serving.pools.jobs import Worker
from ds41.serving.pools.requests import PoolName
from ds41.serving.pools.staff import Member, Staff, close_all


class Pool(Staff):
    """Workers that are made when they are needed and replaced when they are lost.

    Args:
        name: of the pool. make: a worker of a given name; called in threads of the pool's own, so it may take its time.
        workers: how many there should be. slots: jobs that one of them takes at a time.
        restarts: starts in a row that may fail; after one more the pool gives up.

    Raises:
        ValueError: a size that cannot be.
    """

    def __init__(
        self, name: PoolName, make: Callable[[str], Worker], workers: int = 1, slots: int = 8, restarts: int = 5
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots of the {name} pool is {slots}; expected 1 or more")
        self.slots = slots
        self._line: deque[object] = deque()
        self._waiting = 0
        super().__init__(name, make, workers, restarts)

    @contextmanager
    def lease(
        self, prefer: str | None = None, abandoned: Callable[[], bool] = lambda: False, alone: bool = False
    ) -> Iterator[Member | None]:
        """A slot of the preferred worker if it has one, else of the one with most room; whoever came first is next.

        Args:
            abandoned: says that nobody waits any more; :meth:`wake` lets the pool ask, and gives None. alone: take a
                worker that has nothing else to do, and keep others from it.

        Raises:
            NoWorkers: there is none left, and no other may be started; or the pool is closed.
        """
        member = self._take(prefer, abandoned, alone)
        try:
            yield member
        finally:
            if member is not None:
                self._give_back(member, alone)

    def wake(self) -> None:
        """Let those who wait look whether they still want to."""
        with self._changed:
            self._changed.notify_all()

    def done(self) -> None:
        """A job has been done: losses before it do not count any more."""
        with self._changed:
            self._losses = 0

    def status(self) -> dict[str, int]:
        """workers: wanted. live: those that take jobs. running, waiting: jobs. lost: workers since the start."""
        with self._changed:
            self._drop_dead()
            return {
                "workers": self._wanted,
                "live": len(self._staying()),
                "running": sum(member.running for member in self._members.values()),
                "waiting": self._waiting,
                "lost": self._lost,
            }

    def _take(self, prefer: str | None, abandoned: Callable[[], bool], alone: bool) -> Member | None:
        ticket, claim, chosen = object(), None, None
        with self._changed:
            self._waiting += 1
            if not alone:
                self._line.append(ticket)
            try:
                while True:
                    if abandoned():
                        return None
                    self._drop_dead()
                    if self._given_up:
                        raise self._no_workers()
                    if alone:
                        claim = self._claim(claim)
                        chosen = claim if claim is not None and not claim.running else None
                    elif self._line[0] is ticket:
                        chosen = self._choose(prefer)
                    if chosen is not None:
                        chosen.running += 1
                        return chosen
                    self._changed.wait()
            finally:
                self._waiting -= 1
                if not alone:
                    self._line.remove(ticket)
                if claim is not None and chosen is None:
                    claim.claimed = False
                self._changed.notify_all()

    def _choose(self, prefer: str | None) -> Member | None:
        free = [member for member in self._staying() if member.running < self.slots and not member.claimed]
        return min(free, key=lambda member: (member.name != prefer, member.running), default=None)

    def _claim(self, claim: Member | None) -> Member | None:
        """A worker that takes no other job from now on; the one that was claimed before, if it is still there."""
        if claim is not None and not claim.leaving and self._members.get(claim.name) is claim:
            return claim
        if claim is not None:
            # It leaves, but may be asked to stay after all.
            claim.claimed = False
        free = [member for member in self._staying() if not member.claimed]
        claim = min(free, key=lambda member: member.running, default=None)
        if claim is not None:
            claim.claimed = True
        return claim

    def _give_back(self, member: Member, alone: bool) -> None:
        with self._changed:
            member.running -= 1
            if alone:
                member.claimed = False
            closing = member.leaving and not member.running and self._members.pop(member.name, None) is not None
            self._changed.notify_all()
        if closing:
            close_all([member])
