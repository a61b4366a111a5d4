"""The candidate pool seen by another query: what a Reindex layer cannot find because a Full layer did not like it.

The Full layer's stored scores make the pool. A Reindex layer's query correlates with the Full layer's as stated and
selects from the pool only. Needles are entries of a given true rank under the Reindex layer's own query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds41.attention.indexer import IndexQuery
from ds41.ops.index_scores import index_scores_of_pool
from ds41.ops.selection import candidate_blocks, entries_of_blocks, top_entries
from ds41.probes.estimates import Estimate, estimate_mean, estimate_share
from ds41.probes.selection_context import SyntheticContext, mix_queries, round_query
from ds41.probes.selection_prediction import hidden_probability, miss_probability, score_correlation, score_error

# Queries whose pools are gathered at a time: 8 MB of keys each.
_ROWS = 8
_REACH = 4


@dataclass(frozen=True)
class PoolEdgePoint:
    """Blocks of one true rank under the Full layer's query: share of seeds whose pool leaves the block out."""

    block_rank: int
    dropped: Estimate
    predicted: float


@dataclass(frozen=True)
class SightPoint:
    """Needles of one true rank under a Reindex layer's query.

    correlation: of its query with the Full layer's. rank: 0 stands for all ranks up to top-k, and its estimates are
    means over seeds. hidden: the pool lacks the needle. missed_by_reindex: hidden, or not selected from the pool.
    missed_by_full: not among the Full layer's own selection. predicted: of hidden; None for rank 0.
    """

    correlation: float
    rank: int
    hidden: Estimate
    predicted: float | None
    missed_by_reindex: Estimate
    missed_by_full: Estimate


@dataclass(frozen=True)
class QueryPair:
    """What a correlation of queries is in scores: correlation over all entries, and the part of the two true top-k
    that is the same (means over seeds)."""

    correlation: float
    scores: Estimate
    overlap: Estimate


