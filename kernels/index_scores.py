"""The indexer's scores, straight from packed MXFP4 queries and keys.

``score = sum over heads of weight * max(0, query . key)`` in fp32. Queries and keys, scales included, are exact in
bf16, and their products in fp32; the sum over channels is exact too unless the scales of a row are more than about
2^11 apart.

GPUs with matrix instructions for bf16 run the kernel of this file; older ones, for which Triton would take a product
apart, the one in ``index_scores_sums.py``.

Source: report section 2.3.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .decode import decode_blocks
from .index_operands import BLOCK, PagedKeys, Queries, published_cases
from .index_scores_sums import index_scores_sums_launch
from .index_tiles import score_tile
from .launch import CompileCase, Launch, capability
from .numbers import bf16_of_float

KEYS = 128
MIN_DOT = 16


@triton.jit
def index_scores_kernel(
    query_ptr,
    weight_ptr,
    key_codes_ptr,
    key_scales_ptr,
    page_table_ptr,
    sequence_ptr,
    visible_ptr,
    candidates_ptr,
    out_ptr,
    rows,
    queries,
    columns,
    heads,
    blocks,
    max_pages,
    codes_page_stride,
    codes_entry_stride,
    scales_page_stride,
    scales_entry_stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE_ENTRIES: tl.constexpr,
    POOL_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Scores of ``queries`` rows for KEYS columns, as :func:`.index_tiles.score_tile` has them: out [rows, columns].

    query: decoded numbers, whose type is that of all operands. WIDTH and HEADS are CHANNELS and ``heads`` rounded up.
    """
    first, end, column, entry, page, keys = score_tile(
        key_codes_ptr,
        key_scales_ptr,
        page_table_ptr,
        sequence_ptr,
        visible_ptr,
        candidates_ptr,
        rows,
        queries,
        columns,
        blocks,
        max_pages,
        codes_page_stride,
        codes_entry_stride,
        scales_page_stride,
        scales_entry_stride,
        CHANNELS,
        WIDTH,
        BLOCK,
        PAGE_ENTRIES,
        POOL_BLOCK,
        QUERIES,
        KEYS,
    )
    if query_ptr.dtype.element_ty == tl.bfloat16:
        keys = bf16_of_float(keys, EXACT=True)

    head = tl.arange(0, HEADS)
    channel = tl.arange(0, WIDTH)[:, None]
    # A tile of which nothing is wanted has no row to work on.
    worked = tl.where(tl.max(page) >= 0, end, first)
    for row in range(first, worked):
        at = ((row * heads + head) * CHANNELS)[None, :] + channel
        query = tl.load(query_ptr + at, mask=(head[None, :] < heads) & (channel < CHANNELS), other=0.0)
        weight = tl.load(weight_ptr + (row * heads + head), mask=head < heads, other=0.0)
        # A key whose bytes are NaN scores NaN, as in torch: plain maxima lose it on a GPU.
        wants = tl.maximum(tl.dot(keys, query), 0.0, propagate_nan=tl.PropagateNan.ALL) * weight[None, :]
        seen = (page >= 0) & (entry < tl.load(visible_ptr + row))
        scores = tl.where(seen, tl.sum(wants, axis=1), float("-inf"))
        tl.store(out_ptr + (row * columns + column), scores, mask=column < columns)
    for row in range(worked, end):
        tl.store(out_ptr + (row * columns + column), tl.full([KEYS], float("-inf"), tl.float32), mask=column < columns)


def index_scores_launch(
    query: torch.Tensor,
    weight: torch.Tensor,
    keys: PagedKeys,
    candidates: torch.Tensor | None,
    out: torch.Tensor,
    *,
    pool_block: int = 0,
    one_sequence: bool = False,
) -> Launch:
    """The launch with matrix instructions: query [N, heads, C], out fp32 [N, columns], both contiguous."""
    rows, heads, _ = query.shape
    arguments = keys.arguments(query, weight, candidates, out, one_sequence)
    return Launch(
        kernel=index_scores_kernel,
        grid=(triton.cdiv(rows, arguments["queries"]), triton.cdiv(out.shape[1], KEYS)),
        arguments=arguments,
        constants=keys.constants(pool_block) | {"HEADS": max(MIN_DOT, triton.next_power_of_2(heads)), "KEYS": KEYS},
        num_warps=8,
    )


