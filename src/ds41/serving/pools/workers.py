"""The three kinds of worker, as they run in whatever process: vision encoder, prefill, decode."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch

from ds41.serving.engine import Engine
from ds41.serving.handover import Fetch, Takeover
from ds41.serving.pools.driver import EngineDriver
from ds41.serving.pools.jobs import DecodeJob, Encoded, Event, PrefillJob, VisionJob
from ds41.serving.pools.requests import WorkerLost
from ds41.serving.turn import Turn
from ds41.vision import Vision, load_image, patches_of


class VisionWorker:
    """Turns pictures into the vectors of their spans, one job after the other."""

    def __init__(self, name: str, vision: Vision) -> None:
        self.name, self._vision = name, vision
        self._lock = threading.Lock()
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed

    @torch.no_grad()
    def run(self, job: VisionJob) -> Iterator[Event]:
        """Give out one :class:`Encoded`.

        Raises:
            ImageError: a picture that cannot be read. WorkerLost: the worker was closed.
        """
        with self._lock:
            self._check()
            config = self._vision.config.vision
            seen = [patches_of(load_image(picture), config) for picture in job.pictures]
            device = next(self._vision.parameters()).device
            vectors = self._vision([(patches.to(device), plan) for patches, plan in seen])
            # Whoever closed it meanwhile has been told that the job is lost.
            self._check()
        yield Encoded(tuple(one.cpu() for one in vectors))

    def cancel(self, job_id: str) -> None:
        """Pictures are encoded to the end; nobody waits for them."""

    def close(self) -> None:
        """Take no more jobs; a second time does nothing."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise WorkerLost(f"worker {self.name} was closed")


class _EngineWorker:
    """A worker whose jobs are turns of an engine of its own."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self._driver = name, EngineDriver(engine, name)

    @property
    def alive(self) -> bool:
        return self._driver.alive

    def cancel(self, job_id: str) -> None:
        self._driver.cancel(job_id)

    def close(self) -> None:
        """End at once; what still runs is lost."""
        self._driver.close()


class PrefillWorker(_EngineWorker):
    """Reads prompts, over the tiers of its engine, up to the first token of the answer."""

    def run(self, job: PrefillJob) -> Iterator[Event]:
        """Read a prompt; the last event brings the handover, unless the answer ends with its first token."""

        def enqueue(engine: Engine) -> Turn:
            return engine.read(
                job.tenant, job.ids, job.sampling, job.image_vectors, hit_limit=job.hit_limit, given=job.given
            )

        return self._driver.run(job.id, enqueue)


class DecodeWorker(_EngineWorker):
    """Goes on with turns whose prompts have been read.

    Args:
        fetch: gives the tensor of a handover's chunk, which a transport may have replaced by a reference.
    """

    def __init__(self, name: str, engine: Engine, fetch: Fetch = lambda chunk: chunk) -> None:
        super().__init__(name, engine)
        self._fetch = fetch

    def run(self, job: DecodeJob) -> Iterator[Event]:
        """Answer; tokens that were given out before do not come again."""
        return self._driver.run(job.id, lambda engine: engine.take_over(Takeover(job.handover, self._fetch, job.given)))
