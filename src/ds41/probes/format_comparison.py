"""Main KV of a trained model in FP4, FP8, bf16 or not rounded at all, with every layer selecting the same entries.

One pass without rounding of main KV records each layer's selection; the others replay it. So what differs between
them is the rounding of what attention reads, and nothing else that it selects. Windows and index keys are rounded
as deployed in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ds41.attention import SequenceMemory
from ds41.attention.memory import RoundTrip
from ds41.formats import MAIN_KV
from ds41.model import Model
from ds41.probes.estimates import Estimate, estimate_mean, estimate_share
from ds41.probes.main_formats import MAIN_FORMATS, UNROUNDED, Scaled
from ds41.probes.selection_tape import SelectionTape

NOT_ROUNDED = "not rounded"


@dataclass(frozen=True)
class Questions:
    """Rows with answers that are known.

    ids: int64 [B, T]. row, position: int64 [A], where the first token of each answer stands, at 1 or later; its
    logits are those of the token before. tokens: how long each answer is; it is right if all of them are.
    """

    ids: torch.Tensor
    row: torch.Tensor
    position: torch.Tensor
    tokens: int = 2

    def __post_init__(self) -> None:
        if self.ids.dim() != 2 or self.row.dim() != 1 or self.row.shape != self.position.shape or not len(self.row):
            raise ValueError(
                f"ids are {list(self.ids.shape)}, row {list(self.row.shape)}, position {list(self.position.shape)}; "
                "expected [B, T], [A] and [A] with one answer or more"
            )
        rows, length = self.ids.shape
        last = length - self.tokens
        for name, held, low, high in (("row", self.row, 0, rows - 1), ("position", self.position, 1, last)):
            if int(held.min()) < low or int(held.max()) > high:
                raise ValueError(
                    f"{name} holds {int(held.min())} to {int(held.max())}; expected {low} to {high} for ids "
                    f"{list(self.ids.shape)} and answers of {self.tokens} tokens"
                )


class Answers(NamedTuple):
    """What a model made of each answer: loss float32 [A], in nats per token, and right bool [A]."""

    loss: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True)
class FormatRow:
    """One format at one context length.

    accuracy: share of right answers. loss: nats per answer token. penalty: loss above that without rounding, paired
    by row. lost, gained: answers right without rounding and wrong here, and the other way round. Samples are rows.
    """

    format: str
    length: int
    accuracy: Estimate
    loss: Estimate
    penalty: Estimate
    lost: int
    gained: int
    answers: int


@dataclass(frozen=True)
class PostTrainingRow:
    """What a format adds to the loss of a model, before and after it was trained with FP4, and the change.

    change: after minus before, paired by row; below zero where training made the format cheaper.
    """

    format: str
    before: Estimate
    after: Estimate
    change: Estimate
    accuracy_before: Estimate
    accuracy_after: Estimate


def with_main_format(model: Model, ids: torch.Tensor, main_format: RoundTrip) -> torch.Tensor:
    """Logits float32 [B, T, vocab] with main KV in a format; windows and index keys are rounded as deployed."""
    return model(ids, memory=lambda step: SequenceMemory(model.config, step, True, main_format))


@torch.no_grad()
def measure(
    model: Model,
    questions: Questions,
    formats: Mapping[str, RoundTrip] = MAIN_FORMATS,
    equal_selection: bool = True,
    batch: int = 4,
) -> dict[str, Answers]:
    """Every answer with main KV unrounded, under the name "not rounded", and in each format.

    Args:
        equal_selection: replay the selections of the pass without rounding. Otherwise each pass makes its own, from
            hidden states that the format has changed. batch: rows in a pass.
    """
    if NOT_ROUNDED in formats:
        raise ValueError(f"a format is named {NOT_ROUNDED!r}, which is the reference's name")
    tape = SelectionTape(model)
    losses = {name: torch.empty(len(questions.row)) for name in (NOT_ROUNDED, *formats)}
    rights = {name: torch.empty(len(questions.row), dtype=torch.bool) for name in losses}
    for start in range(0, questions.ids.shape[0], batch):
        ids = questions.ids[start : start + batch].to(model.device)
        here = torch.nonzero((questions.row >= start) & (questions.row < start + batch)).squeeze(1)
        places = questions.position[here, None] + torch.arange(questions.tokens)
        rows = (questions.row[here, None] - start).expand_as(places)
        with tape.record():
            logits = {NOT_ROUNDED: with_main_format(model, ids, UNROUNDED)[rows, places - 1]}
        for name, main_format in formats.items():
            if equal_selection:
                with tape.replay():
                    logits[name] = with_main_format(model, ids, main_format)[rows, places - 1]
            else:
                logits[name] = with_main_format(model, ids, main_format)[rows, places - 1]
        wanted = ids[rows, places]
        for name, predicted in logits.items():
            loss = torch.nn.functional.cross_entropy(predicted.flatten(0, 1), wanted.flatten(), reduction="none")
            losses[name][here] = loss.view(wanted.shape).mean(1).cpu()
            rights[name][here] = (predicted.argmax(-1) == wanted).all(1).cpu()
    return {name: Answers(losses[name], rights[name]) for name in losses}


def compare_formats(
    model: Model, questions: Questions, formats: Mapping[str, RoundTrip] = MAIN_FORMATS, **options
) -> tuple[FormatRow, ...]:
    """Accuracy and loss of each format, "not rounded" first; options as in :func:`measure`."""
    answers = measure(model, questions, formats, **options)
    reference = answers[NOT_ROUNDED]
    result = []
    for name, one in answers.items():
        result.append(
            FormatRow(
                name,
                questions.ids.shape[1],
                _accuracy(one.right, questions.row),
                _over_rows(one.loss, questions.row),
                _over_rows(one.loss - reference.loss, questions.row),
                int((reference.right & ~one.right).sum()),
                int((~reference.right & one.right).sum()),
                len(questions.row),
            )
        )
    return tuple(result)


def accuracy_by_length(
    model: Model, by_length: Mapping[int, Questions], formats: Mapping[str, RoundTrip] = MAIN_FORMATS, **options
) -> tuple[FormatRow, ...]:
    """:func:`compare_formats` at each context length, in the order of the lengths."""
    for length, questions in by_length.items():
        if questions.ids.shape[1] != length:
            raise ValueError(f"the questions of length {length} have rows of {questions.ids.shape[1]} tokens")
    return tuple(
        row for length in sorted(by_length) for row in compare_formats(model, by_length[length], formats, **options)
    )


def grown_norm_weights(
    model: Model, questions: Questions, factors: Sequence[float] = (1, 2, 4, 8), **options
) -> tuple[FormatRow, ...]:
    """FP4 as it would be if the norm weights of all sources had grown by each factor; see :class:`Scaled`."""
    formats = {f"FP4, weights x {factor:g}": Scaled(MAIN_KV, factor) for factor in factors}
    return compare_formats(model, questions, formats, **options)


def training_against_post_hoc(
    before: Model, after: Model, questions: Questions, formats: Mapping[str, RoundTrip] = MAIN_FORMATS, **options
) -> tuple[PostTrainingRow, ...]:
    """What each format costs a model that never saw it (rounding post hoc), and one trained with FP4 main KV.

    Each model is compared with itself without rounding, on its own selections, so a better model is no cheaper one.
    """
    measured = [measure(model, questions, formats, **options) for model in (before, after)]
    result = []
    for name in formats:
        first, second = (answers[name].loss - answers[NOT_ROUNDED].loss for answers in measured)
        result.append(
            PostTrainingRow(
                name,
                before=_over_rows(first, questions.row),
                after=_over_rows(second, questions.row),
                change=_over_rows(second - first, questions.row),
                accuracy_before=_accuracy(measured[0][name].right, questions.row),
                accuracy_after=_accuracy(measured[1][name].right, questions.row),
            )
        )
    return tuple(result)


def _over_rows(values: torch.Tensor, row: torch.Tensor) -> Estimate:
    """Mean over answers of each row first: answers of one row share their context and are no samples of their own."""
    return estimate_mean([float(values[row == one].mean()) for one in row.unique()])


def _accuracy(right: torch.Tensor, row: torch.Tensor) -> Estimate:
    if len(row.unique()) == len(row):
        return estimate_share(int(right.sum()), len(right))
    return _over_rows(right.to(torch.float32), row)
