"""Workers without a model, and a cluster of them: what pools do can be tried a thousand times in a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import tiny_parts
import torch

from ds41.serving.handover import Handover
from ds41.serving.images import SequenceImages
from ds41.serving.pools import Cluster, PoolPlan, Request, WorkerLost
from ds41.serving.pools.jobs import Ended, Started, Tokens
from ds41.serving.turn import TurnReport

# The last id of a prompt that ends the worker that has it, and that of one whose answer comes slowly.
POISON, SLOW = 200, 201


def request(*ids: int, tokens: int = 4, tenant: str = "a") -> Request:
    return Request(tenant, ids, max_new_tokens=tokens, stop_ids=frozenset())


def tokens_of(one: Request) -> list[int]:
    return [(sum(one.ids) + 7 * number) % 200 for number in range(one.max_new_tokens)]


class ScriptedWorker:
    """Answers with :func:`tokens_of`; a decode worker dies of poison.

    before: called with the job before it is known here.
    """

    def __init__(self, name: str, before: Callable[[object], None] = lambda job: None) -> None:
        self.name, self.alive, self.before = name, True, before
        self.cancels: list[str] = []
        self._jobs: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def run(self, job):
        self.before(job)
        cancelled = threading.Event()
        with self._lock:
            self._check()
            self._jobs[job.id] = cancelled
        try:
            yield Started(0)
            yield from self._read(job) if self.name.startswith("prefill") else self._answer(job, cancelled)
        finally:
            with self._lock:
                del self._jobs[job.id]

    def cancel(self, job_id):
        with self._lock:
            self.cancels.append(job_id)
            if job_id in self._jobs:
                self._jobs[job_id].set()

    def close(self):
        self.alive = False

    def _read(self, job):
        self._check()
        first = tokens_of(Request("a", tuple(job.ids), max_new_tokens=1))
        if not job.given:
            yield Tokens(tuple(first))
        if job.sampling.max_new_tokens == 1:
            yield Ended("length", TurnReport())
            return
        ids = [*job.ids, *first]
        yield Ended(
            "handed_over",
            TurnReport(),
            Handover("a", ids, SequenceImages(), job.sampling, (), b"windows", 0, None, torch.zeros(1), b"model"),
        )

    def _answer(self, job, cancelled):
        handover = job.handover
        prompt = Request("a", tuple(handover.ids[:-1]), max_new_tokens=handover.sampling.max_new_tokens)
        for token in tokens_of(prompt)[1 + len(job.given) :]:
            self._check()
            if cancelled.is_set():
                yield Ended("cancelled", TurnReport())
                return
            if prompt.ids[-1] == POISON:
                self.alive = False
            if prompt.ids[-1] == SLOW:
                time.sleep(0.001)
            self._check()
            yield Tokens((token,))
        yield Ended("length", TurnReport())

    def _check(self):
        if not self.alive:
            raise WorkerLost(f"{self.name} has ended")


def scripted_cluster(prefill=1, decode=1, slots=4, make=ScriptedWorker, **limits) -> Cluster:
    plans = {"prefill": PoolPlan(make, prefill, slots), "decode": PoolPlan(make, decode, slots)}
    return Cluster(tiny_parts.CONFIG, plans, max_tokens=10_000, **limits)
