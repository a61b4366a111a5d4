"""Post-training's conditions: the model sees what it will see when it serves.

Candidate pool, rounded caches and queries, rounded weights, and windows of the decoder that begin anew where a
bounded prefill begins its tail.

Source: report sections 2.4.4, 3.2.2, 4.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from ds41.attention import SequenceMemory
from ds41.checkpoint.rounding import rounded_weights
from ds41.config import ModelConfig
from ds41.model import Model
from ds41.step import Step


def set_conditions(model: Model, serving: bool, rounds: bool = True) -> None:
    """Let the indexers publish a pool and round their queries, or do neither."""
    for block in model.layers:
        if block.attn.plan.owns_selection:
            indexer = block.attn.indexer
            indexer.rounds_query = serving and rounds
            indexer.publishes = serving and block.attn.plan.index == model.config.candidate_source_layer_id


class ReplayMemory(SequenceMemory):
    """Rows whose decoder windows begin anew at one position each, as after a bounded prefill.

    Args:
        begins: int64 [B]; from this position on a token sees no window row before it, in the layers above the last
            source. A position beyond the row changes nothing.
    """

    def __init__(self, config: ModelConfig, step: Step, rounds: bool, begins: torch.Tensor) -> None:
        super().__init__(config, step, rounds)
        self._first = config.decoder_start + 1
        begin = begins[step.sequence]
        position = step.position[:, None] - torch.arange(config.sliding_window - 1, -1, -1, device=begins.device)
        cut = (step.position >= begin)[:, None] & (position < begin[:, None])
        self._after = self._choice.masked_fill(cut, -1)

    def window(self, layer: int, step: Step, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept, choice = super().window(layer, step, rows)
        return kept, self._after if layer >= self._first else choice


@contextmanager
@torch.no_grad()
def stored_weights(model: Model, apply: bool = True) -> Iterator[None]:
    """Inside, weights have the values that a checkpoint would keep; gradients taken there are for the full ones."""
    if not apply:
        yield
        return
    parameters = dict(model.named_parameters())
    full = {}
    whole = ((name, _whole(parameter)) for name, parameter in parameters.items())
    try:
        for name, rounded in rounded_weights(model.config, whole):
            parameter = parameters[name]
            full[name] = parameter.clone()
            # In place: sharded parameters are gathered from where they lie.
            parameter.copy_(_like(rounded, parameter))
        yield
    finally:
        for name, values in full.items():
            parameters[name].copy_(values)


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def _like(values: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if not isinstance(parameter, DTensor):
        return values
    return distribute_tensor(values, parameter.device_mesh, parameter.placements, src_data_rank=None)
