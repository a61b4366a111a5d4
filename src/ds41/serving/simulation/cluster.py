"""A cluster under a load: sessions that come and go, workers in pools, the tiers that they share.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import simpy

from ds41.serving.simulation.costs import Costs
from ds41.serving.simulation.drafts import Drafts
from ds41.serving.simulation.jobs import EngineSpec, Job
from ds41.serving.simulation.report import PoolUse, Report, Spans, TurnRecord
from ds41.serving.simulation.store_tier import Content, StoreTier
from ds41.serving.simulation.tiers import WindowTier
from ds41.serving.simulation.worker import Role, Worker
from ds41.serving.simulation.workload import SessionPlan, TurnPlan
from ds41.serving.store import GUARANTEED_S
from ds41.serving.windows import LIFETIME_S


@dataclass(frozen=True)
class TierSpec:
    """The tiers below the workers. Budgets in bytes, None for no limit.

    windows, store: whether there is one at all. store_sweeps: as in :class:`StoreTier`. The others as in
    :class:`ds41.serving.HostWindowPool` and :class:`ds41.serving.PrefixStore`; window_lifetime_s may be 0, and then
    keeps nothing.
    """

    windows: bool = True
    window_lifetime_s: float = LIFETIME_S
    window_budget_bytes: int | None = None
    store: bool = True
    store_budget_bytes: int | None = None
    store_guaranteed_s: float = GUARANTEED_S
    store_expires_s: float | None = None
    store_sweeps: bool = True
    share_tenants: bool = False


@dataclass(frozen=True)
class Pools:
    """How many workers of which kind: ``engines`` that do all, or encoders, prefill and decode apart (EPD).

    encoders: of images; 0 lets whoever reads the prompt encode them at no cost of time. link_bytes_per_s: at which
    pages and windows go from prefill to decode, each transfer by itself. They never go back: the next turn's prefill
    finds the answer's pages in the store and its windows in the pool, or does without.

    Raises:
        ValueError: workers of both arrangements or of none, a number below 0, or a link without speed.
    """

    engines: int = 1
    encoders: int = 0
    prefill: int = 0
    decode: int = 0
    link_bytes_per_s: float = 50e9

    def __post_init__(self) -> None:
        apart = self.prefill or self.decode
        if min(self.engines, self.encoders, self.prefill, self.decode) < 0:
            raise ValueError(f"{self} has a negative number of workers; expected 0 or more of each")
        if bool(self.engines) == bool(apart) or bool(self.prefill) != bool(self.decode):
            raise ValueError(
                f"engines is {self.engines}, prefill {self.prefill} and decode {self.decode}; expected either "
                "engines alone, or both prefill and decode"
            )
        if not self.link_bytes_per_s > 0:
            raise ValueError(f"link_bytes_per_s is {self.link_bytes_per_s}; expected more than 0")


def simulate(
    sessions: Sequence[SessionPlan],
    spec: EngineSpec,
    costs: Costs,
    tiers: TierSpec | None = None,
    pools: Pools | None = None,
    *,
    decode_spec: EngineSpec | None = None,
    drafts: Drafts | None = None,
    watch: int = 24,
    until_s: float | None = None,
) -> Report:
    """Run a load to its end. No random numbers: the same arguments give the same report.

    Args:
        spec: of every worker, or with EPD of those that prefill. decode_spec: of those that decode; ``spec`` if None.
        drafts: of all answers; None draws token by token.
        watch: of how many sessions, the first ones, the report says who was where when.
        until_s: end then, with the turns that run left unfinished; None for when nobody comes any more.

    Raises:
        ValueError: a session that is longer than a worker's rows, two of one name, or none at all.
    """
    cluster = _Cluster(simpy.Environment(), spec, costs, tiers or TierSpec(), pools or Pools(), decode_spec, drafts)
    return cluster.run(sessions, watch, until_s)


@dataclass
class _Cluster:
    env: simpy.Environment
    spec: EngineSpec
    costs: Costs
    tiers: TierSpec
    pools: Pools
    decode_spec: EngineSpec | None
    drafts: Drafts | None

    def run(self, sessions: Sequence[SessionPlan], watch: int, until_s: float | None) -> Report:
        self._check(sessions)
        env, tiers = self.env, self.tiers
        self.records: list[TurnRecord] = []
        self.spans = Spans(lambda: env.now, [plan.name for plan in sessions[:watch]])
        self.windows = self.store = None
        if tiers.windows:
            self.windows = WindowTier(
                lambda: env.now,
                tiers.window_lifetime_s,
                tiers.window_budget_bytes,
                lambda name, _, when: self.spans.end(name, "windows", when),
            )
        if tiers.store:
            self.store = StoreTier(
                lambda: env.now,
                self.spec.layout,
                tiers.store_budget_bytes,
                tiers.store_guaranteed_s,
                tiers.store_expires_s,
                tiers.store_sweeps,
                lambda name, when: self.spans.end(name, "store", when),
            )
        self._build()
        everybody = env.all_of([env.process(self._session(plan)) for plan in sessions])
        env.run(everybody if until_s is None else until_s)
        return self._report(self.last_s if until_s is None else until_s)

    def _build(self) -> None:
        pools, self.last_s = self.pools, 0.0
        self.readers = self._workers("engine", pools.engines, self.spec) or self._workers(
            "prefill", pools.prefill, self.spec
        )
        self.decoders = self._workers("decode", pools.decode, self.decode_spec or self.spec)
        self.encoder_busy_s, self.encoded, self.encoder_queue = 0.0, 0, 0
        self.encoders = simpy.Resource(self.env, pools.encoders) if pools.encoders else None

    def _workers(self, role: Role, count: int, spec: EngineSpec) -> list[Worker]:
        shared = (self.costs, self.windows, self.store, self.spans)
        drafts = None if role == "prefill" else self.drafts
        hand_over = (lambda job: self.env.process(self._transfer(job))) if role == "prefill" else None
        return [Worker(self.env, f"{role} {n}", role, spec, *shared, drafts, hand_over) for n in range(count)]

    def _session(self, plan: SessionPlan) -> Generator:
        env, tokens = self.env, 0
        yield env.timeout(plan.arrives_s)
        for number, turn in enumerate(plan.turns):
            record = TurnRecord(session=plan.name, turn=number, arrived_s=env.now, new_tokens=turn.prompt)
            self.records.append(record)
            yield from self._encode(plan, number, turn)
            worker = self._route(self.readers, plan.name)
            job = self._job(worker, plan, record, tokens, turn)
            if worker.submit(job):
                yield job.done
                tokens = job.tokens
                self.last_s = env.now
            else:
                record.finish = "refused"
                self.last_s = max(self.last_s, env.now)
                if not tokens:
                    # Without its first turn it has no preamble either.
                    worker.leave(plan.name)
            if number + 1 < len(plan.turns):
                yield env.timeout(turn.pause_s)
        for worker in (*self.readers, *self.decoders):
            worker.leave(plan.name)

    def _job(self, worker: Worker, plan: SessionPlan, record: TurnRecord, tokens: int, turn: TurnPlan) -> Job:
        tenant = "" if self.tiers.share_tenants else f"{plan.tenant}/"
        content = Content(plan.name)
        if plan.shared and (tokens or record.turn == 0):
            content = Content(plan.name, f"{tenant}{plan.shared}", plan.shared_tokens)
        seat = worker.seat(plan.name, plan.tenant, content)
        return Job(seat, record, tokens + turn.prompt, turn.answer, self.env.event())

    def _encode(self, plan: SessionPlan, number: int, turn: TurnPlan) -> Generator:
        if not turn.images or self.encoders is None:
            return
        with self.encoders.request() as place:
            self.spans.begin(plan.name, number, "queue", "encoder")
            self.encoder_queue = max(self.encoder_queue, len(self.encoders.queue))
            yield place
            self.spans.end(plan.name, "queue")
            self.spans.begin(plan.name, number, "encoder", "encoder")
            seconds = self.costs.images(turn.images)
            self.encoder_busy_s += seconds
            self.encoded += 1
            yield self.env.timeout(seconds)
            self.spans.end(plan.name, "encoder")

    def _transfer(self, job: Job) -> Generator:
        name, record = job.session.name, job.record
        worker = self._route(self.decoders, name)
        new = job.context - worker.live_tokens(name)
        layout = worker.spec.layout
        record.transfer_bytes = layout.pages_for(new) * layout.nbytes + self.spec.window_bytes(job.context)
        self.spans.begin(name, record.turn, "transfer", worker.name)
        yield self.env.timeout(record.transfer_bytes / self.pools.link_bytes_per_s)
        self.spans.end(name, "transfer")
        job.session = worker.seat(name, job.session.tenant, job.session.content)
        worker.submit(job, bounded=False)

    @staticmethod
    def _route(workers: Sequence[Worker], name: str) -> Worker:
        """The worker whose row the session has kept, or the one with least to do."""
        return min(workers, key=lambda worker: (not worker.has_row(name), worker.load))

    def _report(self, seconds: float) -> Report:
        for closing in (self.windows, self.store, *(worker.level for worker in (*self.readers, *self.decoders))):
            if closing is not None:
                closing.close()
        self.spans.close()
        pools = [
            PoolUse(
                workers[0].role,
                len(workers),
                sum(worker.busy_s for worker in workers),
                sum(worker.steps for worker in workers),
                max(worker.longest_queue for worker in workers),
            )
            for workers in (self.readers, self.decoders)
            if workers
        ]
        if self.encoders is not None:
            use = PoolUse("encoder", self.pools.encoders, self.encoder_busy_s, self.encoded, self.encoder_queue)
            pools.insert(0, use)
        levels = {worker.name: worker.level for worker in (*self.readers, *self.decoders)}
        counts = {}
        for name, tier in (("windows", self.windows), ("store", self.store)):
            if tier is not None:
                levels[name], counts[name] = tier.level, dict(tier.counts)
        return Report(seconds, self.records, pools, levels, counts, self.spans.found)

    def _check(self, sessions: Sequence[SessionPlan]) -> None:
        if not sessions:
            raise ValueError("there are no sessions; expected one or more")
        if len({plan.name for plan in sessions}) < len(sessions):
            raise ValueError("two sessions have the same name; expected each to have its own")
        for spec in (self.spec, self.decode_spec or self.spec):
            longest = max(sessions, key=lambda plan: plan.tokens)
            if longest.tokens > spec.max_tokens:
                raise ValueError(
                    f"session {longest.name!r} comes to {longest.tokens:,} tokens; the workers have room for "
                    f"{spec.max_tokens:,}"
                )
            if (pages := spec.layout.pages_for(longest.tokens) + 1) > spec.all_pages:
                raise ValueError(f"session {longest.name!r} needs {pages:,} pages; a worker has {spec.all_pages:,}")
