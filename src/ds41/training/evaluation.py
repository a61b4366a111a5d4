"""What a model has learnt: loss on held-out files, and answers to queries of needles far back.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from ds41.attention import SequenceMemory
from ds41.config import ModelConfig
from ds41.model import Model
from ds41.probes.estimates import Estimate, estimate_mean, estimate_share
from ds41.training.alignment import attention_mass
from ds41.training.corpus import Corpus
from ds41.training.losses import token_losses
from ds41.training.serving_conditions import ReplayMemory
from ds41.training.signals import Signals
from ds41.training.stream import Batch, make_batch
from ds41.training.tasks import Kind

# Tokens of one pass.
_TOKENS = 4096


@dataclass(frozen=True)
class Retrieval:
    """Answers to queries whose needle lies beyond the window and beyond top-k other entries.

    length, kind: of the rows. bytes_right, answers_right: share of answer bytes that are the likeliest, and of
    answers with both right; every byte, or answer, is one sample. loss: nats an answer byte. queries: how many counted.
    """

    length: int
    kind: Kind
    bytes_right: Estimate
    answers_right: Estimate
    loss: float
    queries: int


def text_loss(
    model: Model, corpus: Corpus, length: int, rows: int, seed: str = "held-out", kind: Kind = "source"
) -> Estimate:
    """Nats a token over rows of one kind, random bytes left out; one sample a row."""
    return estimate_mean(row_losses(model, corpus, length, rows, seed, kind))


@torch.no_grad()
def row_losses(
    model: Model, corpus: Corpus, length: int, rows: int, seed: str = "held-out", kind: Kind = "source"
) -> list[float]:
    """The same by row, so that two models can be compared row by row."""
    found = []
    for batch in _batches(corpus, kind, length, rows, seed):
        losses = token_losses(model(batch.ids.to(model.device)), batch.ids.to(model.device)).cpu()
        weights = (batch.weights[:, 1:] > 0).to(losses.dtype)
        found += ((losses * weights).sum(1) / weights.sum(1)).tolist()
    return found


@torch.no_grad()
def retrieval(
    model: Model,
    corpus: Corpus,
    length: int,
    rows: int,
    kind: Kind = "recall",
    seed: str = "held-out",
    queries: int = 4,
    least_distance: int | None = None,
    least_distractors: int = 0,
    parity: Literal[0, 1] = 1,
) -> Retrieval:
    """Teacher-forced answers on held-out rows.

    Args:
        queries: of a row. least_distance: tokens between needle and answer for a query to count; None takes what no
            window and no selection by recency reaches: window and top-k entries of the coarsest source together.
            least_distractors: other needles between the two. parity: as in :func:`ds41.training.tasks.make_row`.

    Raises:
        ValueError: no query of these rows lies far enough back.
    """
    if least_distance is None:
        least_distance = far_enough(model.config)
    right, losses = [], []
    for batch in _batches(corpus, kind, length, rows, seed, queries, parity):
        logits = model(batch.ids.to(model.device)).cpu()
        for row, every in enumerate(batch.asked):
            for asked in every:
                if asked.query - asked.needle < least_distance or asked.distractors < least_distractors:
                    continue
                places = torch.tensor(asked.answers)
                ids = batch.ids[row, places]
                told = logits[row, places - 1]
                right.append((told.argmax(-1) == ids).tolist())
                losses.append(float(torch.nn.functional.cross_entropy(told, ids)))
    if not right:
        raise ValueError(
            f"no query of {rows} rows of {length} lies {least_distance} tokens and {least_distractors} needles back; "
            "take longer rows"
        )
    flat = [one for both in right for one in both]
    return Retrieval(
        length,
        kind,
        estimate_share(sum(flat), len(flat)),
        estimate_share(sum(map(all, right)), len(right)),
        sum(losses) / len(losses),
        len(right),
    )


@torch.no_grad()
def tail_losses(model: Model, corpus: Corpus, length: int, rows: int, seed: str = "held-out") -> Estimate:
    """Nats a token that a bounded prefill costs: on the second half of source rows whose first half is the prompt.

    The decoder's windows begin one window before the half; a full prefill's loss is subtracted.
    """
    config, half = model.config, length // 2
    rounds = model.quantization != "none"
    found = []
    for batch in _batches(corpus, "source", length, rows, seed):
        ids = batch.ids.to(model.device)
        begins = torch.full((len(ids),), max(0, half - config.sliding_window), device=model.device)
        bounded = model(ids, memory=lambda step, begins=begins: ReplayMemory(config, step, rounds, begins))
        difference = token_losses(bounded, ids) - token_losses(model(ids), ids)
        found += difference[:, half - 1 :].mean(1).tolist()
    return estimate_mean(found)


@torch.no_grad()
def selected_mass(
    model: Model, corpus: Corpus, length: int, rows: int, kind: Kind = "recall", seed: str = "held-out"
) -> dict[int, Estimate]:
    """By selecting layer: how much of the attention that its served layers would pay to all entries is selected.

    Over the last quarter of every row; one sample a row.
    """
    found: dict[int, list[float]] = {plan.index: [] for plan in model.config.layers if plan.owns_selection}
    positions = torch.arange(3 * length // 4, length, device=model.device)
    rounds = model.quantization != "none"
    with Signals(model) as signals:
        for batch in _batches(corpus, kind, length, rows, seed):
            ids, shape = batch.ids.to(model.device), tuple(batch.ids.shape)
            model(ids, memory=lambda step: signals.keep(SequenceMemory(model.config, step, rounds)))
            for layer, shares in found.items():
                mass = attention_mass(model, signals, layer, shape, positions)
                chosen = signals.selected[layer].entries.unflatten(0, shape)[:, positions]
                got = mass.gather(-1, chosen.clamp(min=0)).masked_fill(chosen < 0, 0).sum(-1)
                shares += (got.sum(1) / mass.sum((1, 2)).clamp_min(1e-9)).tolist()
    return {layer: estimate_mean(shares) for layer, shares in found.items()}


def far_enough(config: ModelConfig) -> int:
    """Tokens back from which neither the window nor the latest top-k entries of any source reach."""
    ratios = [plan.ratio for plan in config.layers if plan.owns_selection]
    return config.sliding_window + max(ratios, default=0) * config.index_topk


def _batches(
    corpus: Corpus,
    kind: Kind,
    length: int,
    rows: int,
    seed: str,
    queries: int | None = None,
    parity: Literal[0, 1] = 1,
) -> Iterator[Batch]:
    size = max(1, _TOKENS // length)
    for first in range(0, rows, size):
        name = f"{seed} {kind} {length}"
        yield make_batch(corpus, {kind: 1.0}, min(size, rows - first), length, name, first, queries, parity)
