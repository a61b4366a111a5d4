"""What a token's experts gave, one row a choice, added up in their order.

Source: report section 2.1.1; the released model's ``MoE``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch, targets_of
from .numbers import to_type
from .tiles import FLOAT_TYPES

_BLOCK = 1024


@triton.jit
def sum_choices_kernel(
    rows_ptr, indices_ptr, shared_ptr, out_ptr,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, COLUMNS: tl.constexpr, HAS_SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """rows [tokens * TOP_K, COLUMNS] -> out [tokens, COLUMNS], summed in fp32; a pair of no expert adds nothing.

    HAS_SHARED: shared [tokens, COLUMNS] is added last.
    """
    across: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    token = (tl.program_id(0) // across).to(tl.int64)
    column = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(TOP_K):
        pair = token * TOP_K + choice
        expert = tl.load(indices_ptr + pair)
        present = (expert >= 0) & (expert < EXPERTS)
        row = tl.load(rows_ptr + (pair * COLUMNS + column.to(tl.int64)), mask=present & (column < COLUMNS), other=0.0)
        total += row.to(tl.float32)
    place = token * COLUMNS + column.to(tl.int64)
    if HAS_SHARED:
        total += tl.load(shared_ptr + place, mask=column < COLUMNS, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, to_type(total, out_ptr.dtype.element_ty), mask=column < COLUMNS)


def sum_choices_launch(
    rows: torch.Tensor, indices: torch.Tensor, shared: torch.Tensor | None, out: torch.Tensor, *, experts: int
) -> Launch:
    """The launch for rows [N * k, C], indices int64 [N, k], shared [N, C] or None, out [N, C], all contiguous."""
    tokens, columns = out.shape
    block = min(_BLOCK, triton.next_power_of_2(columns))
    return Launch(
        kernel=sum_choices_kernel,
        grid=(tokens * triton.cdiv(columns, block),),
        arguments={"rows_ptr": rows, "indices_ptr": indices, "shared_ptr": shared, "out_ptr": out},
        constants={
            "EXPERTS": experts,
            "TOP_K": indices.shape[1],
            "COLUMNS": columns,
            "HAS_SHARED": shared is not None,
            "BLOCK": block,
        },
        num_warps=4,
    )


def compile_cases() -> Iterator[CompileCase]:
    """Published: six rows of 5120 a token."""
    for dtype in FLOAT_TYPES:
        rows = torch.empty(6 * 4096, 5120, dtype=dtype, device="meta")
        indices = rows.new_empty((4096, 6), dtype=torch.int64)
        shared = rows.new_empty((4096, 5120))
        launch = sum_choices_launch(rows, indices, shared, torch.empty_like(shared), experts=384)
        yield CompileCase(f"sum_choices_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
