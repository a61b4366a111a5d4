"""The pools together: requests come in, wait their turn by tenant, and take their course.

Source: report section 3.2; queues and fairness are ds41's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ds41.cache.layout import PAGE_TOKENS
from ds41.config import ModelConfig
from ds41.serving.counters import Counters
from ds41.serving.fairness import FairQueue
from ds41.serving.pools.course import Course, EncodedPictures, Route
from ds41.serving.pools.jobs import Worker
from ds41.serving.pools.pool import Pool
from ds41.serving.pools.requests import POOLS, Answer, Overloaded, PoolName, Request, TooLong
from ds41.serving.turn import Finish

# Of the prefill workers' reports: what prompts hit, and what was made again or for the first time.
PREFILL_COUNTS = ("hit_tokens", "store_tokens", "replayed_tokens", "computed_tokens")
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
    *(f"prefill_{name}" for name in PREFILL_COUNTS),
    "handed_bytes",
    "kept_window_bytes",
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
        attempts: workers that may be lost with one request; the last of them has it to itself. picture_bytes: for
            vectors of pictures, to be sent again. tiers: counters of what lies below, by name, for :meth:`counters`.

    Raises:
        ValueError: a number that cannot be, or no prefill or decode pool.
    """

    def __init__(
        self,
        config: ModelConfig,
        plans: Mapping[PoolName, PoolPlan],
        *,
        max_tokens: int,
        page_tokens: int = PAGE_TOKENS,
        most_running: int | None = None,
        most_waiting: int = 256,
        attempts: int = 3,
        picture_bytes: int = 2**28,
        tiers: Mapping[str, Counters] | None = None,
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
        self._counters, self._tiers = Counters(CLUSTER_COUNTERS), dict(tiers or {})
        pictures = EncodedPictures(picture_bytes)
        self._route = Route(config, max_tokens, page_tokens, {}, pictures, self._counters, attempts)
        try:
            for name, plan in plans.items():
                self._route.pools[name] = Pool(name, plan.make, plan.workers, plan.slots)
        except BaseException:
            for pool in self._route.pools.values():
                pool.close()
            raise
        self._lock = threading.Lock()
        self._waiting: FairQueue[Answer] = FairQueue()
        self._running: set[Answer] = set()
        self._closed = False

    def submit(self, request: Request) -> Answer:
        """Take a request; its answer brings tokens, or the error that ended it.

        Raises:
            ValueError: what can never work: ids outside the vocabulary, another number of pictures than of their
                places, or pictures where no vision pool is. TooLong: a prompt without room. Overloaded: nobody else may
                wait.
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
            if starts:
                self._start(answer)
            else:
                self._waiting.put(answer)
            self._counters.add("requests")
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
        """What has been counted since the start, by the cluster and by each tier of this process."""
        return {"cluster": self._counters, **self._tiers}

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
            raise TooLong(
                f"the prompt has {len(request.ids)} tokens and max_new_tokens is {request.max_new_tokens}: {total} in "
                f"all; there is room for {self.max_tokens}"
            )

    def _start(self, answer: Answer) -> None:
        """Called with the lock held, which the thread needs to end.

        Raises:
            RuntimeError: the machine has no thread left.
        """
        threading.Thread(target=self._run, args=(answer,), name="ds41 request", daemon=True).start()
        self._running.add(answer)

    def _run(self, answer: Answer) -> None:
        finish, error = Course(self._route, answer).run()
        with self._lock:
            # At one moment for whoever looks: the answer has ended, is counted, and does not run any more.
            self._running.discard(answer)
            self._end(answer, finish, error)
            ended = [answer, *self._start_waiting()]
        for one in ended:
            one.tell_listeners()

    def _start_waiting(self) -> list[Answer]:
        """Start those who are next; gives back those that could not be."""
        failed = []
        while not self._closed and len(self._running) < self._most_running:
            following = self._waiting.head()
            if following is None:
                break
            self._waiting.remove(following)
            try:
                self._start(following)
            except RuntimeError as error:
                self._end(following, "failed", error)
                failed.append(following)
        return failed

    def _end(self, answer: Answer, finish: Finish, error: BaseException | None = None) -> None:
        self._counters.add(f"requests_{finish}")
        report = answer.report
        self._counters.add("generated_tokens", report.generated_tokens)
        self._counters.add("handed_bytes", report.handed_bytes)
        if report.prefill is not None:
            for name in PREFILL_COUNTS:
                self._counters.add(f"prefill_{name}", getattr(report.prefill, name))
        if report.decode is not None:
            self._counters.add("kept_window_bytes", report.decode.kept_window_bytes)
        answer.end_silently(finish, error)

    def _leave_queue(self, answer: Answer) -> None:
        with self._lock:
            waited = answer in set(self._waiting)
            if waited:
                self._waiting.remove(answer)
                self._end(answer, "cancelled")
        if waited:
            answer.tell_listeners()
