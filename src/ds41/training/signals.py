"""What training reads from a forward pass besides its logits: routing, queries, keys and entries of every layer.

Source: ds41's own.
"""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

import torch
from torch import nn

from ds41.attention import Selection, SequenceMemory
from ds41.model import Model
from ds41.moe import Routing


class Asking(NamedTuple):
    """What a layer's indexer was given: attention input ``x`` [N, hidden], query latent [N, q_lora_rank], turn [N,
    R/2].
    """

    x: torch.Tensor
    latent: torch.Tensor
    turn: torch.Tensor


class Signals:
    """Records a model's forward passes while it is entered; the latest pass is what it holds.

    By layer, queries: rotated queries [N, heads, head_dim]; rows: window rows [N, head_dim] before rounding; routing.
    By selecting layer, asking and selected. By source, latents: (latent [M, head_dim], turn) that index keys are made
    of. memory: the pass's :class:`SequenceMemory`.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.queries: dict[int, torch.Tensor] = {}
        self.rows: dict[int, torch.Tensor] = {}
        self.asking: dict[int, Asking] = {}
        self.selected: dict[int, Selection] = {}
        self.latents: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.routing: dict[int, Routing] = {}
        self.memory: SequenceMemory | None = None
        self._handles: list = []

    def __enter__(self) -> Signals:
        for layer, block in enumerate(self.model.layers):
            attention = block.attn
            self._after(block.ffn.gate, self.routing, layer, lambda _, out: out)
            if not attention.plan.ratio:
                continue
            self._after(attention.query, self.queries, layer, lambda _, out: out[1])
            self._after(attention.window, self.rows, layer, lambda _, out: out)
            if attention.plan.owns_selection:
                self._after(attention.indexer, self.asking, layer, lambda given, _: Asking(*given[:3]))
                self._after(attention.indexer, self.selected, layer, lambda _, out: out)
            if attention.plan.owns_kv:
                self._after(attention.indexer.keys, self.latents, layer, lambda given, _: given)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()

    def keep(self, memory: SequenceMemory) -> SequenceMemory:
        """Hold the memory of a pass: ``model(ids, memory=lambda step: signals.keep(...))``."""
        self.memory = memory
        return memory

    def _after(self, module: nn.Module, found: dict, layer: int, read) -> None:
        def hook(_, given, out) -> None:
            found[layer] = read(given, out)

        self._handles.append(module.register_forward_hook(hook))
