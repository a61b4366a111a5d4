"""What the router sends to a worker, and what comes back: jobs and events, the same in one process and between many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from ds41.serving.handover import Handover
from ds41.serving.turn import Finish, Sampling, TurnReport


@dataclass(frozen=True, eq=False)
class VisionJob:
    """Pictures to encode: files as they came."""

    id: str
    pictures: tuple[bytes, ...]


@dataclass(frozen=True, eq=False)
class PrefillJob:
    """A prompt to read. image_vectors: [I, hidden] or None. hit_limit, given: as :meth:`ds41.serving.Engine.read`."""

    id: str
    tenant: str
    ids: list[int]
    sampling: Sampling
    image_vectors: torch.Tensor | None = None
    hit_limit: int | None = None
    given: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class DecodeJob:
    """A turn to go on with. given: tokens after the first that have been given out."""

    id: str
    handover: Handover
    given: tuple[int, ...] = ()


Job = VisionJob | PrefillJob | DecodeJob


@dataclass(frozen=True, eq=False)
class Encoded:
    """The vectors of each picture's span, [positions, hidden]."""

    vectors: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Started:
    """The job has a row; hit_tokens: of its prompt that some tier held."""

    hit_tokens: int


@dataclass(frozen=True)
class Tokens:
    """New tokens of the answer."""

    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Ended:
    """The last event of a job. handover: of a prompt whose answer goes on elsewhere. error: why it failed."""

    finish: Finish
    report: TurnReport
    handover: Handover | None = None
    error: BaseException | None = None


Event = Encoded | Started | Tokens | Ended


class Worker(Protocol):
    """What a pool needs of a worker, wherever it runs. All methods may be called from any thread.

    alive: whether it takes jobs, as far as is known without waiting. Once False it stays so.
    """

    @property
    def alive(self) -> bool: ...

    def run(self, job: Job) -> Iterator[Event]:
        """Do a job. Leaving the iterator early cancels it.

        Raises:
            WorkerLost: the worker has ended with the job undone.
        """

    def cancel(self, job_id: str) -> None:
        """End a job with what it has; an unknown one is ignored."""

    def close(self) -> None:
        """Give back all memory; what still runs is lost. A second time does nothing."""
