"""Training the drafter on a frozen model.

V4.1's own losses are not published; these are the DSpark paper's (sections 3.3 and 5.1): cross-entropy with the text,
the distance between the two distributions, which is what verification loses, and the confidence head's own error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ds41.dspark import BlockMemory, Drafter, block_choice
from ds41.model import Model
from ds41.step import Step
from ds41.training.corpus import Corpus
from ds41.training.parts import Balance, PartRecipe, model_digest, train_part
from ds41.training.stream import make_batch
from ds41.training.tasks import Kind
from ds41.training.trainer import Progress

# Weights of the three losses, and how fast the weight of a place in the block falls.
CROSS_ENTROPY, DISTANCE, CONFIDENCE, DECAY = 0.1, 0.9, 1.0, 4.0
_MIX: Mapping[Kind, float] = {"source": 0.6, "planted": 0.2, "recall": 0.1, "copy": 0.1}


@dataclass(frozen=True)
class DraftPlan:
    """Rows and blocks of a step. anchors: blocks of each row, at places that are drawn."""

    rows: int = 4
    length: int = 384
    anchors: int = 64


class Blocks(NamedTuple):
    """Blocks of text as a drafter and its target see it, R blocks of k places.

    drafted: float32 [R, k, vocab], logits of the drafter, corrected by the true tokens before. target: the same of the
    model, for the same places. confidence: float32 [R, k], logits. ids: int64 [R, k], the true tokens.
    """

    drafted: torch.Tensor
    target: torch.Tensor
    confidence: torch.Tensor
    ids: torch.Tensor

    def overlap(self) -> torch.Tensor:
        """The probability that each draft is accepted at temperature 1: sum of min(p_draft, p_target), [R, k]."""
        return 1 - 0.5 * _distance(self.drafted, self.target)


def draft_recipe(steps: int = 1500, plan: DraftPlan | None = None, **settings: object) -> PartRecipe:
    """The recipe of a preset's drafter; settings as in :class:`ds41.training.parts.PartRecipe`."""
    plan = plan or DraftPlan()
    chosen = {"rows": plan.rows, "length": plan.length, "anchors": plan.anchors}
    return PartRecipe("drafter", steps, settings=chosen, **settings)


def train_drafter(
    model: Model,
    corpus: Corpus,
    folder: str | Path,
    recipe: PartRecipe,
    save_every: int = 50,
    progress: Progress | None = None,
    stop_at: int | None = None,
) -> Drafter:
    """A drafter for a model, whose weights stay as they are; arguments as in :func:`ds41.training.parts.train_part`."""
    torch.manual_seed(recipe.seed)
    drafter = Drafter(model.config, model.quantization, model.dtype).to(model.device)
    plan = DraftPlan(**recipe.settings)
    model.requires_grad_(False)

    def losses(step: int) -> dict[str, torch.Tensor]:
        batch = make_batch(corpus, _MIX, plan.rows, plan.length, f"drafter {recipe.seed} {step}").to(model.device)
        generator = torch.Generator().manual_seed(recipe.seed * 2**32 + step)
        blocks = run_blocks(model, drafter, batch.ids, draw_anchors(model, batch.ids.shape, plan.anchors, generator))
        return block_losses(blocks)

    balance = Balance([block.ffn.gate for block in drafter.mtp])
    identity = {"text": corpus.digest, "model": model_digest(model)}
    try:
        train_part(drafter, losses, balance, recipe, identity, folder, save_every, progress, stop_at)
    finally:
        balance.close()
    return drafter


def draw_anchors(model: Model, shape: tuple[int, int], count: int, generator: torch.Generator) -> torch.Tensor:
    """Positions of the last token that the target has read, int64 [B, count], each row's ascending."""
    rows, length = shape
    most = length - 1 - model.config.dspark_block_size
    if not 1 <= count <= most:
        raise ValueError(f"{count} anchors in a row of {length} tokens; expected 1 to {most}")
    places = torch.stack([torch.randperm(most, generator=generator)[:count] for _ in range(rows)])
    return places.sort(1).values.to(model.device)


def run_blocks(model: Model, drafter: Drafter, ids: torch.Tensor, anchors: torch.Tensor) -> Blocks:
    """Draft at the anchors of whole rows, each place told the true tokens before it.

    Args:
        ids: int64 [B, T]. anchors: int64 [B, A], from 0 to T - k - 2: the block begins with the token after it.
    """
    config, (rows, length) = model.config, ids.shape
    with torch.no_grad():
        hidden = model.run_sequences(ids, watched=config.dspark_target_layer_ids)
        target = model.logits(hidden)
    context = drafter.context_rows(drafter.main(hidden.entering), hidden.step)
    if drafter.rounding is not None:
        context = [drafter.rounding.fake_quantize(row) for row in context]
    size, reach = config.dspark_block_size, config.sliding_window
    starts = torch.arange(rows, device=ids.device)[:, None] * length
    flat = (starts + anchors).flatten()
    seen = anchors.flatten()[:, None] + torch.arange(-reach + 1, 1, device=ids.device)
    seen = torch.where(seen >= 0, seen + (flat - anchors.flatten())[:, None], -1)
    firsts = (anchors.flatten() + 1).tolist()
    step = Step.of([size] * len(firsts), firsts, ids.device)
    first_layer = config.num_hidden_layers
    memory = BlockMemory(
        lambda layer: context[layer - first_layer], block_choice(seen, size, rows * length), drafter.rounding
    )
    places = flat[:, None] + torch.arange(1, size + 1, device=ids.device)
    before, after = ids.flatten()[places], ids.flatten()[places + 1]
    output, logits = drafter.outputs(model, before[:, 0], step, memory)
    markov = drafter.mtp[-1].markov_head.embed(before)
    drafted = logits + drafter.mtp[-1].markov_head.head(markov)
    confidence = drafter.mtp[-1].confidence_head(output, markov)
    return Blocks(drafted, target[places], confidence, after)


def block_losses(blocks: Blocks) -> dict[str, torch.Tensor]:
    """Scalars: total, cross_entropy, distance and confidence, means over blocks with the weight of each place."""
    size = blocks.ids.shape[1]
    weights = torch.tensor([math.exp(-place / DECAY) for place in range(size)], device=blocks.ids.device)
    weights = weights / weights.sum()

    def mean(values: torch.Tensor) -> torch.Tensor:
        return (values.mean(0) * weights).sum()

    flat = nn.functional.cross_entropy(blocks.drafted.flatten(0, 1), blocks.ids.flatten(), reduction="none")
    distance = _distance(blocks.drafted, blocks.target)
    accepted = (1 - 0.5 * distance).detach()
    error = nn.functional.binary_cross_entropy_with_logits(blocks.confidence, accepted, reduction="none")
    found = {"cross_entropy": mean(flat.view_as(distance)), "distance": mean(distance), "confidence": mean(error)}
    total = CROSS_ENTROPY * found["cross_entropy"] + DISTANCE * found["distance"] + CONFIDENCE * found["confidence"]
    return {"total": total} | found | {"overlap": accepted.mean()}


def _distance(drafted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """L1 distance of the two distributions, [R, k]."""
    return (torch.softmax(drafted, -1) - torch.softmax(target, -1)).abs().sum(-1)
