"""Rows with a needle and its question, and which entries of a layer carry the needle.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds41.config import ModelConfig


@dataclass(frozen=True, eq=False)
class NeedleRows:
    """Sequences that each ask for one needle; a sequence that asks for several stands here once for each.

    ids: int64 [B, T], right-padded where rows are shorter. answers: int64 [B, A], positions of the answer's tokens;
    the token before each of them asks. needle: bool [B, T], the tokens that carry what the answer needs. question: how
    many tokens just before the first asking one may look for the needle too, and are changed with it.

    Raises:
        ValueError: shapes that do not belong together, an answer outside of the row, or a needle that is missing or
            does not lie before the question.
    """

    ids: torch.Tensor
    answers: torch.Tensor
    needle: torch.Tensor
    question: int = 0

    def __post_init__(self) -> None:
        ids, answers, needle = self.ids, self.answers, self.needle
        if ids.dim() != 2 or answers.dim() != 2 or len(answers) != len(ids) or needle.shape != ids.shape:
            raise ValueError(
                f"ids are {list(ids.shape)}, answers {list(answers.shape)}, needle {list(needle.shape)}; expected "
                "[B, T], [B, A] and [B, T]"
            )
        if needle.dtype != torch.bool or 0 in (*ids.shape, *answers.shape):
            raise ValueError(f"needle is {needle.dtype}, ids {list(ids.shape)}; expected torch.bool and a row or more")
        if int(answers.min()) < 1 or int(answers.max()) >= ids.shape[1]:
            raise ValueError(
                f"answers are at positions {int(answers.min())} to {int(answers.max())}; "
                f"expected 1 to {ids.shape[1] - 1}"
            )
        position = torch.arange(ids.shape[1], device=ids.device)
        last = torch.where(needle, position, -1).amax(1)
        if self.question < 0:
            raise ValueError(f"question is {self.question} tokens; expected 0 or more")
        first = answers.amin(1) - 1 - self.question
        wrong = (last < 0) | (last >= first)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"row {row}: the needle ends at position {int(last[row])} (-1: there is none) and the question at "
                f"{int(first[row])}; expected a needle before it"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def asking(self) -> torch.Tensor:
        """Positions of the tokens that ask, int64 [B, A]."""
        return self.answers - 1

    @property
    def changed(self) -> torch.Tensor:
        """Positions whose selections are changed: those that ask, then the question's, int64 [B, A + question]."""
        back = torch.arange(1, self.question + 1, device=self.ids.device)
        return torch.cat((self.asking, self.asking.amin(1, keepdim=True) - back), dim=1)

    def part(self, rows: slice) -> NeedleRows:
        """Some of the rows."""
        return NeedleRows(self.ids[rows], self.answers[rows], self.needle[rows], self.question)

    def carrying(self, ratio: int) -> torch.Tensor:
        """Which entries of a source of that ratio carry the needle, in part or as a whole: bool [B, T // ratio]."""
        entries = self.ids.shape[1] // ratio
        return self.needle[:, : entries * ratio].unflatten(1, (entries, ratio)).any(-1)


def readers(config: ModelConfig, layer: int) -> tuple[int, ...]:
    """The layers that attend to what ``layer`` selects: itself and its Reuse layers.

    Raises:
        ValueError: the layer makes no selection.
    """
    if layer not in config.index_source_layer_ids:
        raise ValueError(f"layer {layer} makes no selection; those that do: {config.index_source_layer_ids}")
    return tuple(plan.index for plan in config.layers if plan.index_source == layer)
