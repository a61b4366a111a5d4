"""One layer's attention: its own queries and window, and global entries that it owns or borrows.

The layer's plan says which parts it has: a window layer has no global branch; a Full layer writes entries and
selects among them; a Reindex layer selects among borrowed entries; a Reuse layer borrows the selection too.

Source: report sections 2.2, 2.3 and 4.2.1; released ``Attention``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from ds41.attention import kernel_path
from ds41.attention.compressor import Compressor
from ds41.attention.indexer import Indexer, Selection, narrow_selections
from ds41.attention.kernel_memory import KernelMemory
from ds41.attention.memory import Memory
from ds41.attention.output import OutputProjection
from ds41.attention.query import QueryPath
from ds41.attention.window import WindowKV
from ds41.config import LayerPlan, ModelConfig
from ds41.linear import Quantization
from ds41.ops.sparse_attention import sparse_attention
from ds41.rope import layer_frequencies, rotate_by, turns
from ds41.step import Step

# Float32 numbers that the gathered keys of one tile of queries may hold: 64 MB.
_TILE = 2**24


class Attended(NamedTuple):
    """``output`` [n, hidden], and the tokens it is for: the step and their flat indices in the one given.

    ``kept``, int64 [n], is None where all tokens are.
    """

    output: torch.Tensor
    step: Step
    kept: torch.Tensor | None


class Attention(nn.Module):
    """Attention of one layer, in the mode that its plan gives it.

    Beside its parts it has one parameter, ``attn_sink`` float32 [heads]: a logit per head that only takes probability.
    """

    def __init__(self, config: ModelConfig, plan: LayerPlan, quantization: Quantization, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.plan = config, plan
        self.query = QueryPath(config, quantization, dtype)
        self.window = WindowKV(config, quantization, dtype)
        if plan.owns_kv:
            self.compressor = Compressor(config, plan.ratio, dtype)
        if plan.owns_selection:
            self.indexer = Indexer(config, plan, quantization, dtype)
        self.attn_sink = nn.Parameter(torch.zeros(config.num_attention_heads, dtype=torch.float32))
        self.output = OutputProjection(config, quantization, dtype)

    def forward(
        self,
        x: torch.Tensor,
        step: Step,
        memory: Memory,
        selections: dict[int, Selection],
        starts: Sequence[int] | None = None,
    ) -> Attended:
        """Write this layer's keys for all tokens, attend for those that are wanted.

        Args:
            x: [N, hidden], normalised. selections: by the layer that made them; this layer adds its own.
            starts: attend only for tokens at or after these positions, one for each sequence; None for all.
        """
        if isinstance(memory, KernelMemory):
            return Attended(*kernel_path.attend(self, x, step, memory, selections, starts))
        turn = step.turn(self._frequencies())
        rows, choice = memory.window(self.plan.index, step, self.window(x, turn))
        if self.plan.owns_kv:
            self._write_entries(x, step, memory)
        kept = None
        if starts is not None:
            step, kept = step.from_position(starts)
            x, turn, choice = x[kept], turn[kept], choice[kept]
            narrow_selections(selections, kept)
        latent, queries = self.query(x, turn)
        if self.plan.owns_selection:
            source = selections.get(self.plan.candidate_source)
            pool = None if source is None else source.candidates
            selections[self.plan.index] = self.indexer(x, latent, turn, step, memory, pool)
        heads = self._attend(queries, rows, choice, step, memory, selections)
        return Attended(self.output(rotate_by(heads, turn.conj()[:, None])), step, kept)

    def _frequencies(self) -> torch.Tensor:
        return layer_frequencies(self.config, self.plan.ratio)

    def _write_entries(self, x: torch.Tensor, step: Step, memory: Memory) -> None:
        latent, sequence, entry = self.compressor(x, step, memory, self.plan.index)
        # An entry stands at the position of its group's first token.
        turn = turns(entry * self.plan.ratio, self._frequencies())
        # The index key comes from the latent itself, before it is rotated and rounded.
        memory.append(self.plan.index, sequence, entry, rotate_by(latent, turn), self.indexer.keys(latent, turn))

    def _attend(
        self,
        queries: torch.Tensor,
        rows: torch.Tensor,
        choice: torch.Tensor,
        step: Step,
        memory: Memory,
        selections: dict[int, Selection],
    ) -> torch.Tensor:
        selected = selections[self.plan.index_source].entries if self.plan.ratio else choice[:, :0]
        rows = rows.to(torch.float32)
        width = choice.shape[1] + selected.shape[1]
        tile = max(1, _TILE // (width * queries.shape[-1]))
        outputs = []
        for start in range(0, step.tokens, tile):
            part = slice(start, min(start + tile, step.tokens))
            keys = rows[choice[part].clamp(min=0)]
            if selected.shape[1]:
                entries = memory.main_entries(self.plan.kv_source, step.sequence[part], selected[part])
                keys = torch.cat((keys, entries), dim=1)
            usable = torch.cat((choice[part], selected[part]), dim=1) >= 0
            outputs.append(sparse_attention(queries[part], keys, usable, self.attn_sink))
        return torch.cat(outputs) if outputs else queries
