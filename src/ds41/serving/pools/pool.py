"""A pool of workers of one kind: slots, waiting, scaling, and replacing those that are lost.

Source: ds41's own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ds41.serving.pools.jobs import Worker
from ds41.serving.pools.requests import NoWorkers, PoolName

# Before a worker is made in place of one that was lost; twice as long after each that is lost in a row, up to 5 s.
_PAUSE_S = 0.05


@dataclass(eq=False)
class Member:
    """A worker of a pool. running: jobs that it has now. leaving: it takes no more, and is closed after the last.

    claimed: for a job that is to have it alone; it takes no other.
    """

    name: str
    worker: Worker
    running: int = 0
    leaving: bool = False
    claimed: bool = False


class Pool:
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
        for what, value, least in (("workers", workers, 1), ("slots", slots, 1), ("restarts", restarts, 0)):
            if value < least:
                raise ValueError(f"{what} of the {name} pool is {value}; expected {least} or more")
        self.name, self.slots = name, slots
        self._make, self._restarts = make, restarts
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self._line: deque[object] = deque()
        self._wanted, self._starting, self._made, self._waiting = 0, 0, 0, 0
        # In a row: workers lost without a job done in between, and starts that failed.
        self._losses, self._failures = 0, 0
        self._lost, self._last_error = 0, ""
        self._closed = False
        self.scale(workers)

    def scale(self, workers: int) -> None:
        """Have that many workers from now on: new ones are started, those with least to do leave when they are done.

        A pool that had given up tries again.

        Raises:
            ValueError: less than one.
        """
        if workers < 1:
            raise ValueError(f"workers of the {self.name} pool is {workers}; expected 1 or more")
        with self._changed:
            self._drop_dead()
            self._wanted, self._losses, self._failures = workers, 0, 0
            staying = sorted(self._staying(), key=lambda member: member.running)
            # Who is still being started does not count: it may fail, or take its time.
            for member in staying[: max(0, len(staying) - workers)]:
                member.leaving = True
            leaving = [member for member in self._members.values() if member.leaving and member.running]
            for member in leaving[: max(0, workers - len(staying) - self._starting)]:
                member.leaving = False
            self._fill()
            idle = [member for member in self._members.values() if member.leaving and not member.running]
            for member in idle:
                del self._members[member.name]
            self._changed.notify_all()
        _close(idle)

    def wait_ready(self, seconds: float | None = None) -> None:
        """Wait until all workers that are wanted have started.

        Raises:
            NoWorkers: some cannot be made, or the pool is closed. TimeoutError: it took longer than ``seconds``.
        """
        with self._changed:
            self._drop_dead()
            ready = self._changed.wait_for(lambda: len(self._staying()) >= self._wanted or self._stuck, seconds)
            if self._stuck:
                raise self._no_workers()
            if not ready:
                raise TimeoutError(f"{len(self._staying())} of {self._wanted} {self.name} workers after {seconds} s")

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

    def lost(self, member: Member, why: str) -> None:
        """A worker has ended by itself; another takes its place."""
        with self._changed:
            if self._members.get(member.name) is not member:
                return
            self._replace(member, why)
        _close([member])

    def members(self) -> list[Member]:
        """Those that are there now."""
        with self._changed:
            self._drop_dead()
            return list(self._members.values())

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

    def close(self) -> None:
        """Close all workers; what they have is lost. One that is being made is closed when it is there."""
        with self._changed:
            self._closed = True
            members, self._members = list(self._members.values()), {}
            self._changed.notify_all()
        _close(members)

    def wait_started(self, seconds: float | None = None) -> bool:
        """Wait until no worker is being made any more; False if that takes longer than ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._starting, seconds)

    @property
    def _stuck(self) -> bool:
        """Whether no worker will come any more."""
        return self._closed or (self._failures > self._restarts and not self._starting)

    @property
    def _given_up(self) -> bool:
        return self._closed or (self._stuck and not self._staying())

    def _no_workers(self) -> NoWorkers:
        if self._closed:
            return NoWorkers(f"the {self.name} pool is closed")
        return NoWorkers(
            f"the {self.name} pool has {len(self._staying()) or 'no'} worker left after {self._failures} starts in a "
            f"row that failed, the last so: {self._last_error}"
        )

    def _staying(self) -> list[Member]:
        return [member for member in self._members.values() if not member.leaving]

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
            _close([member])

    def _drop_dead(self) -> None:
        """Replace workers that have ended while nobody looked. Called with the lock held."""
        for member in [member for member in self._members.values() if not member.worker.alive]:
            self._replace(member, f"{member.name} was found dead")

    def _replace(self, member: Member, why: str) -> None:
        del self._members[member.name]
        # It had started.
        self._failures = 0
        self._losses += 1
        self._lost += 1
        self._last_error = why
        self._fill()
        self._changed.notify_all()

    def _fill(self) -> None:
        """Start what is missing, unless too many starts have failed. Called with the lock held."""
        if self._closed or self._failures > self._restarts:
            return
        for _ in range(self._wanted - len(self._staying()) - self._starting):
            name = f"{self.name}-{self._made}"
            # A worker that dies at once should not be made anew as fast as the machine can.
            pause = min(5.0, _PAUSE_S * (2 ** min(10, self._losses + self._failures) - 1))
            threading.Thread(target=self._start, args=(name, pause), name=f"ds41 start {name}", daemon=True).start()
            self._starting += 1
            self._made += 1

    def _start(self, name: str, pause: float) -> None:
        worker, why = None, ""
        with self._changed:
            needed = not self._changed.wait_for(lambda: self._surplus, pause)
        try:
            if needed:
                worker = self._make(name)
        except BaseException as error:
            why = f"{name} could not be started: {type(error).__name__}: {error}"
        if worker is not None and not self._join(Member(name, worker)):
            _close([Member(name, worker)])
            worker = None
        with self._changed:
            if worker is None:
                self._starting -= 1
            if why:
                self._failures += 1
                self._last_error = why
            self._fill()
            self._changed.notify_all()

    def _join(self, member: Member) -> bool:
        """Let a worker that has been made take jobs; False if there are enough without it."""
        with self._changed:
            if self._closed or len(self._staying()) >= self._wanted:
                return False
            self._members[member.name] = member
            self._starting -= 1
            self._failures = 0
            return True

    @property
    def _surplus(self) -> bool:
        """Whether one of those that are to be made is not needed any more."""
        return self._closed or len(self._staying()) + self._starting > self._wanted


def _close(members: Iterable[Member]) -> None:
    for member in members:
        with suppress(Exception):
            member.worker.close()
