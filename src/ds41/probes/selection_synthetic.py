"""Does selection at one point hold? A needle at the edge of the selection, at the published sizes.

One query decides for a group of layers, from FP4 keys. The probe asks at which true ranks a needle is missed, and what
the decoder's Reindex layers can no longer find once the Full layer has made the pool.

It would speak against the design if (1) a needle far inside the selection were missed: more than 1 % at a quarter of
top-k; (2) that got worse as the context grows; (3) misses did not follow from the format's noise, so that nothing
could be said about other sizes; (4) Reindex layers lost more needles to the pool than to their own FP4 selection
while their queries still resemble the Full layer's.

Source: report section 2.3.2 for the selection that is probed; the probe is ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds41.config import ModelConfig
from ds41.probes.selection_context import CLUSTERED, KeyLaw, SyntheticContext
from ds41.probes.selection_needles import EdgeWidth, MissCounter, MissPoint
from ds41.probes.selection_pool import PoolCounter, PoolEdgePoint, QueryPair, SightPoint

# Parts of top-k and of the pool's budget at which needles and blocks are followed.
_RANKS = (32, 64, 128, 192, 256, 320, 384, 448, 480, 496, 504, 508, 512, 513, 517, 528, 544, 576, 640, 768, 1024, 1536)
_SEEN_RANKS = (1, 16, 64, 128, 256, 384, 512)
_BLOCK_RANKS = (1024, 1536, 1792, 1920, 1984, 2016, 2040, 2048, 2049, 2056, 2080, 2112, 2176, 2304, 2560, 3072, 4096)
CORRELATIONS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Correlations of scores that are tried."""
# Scores of one kind that may exist at a time: 64 MB.
_SCORES = 2**24


@dataclass(frozen=True)
class SelectionReport:
    """What the probe found; ``dataclasses.asdict`` gives plain values.

    seeds: queries, each with needles of its own; contexts: key stores that they are spread over. pool_entries: what
    the pool holds at most. pool_edge, sights and pairs are empty where the pool holds every entry.
    """

    law: KeyLaw
    entries: int
    seeds: int
    contexts: int
    top_k: int
    pool_blocks: int
    pool_entries: int
    misses: list[MissPoint]
    widths: list[EdgeWidth]
    pool_edge: list[PoolEdgePoint]
    sights: list[SightPoint]
    pairs: list[QueryPair]


def probe_selection(
    config: ModelConfig,
    entries: int = 65536,
    seeds: int = 100,
    law: KeyLaw = CLUSTERED,
    contexts: int = 4,
    correlations: tuple[float, ...] = CORRELATIONS,
    pool_seeds: int | None = None,
    seed: int = 0,
) -> SelectionReport:
    """Run the probe at the sizes of a configuration.

    Args:
        entries: of the decoder's source, up to ``max_position_embeddings``. seeds: queries. contexts: key stores that
            the queries are spread over, evenly. pool_seeds: how many of the queries also go through the pool; all if
            None. seed: of everything that is drawn.

    Raises:
        ValueError: fewer than one seed for each context, or entries that the configuration cannot hold.
    """
    if not 1 <= contexts <= seeds:
        raise ValueError(f"{seeds} seeds for {contexts} contexts; expected one or more seeds each")
    pool_seeds = seeds if pool_seeds is None else pool_seeds
    if not 1 <= pool_seeds <= seeds:
        raise ValueError(f"pool_seeds is {pool_seeds}; expected 1 to seeds, {seeds}")
    top_k, budget = config.index_topk, config.candidate_topk_blocks
    has_pool = entries > budget * config.candidate_block_size
    misses = MissCounter(_scaled(_RANKS, top_k / 512, min(4 * top_k, entries) - 1, least=2), top_k)
    blocks = -(-entries // config.candidate_block_size)
    pools = PoolCounter(
        _scaled(_SEEN_RANKS, top_k / 512, top_k), _scaled(_BLOCK_RANKS, budget / 2048, blocks), correlations, top_k
    )
    for number in range(contexts):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        context = SyntheticContext(config, entries, law, generator)
        followed = _share(pool_seeds, contexts, number)
        for count in _batches(_share(seeds, contexts, number), max(1, _SCORES // entries)):
            asked = context.queries(count, generator)
            misses.add(context, asked, generator)
            through_pool = min(followed, count)
            followed -= through_pool
            if has_pool and through_pool:
                pools.add(context, asked.part(slice(through_pool)), context.queries(through_pool, generator))
    return SelectionReport(
        law,
        entries,
        seeds,
        contexts,
        top_k,
        budget,
        budget * config.candidate_block_size,
        misses.points(),
        misses.widths(),
        pools.edge_points() if has_pool else [],
        pools.sight_points() if has_pool else [],
        pools.pairs() if has_pool else [],
    )


def _scaled(published: tuple[int, ...], factor: float, most: int, least: int = 1) -> tuple[int, ...]:
    """The published sizes' ranks for another size, those that exist there."""
    return tuple(sorted({max(least, round(rank * factor)) for rank in published if round(rank * factor) <= most}))


def _share(total: int, parts: int, number: int) -> int:
    return total // parts + (number < total % parts)


def _batches(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]
