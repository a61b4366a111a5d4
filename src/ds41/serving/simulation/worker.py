"""A worker: turns on the rows of one model, in steps that all of them share, as :class:`ds41.serving.Engine` runs them.

Who is let in, what gives way, and how a step is shared out is decided by the engine's own :class:`Rows`,
:class:`ResidentPages`, :class:`FairQueue` and :func:`share_out`, over books in place of a cache. A long prompt is
stored when its turn ends, not in pieces as it is read. No turn fails or is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal

import simpy

from ds41.decoder_tail import tail_starts
from ds41.replay import plan_replay
from ds41.serving.fairness import FairQueue, share_out
from ds41.serving.resident import ResidentPages
from ds41.serving.rows import Rows
from ds41.serving.simulation.costs import Costs, Finished, Started, StepWork
from ds41.serving.simulation.drafts import Drafts
from ds41.serving.simulation.jobs import EngineSpec, Job, Seat
from ds41.serving.simulation.memory import ContentKeys, PageBooks, RowBooks
from ds41.serving.simulation.report import Spans
from ds41.serving.simulation.store_tier import Content, StoreTier
from ds41.serving.simulation.tiers import Level, WindowTier

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
        self.layout = self.spec.layout
        self.books = PageBooks(self.layout, self.spec.all_pages)
        self.cache = RowBooks(self.books, self.spec.rows, self._emptied)
        self.resident = ResidentPages(self.books)
        self.rows, self.queue = Rows(self.cache, self.resident), FairQueue()
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
        return self.cache.lengths[self._seats[name].row] if self.has_row(name) else 0

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
            started = self._take_over(job, row) if self.role == "decode" else self._start(job, row)
            self.spans.begin(seat.name, job.record.turn, self.role, self.name)
            self._measure()
            yield from self._spend(self.costs.start(started))

    def _take_over(self, job: Job, row: int) -> Started:
        """The state came over the link; a row that was kept lacks only what is new."""
        job.session.row = row
        self.cache.feed(row, job.context - self.cache.lengths[row])
        return Started(live=True)

    def _start(self, job: Job, row: int) -> Started:
        """Where the turn's tokens have to be fed from: :mod:`ds41.serving.admission`, over books."""
        seat, record = job.session, job.record
        record.context_tokens = job.context
        if seat.row == row:
            record.live_tokens, record.windows, job.stored = self.cache.lengths[row], "live", seat.stored
            started = Started(live=True)
        else:
            started = self._from_tiers(job, row)
            seat.row = row
        starts = tail_starts(self.spec.config, self.cache.lengths[row], job.context, self.spec.decoder)
        job.tail_start = min(starts.values(), default=0)
        return started

    def _from_tiers(self, job: Job, row: int) -> Started:
        seat, record, spec = job.session, job.record, self.spec
        keys = ContentKeys(seat.content, job.context, spec.page_tokens)
        window = spec.config.sliding_window
        pages = self.resident.longest(keys)
        self.books.share_many(pages)
        tokens = record.resident_tokens = len(pages) * spec.page_tokens
        if self.store is not None:
            found = job.stored = self.store.find(seat.content, job.context)
            worth = self.windows is not None or plan_replay(found, window, spec.short_hits).adopts
            if found > tokens and worth:
                more = self.layout.pages_for(found) - len(pages)
                pages += [self.books.allocate() for _ in range(more)]
                record.store_bytes, record.store_tokens = more * self.layout.nbytes, found - tokens
                tokens = found
        taken = self.windows.take(seat.name, tokens, window) if self.windows is not None and tokens else None
        if taken is not None:
            start = min(taken[0], job.context - 1)
            self.cache.adopt(row, pages, tokens, start)
            record.windows, record.window_bytes, record.replayed_tokens = "restored", taken[1], tokens - start
        else:
            plan = plan_replay(tokens, window, spec.short_hits)
            if plan.adopts:
                self.cache.adopt(row, pages, tokens, plan.start)
            else:
                self.cache.reset(row)
                record.resident_tokens = record.store_tokens = 0
            record.windows, record.replayed_tokens = ("replayed" if plan.adopts else "cold"), plan.replayed
        if self.cache.stored[row]:
            self.resident.keep(keys, pages[: tokens // spec.page_tokens])
        self.books.release_many(pages)
        return Started(self.layout.pages_for(job.context), record.store_bytes, record.window_bytes)

    def _advance(self) -> Generator:
        """A step of all turns that have a row, or several of those that only answer."""
        lengths, jobs = self.cache.lengths, dict(self.rows.active)
        left = {row: job.tokens - lengths[row] for row, job in jobs.items()}
        reading = [row for row, count in left.items() if count > 1]
        shares = dict(zip(reading, share_out(self.spec.step_tokens, [left[row] for row in reading]), strict=True))
        counts = {row: shares.get(row, 1) for row in jobs}
        counts = {row: count for row, count in counts.items() if count}
        pieces = [
            (counts[row], lengths[row], self._tail(jobs[row], row, counts[row])) for row in reading if shares[row]
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
        drawn = {row: self._feed(jobs[row], row, counts[row]) for row in counts if row not in drafting}
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

    def _tail(self, job: Job, row: int, count: int) -> int:
        return max(0, min(count, self.cache.lengths[row] + count - job.tail_start))

    def _feed(self, job: Job, row: int, count: int) -> int:
        """Feed a piece; 1 if the turn now draws a token."""
        before, end = self.cache.lengths[row], self.cache.lengths[row] + count
        job.record.computed_tokens += max(0, end - max(before, self.cache.stored[row]))
        self.cache.feed(row, count)
        return int(end == job.tokens)

    def _draw(self, job: Job, row: int, tokens: int) -> Generator:
        if job.generated:
            # All but the last token of an answer are fed as they are drawn.
            self._feed(job, row, tokens)
        job.generated += tokens
        record = job.record
        record.generated_tokens = job.generated
        if record.first_token_s is None:
            record.first_token_s = self.env.now - record.arrived_s
        if job.generated == job.answer:
            yield from self._finish(job, row)
        elif self.role == "prefill":
            self._keep_resident(job, row)
            self.rows.empty(row)
            self.spans.end(job.session.name, self.role)
            self.hand_over(job)

    def _finish(self, job: Job, row: int) -> Generator:
        """What :mod:`ds41.serving.persistence` leaves of a turn, then its end."""
        seat, record, length = job.session, job.record, self.cache.lengths[row]
        if self.store is not None and length > job.stored:
            written = self.store.put(seat.content, length)
            if written is None:
                record.store_refused = True
            else:
                record.stored_tokens, record.stored_bytes = length - job.stored, written
                job.stored = length
                self.spans.begin(seat.name, record.turn, "store")
        seat.stored = job.stored
        if self.role != "decode":
            self._keep_resident(job, row)
        if self.windows is not None:
            nbytes = self.spec.window_bytes(length)
            if self.windows.put(seat.name, length, nbytes):
                record.kept_window_bytes = nbytes
                self.spans.begin(seat.name, record.turn, "windows")
        self.rows.park(row)
        self._waiting_in[row] = seat.name
        if self.role == "prefill":
            # Its row would lack the tokens that are decoded elsewhere next time.
            self.rows.take_back(seat)
        yield from self._spend(
            self.costs.finish(Finished(self.layout.pages_for(length), record.stored_bytes, record.kept_window_bytes))
        )
        self.spans.end(seat.name, self.role)
        if seat.row is not None:
            self.spans.begin(seat.name, record.turn, "row", self.name)
        record.seconds, record.finish = self.env.now - record.arrived_s, "length"
        job.done.succeed()

    def _keep_resident(self, job: Job, row: int) -> None:
        length = self.cache.lengths[row]
        keys = ContentKeys(job.session.content, length, self.spec.page_tokens)
        self.resident.keep(keys, self.cache.pages_of(row)[: length // self.spec.page_tokens])

    def _spend(self, seconds: float) -> Generator:
        if seconds:
            yield self.env.timeout(seconds)
            self.busy_s += seconds

    def _measure(self) -> None:
        held = (self.books.pages - self.books.free_pages) * self.layout.nbytes
        taken = len(self.rows.active) + len(self._waiting_in)
        self.level.set(held + taken * self.spec.window_bytes(self.spec.config.sliding_window))
