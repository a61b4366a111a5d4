"""The indexer's scores without matrix instructions, for GPUs where a matrix product would be taken apart anyway.

A thread decodes one key and keeps it while it goes through rows and heads, whose decoded numbers all threads read
together.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .index_operands import PagedKeys, published_cases
from .index_tiles import score_tile
from .launch import CompileCase, Launch

KEYS = 128


@triton.jit
def index_scores_sums_kernel(
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
    KEYS: tl.constexpr,
):
    """Scores of ``queries`` rows for KEYS columns, as :func:`.index_tiles.score_tile` has them: out [rows, columns].

    query: fp32 numbers. WIDTH is CHANNELS rounded up.
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

    channel = tl.arange(0, WIDTH)
    # A tile of which nothing is wanted needs no head.
    needed = tl.where(tl.max(page) >= 0, heads, 0)
    for row in range(first, end):
        scores = tl.zeros([KEYS], tl.float32)
        for head in range(needed):
            at = (row * heads + head) * CHANNELS + channel
            query = tl.load(query_ptr + at, mask=channel < CHANNELS, other=0.0)
            product = tl.sum(keys * query[None, :], axis=1)
            # A key whose bytes are NaN scores NaN, as in torch: plain maxima lose it on a GPU.
            wants = tl.maximum(product, 0.0, propagate_nan=tl.PropagateNan.ALL)
            scores += wants * tl.load(weight_ptr + (row * heads + head))
        seen = (page >= 0) & (entry < tl.load(visible_ptr + row))
        tl.store(out_ptr + (row * columns + column), tl.where(seen, scores, float("-inf")), mask=column < columns)


def index_scores_sums_launch(
    query: torch.Tensor,
    weight: torch.Tensor,
    keys: PagedKeys,
    candidates: torch.Tensor | None,
    out: torch.Tensor,
    *,
    pool_block: int = 0,
    one_sequence: bool = False,
) -> Launch:
    """The launch without matrix instructions: query fp32 [N, heads, C], out fp32 [N, columns], all contiguous."""
    arguments = keys.arguments(query, weight, candidates, out, one_sequence)
    return Launch(
        kernel=index_scores_sums_kernel,
        grid=(triton.cdiv(out.shape[0], arguments["queries"]), triton.cdiv(out.shape[1], KEYS)),
        arguments=arguments,
        constants=keys.constants(pool_block) | {"KEYS": KEYS},
        num_warps=KEYS // 32,
        # Without fused products and sums this kernel would take twice the time.
        options={"enable_fp_fusion": True},
    )


def compile_cases() -> Iterator[CompileCase]:
    """Stores are of 4 bytes a thread, which has one score."""
    for case in published_cases():
        query = case.out.new_empty(*case.queries.weight.shape, 128)
        launch = index_scores_sums_launch(
            query, case.queries.weight, case.keys, case.candidates, case.out, **case.options
        )
        yield CompileCase(f"index_scores_sums_{case.name}", launch, wide=False, targets=(75,))
