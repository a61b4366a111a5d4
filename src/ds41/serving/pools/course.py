"""The course of one request through the pools, in a thread of its own: encode, prefill, decode, and again what is lost.

Tokens that were given out stand. A decode worker's loss costs a second start from the same handover; a prefill worker's
loss, or that of the handover itself, a second reading of the prompt, from no longer a hit than the first time.

Source: report section 3.2; recovery from lost workers is ds41's own.
"""

from __future__ import annotations

import secrets
import traceback
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from threading import Lock

import torch

from ds41.config import ModelConfig
from ds41.serving.counters import Counters
from ds41.serving.handover import Handover, HandoverLost
from ds41.serving.images import SequenceImages
from ds41.serving.keys import PrefixKeys, root_key
from ds41.serving.pools.affinity import Affinity
from ds41.serving.pools.jobs import DecodeJob, Encoded, Ended, Event, Job, PrefillJob, Started, Tokens, VisionJob
from ds41.serving.pools.pool import Pool
from ds41.serving.pools.requests import Answer, PoolName, Stage, TooLong, WorkerLost
from ds41.serving.pools.staff import Member
from ds41.serving.turn import Finish, Sampling

_numbers = count()


class Cancelled(Exception):
    """The reader wants no more."""


class EncodedPictures:
    """Vectors of pictures by their bytes, the least recently used first to go: a conversation sends them every turn."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget, self._held = budget_bytes, 0
        self._vectors: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._lock = Lock()

    def get(self, picture: bytes) -> torch.Tensor | None:
        key = sha256(picture).digest()
        with self._lock:
            if key in self._vectors:
                self._vectors.move_to_end(key)
            return self._vectors.get(key)

    def put(self, picture: bytes, vectors: torch.Tensor) -> None:
        key = sha256(picture).digest()
        with self._lock:
            if vectors.nbytes > self._budget or key in self._vectors:
                return
            self._vectors[key] = vectors
            self._held += vectors.nbytes
            while self._held > self._budget:
                self._held -= self._vectors.popitem(last=False)[1].nbytes


@dataclass(frozen=True, eq=False)
class Route:
    """What all courses share. attempts: workers that may be lost with one request before it is given up."""

    config: ModelConfig
    max_tokens: int
    page_tokens: int
    pools: dict[PoolName, Pool]
    pictures: EncodedPictures
    counters: Counters
    attempts: int
    affinity: dict[PoolName, Affinity] = field(default_factory=lambda: {"prefill": Affinity(), "decode": Affinity()})


class Course:
    """One request's way through the pools."""

    def __init__(self, route: Route, answer: Answer) -> None:
        self._route, self._answer, self._request = route, answer, answer.request
        self._given: list[int] = []
        self._lost = 0
        self._hit_limit: int | None = None

    def run(self) -> tuple[Finish, BaseException | None]:
        """How the answer ends, whatever happens; everything on the way has been given back."""
        try:
            return self._answered(), None
        except Cancelled:
            return "cancelled", None
        except BaseException as error:
            _forget_locals(error)
            return "failed", error

    def _answered(self) -> Finish:
        ids, vectors = self._prompt()
        keys = self._keys(ids, vectors)
        sampling, handover = self._sampling(), None
        while True:
            try:
                if handover is None:
                    job = PrefillJob(
                        self._id(), self._request.tenant, ids, sampling, vectors, self._hit_limit, tuple(self._given)
                    )
                    end = self._visit("prefill", job, keys)
                    self._answer.report.prefill = end.report
                    if end.handover is None:
                        return end.finish
                    handover = end.handover
                    self._note_handover(handover)
                job = DecodeJob(self._id(), handover, tuple(self._given[1:]))
                end = self._visit("decode", job, keys)
                self._answer.report.decode = end.report
                self._answer.report.handed_bytes += end.report.handed_bytes
                return end.finish
            except HandoverLost:
                self._note_loss("the pages of its prompt were lost with the worker that had read it")
                handover = None
            except WorkerLost as error:
                self._note_loss(str(error))

    def _prompt(self) -> tuple[list[int], torch.Tensor | None]:
        """Ids with room for the pictures, and the vectors that stand there."""
        request, route = self._request, self._route
        ids, placeholder = list(request.ids), route.config.image_token_id
        vectors = None
        if request.pictures:
            encoded = iter(self._see(request.pictures))
            expanded, parts = [], []
            for token in ids:
                if token == placeholder:
                    parts.append(next(encoded))
                    expanded.extend([token] * len(parts[-1]))
                else:
                    expanded.append(token)
            ids, vectors = expanded, torch.cat(parts)
            self._answer.report.picture_tokens = len(vectors)
        self._answer.report.prompt_tokens = len(ids)
        if (total := len(ids) + request.max_new_tokens) > route.max_tokens:
            raise TooLong(
                f"the prompt has {len(ids)} tokens, pictures included, and max_new_tokens is {request.max_new_tokens}: "
                f"{total} in all; there is room for {route.max_tokens}"
            )
        return ids, vectors

    def _see(self, pictures: tuple[bytes, ...]) -> list[torch.Tensor]:
        known = {picture: self._route.pictures.get(picture) for picture in pictures}
        new = tuple(picture for picture, vectors in known.items() if vectors is None)
        self._route.counters.add("pictures_known", len(known) - len(new))
        for picture, vectors in zip(new, self._encoded(new) if new else (), strict=True):
            known[picture] = vectors
            self._route.pictures.put(picture, vectors)
        self._route.counters.add("pictures_encoded", len(new))
        return [known[picture] for picture in pictures]

    def _encoded(self, pictures: tuple[bytes, ...]) -> tuple[torch.Tensor, ...]:
        while True:
            try:
                return self._visit("vision", VisionJob(self._id(), pictures)).vectors
            except WorkerLost as error:
                self._note_loss(str(error))

    def _visit(self, name: PoolName, job: Job, keys: PrefixKeys | None = None) -> Encoded | Ended:
        """Do a job on some worker of a pool and give back its last event; tokens go to the answer as they come."""
        answer, pool, affinity = self._answer, self._route.pools[name], self._route.affinity.get(name)
        prefer = None if keys is None else affinity.find(keys)
        # The last worker that may be lost with a request is lost with no other: one that kills workers ends alone.
        alone = 0 < self._lost == self._route.attempts - 1
        began = answer.age_s
        with (
            answer.cancelling(pool.wake),
            pool.lease(prefer, lambda: answer.cancelled, alone) as member,
        ):
            if member is None:
                raise Cancelled
            entered, outcome = answer.age_s, "failed"
            try:
                end = self._do(name, member, job)
                pool.done()
                outcome = "cancelled" if answer.cancelled else "done"
                if keys is not None:
                    affinity.note(keys, member.name)
                return end
            except WorkerLost as error:
                outcome = "lost"
                pool.lost(member, str(error))
                raise
            finally:
                left = answer.age_s
                stage = Stage(name, member.name, began, entered - began, left - entered, outcome)
                answer.report.stages.append(stage)

    def _do(self, name: PoolName, member: Member, job: Job) -> Encoded | Ended:
        answer, worker, end = self._answer, member.worker, None
        with answer.cancelling(lambda: worker.cancel(job.id)), closing(worker.run(job)) as events:
            for event in events:
                self._note(name, event)
                if answer.cancelled:
                    # That may have been before the worker knew of the job.
                    worker.cancel(job.id)
                if isinstance(event, (Encoded, Ended)):
                    end = event
        if end is None:
            raise WorkerLost(f"worker {member.name} left off in the middle")
        return end

    def _note(self, name: PoolName, event: Event) -> None:
        if isinstance(event, Tokens):
            self._given.extend(event.ids)
            self._answer.add(event.ids)
        elif isinstance(event, Started) and name == "prefill" and self._hit_limit is None:
            self._hit_limit = event.hit_tokens
        elif isinstance(event, Ended) and event.error is not None:
            raise event.error

    def _note_loss(self, why: str) -> None:
        self._route.counters.add("retries")
        self._lost += 1
        if self._answer.cancelled:
            raise Cancelled
        if self._lost >= self._route.attempts:
            raise WorkerLost(f"{self._lost} workers were lost with this request, the last so: {why}; it is given up")

    def _note_handover(self, handover: Handover) -> None:
        report = self._answer.report
        report.window_bytes = len(handover.windows)
        report.prompt_pages = -(-handover.prompt_tokens // self._route.page_tokens)

    def _keys(self, ids: list[int], vectors: torch.Tensor | None) -> PrefixKeys:
        """Of the conversation, for finding the worker that had it; no tier knows them."""
        config = self._route.config
        images = SequenceImages()
        if vectors is not None:
            images = SequenceImages.place(ids, vectors, config.image_token_id, vectors.dtype)
        return PrefixKeys(root_key(b"affinity", self._request.tenant), images.key_ids(ids), self._route.page_tokens)

    def _sampling(self) -> Sampling:
        request = self._request
        stops = {self._route.config.eos_token_id} if request.stop_ids is None else request.stop_ids
        # A second start has to draw what the first drew.
        seed = secrets.randbits(63) if request.seed is None else request.seed
        return Sampling(request.max_new_tokens, request.temperature, request.top_p, seed, frozenset(stops))

    @staticmethod
    def _id() -> str:
        return f"job-{next(_numbers)}"


def _forget_locals(error: BaseException | None) -> None:
    """A traceback refers to all that its frames knew: pages that were handed over, whole engines."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
