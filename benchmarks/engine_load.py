"""A load of :mod:`ds41.serving.simulation` on a real engine, on a clock that skips pauses or counts a model's costs.

Pauses of minutes pass at once when nothing runs. With ``costs`` the clock moves by what they say of each step, start
and finish, and not by what the machine takes: then engine and simulator have to do the same to the token.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from ds41.cache.layout import PAGE_TOKENS
from ds41.model import Model
from ds41.serving import Engine, HostWindowPool, PrefixStore, Stream
from ds41.serving.simulation import (
    Costs,
    EngineSpec,
    Finished,
    Line,
    MeasuredCosts,
    Report,
    SessionPlan,
    Started,
    StepWork,
    TierSpec,
    TurnRecord,
)
from ds41.serving.simulation.costs import FINISH_FEATURES, START_FEATURES, STEP_FEATURES
from ds41.serving.simulation.report import PoolUse
from ds41.serving.turn import Turn
from ds41.serving.turn_counts import TurnCounts

_FINGERPRINT = bytes(32)
_UNBOUNDED = 2**50
# Ids below are control tokens in every vocabulary here.
_FIRST_ID = 16


class Clock:
    """Seconds of ``source``, with what is skipped added; only what is added, if there is none."""

    def __init__(self, source: Callable[[], float] | None) -> None:
        self._source, self._added = source, 0.0
        self._began = source() if source else 0.0

    def __call__(self) -> float:
        return self._added + (self._source() - self._began if self._source else 0.0)

    def add(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._added += seconds

    def skip_to(self, when: float) -> None:
        """Go on at ``when``, unless it is later already."""
        self._added += max(0.0, when - self())


@dataclass
class Samples:
    """What steps, starts and finishes of turns asked for, each with the seconds that it took."""

    steps: list[tuple[StepWork, float]] = field(default_factory=list)
    starts: list[tuple[Started, float]] = field(default_factory=list)
    finishes: list[tuple[Finished, float]] = field(default_factory=list)
    # Seconds of a step outside model, starts and finishes.
    between: list[float] = field(default_factory=list)

    def add(self, others: Samples) -> None:
        """Take another run's samples in."""
        for name in ("steps", "starts", "finishes", "between"):
            getattr(self, name).extend(getattr(others, name))

    def costs(self) -> MeasuredCosts:
        """Lines through the samples."""
        live = [seconds for started, seconds in self.starts if started.live]
        return MeasuredCosts(
            Line.fit(STEP_FEATURES, self.steps),
            Line.fit(START_FEATURES, [sample for sample in self.starts if not sample[0].live]),
            Line.fit(FINISH_FEATURES, self.finishes),
            live_start=sum(live) / len(live) if live else 0.0,
            between=sum(self.between) / len(self.between),
        )


class _Run:
    """One load on one engine."""

    def __init__(
        self, engine: Engine, spec: EngineSpec, clock: Clock, costs: Costs | None, source: Callable[[], float]
    ) -> None:
        self.engine, self.spec, self.clock, self.costs, self.seconds = engine, spec, clock, costs, source
        self.samples = Samples()
        self.records: list[TurnRecord] = []
        self.busy_s, self.steps = 0.0, 0
        self._by_turn: dict[Turn, TurnRecord] = {}
        self._ends: dict[Turn, float] = {}
        # Of the step that runs, in the model and in starts and finishes of turns.
        self._inside = 0.0
        steps = engine._steps
        self._extend, self._start, self._finish, self._draw = (
            engine.model.extend, steps._start, steps._finish, steps._draw,
        )  # fmt: skip
        engine.model.extend, steps._start, steps._finish, steps._draw = (
            self._timed_extend, self._timed_start, self._timed_finish, self._noted_draw,
        )  # fmt: skip

    def detach(self) -> None:
        del self.engine.model.extend

    def _spent(self, seconds: float, cost: Callable[[], float]) -> None:
        self._inside += seconds
        if self.costs is not None:
            self.clock.add(cost())

    def _timed_extend(self, rows, cache, *arguments):
        turns, lengths, tails = self.engine._steps.rows.active, cache.lengths, self.engine._steps._tails.rows
        pieces, answers = [], []
        for row, piece in enumerate(rows):
            if count := len(piece):
                if len(turns[row].ids) - lengths[row] > 1:
                    begins = min(tails[row].values(), default=0)
                    tail = max(0, min(count, lengths[row] + count - begins))
                    pieces.append((count, lengths[row], tail))
                else:
                    answers.append(lengths[row])
        began = self.seconds()
        logits = self._extend(rows, cache, *arguments)
        seconds, work = self.seconds() - began, StepWork.of(pieces, answers)
        self.samples.steps.append((work, seconds))
        self._spent(seconds, lambda: self.costs.step(work))
        return logits

    def _timed_start(self, turn: Turn, row: int) -> None:
        began = self.seconds()
        self._start(turn, row)
        seconds, report = self.seconds() - began, turn.report
        live = report.windows == "live"
        pages = 0 if live else self.engine._pages.layout.pages_for(len(turn.ids))
        # The ledger's bytes, as the simulator counts them.
        windows = self.spec.window_bytes(report.hit_tokens) if report.windows == "restored" else 0
        started = Started(pages, report.store_bytes, windows, live)
        self.samples.starts.append((started, seconds))
        record = self._by_turn[turn]
        record.waited_s = self.clock() - record.arrived_s
        self._spent(seconds, lambda: self.costs.start(started))

    def _timed_finish(self, turn: Turn, row: int, finish: str) -> None:
        began = self.seconds()
        pages = self.engine._pages.layout.pages_for(self.engine._tiers.cache.lengths[row])
        self._finish(turn, row, finish)
        seconds, report = self.seconds() - began, turn.report
        finished = Finished(pages, report.stored_bytes, report.kept_window_bytes)
        self.samples.finishes.append((finished, seconds))
        self._spent(seconds, lambda: self.costs.finish(finished))
        self._ends[turn] = self.clock()

    def _noted_draw(self, turn: Turn, row: int, logits) -> None:
        record = self._by_turn[turn]
        if record.first_token_s is None:
            record.first_token_s = self.clock() - record.arrived_s
        self._draw(turn, row, logits)

    def play(self, plans: Sequence[SessionPlan], ids: Sequence[Sequence[Sequence[int]]]) -> None:
        """All turns of all sessions, each when it arrives; ids: of each session's prompts."""
        clock, sessions = self.clock, [self.engine.open(plan.tenant) for plan in plans]
        coming = [(plan.arrives_s, number, 0) for number, plan in enumerate(plans)]
        heapq.heapify(coming)
        # A stream that is dropped cancels its turn.
        running: dict[int, tuple[int, Turn, Stream]] = {}
        while coming or running:
            while coming and coming[0][0] <= clock():
                arrived, number, place = heapq.heappop(coming)
                plan = plans[number]
                stream = sessions[number].say(ids[number][place], plan.turns[place].answer, stop_ids=())
                turn = sessions[number].turn
                record = TurnRecord(
                    session=plan.name, turn=place, arrived_s=arrived, new_tokens=len(ids[number][place])
                )
                self.records.append(record)
                self._by_turn[turn], running[number] = record, (place, turn, stream)
            if not running:
                clock.skip_to(coming[0][0])
                continue
            self._inside, began, then = 0.0, self.seconds(), clock()
            self.engine.step()
            self.samples.between.append(self.seconds() - began - self._inside)
            self.busy_s, self.steps = self.busy_s + clock() - then, self.steps + 1
            for number, (place, turn, _) in list(running.items()):
                if not turn.done:
                    continue
                del running[number]
                self._close(turn)
                if place + 1 < len(plans[number].turns):
                    when = self._ends[turn] + plans[number].turns[place].pause_s
                    heapq.heappush(coming, (when, number, place + 1))
                else:
                    sessions[number].close()

    def _close(self, turn: Turn) -> None:
        if turn.error is not None:
            raise turn.error
        record = self._by_turn[turn]
        for count in fields(TurnCounts):
            setattr(record, count.name, getattr(turn.report, count.name))
        record.store_refused = turn.report.refused is not None
        record.seconds, record.finish = self._ends[turn] - record.arrived_s, turn.report.finish