def index_scores_packed(
    query_codes: torch.Tensor,
    query_scales: torch.Tensor,
    weight: torch.Tensor,
    key_codes: torch.Tensor,
    key_scales: torch.Tensor,
    page_table: torch.Tensor,
    sequence: torch.Tensor,
    visible: torch.Tensor,
    entries: int,
    one_sequence: bool = False,
) -> torch.Tensor:
    """Scores of every row against the first ``entries`` entries of its sequence.

    Args:
        query_codes: uint8 [N, heads, C/2], E2M1, even channel in the low nibble; query_scales: uint8
            [N, heads, C/32], E8M0. weight: float32 [N, heads], constant factors included.
        key_codes: uint8 [pages, page_entries, C/2]; key_scales: uint8 [pages, page_entries, C/32]; views of a page
            pool, any strides but the last, which is 1. page_table: int64 [B, max_pages], -1 for no page.
        sequence: int64 [N], a row's row of the table. visible: int64 [N], a row sees entries 0 to visible - 1.
        entries: at most max_pages * page_entries.
        one_sequence: promises that all rows are of one sequence, as in prefill; then its keys are decoded once for
            several rows.

    Returns:
        float32 [N, entries], minus infinity where an entry is not visible or has no page. The order in which heads
        are summed may depend on ``one_sequence``.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    queries = Queries.of(query_codes, query_scales, weight)
    keys = PagedKeys.of(queries, key_codes, key_scales, page_table, sequence, visible)
    room = page_table.shape[1] * key_codes.shape[1]
    if not 0 <= entries <= room:
        raise ValueError(f"entries is {entries}; expected 0 to {room}, what the page table holds")
    out = weight.new_empty((weight.shape[0], entries))
    if out.numel():
        _run(queries, keys, None, out, 0, one_sequence)
    return out


def index_scores_of_pool_packed(
    query_codes: torch.Tensor,
    query_scales: torch.Tensor,
    weight: torch.Tensor,
    key_codes: torch.Tensor,
    key_scales: torch.Tensor,
    page_table: torch.Tensor,
    sequence: torch.Tensor,
    visible: torch.Tensor,
    candidates: torch.Tensor,
    block: int,
) -> torch.Tensor:
    """Scores of every row against the entries of its own candidate blocks.

    Args:
        candidates: int64 [N, blocks], block numbers, -1 for none; block b holds entries b * block and up.
        query_codes, query_scales, weight, key_codes, key_scales, page_table, sequence, visible: as in
            :func:`index_scores_packed`.

    Returns:
        float32 [N, blocks * block], minus infinity where there is no block, or the entry is not visible or has no
        page.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    queries = Queries.of(query_codes, query_scales, weight)
    keys = PagedKeys.of(queries, key_codes, key_scales, page_table, sequence, visible)
    if candidates.dtype != torch.int64 or candidates.dim() != 2 or candidates.shape[0] != weight.shape[0]:
        raise ValueError(
            f"candidates is {candidates.dtype} {list(candidates.shape)}; expected torch.int64 "
            f"[{weight.shape[0]}, blocks]"
        )
    if block < 1:
        raise ValueError(f"block is {block}; expected 1 entry or more")
    out = weight.new_empty((weight.shape[0], candidates.shape[1] * block))
    if out.numel():
        _run(queries, keys, candidates.contiguous(), out, block, False)
    return out


def index_scores_packed_cost(
    rows: int, entries: int, heads: int, channels: int, one_sequence: bool = False
) -> tuple[int, int]:
    """(bytes, operations) that :func:`index_scores_packed` cannot do without, if all entries are visible.

    Bytes: queries, weights, scores, and the keys, once for each row or, with one_sequence, once. Operations: two for
    each channel of each head, and two for its weight. Page numbers and row numbers are left out, under 2%.
    """
    row_bytes = channels // 2 + channels // BLOCK
    keys = entries * row_bytes * (1 if one_sequence else rows)
    return keys + rows * (heads * (row_bytes + 4) + entries * 4), 2 * rows * entries * heads * (channels + 1)


def index_scores_of_pool_packed_cost(rows: int, blocks: int, block: int, heads: int, channels: int) -> tuple[int, int]:
    """(bytes, operations) of :func:`index_scores_of_pool_packed`, whose rows share no keys; block numbers included."""
    moved, operations = index_scores_packed_cost(rows, blocks * block, heads, channels)
    return moved + rows * blocks * 8, operations


def _run(
    queries: Queries,
    keys: PagedKeys,
    candidates: torch.Tensor | None,
    out: torch.Tensor,
    pool_block: int,
    one_sequence: bool,
) -> None:
    """Fill ``out``, in the way that suits its device."""
    target = capability(out)
    matrix = target >= 80
    # The interpreter would sum products of bf16 operands in bf16.
    query = decode_blocks(
        queries.codes,
        queries.scales,
        element="e2m1",
        scale="e8m0",
        block=BLOCK,
        dtype=torch.bfloat16 if matrix else torch.float32,
    )
    launch = index_scores_launch if matrix or target == 0 else index_scores_sums_launch
    launch(query, queries.weight, keys, candidates, out, pool_block=pool_block, one_sequence=one_sequence).run()


def compile_cases() -> Iterator[CompileCase]:
    """Stores are of 4 bytes a thread, which has one score after the sum over heads."""
    for case in published_cases():
        query = case.out.new_empty(*case.queries.weight.shape, 128, dtype=torch.bfloat16)
        launch = index_scores_launch(query, case.queries.weight, case.keys, case.candidates, case.out, **case.options)
        yield CompileCase(
            f"index_scores_{case.name}", launch, wide=False, targets=(80, 86, 89, 90, 100, 120), matrix=True
        )