class PoolCounter:
    """Collects pools over contexts and queries.

    Args:
        ranks: true ranks of needles under the Reindex layer's query, up to top-k. block_ranks: true ranks of blocks.
    """

    def __init__(
        self, ranks: tuple[int, ...], block_ranks: tuple[int, ...], correlations: tuple[float, ...], top_k: int
    ) -> None:
        if not 1 <= min(ranks) <= max(ranks) <= top_k:
            raise ValueError(f"ranks are {min(ranks)} to {max(ranks)}; expected 1 to top-k, {top_k}")
        self.ranks, self.block_ranks, self.correlations, self.top_k = ranks, block_ranks, correlations, top_k
        self._edge: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._sights: dict[float, list[tuple[torch.Tensor, ...]]] = {value: [] for value in correlations}
        self._pairs: dict[float, list[tuple[torch.Tensor, torch.Tensor]]] = {value: [] for value in correlations}

    def add(self, context: SyntheticContext, full: IndexQuery, other: IndexQuery) -> None:
        """Follow queries of the Full layer, each with independent ones that Reindex layers' are mixed from.

        Raises:
            ValueError: a context that the pool holds as a whole, or a block rank that it does not have.
        """
        c = context.config
        blocks = -(-context.entries // c.candidate_block_size)
        if blocks <= c.candidate_topk_blocks:
            raise ValueError(
                f"{context.entries} entries are {blocks} blocks, and the pool holds {c.candidate_topk_blocks}; "
                "expected more"
            )
        true, stored = context.true_scores(full), context.stored_scores(round_query(full))
        visible = torch.full((len(stored),), context.entries)
        pool = candidate_blocks(stored, visible, c.candidate_block_size, c.candidate_topk_blocks)
        edge = self._add_edge(context, full, true, pool)
        full_selection = top_entries(stored, self.top_k)
        for correlation in self.correlations:
            asked = mix_queries(full, other, correlation)
            own = context.true_scores(asked)
            best = own.topk(self.top_k, dim=1)
            in_pool = _contains(pool, best.indices // c.candidate_block_size, blocks)
            selection = select_from_pool(context, round_query(asked), pool, visible, self.top_k)
            at = torch.tensor(self.ranks) - 1
            predicted = hidden_probability(own, true, best.values[:, at], edge, c.candidate_block_size)
            missed = [~_contains(chosen, best.indices, context.entries) for chosen in (selection, full_selection)]
            self._sights[correlation].append((~in_pool, predicted, *missed))
            shared = _contains(true.topk(self.top_k, dim=1).indices, best.indices, context.entries)
            self._pairs[correlation].append((score_correlation(own, true), shared.to(torch.float32).mean(1)))

    def edge_points(self) -> list[PoolEdgePoint]:
        """One for each block rank."""
        dropped, predicted = (torch.cat(part) for part in zip(*self._edge, strict=True))
        return [
            PoolEdgePoint(rank, estimate_share(int(hits.sum()), len(hits)), float(chance.mean()))
            for rank, hits, chance in zip(self.block_ranks, dropped.T, predicted.T, strict=True)
        ]

    def sight_points(self) -> list[SightPoint]:
        """One for each correlation and rank, and one of rank 0 for all ranks."""
        points = []
        for correlation, batches in self._sights.items():
            hidden, predicted, by_reindex, by_full = (torch.cat(part) for part in zip(*batches, strict=True))
            for column, rank in enumerate(self.ranks):
                shares = [
                    estimate_share(int(part[:, rank - 1].sum()), len(part)) for part in (hidden, by_reindex, by_full)
                ]
                chance = float(predicted[:, column].mean())
                points.append(SightPoint(correlation, rank, shares[0], chance, *shares[1:]))
            means = [estimate_mean(part.to(torch.float32).mean(1).tolist()) for part in (hidden, by_reindex, by_full)]
            points.append(SightPoint(correlation, 0, means[0], None, *means[1:]))
        return points

    def pairs(self) -> list[QueryPair]:
        """One for each correlation."""
        return [
            QueryPair(correlation, *(estimate_mean(torch.cat(part).tolist()) for part in zip(*batches, strict=True)))
            for correlation, batches in self._pairs.items()
        ]

    def _add_edge(
        self, context: SyntheticContext, full: IndexQuery, true: torch.Tensor, pool: torch.Tensor
    ) -> torch.Tensor:
        """Count the blocks of the wanted ranks; give the true score at the pool's edge, [N]."""
        c = context.config
        size, budget = c.candidate_block_size, c.candidate_topk_blocks
        missing = -context.entries % size
        blocks = torch.nn.functional.pad(true, (0, missing), value=-torch.inf).unflatten(1, (-1, size))
        maxima, within = blocks.max(-1)
        if not 1 <= min(self.block_ranks) <= max(self.block_ranks) <= maxima.shape[1]:
            raise ValueError(
                f"block ranks are {self.block_ranks}; expected 1 to the number of blocks, {maxima.shape[1]}"
            )
        best = maxima.topk(min(_REACH * budget, maxima.shape[1]), dim=1)
        around = best.indices[:, budget // 2 : budget + budget // 2]
        around = around[:, :: max(1, around.shape[1] // 256)]
        error = score_error(full, context.keys[around * size + within.gather(1, around)], True)
        at = torch.tensor(self.block_ranks) - 1
        predicted = miss_probability(best.values, error, budget)[:, at]
        self._edge.append((~_contains(pool, best.indices[:, at], maxima.shape[1]), predicted))
        return best.values[:, budget - 1]


def select_from_pool(
    context: SyntheticContext, asked: IndexQuery, pool: torch.Tensor, visible: torch.Tensor, top_k: int
) -> torch.Tensor:
    """What a Reindex layer selects from the pools [N, blocks] of its queries: int64 [N, top_k]."""
    chosen = []
    for start in range(0, len(pool), _ROWS):
        rows = slice(start, start + _ROWS)
        entries = entries_of_blocks(pool[rows], context.config.candidate_block_size, visible[rows])
        scores = index_scores_of_pool(*asked.part(rows), context.stored_keys(entries))
        columns = top_entries(scores.masked_fill_(entries < 0, -torch.inf), top_k)
        chosen.append(torch.where(columns < 0, -1, entries.gather(1, columns.clamp(min=0))))
    return torch.cat(chosen)


def _contains(sets: torch.Tensor, items: torch.Tensor, size: int) -> torch.Tensor:
    """Whether items [N, R] are among the sets [N, K] of numbers below ``size`` (-1 for none): bool [N, R]."""
    held = torch.zeros(len(sets), size + 1, dtype=torch.bool)
    held.scatter_(1, torch.where(sets < 0, size, sets), True)
    return held.gather(1, items)
