"""The workers of a pool: as many as are wanted, made when they are needed, replaced when they are lost.

Source: ds41's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from ds41.serving.pools.jobs import Worker
from ds41.serving.pools.requests import NoWorkers, PoolName

# Before a worker is made in place of one that was lost; twice as long after each that is lost in a row, up to the last.
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0


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


class Staff:
    """Who works in a pool, and how many should.

    Args:
        name: of the pool. make: a worker of a given name; called in threads of the staff's own, so it may take long.
        workers: how many there should be. restarts: starts in a row that may fail; after one more there are no others.

    Raises:
        ValueError: a number that cannot be.
    """

    def __init__(self, name: PoolName, make: Callable[[str], Worker], workers: int, restarts: int) -> None:
        if restarts < 0:
            raise ValueError(f"restarts of the {name} pool is {restarts}; expected 0 or more")
        self.name = name
        self._make, self._restarts = make, restarts
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self._wanted, self._starting, self._made = 0, 0, 0
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
        close_all(idle)

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

    def wait_started(self, seconds: float | None = None) -> bool:
        """Wait until no worker is being made any more; False if that takes longer than ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._starting, seconds)

    def members(self) -> list[Member]:
        """Those that are there now."""
        with self._changed:
            self._drop_dead()
            return list(self._members.values())

    def lost(self, member: Member, why: str) -> None:
        """A worker has ended by itself; another takes its place."""
        with self._changed:
            if self._members.get(member.name) is not member:
                return
            self._replace(member, why)
        close_all([member])

    def close(self) -> None:
        """Close all workers; what they have is lost. One that is being made is closed when it is there."""
        with self._changed:
            self._closed = True
            members, self._members = list(self._members.values()), {}
            self._changed.notify_all()
        close_all(members)

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
            f"the {self.name} pool has {_count(len(self._staying()))} left after {self._failures} starts in a row "
            f"that failed, the last so: {self._last_error}"
        )

    def _staying(self) -> list[Member]:
        return [member for member in self._members.values() if not member.leaving]

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
            pause = min(_LONGEST_PAUSE_S, _PAUSE_S * (2 ** min(10, self._losses + self._failures) - 1))
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
            close_all([Member(name, worker)])
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


def _count(workers: int) -> str:
    return f"{workers or 'no'} worker{'s' if workers > 1 else ''}"


def close_all(members: Iterable[Member]) -> None:
    """Close workers; one that cannot be closed is left to end by itself."""
    for member in members:
        with suppress(Exception):
            member.worker.close()
