"""Selecting a large share of a long row: one program a row, which goes over the row five times.

For counts that pieces of a row cannot hold (see ``selection.py``). Four passes count keys by one byte each, from the
highest on, and so find the key of the last one selected; the fifth writes indices.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch
from .selection_tiles import load_keys, write_selected

TILE = 2048


@triton.jit
def select_rows_kernel(scores_ptr, out_ptr, length, count, row_stride, column_stride, TILE: tl.constexpr):
    """scores [rows, length] -> out [rows, count], count <= length."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = scores_ptr + row * row_stride
    digits = tl.arange(0, 256)
    threshold = tl.full([], 0, tl.uint32)
    wanted = count
    for step in range(4):
        shift = 24 - 8 * step
        counts = tl.zeros([256], tl.int32)
        for start in range(0, length, TILE):
            column = start + tl.arange(0, TILE)
            key = load_keys(row_ptr, column, length, column_stride)
            # Two shifts: one by 32 would be undefined.
            same = (((key ^ threshold) >> shift) >> 8) == 0
            digit = ((key >> shift) & 0xFF).to(tl.int32)
            counts += tl.histogram(digit, 256, mask=same & (column < length))
        from_digit_on = tl.sum(counts) - tl.cumsum(counts, axis=0) + counts
        digit = tl.max(tl.where(from_digit_on >= wanted, digits, 0))
        wanted -= tl.sum(tl.where(digits > digit, counts, 0))
        threshold = threshold | (digit.to(tl.uint32) << shift)
    out_row = out_ptr + row * count
    write_selected(row_ptr, column_stride, None, out_row, None, 0, length, count, threshold, wanted, TILE)


def select_rows_launch(scores: torch.Tensor, out: torch.Tensor) -> Launch:
    """The launch for scores fp32 [N, L] of any strides and out int64 [N, count], contiguous, count at most L."""
    return Launch(
        kernel=select_rows_kernel,
        grid=(scores.shape[0],),
        arguments={
            "scores_ptr": scores,
            "out_ptr": out,
            "length": scores.shape[1],
            "count": out.shape[1],
            "row_stride": scores.stride(0),
            "column_stride": scores.stride(1),
        },
        constants={"TILE": TILE},
        num_warps=8,
    )


def compile_cases() -> Iterator[CompileCase]:
    """Half of 2^20 entries. Indices go out one by one, to where they belong."""
    scores = torch.empty(64, 2**20, device="meta")
    out = scores.new_empty(64, 2**19, dtype=torch.int64)
    yield CompileCase("select_rows", select_rows_launch(scores, out), wide=False)