def prompts(plans: Sequence[SessionPlan], vocabulary: int, seed: int = 0) -> list[list[list[int]]]:
    """Ids of every prompt: preambles are the same for all that share them, and what follows them differs at once."""
    found = []
    for number, plan in enumerate(plans):
        source = random.Random(f"{seed} {plan.name}")
        said = [[source.randrange(_FIRST_ID, vocabulary) for _ in range(turn.prompt)] for turn in plan.turns]
        preamble = random.Random(f"{seed} {plan.shared}")
        said[0][: plan.shared_tokens] = [preamble.randrange(_FIRST_ID, vocabulary) for _ in range(plan.shared_tokens)]
        said[0][plan.shared_tokens] = _FIRST_ID + number % (vocabulary - _FIRST_ID)
        found.append(said)
    return found


def run_engine(
    model: Model,
    plans: Sequence[SessionPlan],
    spec: EngineSpec,
    tiers: TierSpec,
    folder: Path,
    costs: Costs | None = None,
    source: Callable[[], float] = time.perf_counter,
) -> tuple[Report, Samples, int]:
    """A load on a real engine: its report, what was timed, and the bytes of pages that the store holds at the end.

    folder: an empty one for the store. costs: what the clock counts; None for the seconds of ``source``.

    Raises:
        ValueError: pages of a size that an engine without a store cannot have.
    """
    if not tiers.store and spec.page_tokens != PAGE_TOKENS:
        raise ValueError(f"page_tokens is {spec.page_tokens}; an engine without a store has {PAGE_TOKENS}")
    clock = Clock(source if costs is None else None)
    pool = store = None
    if tiers.windows:
        budget = _UNBOUNDED if tiers.window_budget_bytes is None else tiers.window_budget_bytes
        pool = HostWindowPool(budget, tiers.window_lifetime_s, clock)
    if tiers.store:
        store = PrefixStore(
            folder,
            spec.layout,
            _FINGERPRINT,
            budget_bytes=_UNBOUNDED if tiers.store_budget_bytes is None else tiers.store_budget_bytes,
            guaranteed_s=tiers.store_guaranteed_s,
            expires_s=tiers.store_expires_s,
            share_tenants=tiers.share_tenants,
            clock=clock,
        )
    engine = Engine(
        model,
        store,
        pool,
        max_tokens=spec.max_tokens,
        rows=spec.rows,
        pages=spec.all_pages,
        step_tokens=spec.step_tokens,
        decoder=spec.decoder,
        short_hits=spec.short_hits,
        fingerprint=_FINGERPRINT,
    )
    ids = prompts(plans, model.config.vocab_size)
    run = _Run(engine, spec, clock, costs, source)
    try:
        with engine:
            run.play(plans, ids)
        held = 0 if store is None else store.usage().page_bytes
    finally:
        run.detach()
        if store is not None:
            store.close()
    seconds = max(run._ends.values())
    use = PoolUse("engine", 1, run.busy_s, run.steps, 0)
    return Report(seconds, run.records, [use], {}, {}), run.samples, held
