"""A pool of workers of one kind: slots, waiting, scaling, and replacing those that are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ds41.serving.pools.jobs import Worker
from ds41.serving.pools.requests import NoWorkers, PoolName


@dataclass(eq=False)
class Member:
    """A worker of a pool. running: jobs that it has now. leaving: it takes no more, and is closed after the last."""

    name: str
    worker: Worker
    running: int = 0
    leaving: bool = False


class Pool:
    """Workers that are made when they are needed and replaced when they are lost.

    Args:
        name: of the pool. make: a worker of a given name; called in threads of the pool's own, so it may take its time.
        workers: how many there should be. slots: jobs that one of them takes at a time.
        restarts: losses in a row, without a job done in between, after which the pool gives up.

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
        self._wanted, self._starting, self._made, self._waiting = 0, 0, 0, 0
        self._losses, self._lost, self._last_error = 0, 0, ""
        self._closed = False
        self.scale(workers)

    def scale(self, workers: int) -> None:
        """Have that many workers from now on: new ones are started, those with least to do leave when they are done.

        Raises:
            ValueError: less than one.
        """
        if workers < 1:
            raise ValueError(f"workers of the {self.name} pool is {workers}; expected 1 or more")
        with self._changed:
            self._wanted, self._losses = workers, 0
            staying = sorted(self._staying(), key=lambda member: member.running)
            for member in staying[: max(0, len(staying) + self._starting - workers)]:
                member.leaving = True
            self._fill()
            idle = [member for member in self._members.values() if member.leaving and not member.running]
            for member in idle:
                del self._members[member.name]
            self._changed.notify_all()
        for member in idle:
            member.worker.close()

    def wait_ready(self, seconds: float | None = None) -> None:
        """Wait until all workers that are wanted have started.

        Raises:
            NoWorkers: they cannot be made. TimeoutError: it took longer than ``seconds``.
        """
        with self._changed:
            ready = self._changed.wait_for(lambda: len(self._staying()) >= self._wanted or self._given_up, seconds)
            if self._given_up:
                raise self._no_workers()
            if not ready:
                raise TimeoutError(f"{len(self._staying())} of {self._wanted} {self.name} workers after {seconds} s")

    @contextmanager
    def lease(
        self, prefer: str | None = None, abandoned: Callable[[], bool] = lambda: False
    ) -> Iterator[Member | None]:
        """A slot of the preferred worker if it has one, else of the one with most room; waits for one.

        None if ``abandoned`` says so while it waits; :meth:`wake` lets it look.

        Raises:
            NoWorkers: there is none left, and no other may be started; or the pool is closed.
        """
        member = self._take(prefer, abandoned)
        try:
            yield member
        finally:
            if member is not None:
                self._give_back(member)

    def wake(self) -> None:
        """Let those who wait look whether they still want to."""
        with self._changed:
            self._changed.notify_all()

    def done(self) -> None:
        """A job has been done: losses before it do not count any more."""
        with self._changed:
            self._losses = 0

    def lost(self, member: Member, why: str) -> None:
        """A worker has ended by itself; another takes its place, unless too many have been lost in a row."""
        with self._changed:
            if self._members.get(member.name) is not member:
                return
            del self._members[member.name]
            self._note_loss(why)
            self._fill()
            self._changed.notify_all()
        with suppress(Exception):
            member.worker.close()

    def members(self) -> list[Member]:
        """Those that are there now."""
        with self._changed:
            return list(self._members.values())

    def status(self) -> dict[str, int]:
        """workers: wanted. live: those that take jobs. running, waiting: jobs. lost: workers since the start."""
        with self._changed:
            return {
                "workers": self._wanted,
                "live": len(self._staying()),
                "running": sum(member.running for member in self._members.values()),
                "waiting": self._waiting,
                "lost": self._lost,
            }

    def close(self) -> None:
        """Close all workers; what they have is lost."""
        with self._changed:
            self._closed = True
            members, self._members = list(self._members.values()), {}
            self._changed.notify_all()
        for member in members:
            with suppress(Exception):
                member.worker.close()

    @property
    def _given_up(self) -> bool:
        return self._closed or (self._losses > self._restarts and not self._staying() and not self._starting)

    def _no_workers(self) -> NoWorkers:
        if self._closed:
            return NoWorkers(f"the {self.name} pool is closed")
        return NoWorkers(
            f"the {self.name} pool has no worker left after {self._losses} losses in a row, the last so: "
            f"{self._last_error}"
        )

    def _staying(self) -> list[Member]:
        return [member for member in self._members.values() if not member.leaving]

    def _take(self, prefer: str | None, abandoned: Callable[[], bool]) -> Member | None:
        with self._changed:
            self._waiting += 1
            try:
                while True:
                    if abandoned():
                        return None
                    if self._given_up:
                        raise self._no_workers()
                    free = [member for member in self._staying() if member.running < self.slots]
                    if free:
                        chosen = min(free, key=lambda member: (member.name != prefer, member.running))
                        chosen.running += 1
                        return chosen
                    self._changed.wait()
            finally:
                self._waiting -= 1

    def _give_back(self, member: Member) -> None:
        with self._changed:
            member.running -= 1
            closing = member.leaving and not member.running and self._members.pop(member.name, None) is not None
            self._changed.notify_all()
        if closing:
            member.worker.close()

    def _note_loss(self, why: str) -> None:
        self._losses += 1
        self._lost += 1
        self._last_error = why

    def _fill(self) -> None:
        """Start what is missing, unless too many were lost. Called with the lock held."""
        if self._closed or self._losses > self._restarts:
            return
        for _ in range(self._wanted - len(self._staying()) - self._starting):
            self._starting += 1
            name = f"{self.name}-{self._made}"
            self._made += 1
            threading.Thread(
                target=self._start, args=(name, self._losses), name=f"ds41 start {name}", daemon=True
            ).start()

    def _start(self, name: str, losses: int) -> None:
        # A worker that dies at once should not be made anew as fast as the machine can.
        time.sleep(min(5.0, 0.05 * (2**losses - 1)))
        worker, why = None, ""
        try:
            worker = self._make(name)
        except Exception as error:
            why = f"{name} could not be started: {type(error).__name__}: {error}"
        with self._changed:
            self._starting -= 1
            surplus = self._closed or len(self._staying()) >= self._wanted
            if worker is not None and not surplus:
                self._members[name] = Member(name, worker)
            elif worker is None:
                self._note_loss(why)
                self._fill()
            self._changed.notify_all()
        if worker is not None and surplus:
            worker.close()
