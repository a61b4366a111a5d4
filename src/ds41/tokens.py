"""Token ids as a model is given them - a tensor, rows, lists - made flat and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import nn

from ds41.config import ModelConfig
from ds41.step import Step

Rows = torch.Tensor | Sequence[torch.Tensor] | Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class Tokens:
    """One row of ids for each sequence, int64, any lengths.

    images: which of them belong to an image, bool rows, or None. vectors: what stands at those positions in place of
    embeddings, [I, hidden] for each row, or None for the embeddings of their ids.
    """

    rows: list[torch.Tensor]
    images: list[torch.Tensor] | None = None
    vectors: list[torch.Tensor] | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(row.shape[0] for row in self.rows)

    @property
    def ids(self) -> torch.Tensor:
        """All rows flat, int64 [N]."""
        return self.rows[0] if len(self.rows) == 1 else torch.cat(self.rows)

    def step(self, firsts: Sequence[int]) -> Step:
        """The step that appends these tokens to sequences of ``firsts`` tokens."""
        image = None if self.images is None else torch.cat(self.images)
        return Step.of(self.counts, firsts, self.rows[0].device, image)

    def chunks(self, size: int) -> Iterator[Tokens]:
        """Pieces of up to ``size`` tokens of each sequence."""
        for start in range(0, max(self.counts), size):
            part = slice(start, start + size)
            images = None if self.images is None else [row[part] for row in self.images]
            yield Tokens([row[part] for row in self.rows], images, self._vectors_of(part))

    def embed(self, embedding: nn.Embedding) -> torch.Tensor:
        """What enters the model, [N, hidden]: embeddings of the ids, and image vectors at their positions."""
        embedded = embedding(self.ids)
        if self.vectors is None:
            return embedded
        return embedded.masked_scatter(torch.cat(self.images)[:, None], torch.cat(self.vectors).to(embedded.dtype))

    def _vectors_of(self, part: slice) -> list[torch.Tensor] | None:
        if self.vectors is None:
            return None
        ends = [(int(row[: part.start].sum()), int(row[: part.stop].sum())) for row in self.images]
        return [row[first:last] for row, (first, last) in zip(self.vectors, ends, strict=True)]


def token_rows(
    ids: Rows,
    sequences: int | None,
    config: ModelConfig,
    device: torch.device,
    image_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
    image_vectors: torch.Tensor | Sequence[torch.Tensor] | None = None,
) -> Tokens:
    """Check ids and bring them to ``device``.

    Args:
        ids: [T] for one sequence, [B, T], or one row for each sequence. sequences: how many there have to be, or None.
        image_mask: bool, like ids; None where vectors are given takes the positions with ``image_token_id``.
        image_vectors: [I, hidden] for all rows, one row after the other, or one tensor for each row.

    Raises:
        ValueError, TypeError: no whole numbers, no row for a sequence, an id outside the vocabulary, or another
            number of vectors than of image positions.
    """
    rows = _as_rows(ids, "token ids")
    if not rows or (sequences is not None and len(rows) != sequences):
        expected = "one or more" if sequences is None else f"{sequences}, one for each sequence of the cache"
        raise ValueError(f"there are {len(rows)} rows of token ids; expected {expected}")
    for number, row in enumerate(rows):
        if row.numel() and (row.is_floating_point() or row.is_complex() or row.dtype == torch.bool):
            raise TypeError(f"token ids of row {number} are {row.dtype}; expected integers")
        # A byte would compare with the vocabulary's size modulo 256.
        row = rows[number] = row.to(torch.int64)
        outside = (row < 0) | (row >= config.vocab_size)
        if bool(outside.any()):
            at = int(outside.nonzero()[0])
            raise ValueError(
                f"token id {int(row[at])} at place {at} of row {number} is outside the vocabulary; "
                f"expected 0 to {config.vocab_size - 1}"
            )
    images = None
    if image_vectors is not None and image_mask is None:
        image_mask = [row == config.image_token_id for row in rows]
    if image_mask is not None:
        images = _as_rows(image_mask, "image_mask")
        counts, expected = [len(row) for row in images], [len(row) for row in rows]
        if counts != expected or any(row.dtype != torch.bool for row in images):
            kinds = ", ".join(sorted({str(row.dtype) for row in images}))
            raise ValueError(f"image_mask is {kinds} in rows of {counts}; expected torch.bool in rows of {expected}")
        images = [row.to(device) for row in images]
    vectors = None
    if image_vectors is not None:
        vectors = _vector_rows(image_vectors, [int(row.sum()) for row in images], config.hidden_size)
        vectors = [row.to(device) for row in vectors]
    return Tokens([row.to(device) for row in rows], images, vectors)


def _vector_rows(
    vectors: torch.Tensor | Sequence[torch.Tensor], counts: list[int], hidden_size: int
) -> list[torch.Tensor]:
    if isinstance(vectors, torch.Tensor):
        if tuple(vectors.shape) != (sum(counts), hidden_size):
            raise ValueError(
                f"image_vectors are {list(vectors.shape)}; expected [{sum(counts)}, {hidden_size}], one for each image "
                "position"
            )
        return list(vectors.split(counts))
    shapes, expected = [tuple(row.shape) for row in vectors], [(count, hidden_size) for count in counts]
    if shapes != expected:
        raise ValueError(f"image_vectors are {shapes}; expected {expected}, one for each image position of each row")
    return list(vectors)


def _as_rows(values: Rows, name: str) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        if values.dim() not in (1, 2):
            raise ValueError(f"{name} have shape {list(values.shape)}; expected [T] or [B, T]")
        return [values] if values.dim() == 1 else list(values)
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} are a {type(values).__name__}; expected a tensor, a list of ids, or a list of rows")
    values = list(values)
    if values and all(isinstance(value, bool) for value in values):
        return [torch.tensor(values)]
    if values and all(isinstance(value, Integral) for value in values):
        return [torch.tensor([int(value) for value in values])]
    try:
        rows = [torch.as_tensor(value) for value in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} hold what is no row of integers: {error}") from None
    for number, row in enumerate(rows):
        if row.dim() != 1:
            raise ValueError(f"row {number} of {name} has shape {list(row.shape)}; expected one dimension")
    return rows
