"""Images of a sequence: vectors in place of embeddings, and ids in place of theirs for whoever looks prefixes up.

Every position of an image carries the same token id, so a prefix's key over token ids would find one picture's pages
for another. What stands in the key instead is made from the vectors that enter the model, and is negative, which no
token id is.

Source: the released ``inference/image_processor.py`` for the ids of a span.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch


@dataclass(frozen=True, eq=False)
class ImageRun:
    """Consecutive positions of images, from ``start`` on. vectors: [n, hidden]; key_ids: int64 [n], below zero."""

    start: int
    vectors: torch.Tensor
    key_ids: np.ndarray

    @property
    def stop(self) -> int:
        return self.start + len(self.key_ids)


class SequenceImages:
    """All images of a sequence, in the order of their positions."""

    def __init__(self, runs: Sequence[ImageRun] = ()) -> None:
        self.runs = tuple(runs)

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __add__(self, later: SequenceImages) -> SequenceImages:
        return SequenceImages((*self.runs, *later.runs))

    @classmethod
    def place(
        cls, ids: Sequence[int], vectors: torch.Tensor | None, image_token_id: int, dtype: torch.dtype, first: int = 0
    ) -> SequenceImages:
        """Vectors at the positions of ``image_token_id``.

        Args:
            ids: token ids, of which the first is at position ``first``. vectors: [I, hidden], one for each such
                position; None leaves those ids what they are. dtype: that the model computes in.

        Raises:
            ValueError: another number of vectors than of positions.
        """
        if vectors is None:
            return cls()
        positions = [at for at, token in enumerate(ids) if token == image_token_id]
        if vectors.dim() != 2 or len(vectors) != len(positions):
            raise ValueError(
                f"image_vectors are {list(vectors.shape)}; expected [{len(positions)}, hidden], one for each of the "
                f"ids that is {image_token_id}"
            )
        # What is hashed is what enters the model.
        vectors = vectors.detach().to("cpu", dtype).contiguous()
        breaks = [number for number in range(1, len(positions)) if positions[number] != positions[number - 1] + 1]
        bounds = [0, *breaks, len(positions)] if positions else []
        return cls(
            [
                ImageRun(first + positions[begin], vectors[begin:end], _key_ids(vectors[begin:end]))
                for begin, end in pairwise(bounds)
            ]
        )

    def without_vectors(self) -> SequenceImages:
        """For who has the entries of these positions already."""
        return SequenceImages(
            # A view would take the vectors along.
            [ImageRun(run.start, run.vectors.new_empty(len(run.key_ids), 0), run.key_ids) for run in self.runs]
        )

    def key_ids(self, ids: Sequence[int]) -> np.ndarray:
        """``ids`` from position 0 on, as prefixes are looked up by: int64 [n]."""
        keys = np.array(ids, dtype="<i8")
        for run in self.runs:
            here = keys[run.start : run.stop]
            here[:] = run.key_ids[: len(here)]
        return keys

    def mask(self, start: int, stop: int) -> torch.Tensor:
        """Which of the positions ``start`` to ``stop`` belong to images, bool [stop - start]."""
        mask = torch.zeros(stop - start, dtype=torch.bool)
        for run, first, last in self._within(start, stop):
            mask[run.start + first - start : run.start + last - start] = True
        return mask

    def vectors(self, start: int, stop: int, hidden: int) -> torch.Tensor:
        """Their vectors, [I, hidden]."""
        parts = [run.vectors[first:last] for run, first, last in self._within(start, stop)]
        return torch.cat(parts) if parts else torch.empty(0, hidden)

    @staticmethod
    def of_step(
        sequences: Sequence[SequenceImages], places: Sequence[tuple[int, int]], hidden: int
    ) -> tuple[list[torch.Tensor] | None, list[torch.Tensor] | None]:
        """Masks and vectors of one step, row by row, as :meth:`ds41.model.Model.extend` takes them.

        Args:
            places: of each sequence the first position of the step and the one after its last. Without any image
                in the sequences there are neither masks nor vectors.
        """
        if not any(sequences):
            return None, None
        masks = [images.mask(*place) for images, place in zip(sequences, places, strict=True)]
        return masks, [images.vectors(*place, hidden) for images, place in zip(sequences, places, strict=True)]

    def _within(self, start: int, stop: int) -> Iterator[tuple[ImageRun, int, int]]:
        for run in self.runs:
            first, last = max(start, run.start) - run.start, min(stop, run.stop) - run.start
            if first < last:
                yield run, first, last


def _key_ids(vectors: torch.Tensor) -> np.ndarray:
    """One id for each position, all from one hash of all vectors: 63 bits each, so 252 for the smallest picture."""
    digest = hashlib.sha256(f"ds41 image 1 {vectors.dtype} {list(vectors.shape)}".encode())
    digest.update(vectors.view(torch.uint8).numpy())
    stream = hashlib.shake_256(digest.digest()).digest(8 * len(vectors))
    # The highest bit says that it is no token id.
    return np.frombuffer(stream, "<i8") | np.int64(-(2**63))
