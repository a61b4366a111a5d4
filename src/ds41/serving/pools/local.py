"""Pools in one process: engines with pages of their own on one model, one prefix store and one window pool.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ds41.cache.layout import PAGE_TOKENS
from ds41.decoder_tail import Decoder
from ds41.dspark import Drafting
from ds41.model import Model
from ds41.replay import KeptWindows, ShortHits
from ds41.serving.engine import Engine
from ds41.serving.fingerprint import model_fingerprint
from ds41.serving.pools.cluster import Cluster, PoolPlan
from ds41.serving.pools.requests import PoolName
from ds41.serving.pools.workers import DecodeWorker, PrefillWorker, VisionWorker
from ds41.serving.store import PrefixStore
from ds41.serving.windows import WindowPool
from ds41.vision import Vision


@dataclass(frozen=True)
class PoolSizes:
    """Workers of each pool. rows: sequences that a prefill or decode worker computes at once, and its slots."""

    vision: int = 1
    prefill: int = 1
    decode: int = 1
    rows: int = 8


@dataclass(frozen=True)
class EngineOptions:
    """What all engines of a cluster have in common; as :class:`ds41.serving.Engine` takes it."""

    max_tokens: int
    step_tokens: int = 512
    decoder: Decoder = "bounded"
    short_hits: ShortHits = "recompute"
    windows: KeptWindows = "all"

    def engine(
        self,
        model: Model,
        store: PrefixStore | None,
        pool: WindowPool | None,
        rows: int,
        fingerprint: bytes,
        drafting: Drafting | None,
    ) -> Engine:
        """One engine of the cluster; arguments as :class:`ds41.serving.Engine` takes them."""
        return Engine(
            model,
            store,
            pool,
            max_tokens=self.max_tokens,
            rows=rows,
            step_tokens=self.step_tokens,
            decoder=self.decoder,
            short_hits=self.short_hits,
            windows=self.windows,
            fingerprint=fingerprint,
            drafting=drafting,
        )


def local_cluster(
    model: Model,
    options: EngineOptions,
    sizes: PoolSizes | None = None,
    *,
    vision: Vision | None = None,
    store: PrefixStore | None = None,
    pool: WindowPool | None = None,
    drafting: Callable[[], Drafting] | None = None,
    fingerprint: bytes | None = None,
    **limits: int,
) -> Cluster:
    """A cluster whose workers are threads of this process.

    Args:
        sizes: one worker of each kind if None. vision: None refuses pictures. store, pool, fingerprint: as
            :class:`ds41.serving.Engine` takes them; store and pool stay open when the cluster closes.
        drafting: makes one for each engine. limits: as :class:`Cluster` takes them.

    Raises:
        ValueError: as :class:`Cluster` and its pools.
    """
    sizes = sizes or PoolSizes()
    if fingerprint is None:
        fingerprint = model_fingerprint(model)

    def engine() -> Engine:
        return options.engine(model, store, pool, sizes.rows, fingerprint, None if drafting is None else drafting())

    plans: dict[PoolName, PoolPlan] = {
        "prefill": PoolPlan(lambda name: PrefillWorker(name, engine()), sizes.prefill, sizes.rows),
        "decode": PoolPlan(lambda name: DecodeWorker(name, engine()), sizes.decode, sizes.rows),
    }
    if vision is not None:
        plans["vision"] = PoolPlan(lambda name: VisionWorker(name, vision), sizes.vision, slots=1)
    page_tokens = PAGE_TOKENS if store is None else store.layout.page_tokens
    tiers = {name: tier.counters for name, tier in (("store", store), ("windows", pool)) if tier is not None}
    return Cluster(model.config, plans, max_tokens=options.max_tokens, page_tokens=page_tokens, tiers=tiers, **limits)
