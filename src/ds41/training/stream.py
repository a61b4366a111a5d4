"""Batches: every row is a function of seed, purpose and number, so a run continues at any step without state.

Source: ds41's own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch

from ds41.training.corpus import Corpus
from ds41.training.tasks import Asked, Kind, make_row


class Batch(NamedTuple):
    """Rows side by side: ids int64 [B, T]; weights float32 [B, T], of predicting each token; asked by row."""

    ids: torch.Tensor
    weights: torch.Tensor
    asked: tuple[tuple[Asked, ...], ...]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        return Batch(self.ids.to(device), self.weights.to(device), self.asked)

    def answers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and position of every answer token, int64 [A] each: two for each query."""
        places = [(row, at) for row, every in enumerate(self.asked) for asked in every for at in asked.answers]
        rows, positions = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).unbind(1)
        return rows, positions


def make_batch(
    corpus: Corpus,
    mix: Mapping[Kind, float],
    rows: int,
    length: int,
    seed: str,
    first: int = 0,
    queries: int | None = None,
    parity: Literal[0, 1] = 1,
) -> Batch:
    """Rows ``first`` to ``first + rows - 1`` of the endless stream named ``seed``.

    Args:
        mix: how likely each kind of row is; weights need not sum to one. queries, parity: as in :func:`make_row`.

    Raises:
        ValueError: an empty mix, a negative weight, or what :func:`make_row` refuses.
    """
    if not mix or min(mix.values()) < 0 or sum(mix.values()) <= 0:
        raise ValueError(f"mix is {dict(mix)}; expected weights of zero or more, at least one of them positive")
    made = []
    for number in range(first, first + rows):
        # Seeded by text, which unlike a tuple's hash is the same in every process.
        generator = random.Random(f"{seed} {number}")
        kind = generator.choices(list(mix), list(mix.values()))[0]
        asked = queries if kind in ("recall", "planted") else None
        made.append(make_row(kind, corpus, generator, length, asked, parity))
    return Batch(
        torch.tensor([row.ids for row in made], dtype=torch.int64),
        torch.tensor([row.weights for row in made], dtype=torch.float32),
        tuple(tuple(row.asked) for row in made),
    )
