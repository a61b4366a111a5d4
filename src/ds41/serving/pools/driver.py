"""A thread that steps an engine while it has turns, and brings what they yield to whoever waits for it.

Callers never touch the engine: a step that takes long delays nobody's submit or cancel.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ds41.serving.engine import Engine
from ds41.serving.pools.jobs import Ended, Event, Started, Tokens
from ds41.serving.pools.requests import WorkerLost
from ds41.serving.turn import Turn, TurnReport


@dataclass(eq=False)
class _Job:
    id: str
    enqueue: Callable[[Engine], Turn]
    events: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    turn: Turn | None = None
    cancelled: bool = False


class EngineDriver:
    """Owns an engine and closes it.

    Args:
        name: of the worker, for messages.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self._changed = threading.Condition()
        self._new: list[_Job] = []
        self._jobs: dict[str, _Job] = {}
        self._end: WorkerLost | None = None
        self._thread = threading.Thread(target=self._run, name=f"ds41 {name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._end is None

    def run(self, job_id: str, enqueue: Callable[[Engine], Turn]) -> Iterator[Event]:
        """Queue a turn and give out its events; ``enqueue`` is called in the engine's thread.

        Raises:
            WorkerLost: the driver has ended, or ends before the turn does.
        """
        job = _Job(job_id, enqueue)
        with self._changed:
            if self._end is not None:
                raise WorkerLost(str(self._end))
            if job_id in self._jobs:
                raise ValueError(f"job {job_id} runs already on {self.name}")
            self._jobs[job_id] = job
            self._new.append(job)
            self._changed.notify()
        try:
            while True:
                event = job.events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            self.cancel(job_id)

    def cancel(self, job_id: str) -> None:
        """Let a turn end before the next step; an unknown one is ignored."""
        with self._changed:
            job = self._jobs.get(job_id)
            if job is not None:
                job.cancelled = True
                self._changed.notify()

    def close(self, reason: str = "was closed") -> None:
        """End at once: whoever waits is told, and the engine is closed when its step has ended."""
        self._lose(WorkerLost(f"worker {self.name} {reason}"))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _lose(self, error: WorkerLost) -> None:
        with self._changed:
            if self._end is None:
                self._end = error
            for job in self._jobs.values():
                job.events.put(WorkerLost(str(self._end)))
            self._jobs.clear()
            self._new.clear()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._wait():
                self._step()
        except BaseException as error:
            # Whatever gets past the engine's own guards has left it in a state that nobody knows.
            self._lose(WorkerLost(f"worker {self.name} failed: {type(error).__name__}: {error}"))
        finally:
            # Whoever was told of a loss starts elsewhere; what this engine would store of it now is of no use there.
            self.engine.abandon()

    def _wait(self) -> bool:
        """Wait for something to do; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._end is not None)
            return self._end is None

    def _step(self) -> None:
        """One step of all jobs. A method of its own, so that a thread that waits refers to no job."""
        with self._changed:
            new, self._new = self._new, []
            jobs = list(self._jobs.values())
        for job in new:
            self._begin(job)
        for job in jobs:
            if job.cancelled and job.turn is not None:
                self.engine.cancel(job.turn)
        self.engine.step()
        for job in jobs:
            self._deliver(job)

    def _begin(self, job: _Job) -> None:
        try:
            job.turn = job.enqueue(self.engine)
        except Exception as error:
            self._finish(job, Ended("failed", TurnReport(), error=error))
        else:
            # Before the first step, which may store what a second reading of the prompt must not find.
            events = job.events
            job.turn.on_start = lambda report: events.put(Started(report.hit_tokens))

    def _deliver(self, job: _Job) -> None:
        turn = job.turn
        if turn is None:
            return
        if turn.ready:
            job.events.put(Tokens(tuple(turn.ready)))
            turn.ready.clear()
        if turn.done:
            self.engine.close_session(turn.session)
            self._finish(job, Ended(turn.report.finish, turn.report, turn.handover, turn.error))

    def _finish(self, job: _Job, end: Ended) -> None:
        with self._changed:
            self._jobs.pop(job.id, None)
        job.events.put(end)
