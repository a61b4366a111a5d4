"""What a worker has of its turns, as books: rows, pages, and the tiers below; where a turn starts, and what it leaves.

Who is let in and what gives way is decided by the engine's own :class:`Rows` and :class:`ResidentPages`. A long prompt
is stored when its turn ends, not in pieces as it is read.
"""

from __future__ import annotations

from collections.abc import Callable

from ds41.decoder_tail import tail_starts
from ds41.replay import plan_replay
from ds41.serving.resident import ResidentPages
from ds41.serving.rows import Rows
from ds41.serving.simulation.costs import Finished, Started
from ds41.serving.simulation.jobs import EngineSpec, Job
from ds41.serving.simulation.memory import ContentKeys, PageBooks, RowBooks
from ds41.serving.simulation.store_tier import StoreTier
from ds41.serving.simulation.tiers import WindowTier


class WorkerState:
    """The memory of one worker, over tiers that it may share; ``on_emptied`` is called with a row that is emptied."""

    def __init__(
        self,
        spec: EngineSpec,
        windows: WindowTier | None,
        store: StoreTier | None,
        on_emptied: Callable[[int], None],
    ) -> None:
        self.spec, self.layout = spec, spec.layout
        self.cache = RowBooks(PageBooks(self.layout, spec.all_pages), spec.rows, on_emptied)
        self._resident, self._windows, self._store = ResidentPages(self.cache.pool), windows, store
        self.rows = Rows(self.cache, self._resident)

    @property
    def held_bytes(self) -> int:
        """Of the pages that somebody has."""
        pool = self.cache.pool
        return (pool.pages - pool.free_pages) * self.layout.nbytes

    def take_over(self, job: Job, row: int) -> Started:
        """The state came over the link; a row that was kept lacks only what is new."""
        job.session.row = row
        self.cache.feed(row, job.context - self.cache.lengths[row])
        return Started(live=True)

    def start(self, job: Job, row: int) -> Started:
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

    def tail(self, job: Job, row: int, count: int) -> int:
        """How many of the next ``count`` tokens run through the layers above the last source."""
        return max(0, min(count, self.cache.lengths[row] + count - job.tail_start))

    def feed(self, job: Job, row: int, count: int) -> int:
        """Feed a piece; 1 if the turn now draws a token."""
        before, end = self.cache.lengths[row], self.cache.lengths[row] + count
        job.record.computed_tokens += max(0, end - max(before, self.cache.stored[row]))
        self.cache.feed(row, count)
        return int(end == job.tokens)

    def keep_resident(self, job: Job, row: int) -> None:
        """Let the row's whole pages be found by others."""
        length = self.cache.lengths[row]
        keys = ContentKeys(job.session.content, length, self.spec.page_tokens)
        self._resident.keep(keys, self.cache.pages_of(row)[: length // self.spec.page_tokens])

    def persist(self, job: Job, row: int, resident: bool) -> Finished:
        """What a turn leaves: :mod:`ds41.serving.persistence`, over books. resident: its pages can be found here."""
        seat, record, length = job.session, job.record, self.cache.lengths[row]
        if self._store is not None and length > job.stored:
            written = self._store.put(seat.content, length)
            if written is None:
                record.store_refused = True
            else:
                record.stored_tokens, record.stored_bytes = length - job.stored, written
                job.stored = length
        seat.stored = job.stored
        if resident:
            self.keep_resident(job, row)
        if self._windows is not None:
            nbytes = self.spec.window_bytes(length)
            if self._windows.put(seat.name, length, nbytes):
                record.kept_window_bytes = nbytes
        return Finished(self.layout.pages_for(length), record.stored_bytes, record.kept_window_bytes)

    def _from_tiers(self, job: Job, row: int) -> Started:
        seat, record, spec = job.session, job.record, self.spec
        keys = ContentKeys(seat.content, job.context, spec.page_tokens)
        window = spec.config.sliding_window
        pages = self._resident.longest(keys)
        self.cache.pool.share_many(pages)
        tokens = record.resident_tokens = len(pages) * spec.page_tokens
        if self._store is not None:
            found = job.stored = self._store.find(seat.content, job.context)
            worth = self._windows is not None or plan_replay(found, window, spec.short_hits).adopts
            if found > tokens and worth:
                more = self.layout.pages_for(found) - len(pages)
                pages += [self.cache.pool.allocate() for _ in range(more)]
                record.store_bytes, record.store_tokens = more * self.layout.nbytes, found - tokens
                tokens = found
        taken = self._windows.take(seat.name, tokens, window) if self._windows is not None and tokens else None
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
            self._resident.keep(keys, pages[: tokens // spec.page_tokens])
        self.cache.pool.release_many(pages)
        return Started(self.layout.pages_for(job.context), record.store_bytes, record.window_bytes)
