"""How the released checkpoint stores its matrices: FP8 tiles, MXFP4 expert rows, FP8 Engram rows.

===============  ==================  ==================  ===========================================
format           elements            E8M0 scale          used for
===============  ==================  ==================  ===========================================
``TileFormat``   E4M3                per 32 x 32 tile    attention, shared experts, Engram projection
``EXPERT_ROWS``  E2M1, two a byte    per 32 of a row     routed experts
``ENGRAM_ROWS``  E4M3                per 32 of a row     Engram tables
===============  ==================  ==================  ===========================================

A value is ``element * 2^(scale byte - 127)``. Scales are rounded up, so encoding never clips; encoding what was
decoded gives the same values again, with the smallest scale that holds them.

Source: the tensor tables of the released checkpoint; OCP Microscaling Formats (MX) v1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from ds41.formats import BlockFormat, Packed
from ds41.small_floats import E2M1_MAX, E4M3_MAX

# The smallest scale that is issued: 2^-126, the smallest normal float32.
_SMALLEST_SCALE = 2.0**-126

BYTES_EACH = {"F32": 4, "BF16": 2, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
"""Bytes of one stored element by the safetensors name of its type; I8 holds two FP4 elements."""
SCALE_DTYPE = "F8_E8M0"
"""The safetensors name of a scale's type."""


@dataclass(frozen=True)
class TileFormat:
    """E4M3 elements [O, I] with one E8M0 scale for each tile: scales [ceil(O/rows), ceil(I/columns)].

    Tiles at the lower and right edge are short where the matrix does not divide.

    Raises:
        ValueError: a side below 1, or both odd.
    """

    rows: int = 32
    columns: int = 32
    weight_dtype = "F8_E4M3"

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1 or self.rows * self.columns % 2:
            raise ValueError(
                f"weight_block_size is [{self.rows}, {self.columns}]; expected two positive numbers, one of them even"
            )

    @cached_property
    def _blocks(self) -> BlockFormat:
        # A tile laid out in one line is a block.
        return BlockFormat("FP8 tile", "e4m3", "e8m0", self.rows * self.columns, E4M3_MAX * _SMALLEST_SCALE)

    def stored_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the codes and of the scales of a matrix [O, I]."""
        rows, columns = shape
        return (rows, columns), (-(-rows // self.rows), -(-columns // self.columns))

    def encode(self, weight: torch.Tensor) -> Packed:
        """``weight`` [O, I] of finite numbers -> codes uint8 [O, I], scales uint8 of :meth:`stored_shapes`."""
        codes, scales = self._blocks.encode(self._as_lines(weight))
        _, scale_shape = self.stored_shapes(weight.shape)
        return Packed(self._as_matrix(codes, weight.shape), scales.view(scale_shape))

    def decode(self, packed: Packed, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """The values that ``packed`` stores, [O, I]; exact in float32, and in bfloat16 above its subnormal numbers.

        Raises:
            ValueError: codes and scales do not belong together.
        """
        codes, scales = packed
        expected = self.stored_shapes(codes.shape)[1]
        if tuple(scales.shape) != expected:
            raise ValueError(
                f"FP8 codes {list(codes.shape)} have scales {list(scales.shape)}; expected {list(expected)}"
            )
        lines = self._blocks.decode(Packed(self._as_lines(codes), scales.reshape(-1, 1)), dtype)
        return self._as_matrix(lines, codes.shape)

    def _as_lines(self, matrix: torch.Tensor) -> torch.Tensor:
        """[O, I], padded with zeros to whole tiles -> [tiles, elements of a tile]."""
        rows, columns = matrix.shape
        padded = nn.functional.pad(matrix, (0, -columns % self.columns, 0, -rows % self.rows))
        tiles = padded.view(padded.shape[0] // self.rows, self.rows, -1, self.columns).transpose(1, 2)
        return tiles.reshape(-1, self.rows * self.columns)

    def _as_matrix(self, lines: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        rows, columns = shape
        tiles = lines.view(-(-rows // self.rows), -(-columns // self.columns), self.rows, self.columns)
        padded = tiles.transpose(1, 2).reshape(tiles.shape[0] * self.rows, tiles.shape[1] * self.columns)
        return padded[:rows, :columns].contiguous()


@dataclass(frozen=True)
class RowFormat:
    """One E8M0 scale for every 32 neighbouring columns of a row; the last group is short where 32 does not divide."""

    blocks: BlockFormat
    weight_dtype: str

    def stored_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the codes and of the scales of a matrix [O, I]; I even for two elements a byte.

        Raises:
            ValueError: two elements share a byte and the columns are odd.
        """
        *rows, columns = shape
        codes_each = 8 // self.blocks.element_bits
        if columns % codes_each:
            raise ValueError(f"{self.blocks.name}: a row has {columns} columns; expected an even number")
        return (*rows, columns // codes_each), (*rows, -(-columns // self.blocks.block))

    def encode(self, weight: torch.Tensor) -> Packed:
        """``weight`` [O, I] of finite numbers -> codes and scales, uint8, of :meth:`stored_shapes`."""
        codes_shape, _ = self.stored_shapes(weight.shape)
        codes, scales = self.blocks.encode(nn.functional.pad(weight, (0, -weight.shape[-1] % self.blocks.block)))
        return Packed(codes[..., : codes_shape[-1]].contiguous(), scales)

    def decode(self, packed: Packed, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """The values that ``packed`` stores, [O, I]; exact in float32, and in bfloat16 above its subnormal numbers."""
        codes, scales = packed
        codes_each = 8 // self.blocks.element_bits
        missing = -codes.shape[-1] % (self.blocks.block // codes_each)
        whole = Packed(nn.functional.pad(codes, (0, missing)), scales)
        return self.blocks.decode(whole, dtype)[..., : codes.shape[-1] * codes_each]


WeightFormat = TileFormat | RowFormat
"""How a quantised matrix is stored."""

EXPERT_ROWS = RowFormat(BlockFormat("expert row", "e2m1", "e8m0", 32, E2M1_MAX * _SMALLEST_SCALE), "I8")
"""Routed experts: MXFP4, a scale per 32 columns of a row."""
ENGRAM_ROWS = RowFormat(BlockFormat("Engram row", "e4m3", "e8m0", 32, E4M3_MAX * _SMALLEST_SCALE), "F8_E4M3")
"""Engram tables: MXFP8, a scale per 32 columns of a row."""


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of ``tensor`` [...] as uint8, for types of one byte an element.

    Raises:
        TypeError: an element has more bytes.
    """
    if tensor.element_size() != 1:
        raise TypeError(f"a stored code has one byte; this tensor is {tensor.dtype}")
    return tensor.view(torch.uint8)
