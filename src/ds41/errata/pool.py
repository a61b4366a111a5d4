"""The fifth cell, which the article names and does not write: what the candidate pool saves, costs and hides.

It makes the average selection cheaper, and every selection of a Reindex layer depends on the one that makes the pool.
The first half is a sum over the selecting layers of the decoder; the second can be checked by one extra scan.

Source: report section 2.3.2 for the pool; the counts and the measure are ds41's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from ds41 import ledger, reads
from ds41.attention import Indexer, Selection
from ds41.config import ModelConfig
from ds41.model import Model
from ds41.ops.selection import entries_of_blocks, top_entries


@dataclass(frozen=True)
class SelectionCost:
    """What the decoder's selecting layers spend on one query at the end of a context of ``tokens`` tokens.

    with_pool, without_pool: multiply-adds of the scores of all ``layers`` selecting layers.
    comparisons: at the least, to make the pool: each score is held against its block's maximum so far, each block's
        maximum against the edge of the pool. Nothing where no layer scores.
    keys_with_pool, keys_without_pool: bytes of index keys that are read.
    """

    tokens: int
    layers: int
    with_pool: int
    without_pool: int
    comparisons: int
    keys_with_pool: int
    keys_without_pool: int

    @property
    def average_with_pool(self) -> Fraction:
        """Multiply-adds of the average selection."""
        return Fraction(self.with_pool, self.layers)

    @property
    def average_without_pool(self) -> Fraction:
        """The same where every layer scans all entries."""
        return Fraction(self.without_pool, self.layers)

    @property
    def saving(self) -> Fraction:
        """How many times cheaper the average selection is with the pool; 1 where nothing is scored."""
        return Fraction(self.without_pool, self.with_pool) if self.with_pool else Fraction(1)


def selection_cost(config: ModelConfig, tokens: int) -> SelectionCost:
    """The decoder's selections with the published pool, and with every layer scanning all entries.

    Raises:
        ValueError: the configuration has no pool.
    """
    if config.candidate_source_layer_id < 0:
        raise ValueError("candidate_source_layer_id is negative: this configuration has no pool")
    free = replace(config, candidate_source_layer_id=-1)
    chosen = [layer.index for layer in config.layers if layer.half == "decoder" and layer.owns_selection]
    pooled, scanned = (reads.index_macs(one, tokens) for one in (config, free))
    key = ledger.Storage.published(config).index.nbytes
    per_entry = config.index_n_heads * config.index_head_dim
    with_pool, without_pool = (sum(macs[layer] for layer in chosen) for macs in (pooled, scanned))
    return SelectionCost(
        tokens,
        len(chosen),
        with_pool,
        without_pool,
        pooled[config.candidate_source_layer_id] // per_entry,
        with_pool // per_entry * key,
        without_pool // per_entry * key,
    )


def saves_nothing_up_to(config: ModelConfig) -> int:
    """The longest context at which the pool saves no multiply-add: 16,384 tokens as published."""
    return _first_saving(config, comparisons=False) - 1


def pays_from(config: ModelConfig) -> int:
    """The shortest context at which it saves more than it costs, a comparison counted as much as a multiply-add."""
    return _first_saving(config, comparisons=True)


def _first_saving(config: ModelConfig, comparisons: bool) -> int:
    def saves(tokens: int) -> bool:
        cost = selection_cost(config, tokens)
        return cost.without_pool - cost.with_pool > cost.comparisons * comparisons

    return bisect_left(range(2**24), True, key=saves)


@dataclass(frozen=True)
class PoolRecall:
    """What one Reindex layer would have selected from all entries, beside the pool, over ``queries`` queries.

    recall: share of its exact top-k that the pool holds, mean over queries. worst: of the worst query.
    chance: the pool's share of the visible entries, which a pool made at random would hold.
    """

    layer: int
    queries: int
    recall: float
    worst: float
    chance: float


def measure_recall(model: Model, ids: torch.Tensor, at: torch.Tensor | None = None) -> tuple[PoolRecall, ...]:
    """Score everything in the Reindex layers, once, and count how much of the exact top-k the pool holds.

    Only queries count from which the pool hides something. What the layers go on with is unchanged.

    Args:
        ids: int64 [B, T], rows longer than the pool holds entries. at: int64 [B, A], the positions whose queries
            count; all if None.

    Raises:
        ValueError: a model without a pool, or queries from which it hides nothing.
    """
    counted = torch.ones_like(ids, dtype=torch.bool)
    if at is not None:
        counted = torch.zeros_like(counted).scatter_(1, at, True)
    with _watched(model, counted.flatten()) as found, torch.no_grad():
        model(ids)
    if not found or not all(len(share) for share, _ in found.values()):
        raise ValueError(f"ids are {list(ids.shape)}; expected a model with a pool, and queries it hides entries from")
    return tuple(
        PoolRecall(layer, len(share), float(share.mean()), float(share.min()), float(chance.mean()))
        for layer, (share, chance) in sorted(found.items())
    )


@contextmanager
def _watched(model: Model, counted: torch.Tensor) -> Iterator[dict[int, tuple[torch.Tensor, torch.Tensor]]]:
    """While it lasts, a pass leaves for each layer with a pool the recall and the chance of its queries, [N] each."""
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def watch(indexer: Indexer, args: tuple, _made: Selection) -> None:
        x, latent, turn, step, memory, candidates = args
        if candidates is None:
            return
        c, ratio = indexer.config, indexer.plan.ratio
        visible = (step.position + 1) // ratio
        asked = indexer.query(x, latent, turn)
        shares = []
        for sequence, (begin, count) in enumerate(zip(step.offsets[:-1], step.counts, strict=True)):
            rows = slice(begin, begin + count)
            scores = indexer.scores(asked.part(rows), sequence, count // ratio, memory)
            late = torch.arange(scores.shape[1], device=scores.device) >= visible[rows, None]
            exact = top_entries(scores.masked_fill_(late, -torch.inf), c.index_topk)
            pool = entries_of_blocks(candidates[rows], c.candidate_block_size, visible[rows])
            held = torch.zeros(count, scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
            held.scatter_(1, torch.where(pool < 0, scores.shape[1], pool), True)
            inside = held.gather(1, exact.clamp(min=0)) & (exact >= 0)
            shares.append(inside.sum(1) / (exact >= 0).sum(1).clamp(min=1))
        in_pool = (entries_of_blocks(candidates, c.candidate_block_size, visible) >= 0).sum(1)
        hides = (in_pool < visible) & counted
        found[indexer.plan.index] = torch.cat(shares)[hides], (in_pool / visible.clamp(min=1))[hides]

    handles = [
        block.attn.indexer.register_forward_hook(watch)
        for plan, block in zip(model.config.layers, model.layers, strict=True)
        if plan.mode == "reindex"
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
