"""A weight in pieces of whole rows, so that reading and writing need little memory beside the model."""

from __future__ import annotations

import torch

from ds41.checkpoint.inventory import Weight
from ds41.weight_formats import TileFormat

# Numbers of a piece: 64 MB in float32.
_PIECE = 2**24


def rows_per_scale(weight: Weight) -> int:
    """How many rows of a weight share a row of scales: a tile's height."""
    return weight.stored.rows if isinstance(weight.stored, TileFormat) else 1


def row_pieces(shape: tuple[int, ...], step: int) -> list[slice]:
    """Slices of rows, one after the other, each beginning at a multiple of ``step``."""
    rows, width = shape[0], max(1, torch.Size(shape[1:]).numel())
    size = max(step, _PIECE // width // step * step)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
