"""The indexer: keys that stand for entries, queries that score them, and the entries that a query selects.

Full layers own keys; Full and Reindex layers own queries.

Source: report sections 2.3.1 and 2.3.2; released ``Indexer``. A layer scores against the keys of its own source at
every step; the released code does not where a decode step closes no group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from ds41.attention.memory import Memory
from ds41.config import LayerPlan, ModelConfig
from ds41.formats import INDEX_KEY
from ds41.linear import Linear, Quantization
from ds41.norm import RMSNorm
from ds41.ops.index_scores import index_scores, index_scores_of_pool
from ds41.ops.selection import candidate_blocks, entries_of_blocks, top_entries
from ds41.rope import rotate_by
from ds41.step import Step

# Float32 numbers that one tile of scores, or of gathered keys, may hold: 128 MB.
_TILE = 2**25
# Keys of a long context are decoded in pieces of this many entries, small enough to stay in a cache.
_KEY_PIECE = 2**13


def rows_per_tile(numbers: int, budget: int | None = None) -> int:
    """Queries whose scores or keys, ``numbers`` float32 each, fit the budget: the score matrix never exists whole.

    At 16,384 queries and 2^20 entries it would take 64 GiB, its masks not counted.
    """
    return max(1, (_TILE if budget is None else budget) // max(1, numbers))


class IndexQuery(NamedTuple):
    """What a token asks the indexer with: query float32 [N, heads, C], weight float32 [N, heads]."""

    query: torch.Tensor
    weight: torch.Tensor

    def part(self, rows: slice) -> IndexQuery:
        return IndexQuery(self.query[rows], self.weight[rows])


class Selection(NamedTuple):
    """What a layer selects for each token: entries int64 [N, K], ascending, -1 for none.

    candidates: int64 [N, blocks] of the pool that this layer publishes, -1 for none; None if it publishes none, or
    if the pool holds every visible entry.
    """

    entries: torch.Tensor
    candidates: torch.Tensor | None = None

    def only(self, kept: torch.Tensor) -> Selection:
        """What it is for the tokens with flat indices ``kept``."""
        return Selection(self.entries[kept], None if self.candidates is None else self.candidates[kept])


def narrow_selections(selections: dict[int, Selection], kept: torch.Tensor) -> None:
    """Leave in every selection the tokens with flat indices ``kept``: the layers above go on with those."""
    for layer, selection in selections.items():
        selections[layer] = selection.only(kept)


def all_visible(visible: torch.Tensor, longest: int) -> Selection:
    """What a query that sees no more than top-k entries selects, whatever their scores: all of them.

    Args:
        visible: int64 [N], how many entries each query sees. longest: the most that any sees.
    """
    everything = torch.arange(longest, device=visible.device).expand(visible.shape[0], -1)
    return Selection(torch.where(everything < visible[:, None], everything, -1))


class IndexKeys(nn.Module):
    """A latent, neither rotated nor rounded -> its index key, normalised and rotated."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        c = config
        self.wk = Linear(c.head_dim, c.index_head_dim, "bf16", dtype=dtype, std=c.initializer_range)
        self.k_norm = RMSNorm(c.index_head_dim, c.rms_norm_eps)

    def forward(self, latent: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """latent [M, head_dim], turn [M, R/2] at each entry's position -> [M, index_head_dim]."""
        return rotate_by(self.k_norm(self.wk(latent)), turn)


class Indexer(nn.Module):
    """Queries, scores and selection of a Full or Reindex layer."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, quantization: Quantization, dtype: torch.dtype) -> None:
        super().__init__()
        c = self.config = config
        self.plan = plan
        self.heads, self.channels = c.index_n_heads, c.index_head_dim
        self.rounds_query = quantization != "none"
        self.publishes = plan.index == c.candidate_source_layer_id
        self.wq_b = Linear(
            c.q_lora_rank,
            self.heads * self.channels,
            "fp8",
            dtype=dtype,
            rounds_input=quantization == "full",
            std=c.initializer_range,
        )
        self.weights_proj = Linear(c.hidden_size, self.heads, "bf16", dtype=dtype, std=c.initializer_range)
        if plan.owns_kv:
            self.keys = IndexKeys(c, dtype)

    def forward(
        self,
        x: torch.Tensor,
        latent: torch.Tensor,
        turn: torch.Tensor,
        step: Step,
        memory: Memory,
        candidates: torch.Tensor | None,
    ) -> Selection:
        """Select for every token of the step.

        Args:
            x: [N, hidden], the attention input. latent: [N, q_lora_rank] of the query path. turn: [N, R/2].
            candidates: the pool this layer has to choose from, [N, blocks]; None for all visible entries.
        """
        with torch.no_grad():
            visible = (step.position + 1) // self.plan.ratio
            longest = step.longest // self.plan.ratio
            if longest <= self.config.index_topk:
                return all_visible(visible, longest)
            asked = self.query(x, latent, turn)
            if candidates is not None:
                return Selection(self._select_from_pool(asked, step, visible, memory, candidates))
            return self._select_from_all(asked, step, visible, memory)

    def query(self, x: torch.Tensor, latent: torch.Tensor, turn: torch.Tensor) -> IndexQuery:
        """The rotated, rounded queries and the head weights, their two constant factors included.

        Args:
            x: [N, hidden], the layer's attention input. latent: [N, q_lora_rank], the query latent. turn: complex64 [N,
                R/2].
        """
        heads = self.query_heads(latent, turn)
        if self.rounds_query:
            heads = INDEX_KEY.fake_quantize(heads)
        return IndexQuery(heads.to(torch.float32), self.head_weights(x))

    def query_heads(self, latent: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """The rotated queries before they are rounded, [N, heads, C]; ``latent`` and ``turn`` as in :meth:`query`."""
        return rotate_by(self.wq_b(latent).unflatten(-1, (self.heads, self.channels)), turn[:, None])

    def head_weights(self, x: torch.Tensor) -> torch.Tensor:
        """How much each head's scores count for each token of ``x`` [N, hidden]: float32 [N, heads], two constant
        factors included.
        """
        return self.weights_proj(x).to(torch.float32) * (self.channels**-0.5 * self.heads**-0.5)

    def scores(self, asked: IndexQuery, sequence: int, entries: int, memory: Memory) -> torch.Tensor:
        """Scores of queries of one sequence against its first ``entries`` entries, 1 or more: float32 [N, entries]."""
        scores = []
        for start in range(0, entries, _KEY_PIECE):
            stop = min(start + _KEY_PIECE, entries)
            keys = memory.index_keys(self.plan.kv_source, sequence, start, stop)
            scores.append(index_scores(asked.query, asked.weight, keys))
        return scores[0] if len(scores) == 1 else torch.cat(scores, dim=1)

    def _select_from_all(self, asked: IndexQuery, step: Step, visible: torch.Tensor, memory: Memory) -> Selection:
        c = self.config
        longest = step.longest // self.plan.ratio
        width = min(c.index_topk, longest)
        entries, pool = visible.new_full((step.tokens, width), -1), None
        # A pool that holds every block restricts nothing.
        if self.publishes and longest > c.candidate_topk_blocks * c.candidate_block_size:
            pool = visible.new_full((step.tokens, c.candidate_topk_blocks), -1)
        for sequence, (first, count) in enumerate(zip(step.firsts, step.counts, strict=True)):
            length = (first + count) // self.plan.ratio
            if count == 0 or length == 0:
                continue
            begin = step.offsets[sequence]
            tile = rows_per_tile(length)
            for start in range(begin, begin + count, tile):
                rows = slice(start, min(start + tile, begin + count))
                scores = self.scores(asked.part(rows), sequence, length, memory)
                hidden = torch.arange(length, device=scores.device) >= visible[rows, None]
                scores.masked_fill_(hidden, -torch.inf)
                chosen = top_entries(scores, width)
                entries[rows, : chosen.shape[1]] = chosen
                if pool is not None:
                    kept = candidate_blocks(scores, visible[rows], c.candidate_block_size, c.candidate_topk_blocks)
                    pool[rows, : kept.shape[1]] = kept
        return Selection(entries, pool)

    def _select_from_pool(
        self, asked: IndexQuery, step: Step, visible: torch.Tensor, memory: Memory, candidates: torch.Tensor
    ) -> torch.Tensor:
        c = self.config
        selected = []
        tile = rows_per_tile(candidates.shape[1] * c.candidate_block_size * self.channels)
        for start in range(0, step.tokens, tile):
            rows = slice(start, min(start + tile, step.tokens))
            entries = entries_of_blocks(candidates[rows], c.candidate_block_size, visible[rows])
            keys = memory.index_entries(self.plan.kv_source, step.sequence[rows], entries)
            scores = index_scores_of_pool(*asked.part(rows), keys).masked_fill_(entries < 0, -torch.inf)
            columns = top_entries(scores, c.index_topk)
            selected.append(torch.where(columns < 0, -1, entries.gather(1, columns.clamp(min=0))))
        return torch.cat(selected) if selected else candidates.new_empty(0, c.index_topk)
