"""The pools together: requests come in, wait their turn by tenant, and take their course."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ds41.config import ModelConfig
from ds41.serving.counters import Counters
from ds41.serving.fairness import FairQueue
from ds41.serving.pools.course import Course, EncodedPictures, Route
from ds41.serving.pools.jobs import Worker
from ds41.serving.pools.pool import Pool
from ds41.serving.pools.requests import POOLS, Answer, Overloaded, PoolName, Request

CLUSTER_COUNTERS = (
    "requests",
    "requests_refused",
    "requests_stop",
    "requests_length",
    "requests_cancelled",
    "requests_failed",
    "generated_tokens",
    "pictures_known",
    "pictures_encoded",
    "retries",
)


@dataclass(frozen=True)
class PoolPlan:
    """How a pool is filled: ``make`` gives a worker of a name, ``workers`` how many, ``slots`` jobs that each takes."""

    make: Callable[[str], Worker]
    workers: int = 1
    slots: int = 8


class Cluster:
    """Vision, prefill and decode pools behind one door.

    Args:
        config: of the model. plans: by pool; without "vision", pictures are refused.
        max_tokens: the longest sequence that the workers' engines take. page_tokens: of their pages.
        most_running: requests on their way at once; None for as many as prefill and decode have slots. The state of
            each is held until its answer has ended, so this bounds memory.
        most_waiting: requests that wait beside them. Another is refused.
        attempts: workers that may be lost with one request. picture_bytes: for vectors of pictures, to be sent again.

    Raises:
        ValueError: a number that cannot be, or no prefill or decode pool.
    """

    def __init__(
        self,
        config: ModelConfig,
        plans: Mapping[PoolName, PoolPlan],
        *,
        max_tokens: int,
        page_tokens: int = 64,
        most_running: int | None = None,
        most_waiting: int = 256,
        attempts: int = 3,
        picture_bytes: int = 2**28,
    ) -> None:
        unknown, missing = set(plans) - set(POOLS), {"prefill", "decode"} - set(plans)
        if unknown or missing:
            raise ValueError(f"the pools are {sorted(plans)}; expected prefill, decode and perhaps vision")
        if most_running is None:
            most_running = sum(plans[name].workers * plans[name].slots for name in ("prefill", "decode"))
        for name, value, least in (
            ("most_running", most_running, 1),
            ("most_waiting", most_waiting, 0),
            ("attempts", attempts, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}; expected {least} or more")
        self.config, self.max_tokens = config, max_tokens
        self._most_running, self._most_waiting = most_running, most_waiting
        self._counters = Counters(CLUSTER_COUNTERS)
        pools = {name: Pool(name, plan.make, plan.workers, plan.slots) for name, plan in plans.items()}
        self._route = Route(
            config, max_tokens, page_tokens, pools, EncodedPictures(picture_bytes), self._counters, attempts
        )
        self._lock = threading.Lock()
        self._waiting: FairQueue[Answer] = FairQueue()
        self._running: set[Answer] = set()
        self._closed = False

    def submit(self, request: Request) -> Answer:
        """Take a request; its answer brings tokens, or the error that ended it.

        Raises:
            ValueError: what can never work: ids outside the vocabulary, another number of pictures than of their
                places, a prompt without room, or pictures where no vision pool is. Overloaded: nobody else may wait.
            RuntimeError: the cluster is closed.
        """
        self._check(request)
        answer = Answer(request)
        with self._lock:
            if self._closed:
                raise RuntimeError("the cluster is closed")
            starts = len(self._running) < self._most_running
            if not starts and len(self._waiting) >= self._most_waiting:
                self._counters.add("requests_refused")
                raise Overloaded(
                    f"{len(self._running)} requests are being answered and {len(self._waiting)} wait; no more may wait",
                    retry_after_s=max(1.0, len(self._waiting) / self._most_running),
                )
            self._counters.add("requests")
            if starts:
                self._start(answer)
            else:
                self._waiting.put(answer)
        answer.on_cancel(lambda: self._leave_queue(answer))
        return answer

    def scale(self, pool: PoolName, workers: int) -> None:
        """Have that many workers in a pool; the others keep theirs.

        Raises:
            KeyError: there is no such pool. ValueError: less than one worker.
        """
        if pool not in self._route.pools:
            raise KeyError(f"no pool {pool!r}; expected one of {', '.join(self._route.pools)}")
        self._route.pools[pool].scale(workers)

    def pool(self, name: PoolName) -> Pool:
        """One of the pools."""
        return self._route.pools[name]

    def wait_ready(self, seconds: float | None = None) -> None:
        """Wait for all workers to have started; errors as of :meth:`Pool.wait_ready`."""
        for pool in self._route.pools.values():
            pool.wait_ready(seconds)

    def health(self) -> dict[str, dict[str, int]]:
        """By pool: workers, live, running, waiting, lost. By "requests": running and waiting."""
        found = {name: pool.status() for name, pool in self._route.pools.items()}
        with self._lock:
            found["requests"] = {"running": len(self._running), "waiting": len(self._waiting)}
        return found

    def counters(self) -> dict[str, Counters]:
        """What has been counted since the start."""
        return {"cluster": self._counters}

    def close(self) -> None:
        """Cancel all requests and close all workers; a second time does nothing."""
        with self._lock:
            self._closed = True
            answers = [*self._waiting, *self._running]
        for answer in answers:
            answer.cancel()
        for pool in self._route.pools.values():
            pool.close()
        for answer in answers:
            answer.wait()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check(self, request: Request) -> None:
        size = self.config.vocab_size
        for at, token in enumerate(request.ids):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
                raise ValueError(f"token id {token!r} at place {at}; expected an integer from 0 to {size - 1}")
        places = request.ids.count(self.config.image_token_id)
        if request.pictures:
            if "vision" not in self._route.pools:
                raise ValueError(f"the request has {len(request.pictures)} pictures; nothing here can see")
            if places != len(request.pictures):
                raise ValueError(
                    f"the request has {len(request.pictures)} pictures and {places} places with id "
                    f"{self.config.image_token_id}; expected as many of each"
                )
        if (total := len(request.ids) + request.max_new_tokens) > self.max_tokens:
            raise ValueError(
                f"the prompt has {len(request.ids)} tokens and max_new_tokens is {request.max_new_tokens}: {total} in "
                f"all; there is room for {self.max_tokens}"
            )

    def _start(self, answer: Answer) -> None:
        self._running.add(answer)
        threading.Thread(target=self._run, args=(answer,), name="ds41 request", daemon=True).start()

    def _run(self, answer: Answer) -> None:
        try:
            Course(self._route, answer).run()
        finally:
            with self._lock:
                self._running.discard(answer)
                following = None if self._closed else self._waiting.head()
                if following is not None:
                    self._waiting.remove(following)
                    self._start(following)

    def _leave_queue(self, answer: Answer) -> None:
        with self._lock:
            waited = answer in set(self._waiting)
            if waited:
                self._waiting.remove(answer)
        if waited:
            self._counters.add("requests_cancelled")
            answer.end("cancelled")
