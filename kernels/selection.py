"""Which entries or blocks a query reads: the largest scores, the lower index first among equal ones.

A program selects within one piece of a row: it finds the score of the last one selected bit by bit, then writes the
indices from that score on in ascending order. A long row takes rounds: each of its pieces keeps its own ``count``
best, among which are all of the row's that it holds, and the next round selects from what the pieces kept. Indices
stay in order, so the rule for ties holds throughout.

Source: report section 2.3.2; its code has no rule for ties.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch
from .numbers import INFINITY_BITS, as_float, float_bits
from .selection_rows import select_rows_launch
from .selection_tiles import load_keys, write_selected

# Scores that a program holds in registers.
PIECE = 16384
# Scores among which a program numbers the selected ones at a time.
WRITE_TILE = 1024
# Scores that a program takes maxima of.
MAXIMA_TILE = 4096


@triton.jit
def select_kernel(
    scores_ptr,
    indices_ptr,
    out_scores_ptr,
    out_indices_ptr,
    length,
    count,
    row_stride,
    column_stride,
    out_row_stride,
    PIECE: tl.constexpr,
    TILE: tl.constexpr,
):
    """scores [rows, length] -> the ``count`` best of each piece of a row, [rows, pieces * count].

    indices [rows, length]: the number of each column in the whole row, None for its own. Without out_scores only
    indices are written. -1 and minus infinity fill what a piece leaves.
    """
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    begin = piece * PIECE
    end = tl.minimum(begin + PIECE, length)
    row_ptr = scores_ptr + row * row_stride
    key = load_keys(row_ptr, begin + tl.arange(0, PIECE), end, column_stride)

    # The largest key that ``count`` keys reach; 0 if fewer can be selected at all.
    threshold = tl.full([], 0, tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    for _ in range(32):
        candidate = threshold | bit
        threshold = tl.where(tl.sum((key >= candidate).to(tl.int32)) >= count, candidate, threshold)
        bit = bit >> 1
    ties = count - tl.sum((key > threshold).to(tl.int32))

    # The scores are read again, a few at a time: to keep them all would take more registers than there are.
    out_at = row * out_row_stride + piece.to(tl.int64) * count
    if indices_ptr is not None:
        indices_ptr += row * length
    if out_scores_ptr is not None:
        out_scores_ptr += out_at
    write_selected(
        row_ptr,
        column_stride,
        indices_ptr,
        out_indices_ptr + out_at,
        out_scores_ptr,
        begin,
        end,
        count,
        threshold,
        ties,
        TILE,
    )


@triton.jit
def block_maxima_kernel(
    scores_ptr,
    visible_ptr,
    maxima_ptr,
    length,
    blocks,
    row_stride,
    column_stride,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
):
    """scores [rows, length] -> maxima [rows, blocks] of BLOCK columns each, infinity for the newest visible block.

    LANES is BLOCK rounded up. The maximum of a block with NaN is NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * TILE + tl.arange(0, TILE)
    lane = tl.arange(0, LANES)[None, :]
    column = block[:, None] * BLOCK + lane
    at = row * row_stride + column.to(tl.int64) * column_stride
    inside = (lane < BLOCK) & (column < length)
    bits = float_bits(tl.load(scores_ptr + at, mask=inside, other=float("-inf")))
    # Integers in the order of the scores, any NaN above infinity; the same step turns them back.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ordered = tl.where((bits & 0x7FFFFFFF) > INFINITY_BITS, 0x7FFFFFFF, ordered)
    largest = tl.max(ordered, axis=1)
    largest = largest ^ ((largest >> 31) & 0x7FFFFFFF)
    visible = tl.load(visible_ptr + row)
    newest = (visible > 0) & (block == (visible - 1) // BLOCK)
    tl.store(maxima_ptr + (row * blocks + block), as_float(tl.where(newest, INFINITY_BITS, largest)), block < blocks)


def select_launch(
    scores: torch.Tensor,
    indices: torch.Tensor | None,
    out_scores: torch.Tensor | None,
    out_indices: torch.Tensor,
    count: int,
) -> Launch:
    """One round: scores fp32 [N, L] of any strides -> out_scores, out_indices [N, pieces * count]; see the kernel."""
    rows, length = scores.shape
    piece = min(PIECE, max(128, triton.next_power_of_2(length)))
    return Launch(
        kernel=select_kernel,
        grid=(rows, triton.cdiv(length, piece)),
        arguments={
            "scores_ptr": scores,
            "indices_ptr": indices,
            "out_scores_ptr": out_scores,
            "out_indices_ptr": out_indices,
            "length": length,
            "count": count,
            "row_stride": scores.stride(0),
            "column_stride": scores.stride(1),
            "out_row_stride": out_indices.shape[1],
        },
        constants={"PIECE": piece, "TILE": min(piece, WRITE_TILE)},
        num_warps=min(16, max(1, piece // 512)),
    )


def block_maxima_launch(scores: torch.Tensor, visible: torch.Tensor, maxima: torch.Tensor, block: int) -> Launch:
    """The launch for scores fp32 [N, L] of any strides, visible int64 [N], maxima fp32 [N, ceil(L / block)]."""
    lanes = triton.next_power_of_2(block)
    tile = max(1, MAXIMA_TILE // lanes)
    return Launch(
        kernel=block_maxima_kernel,
        grid=(maxima.shape[0], triton.cdiv(maxima.shape[1], tile)),
        arguments={
            "scores_ptr": scores,
            "visible_ptr": visible,
            "maxima_ptr": maxima,
            "length": scores.shape[1],
            "blocks": maxima.shape[1],
            "row_stride": scores.stride(0),
            "column_stride": scores.stride(1),
        },
        constants={"BLOCK": block, "LANES": lanes, "TILE": tile},
        num_warps=4,
    )


def select_top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` largest of each row: int64 [N, min(count, L)], ascending, padded with -1.

    Args:
        scores: float32 [N, L], any strides, L below 2^31. Minus infinity and NaN are never selected, -0 ties with 0,
            and of equal scores the lower index is taken first.

    Raises:
        TypeError: scores that are not float32.
        ValueError: another shape, or a number below what is allowed.
    """
    _check_scores(scores)
    if count < 0:
        raise ValueError(f"count is {count}; expected 0 or more")
    rows, length = scores.shape
    count = min(count, length)
    out = scores.new_empty((rows, count), dtype=torch.int64)
    if out.numel() == 0:
        return out
    if length > PIECE and count > PIECE // 2:
        select_rows_launch(scores, out).run()
        return out
    indices = None
    while scores.shape[1] > PIECE:
        pieces = triton.cdiv(scores.shape[1], PIECE)
        kept_indices = out.new_empty((rows, pieces * count), dtype=torch.int32)
        kept_scores = scores.new_empty((rows, pieces * count))
        select_launch(scores, indices, kept_scores, kept_indices, count).run()
        scores, indices = kept_scores, kept_indices
    select_launch(scores, indices, None, out, count).run()
    return out


def select_blocks(scores: torch.Tensor, visible: torch.Tensor, block: int, budget: int) -> torch.Tensor:
    """The candidate pool: the blocks with the largest maxima, the newest one always among them.

    Args:
        scores: float32 [N, L], any strides, minus infinity where an entry is not visible. visible: int64 [N], entries
            0 to visible - 1 of each row. block: entries of a block. budget: how many blocks are kept.

    Returns:
        int64 [N, min(budget, ceil(L / block))], ascending block numbers, padded with -1.

    Raises:
        TypeError: scores that are not float32.
        ValueError: another shape, or a number below what is allowed.
    """
    _check_scores(scores)
    rows, length = scores.shape
    if visible.dtype != torch.int64 or list(visible.shape) != [rows]:
        raise ValueError(f"visible is {visible.dtype} {list(visible.shape)}; expected torch.int64 [{rows}]")
    if block < 1:
        raise ValueError(f"block is {block}; expected 1 entry or more")
    if budget < 0:
        raise ValueError(f"budget is {budget}; expected 0 or more")
    maxima = scores.new_empty((rows, triton.cdiv(length, block)))
    if maxima.numel():
        block_maxima_launch(scores, visible.contiguous(), maxima, block).run()
    return select_top(maxima, budget)


def select_top_cost(rows: int, length: int, count: int) -> tuple[int, int]:
    """(bytes, operations) that :func:`select_top` cannot do without: it reads every score once and writes indices.

    Comparing is no multiplication and addition, so there are no operations.
    """
    return rows * (length * 4 + min(count, length) * 8), 0


def select_blocks_cost(rows: int, length: int, block: int, budget: int) -> tuple[int, int]:
    """(bytes, operations) of :func:`select_blocks`; the maxima need not go through memory, so they do not count."""
    return rows * (length * 4 + 8 + min(budget, triton.cdiv(length, block)) * 8), 0


def _check_scores(scores: torch.Tensor) -> None:
    if scores.dtype != torch.float32:
        raise TypeError(f"scores are {scores.dtype}; expected torch.float32")
    if scores.dim() != 2 or scores.shape[1] >= 2**31:
        raise ValueError(f"scores have shape {list(scores.shape)}; expected [N, L] with L below 2^31")


def compile_cases() -> Iterator[CompileCase]:
    """Top 512 of 2^20 entries (rounds of 2^20, 32768 and 1024) and of a pool of 16384; 2048 of 131072 blocks of 8.

    Indices go out one by one, to where they belong, so only the maxima move 16 bytes at a time on both sides.
    """
    scores = torch.empty(64, 2**20, device="meta")
    for name, length, count, first, last in (
        ("entries_first", 2**20, 512, True, False),
        ("entries_next", 2**15, 512, False, False),
        ("entries_last", 1024, 512, False, True),
        ("pool", 2**14, 512, True, True),
        ("blocks_first", 2**17, 2048, True, False),
        ("blocks_last", 2**14, 2048, False, True),
    ):
        width = triton.cdiv(length, PIECE) * count
        launch = select_launch(
            scores[:, :length].contiguous(),
            None if first else scores.new_empty(64, length, dtype=torch.int32),
            None if last else scores.new_empty(64, width),
            scores.new_empty(64, width, dtype=torch.int64 if last else torch.int32),
            count,
        )
        yield CompileCase(f"select_{name}", launch, wide=False)
    maxima = scores.new_empty(64, 2**17)
    launch = block_maxima_launch(scores, scores.new_empty(64, dtype=torch.int64), maxima, 8)
    yield CompileCase("block_maxima", launch)
