"""The table that Engram rows are read from: a parameter, or stored bytes of which only the read rows are decoded.

A stored row is ``head_dim`` E4M3 numbers with one E8M0 scale for every 32 of them, 264 bytes as published: the
layout of WINDOW_KV.

Source: the released checkpoint's ``engram.embed`` tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ds41.formats import WINDOW_KV, Packed
from ds41.ops import choose_backend
from ds41.ops.operators import operators

Bytes = torch.Tensor | np.ndarray


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Bytes as they lie in a checkpoint: uint8 codes [rows, head_dim] and scales [rows, head_dim / 32].

    Either may be a memory map. Nothing but the rows asked for is read, and the bytes stay where they are.
    dtype: type of the values that come out; a product of the two is exact in bfloat16 already.
    """

    codes: Bytes
    scales: Bytes
    dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        for name, array in (("codes", self.codes), ("scales", self.scales)):
            if array.dtype not in (torch.uint8, np.uint8) or array.ndim != 2:
                raise ValueError(f"{name} are {array.dtype} {list(array.shape)}; expected uint8 [rows, bytes]")
        rows, width = self.codes.shape
        if width == 0 or width % WINDOW_KV.block:
            raise ValueError(f"codes have rows of {width}; expected a positive multiple of {WINDOW_KV.block}")
        expected = (rows, width // WINDOW_KV.block)
        if tuple(self.scales.shape) != expected:
            raise ValueError(
                f"scales are {list(self.scales.shape)}; expected {list(expected)}, one for every {WINDOW_KV.block} "
                "channels of a row"
            )

    def read(self, row_ids: torch.Tensor) -> torch.Tensor:
        """The rows' values, [..., head_dim], on the device of ``row_ids``."""
        if _on_kernels(self.codes, row_ids):
            rows = operators.engram_rows(self.codes, self.scales, row_ids, self.dtype)
            return rows.view(*row_ids.shape, self.codes.shape[1])
        packed = Packed(_take(self.codes, row_ids), _take(self.scales, row_ids))
        return WINDOW_KV.decode(packed, self.dtype)


class EngramTable(nn.Module):
    """Rows looked up by number. ``weight`` [rows, head_dim], or None where the rows are :attr:`stored` bytes."""

    def __init__(self, rows: int, head_dim: int, *, dtype: torch.dtype, std: float = 0.02) -> None:
        super().__init__()
        self.stored: StoredRows | None = None
        self.weight = nn.Parameter(torch.empty(rows, head_dim, dtype=dtype).normal_(0, std))

    @classmethod
    def from_stored(cls, codes: Bytes, scales: Bytes, *, dtype: torch.dtype = torch.bfloat16) -> EngramTable:
        """A table over a checkpoint's bytes, not copied: see :class:`StoredRows`. It has no parameter."""
        table = cls(0, codes.shape[-1], dtype=dtype)
        table.weight = None
        table.stored = StoredRows(codes, scales, dtype)
        return table

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, head_dim)."""
        return tuple(self.stored.codes.shape if self.weight is None else self.weight.shape)

    def forward(self, row_ids: torch.Tensor) -> torch.Tensor:
        """Rows side by side, [N, columns * head_dim].

        Args:
            row_ids: int64 [N, columns].

        Raises:
            ValueError: the shape is wrong, or a row does not exist. On a GPU that is left to the device, unless
                the rows are stored bytes.
        """
        if row_ids.dtype != torch.int64 or row_ids.dim() != 2:
            raise ValueError(f"row_ids are {row_ids.dtype} {list(row_ids.shape)}; expected torch.int64 [N, columns]")
        if row_ids.device.type == "cpu" or self.weight is None:
            self._check_rows(row_ids)
        if self.weight is None:
            return self.stored.read(row_ids).flatten(1)
        return nn.functional.embedding(row_ids, self.weight).flatten(1)

    def extra_repr(self) -> str:
        rows, width = self.shape
        return f"{rows:,} rows of {width}, {'stored bytes' if self.weight is None else self.weight.dtype}"

    def _check_rows(self, row_ids: torch.Tensor) -> None:
        rows = self.shape[0]
        outside = (row_ids < 0) | (row_ids >= rows)
        if bool(outside.any()):
            raise ValueError(f"row {int(row_ids[outside][0])} does not exist; the table has rows 0 to {rows - 1}")


def _on_kernels(stored: Bytes, row_ids: torch.Tensor) -> bool:
    """Whether the bytes lie where a kernel can gather them."""
    if isinstance(stored, np.ndarray) or stored.device != row_ids.device:
        return False
    return choose_backend(row_ids.device).name == "triton"


def _take(stored: Bytes, row_ids: torch.Tensor) -> torch.Tensor:
    if isinstance(stored, np.ndarray):
        return torch.from_numpy(np.asarray(stored[row_ids.cpu().numpy()])).to(row_ids.device)
    return stored[row_ids.to(stored.device)].to(row_ids.device)
