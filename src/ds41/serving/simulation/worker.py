"""A worker: turns on the rows of one model, in steps that all of them share, as :class:`ds41.serving.Engine` runs them.

Who is next and how a step is shared out is decided by the engine's own :class:`FairQueue` and :func:`share_out`; where
a turn starts and what it leaves is :mod:`ds41.serving.simulation.worker_state`. No turn fails or is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal

import simpy

from ds41.serving.fairness import FairQueue, share_out
from ds41.serving.simulation.costs import Costs, StepWork
from ds41.serving.simulation.drafts import Drafts
from ds41.serving.simulation.jobs import EngineSpec, Job, Seat
from ds41.serving.simulation.report import Spans
from ds41.serving.simulation.store_tier import Content, StoreTier
from ds41.serving.simulation.tiers import Level, WindowTier
from ds41.serving.simulation.worker_state import WorkerState

Role = Literal["engine", "prefill", "decode"]


@dataclass(eq=False)
class Worker:
    """One model with its rows. role: "engine" does all of a turn, "prefill" up to its first token, "decode" the rest.

    hand_over: what "prefill" does with a turn whose answer goes on elsewhere.
    """

    env: simpy.Environment
    name: str
    role: Role
    spec: EngineSpec
    costs: Costs
    windows: WindowTier | None
    store: StoreTier | None
    spans: Spans
    drafts: Drafts | None = None
    hand_over: Callable[[Job], None] | None = None
    busy_s: float = 0.0
    steps: int = 0
    longest_queue: int = 0
    _inbox: list[Job] = field(default_factory=list)
    _seats: dict[str, Seat] = field(default_factory=dict)
    _waiting_in: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = WorkerState(self.spec, self.windows, self.store, self._emptied)
        self.rows, self.queue = self.state.rows, FairQueue()
        self.level = Level(lambda: self.env.now)
        self._wake = self.env.event()
        self.env.process(self._run())

    @property
    def load(self) -> int:
        """Turns that run here or wait."""
        return len(self.rows.active) + self.waiting

    @property
    def waiting(self) -> int:
        return len(self.queue) + len(self._inbox)

    def seat(self, name: str, tenant: str, content: Content) -> Seat:
        """The session's seat here, made when it is first asked for."""
        return self._seats.setdefault(name, Seat(name, tenant, content))

    def has_row(self, name: str) -> bool:
        """Whether the session has kept a row here."""
        return name in self._seats and self._seats[name].row is not None

    def live_tokens(self, name: str) -> int:
        """Tokens in the row that the session has kept here."""
        return self.state.cache.lengths[self._seats[name].row] if self.has_row(name) else 0

    def submit(self, job: Job, bounded: bool = True) -> bool:
        """Queue a turn; False if the queue is full."""
        if bounded and self.spec.queue is not None and self.waiting >= self.spec.queue + self._free_rows():
            return False
        job.queued_s = self.env.now
        self._inbox.append(job)
        self.longest_queue = max(self.longest_queue, self.waiting)
        self.spans.begin(job.session.name, job.record.turn, "queue", self.name)
        if not self._wake.triggered:
            self._wake.succeed()
        return True

    def leave(self, name: str) -> None:
        """The session has ended: its row here is free."""
        if (seat := self._seats.pop(name, None)) is not None:
            self.rows.take_back(seat)
            self._measure()

    def _free_rows(self) -> int:
        return self.spec.rows - len(self.rows.active)

    def _emptied(self, row: int) -> None:
        if (name := self._waiting_in.pop(row, None)) is not None:
            self.spans.end(name, "row")

    def _run(self) -> Generator:
        while True:
            self._collect()
            yield from self._admit()
            if self.rows.active:
                yield from self._advance()
            elif not self._inbox:
                self._wake = self.env.event()
                yield self._wake

    def _collect(self) -> None:
        for job in self._inbox:
            self.queue.put(job)
        self._inbox.clear()

    def _admit(self) -> Generator:
        while (job := self.queue.head()) is not None:
            row = self.rows.room_for(job)
            if row is None:
                # Pages are enough for the longest turn alone, so another one runs.
                return
            self.queue.remove(job)
            self.rows.start(row, job)
            self._waiting_in.pop(row, None)
            seat = job.session
            job.record.waited_s += self.env.now - job.queued_s
            self.spans.end(seat.name, "queue")
            self.spans.end(seat.name, "row")
            started = self.state.take_over(job, row) if self.role == "decode" else self.state.start(job, row)
            self.spans.begin(seat.name, job.record.turn, self.role, self.name)
            self._measure()
            yield from self._spend(self.costs.start(started))

    def _advance(self) -> Generator:
        """A step of all turns that have a row, or several of those that only answer."""
        lengths, jobs = self.state.cache.lengths, dict(self.rows.active)
        left = {row: job.tokens - lengths[row] for row, job in jobs.items()}
        reading = [row for row, count in left.items() if count > 1]
        shares = dict(zip(reading, share_out(self.spec.step_tokens, [left[row] for row in reading]), strict=True))
        counts = {row: shares.get(row, 1) for row in jobs}
        counts = {row: count for row, count in counts.items() if count}
        pieces = [
            (counts[row], lengths[row], self.state.tail(jobs[row], row, counts[row])) for row in reading if shares[row]
        ]
        drafting = [row for row, job in jobs.items() if job.generated and left[row] == 1]
        length = self.drafts.length(len(drafting)) if self.drafts and drafting else 0
        work = StepWork.of(pieces, [lengths[row] for row in counts if left[row] == 1], length * len(drafting))
        seconds = self.costs.step(work)
        if length:
            seconds += self.drafts.draft_seconds(len(drafting))
        expected = self.drafts.expected(length) if length else 1.0
        steps = 1
        if len(drafting) == len(jobs):
            steps = yield from self._several(
                seconds, min(job.answer - job.generated for job in jobs.values()), expected
            )
        else:
            yield from self._spend(seconds)
        self.steps += steps
        drawn = {row: self.state.feed(jobs[row], row, counts[row]) for row in counts if row not in drafting}
        for row in drafting:
            job = jobs[row]
            job.record.verified_tokens += length * steps
            job.credit += expected * steps
            tokens = min(int(job.credit), job.answer - job.generated)
            job.credit -= int(job.credit)
            drawn[row] = tokens
        for row in counts:
            if drawn[row]:
                yield from self._draw(jobs[row], row, drawn[row])
        self._measure()

    def _several(self, seconds: float, tokens: int, expected: float) -> Generator:
        """As many steps as the shortest answer lasts, or until somebody comes; says how many."""
        most = min(self.spec.steps_at_once, max(1, -int(-tokens // expected)))
        if most == 1 or self._inbox or not seconds:
            yield from self._spend(seconds)
            return 1
        self._wake, began = self.env.event(), self.env.now
        yield self._wake | self.env.timeout(most * seconds)
        done = most
        if self._wake.triggered:
            # The step that runs is finished first.
            done = min(most, int((self.env.now - began) / seconds) + 1)
            yield self.env.timeout(max(0.0, began + done * seconds - self.env.now))
        self.busy_s += self.env.now - began
        return done

    def _draw(self, job: Job, row: int, tokens: int) -> Generator:
        if job.generated:
            # All but the last token of an answer are fed as they are drawn.
            self.state.feed(job, row, tokens)
        job.generated += tokens
        record = job.record
        record.generated_tokens = job.generated
        if record.first_token_s is None:
            record.first_token_s = self.env.now - record.arrived_s
        if job.generated == job.answer:
            yield from self._finish(job, row)
        elif self.role == "prefill":
            self.state.keep_resident(job, row)
            self.rows.empty(row)
            self.spans.end(job.session.name, self.role)
            self.hand_over(job)

    def _finish(self, job: Job, row: int) -> Generator:
        """What :mod:`ds41.serving.persistence` leaves of a turn, then its end."""
        seat, record = job.session, job.record
        finished = self.state.persist(job, row, resident=self.role != "decode")
        if record.stored_tokens:
            self.spans.begin(seat.name, record.turn, "store")
        if record.kept_window_bytes:
            self.spans.begin(seat.name, record.turn, "windows")
        self.rows.park(row)
        self._waiting_in[row] = seat.name
        if self.role == "prefill":
            # Its row would lack the tokens that are decoded elsewhere next time.
            self.rows.take_back(seat)
        yield from self._spend(self.costs.finish(finished))
        self.spans.end(seat.name, self.role)
        if seat.row is not None:
            self.spans.begin(seat.name, record.turn, "row", self.name)
        record.seconds, record.finish = self.env.now - record.arrived_s, "length"
        job.done.succeed()

    def _spend(self, seconds: float) -> Generator:
        if seconds:
            yield self.env.timeout(seconds)
            self.busy_s += seconds

    def _measure(self) -> None:
        taken = len(self.rows.active) + len(self._waiting_in)
        self.level.set(self.state.held_bytes + taken * self.spec.window_bytes(self.spec.config.sliding_window))
