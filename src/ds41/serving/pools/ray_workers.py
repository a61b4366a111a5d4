"""Workers as Ray actors: processes on one machine or many, behind the same pools and with the same tokens.

Chunks of a handover travel by reference. They are items of the stream that the router reads, so the router owns them:
they outlive the actor that made them, and a decode worker fetches those that it lacks from where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from ds41.serving.handover import Handover, HandoverLost
from ds41.serving.pools.cluster import Cluster, PoolPlan
from ds41.serving.pools.jobs import Ended, Event, Job, Worker
from ds41.serving.pools.local import PoolSizes
from ds41.serving.pools.recipe import WorkerRecipe
from ds41.serving.pools.requests import WorkerLost

try:
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayError
except ImportError as error:
    raise ImportError("workers on several machines need Ray: pip install 'ds41[ray]'") from error

# Beside its jobs an actor answers cancels, and the question whether it is there.
_SPARE_THREADS = 4


@dataclass(frozen=True)
class _Chunks:
    """In place of a handover's chunks: so many items of the stream follow."""

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

    def run(self, job: Job) -> Iterator[object]:
        try:
            for event in self._worker.run(job):
                if isinstance(event, Ended) and event.handover is not None:
                    chunks = event.handover.chunks
                    yield replace(event, handover=replace(event.handover, chunks=(_Chunks(len(chunks)),)))
                    # Arrays are read where they lie in Ray's shared memory; tensors would be copied out of it.
                    yield from (chunk.numpy() for chunk in chunks)
                else:
                    yield event
        except Exception as error:
            yield _Raised(error)

    def cancel(self, job_id: str) -> None:
        self._worker.cancel(job_id)


class RayWorker:
    """A worker in an actor's process; :class:`ds41.serving.pools.jobs.Worker` for a pool.

    Args:
        make: called in that process. slots: jobs at a time.

    Raises:
        RayError: it cannot be made. What ``make`` raised, as Ray passes it on.
    """

    def __init__(self, name: str, make: Callable[[str], Worker], slots: int, resources: Resources) -> None:
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
        self.process_id: int = ray.get(self._actor.process.remote())

    def run(self, job: Job) -> Iterator[Event]:
        """Do a job.

        Raises:
            WorkerLost: the actor's process has ended. What the worker raised.
        """
        try:
            stream = self._actor.run.options(num_returns="streaming").remote(job)
            for reference in stream:
                event = ray.get(reference)
                if isinstance(event, _Raised):
                    raise event.error
                if isinstance(event, Ended) and event.handover is not None:
                    event = replace(event, handover=self._with_chunks(event.handover, stream))
                yield event
        except RayActorError as error:
            raise WorkerLost(f"worker {self.name} (process {self.process_id}) has ended") from error
        except RayError as error:
            raise WorkerLost(f"worker {self.name} cannot be heard: {error}") from error
        finally:
            with suppress(RayError):
                self._actor.cancel.remote(job.id)

    def cancel(self, job_id: str) -> None:
        """End a job with what it has; an unknown one is ignored."""
        with suppress(RayError):
            self._actor.cancel.remote(job_id)

    def close(self) -> None:
        """End the process; a second time does nothing."""
        with suppress(RayError):
            ray.kill(self._actor)

    @staticmethod
    def _with_chunks(handover: Handover, stream: Iterator) -> Handover:
        """The references that follow in the stream, unread."""
        (announced,) = handover.chunks
        return replace(handover, chunks=tuple(next(stream) for _ in range(announced.count)))


def fetch_chunk(reference: object) -> torch.Tensor:
    """The pages behind a reference, uint8 [n, page bytes].

    Raises:
        HandoverLost: they are gone, with the machine that they lay on or with their owner.
    """
    try:
        return torch.from_numpy(ray.get(reference).copy())
    except ObjectLostError as error:
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
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)

        def plan(make: Callable[[str], Worker], workers: int, slots: int) -> PoolPlan:
            return PoolPlan(lambda name: RayWorker(name, make, slots, resources), workers, slots)

        plans = {
            "prefill": plan(recipe.prefill, sizes.prefill, sizes.rows),
            "decode": plan(lambda name: recipe.decode(name, fetch_chunk), sizes.decode, sizes.rows),
        }
        if sizes.vision:
            plans["vision"] = plan(recipe.vision, sizes.vision, 1)
        super().__init__(
            recipe.config, plans, max_tokens=recipe.options.max_tokens, page_tokens=recipe.page_tokens, **limits
        )

    def close(self) -> None:
        """Cancel all requests, end all actors, and Ray too if this has started it."""
        super().close()
        if self._started_ray:
            ray.shutdown()
            self._started_ray = False
