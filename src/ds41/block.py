"""One layer: Engram where the layer has it, attention, experts, each between hyper-connections.

Source: report sections 2.2 to 2.4; released ``Block``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from ds41.attention import Attention, Memory, Selection
from ds41.config import LayerPlan, ModelConfig
from ds41.engram import Engram
from ds41.engram.prefetch import PendingRows
from ds41.hyper_connections import Coefficients, HyperConnection, Update, collapse, expand, leave
from ds41.linear import Quantization
from ds41.moe import MoE
from ds41.norm import RMSNorm
from ds41.step import Step


@dataclass(frozen=True, eq=False)
class Hidden:
    """What passes from layer to layer.

    received: [N, n, hidden], the streams as the last site received them. update: what that site adds to them; the
    next site writes it, in the same sweep in which it reads them. weights: float32 [N, n], predicted at the last
    site, that collapse them at the next. step: whose tokens these are. engram_rows: int64 [N, columns] by layer.
    pending: rows of Engram tables that are being fetched; they are given up when nobody holds them. watched: layers
    whose streams somebody wants, ascending. entering: of those passed, the mean over the streams as they entered the
    layer's first site, [N, hidden] each.
    """

    received: torch.Tensor
    weights: torch.Tensor
    step: Step
    engram_rows: dict[int, torch.Tensor]
    update: Update | None = None
    pending: tuple[PendingRows, ...] = ()
    watched: tuple[int, ...] = ()
    entering: tuple[torch.Tensor, ...] = ()

    @cached_property
    def streams(self) -> torch.Tensor:
        """The streams with the update written, [N, n, hidden]."""
        return self.received if self.update is None else expand(self.received, *self.update)

    def out_of(self, tokens: torch.Tensor | slice, norm: RMSNorm) -> torch.Tensor:
        """The way out for some of the tokens: their streams collapsed and normalised, [len(tokens), hidden]."""
        update = self.update
        if update is not None:
            update = Update(update.y[tokens], Coefficients(*(part[tokens] for part in update.coefficients)))
        return leave(self.received[tokens], update, self.weights[tokens], norm)

    def settled(self) -> Hidden:
        """The same, with nothing left to write."""
        return replace(self, received=self.streams, update=None)

    def only(self, kept: torch.Tensor, step: Step) -> Hidden:
        """The tokens with flat indices ``kept``, which are those of ``step``."""
        rows = {layer: row[kept] for layer, row in self.engram_rows.items()}
        entering = tuple(mean[kept] for mean in self.entering)
        return replace(
            self,
            received=self.streams[kept],
            update=None,
            weights=self.weights[kept],
            step=step,
            engram_rows=rows,
            entering=entering,
        )


class Block(nn.Module):
    """A backbone layer. Its attention and its experts are two sites of the hyper-connections."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, quantization: Quantization, dtype: torch.dtype) -> None:
        super().__init__()
        if plan.index in config.engram_layer_ids:
            self.engram = Engram(config, plan.index, quantization, dtype)
        self.hc_attn = HyperConnection(config)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config, plan, quantization, dtype)
        self.hc_ffn = HyperConnection(config)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn = MoE(config, quantization, dtype)
        self.plan = plan

    def forward(
        self,
        hidden: Hidden,
        memory: Memory,
        selections: dict[int, Selection],
        starts: Sequence[int] | None = None,
    ) -> Hidden:
        """Run the layer: streams [N, n, hidden] in, the same out.

        Args:
            memory: keys of this step and of those before. selections: of the layers below; this layer adds its own.
            starts: one position for each sequence. All tokens leave their keys; tokens from there on come out.
        """
        if self.plan.index in hidden.engram_rows:
            rows = hidden.engram_rows[self.plan.index]
            hidden = hidden.settled()
            hidden = replace(hidden, received=self.engram(hidden.received, rows, hidden.step.image))
        if starts is None:
            x, streams, coefficients = self.hc_attn.enter(
                hidden.received, hidden.update, hidden.weights, self.attn_norm
            )
            y = self.attn(x, hidden.step, memory, selections).output
        else:
            # All tokens leave their keys; coefficients are for those that go on.
            x = self.attn_norm(collapse(hidden.streams, hidden.weights))
            y, step, kept = self.attn(x, hidden.step, memory, selections, starts)
            hidden = hidden.only(kept, step)
            streams, coefficients = hidden.received, self.hc_attn(hidden.received)
        if self.plan.index in hidden.watched:
            mean = streams.mean(1, dtype=torch.float32).to(streams.dtype)
            hidden = replace(hidden, entering=(*hidden.entering, mean))
        # Single-pass: a site's own pre weights would need a second sweep, so it takes those of the site before it.
        update = Update(y, coefficients)
        x, streams, coefficients = self.hc_ffn.enter(streams, update, coefficients.pre, self.ffn_norm)
        update = Update(self.ffn(x, hidden.step.image), coefficients)
        return replace(hidden, received=streams, update=update, weights=coefficients.pre)
