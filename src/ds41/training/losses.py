"""The losses of one pass: text, the indexer's alignment, balance within a sequence."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from ds41.attention import SequenceMemory
from ds41.expert_balance import sequence_balance_loss
from ds41.model import Model
from ds41.step import Step
from ds41.training.alignment import alignment_loss
from ds41.training.recipe import Recipe, Stage
from ds41.training.serving_conditions import ReplayMemory
from ds41.training.signals import Signals
from ds41.training.stream import Batch


class Losses(NamedTuple):
    """Scalars in nats; ``total`` is what is minimised. answers: mean over answer tokens, NaN without any."""

    total: torch.Tensor
    text: torch.Tensor
    alignment: torch.Tensor
    balance: torch.Tensor
    answers: torch.Tensor


def token_losses(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of every token but the first, float32 [B, T - 1]."""
    flat = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return flat.unflatten(0, (len(ids), -1))


def step_losses(model: Model, signals: Signals, batch: Batch, stage: Stage, recipe: Recipe, seed: int) -> Losses:
    """Run the model on a batch under the stage's conditions.

    Args:
        seed: of what is drawn in this step: which queries teach the indexer, where decoder windows begin anew.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(batch.ids.shape)
    begins = replay_begins(shape, model.config.sliding_window, recipe.replayed if stage.serving else 0.0, generator)
    begins = begins.to(model.device)

    def remember(step: Step) -> SequenceMemory:
        return signals.keep(ReplayMemory(model.config, step, stage.serving and recipe.rounds, begins))

    logits = model(batch.ids, memory=remember)
    losses = token_losses(logits, batch.ids)
    weights = batch.weights[:, 1:]
    text = (losses * weights).sum() / weights.sum().clamp_min(1)
    alignment = balance = torch.zeros((), device=logits.device)
    if recipe.alignment:
        positions = torch.randperm(shape[1], generator=generator)[: recipe.aligned].sort().values.to(model.device)
        alignment = alignment_loss(model, signals, shape, positions, recipe.legal)
    if recipe.balance:
        sequence = torch.arange(shape[0], device=model.device).repeat_interleave(shape[1])
        parts = [sequence_balance_loss(r.scores, r.indices, sequence, recipe.balance) for r in signals.routing.values()]
        balance = torch.stack(parts).mean()
    rows, places = batch.answers()
    answers = losses.detach()[rows, places - 1].mean()
    return Losses(text + recipe.alignment * alignment + balance, text, alignment, balance, answers)


def replay_begins(shape: tuple[int, int], window: int, share: float, generator: torch.Generator) -> torch.Tensor:
    """For each row of [B, T] where the decoder's windows begin anew, int64 [B]; T, which is nowhere, for the others."""
    rows, length = shape
    begins = torch.randint(min(window, length - 1), length, (rows,), generator=generator)
    return torch.where(torch.rand(rows, generator=generator) < share, begins, length)
