"""Workers as Ray actors: processes on one machine or many, behind the same pools and with the same tokens.

Chunks of a handover travel by reference. They are items of the stream that the router reads, so the router owns them:
they outlive the actor that made them, and a decode worker fetches those that it lacks from where they lie.

Source: ds41's own; Ray's actors.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from ds41.serving.handover import HandoverLost
from ds41.serving.pools.cluster import Cluster, PoolPlan
from ds41.serving.pools.jobs import Ended, Event, Job, Worker
from ds41.serving.pools.local import PoolSizes
from ds41.serving.pools.recipe import WorkerRecipe
from ds41.serving.pools.requests import WorkerLost

try:
    import ray
    from ray.exceptions import RayActorError, RayError
except ImportError as error:
    raise ImportError("workers on several machines need Ray: pip install 'ds41[ray]'") from error

# Beside its jobs an actor answers cancels, and the questions whether it is there and when it ends.
_SPARE_THREADS = 5
# How often whoever waits for an actor looks whether that is still wanted.
_LOOK_S = 0.2


@dataclass(frozen=True)
class _Chunks:
    """Comes before an end with a handover: its chunks are the next so many items of the stream."""

    count: int


@dataclass(frozen=True, eq=False)
class _Raised:
    """In place of an event: what the worker raised."""

    error: BaseException


@dataclass(frozen=True)
class Resources:
    """What an actor of a pool asks of Ray's scheduler."""

    num_cpus: float = 1
    num_gpus: float = 0


class _Actor:
    """Lives in the actor's process."""

    def __init__(self, name: str, make: Callable[[str], Worker]) -> None:
        self._worker = make(name)

    def process(self) -> int:
        import os

        return os.getpid()

    def until_the_end(self) -> None:
        threading.Event().wait()

    def run(self, job: Job) -> Iterator[object]:
        try:
            for event in self._worker.run(job):
                if isinstance(event, Ended) and event.handover is not None:
                    chunks = event.handover.chunks
                    yield _Chunks(len(chunks))
                    # Arrays are read where they lie in Ray's shared memory; tensors would be copied out of it.
                    yield from (chunk.numpy() for chunk in chunks)
                    # After them: whoever reads it knows that they have come.
                    yield replace(event, handover=replace(event.handover, chunks=()))
                elif isinstance(event, Ended):
                    yield replace(event, error=_portable(event.error))
                else:
                    yield event
        except Exception as error:
            yield _Raised(_portable(error))

    def cancel(self, job_id: str) -> None:
        self._worker.cancel(job_id)


class RayWorker:
    """A worker in an actor's process; :class:`ds41.serving.pools.jobs.Worker` for a pool.

    Args:
        make: called in that process. slots: jobs at a time. unwanted: says that nobody waits for it any more.

    Raises:
        RayError: it cannot be made. What ``make`` raised, as Ray passes it on. WorkerLost: it came to be unwanted.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[str], Worker],
        slots: int,
        resources: Resources,
        unwanted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self._actor: Any = (
            ray.remote(_Actor)
            .options(
                num_cpus=resources.num_cpus,
                num_gpus=resources.num_gpus,
                max_concurrency=slots + _SPARE_THREADS,
                max_restarts=0,
            )
            .remote(name, make)
        )
        process = self._actor.process.remote()
        # Ray waits for ever for what an actor asks for.
        while not ray.wait([process], timeout=_LOOK_S)[0]:
            if unwanted():
                self.close()
                raise WorkerLost(f"worker {name} was not wanted any more before it had started")
        self.process_id: int = ray.get(process)
        self._ended = ended = threading.Event()
        # Comes to an end with the process, and not before.
        self._actor.until_the_end.remote().future().add_done_callback(lambda _: ended.set())

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def run(self, job: Job) -> Iterator[Event]:
        """Do a job.

        Raises:
            WorkerLost: the actor's process has ended. What the worker raised.
        """
        chunks: tuple[object, ...] = ()
        try:
            stream = self._actor.run.options(num_returns="streaming").remote(job)
            while (event := self._next(stream)) is not None:
                if isinstance(event, _Chunks):
                    chunks = self._references(stream, event.count)
                    continue
                if isinstance(event, _Raised):
                    raise event.error
                if isinstance(event, Ended) and event.handover is not None:
                    event = replace(event, handover=replace(event.handover, chunks=chunks))
                yield event
        finally:
            self.cancel(job.id)

    def cancel(self, job_id: str) -> None:
        """End a job with what it has; an unknown one is ignored."""
        with suppress(RayError):
            self._actor.cancel.remote(job_id)

    def _next(self, stream: Iterator) -> object | None:
        """The next item of the actor's stream, or None at its end."""
        try:
            reference = next(stream, None)
            return None if reference is None else ray.get(reference)
        except RayActorError as error:
            raise WorkerLost(f"worker {self.name} (process {self.process_id}) has ended") from error
        except RayError as error:
            raise WorkerLost(f"worker {self.name} cannot be heard: {error}") from error

    @staticmethod
    def _references(stream: Iterator, count: int) -> tuple[object, ...]:
        """The next items of the stream, unread; fewer if the actor has ended, which what follows shows."""
        return tuple(islice(stream, count))

    def close(self) -> None:
        """End the process; a second time does nothing."""
        with suppress(RayError):
            ray.kill(self._actor)


def fetch_chunk(reference: object) -> torch.Tensor:
    """The pages behind a reference, uint8 [n, page bytes].

    Raises:
        HandoverLost: they are gone, with the machine that they lay on or with their owner, or cannot be had.
    """
    try:
        return torch.from_numpy(ray.get(reference).copy())
    except RayError as error:
        raise HandoverLost(f"pages that were handed over are gone: {error}") from error


class RayCluster(Cluster):
    """A :class:`Cluster` whose workers are Ray actors. Connects to Ray, or starts one for this machine if none runs.

    Args:
        recipe: what workers are made from. sizes: actors of each pool; ``vision=0`` refuses pictures.
        resources: what each actor asks for. limits: as :class:`Cluster` takes them.
    """

    def __init__(
        self,
        recipe: WorkerRecipe,
        sizes: PoolSizes | None = None,
        resources: Resources | None = None,
        **limits: int,
    ) -> None:
        sizes, resources = sizes or PoolSizes(), resources or Resources()
        recipe = replace(recipe, rows=sizes.rows)
        self._ending = False
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)

        def plan(make: Callable[[str], Worker], workers: int, slots: int) -> PoolPlan:
            return PoolPlan(lambda name: RayWorker(name, make, slots, resources, lambda: self._ending), workers, slots)

        plans = {
            "prefill": plan(recipe.prefill, sizes.prefill, sizes.rows),
            "decode": plan(lambda name: recipe.decode(name, fetch_chunk), sizes.decode, sizes.rows),
        }
        if sizes.vision:
            plans["vision"] = plan(recipe.vision, sizes.vision, 1)
        try:
            super().__init__(
                recipe.config, plans, max_tokens=recipe.options.max_tokens, page_tokens=recipe.page_tokens, **limits
            )
        except BaseException:
            self._end_ray()
            raise

    def close(self) -> None:
        """Cancel all requests, end all actors, and Ray too if this has started it."""
        self._ending = True
        super().close()
        # An actor that came after the end of Ray would start another.
        for pool in self._route.pools.values():
            pool.wait_started()
        self._end_ray()

    def _end_ray(self) -> None:
        if self._started_ray:
            ray.shutdown()
            self._started_ray = False


def _portable(error: BaseException | None) -> BaseException | None:
    """The error if it can travel, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
