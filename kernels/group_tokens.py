"""Grouping: (token, choice) pairs sorted by expert, each expert's group padded to whole tiles.

Sizes depend on shapes alone, so nothing waits for the device: there is room for the most tiles that any routing can
need, and those beyond the tiles in use are marked as empty.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch

NUM_WARPS = 4
_MOST_AT_ONCE = 1024


@triton.jit
def _expert_of(indices_ptr, pair, pairs, EXPERTS: tl.constexpr):
    """int32 expert of each pair; EXPERTS for a pair that does not exist or names no expert."""
    expert = tl.load(indices_ptr + pair.to(tl.int64), mask=pair < pairs, other=-1)
    return tl.where((expert >= 0) & (expert < EXPERTS), expert, EXPERTS).to(tl.int32)


@triton.jit
def group_tokens_kernel(
    indices_ptr,
    order_ptr,
    tile_experts_ptr,
    pairs,
    tiles,
    EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BINS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """indices [pairs] -> order [tiles * BLOCK_M] (a pair or -1) and tile_experts [tiles] (an expert or -1).

    A program for each expert counts all pairs, which tells it where its group starts, and writes that group; one
    more program marks the tiles that are left. Counts are integers: no order of adding changes them.
    """
    expert = tl.program_id(0)
    is_expert = expert < EXPERTS
    lane = tl.arange(0, AT_ONCE)
    bins = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    for first in range(0, pairs, AT_ONCE):
        counts += tl.histogram(_expert_of(indices_ptr, first + lane, pairs, EXPERTS), BINS)
    tiles_of = (counts + (BLOCK_M - 1)) // BLOCK_M
    first_tile = tl.sum(tl.where(bins < expert, tiles_of, 0))
    last_tile = tl.where(is_expert, first_tile + tl.sum(tl.where(bins == expert, tiles_of, 0)), tiles)
    count = tl.where(is_expert, tl.sum(tl.where(bins == expert, counts, 0)), 0)

    for tile in range(first_tile, last_tile, AT_ONCE):
        place = tile + lane
        tl.store(tile_experts_ptr + place.to(tl.int64), tl.where(is_expert, expert, -1), mask=place < last_tile)
    for row in range(first_tile * BLOCK_M + count, last_tile * BLOCK_M, AT_ONCE):
        place = row + lane
        tl.store(order_ptr + place.to(tl.int64), -1, mask=place < last_tile * BLOCK_M)
    if count > 0:
        written = first_tile * BLOCK_M
        for first in range(0, pairs, AT_ONCE):
            mine = (_expert_of(indices_ptr, first + lane, pairs, EXPERTS) == expert).to(tl.int32)
            place = written + tl.cumsum(mine, 0) - 1
            tl.store(order_ptr + place.to(tl.int64), first + lane, mask=mine != 0)
            written += tl.sum(mine)


def most_tiles(pairs: int, experts: int, block_m: int) -> int:
    """Tiles that the worst routing needs: every expert that can have a pair has one more than fills its tiles."""
    return (pairs + min(pairs, experts) * (block_m - 1)) // block_m


def group_tokens_launch(
    indices: torch.Tensor, order: torch.Tensor, tile_experts: torch.Tensor, *, experts: int
) -> Launch:
    """The launch for indices int64, contiguous; order int32 [tiles * block_m], tile_experts int32 [tiles]."""
    pairs, tiles = indices.numel(), tile_experts.numel()
    return Launch(
        kernel=group_tokens_kernel,
        grid=(experts + 1,),
        arguments={
            "indices_ptr": indices,
            "order_ptr": order,
            "tile_experts_ptr": tile_experts,
            "pairs": pairs,
            "tiles": tiles,
        },
        constants={
            "EXPERTS": experts,
            "BLOCK_M": order.numel() // tiles,
            "BINS": triton.next_power_of_2(experts + 1),
            "AT_ONCE": min(max(triton.next_power_of_2(pairs), 32 * NUM_WARPS), _MOST_AT_ONCE),
        },
        num_warps=NUM_WARPS,
    )


def group_tokens(indices: torch.Tensor, experts: int, block_m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort (token, choice) pairs by expert into tiles of block_m rows, so that a tile has one expert.

    Args:
        indices: int64 [N, k]; pair ``n * k + c`` is choice c of token n. A number that is no expert leaves its pair
            out. experts: how many there are. block_m: rows of a tile.

    Returns:
        order: int32 [tiles * block_m], the pair of each row, or -1. The pairs of an expert keep their order.
        tile_experts: int32 [tiles], the expert of each tile, or -1 for a tile without pairs; these come last.
        ``tiles`` is :func:`most_tiles`, whatever the indices are.

    Raises:
        ValueError: indices of another type or shape, a number below 1, or more rows than 2^31.
    """
    if indices.dtype != torch.int64 or indices.dim() != 2:
        raise ValueError(f"indices are {indices.dtype} {list(indices.shape)}; expected torch.int64 [N, k]")
    if experts < 1 or block_m < 1:
        raise ValueError(f"experts is {experts} and block_m {block_m}; expected a positive number of each")
    pairs = indices.numel()
    tiles = most_tiles(pairs, experts, block_m)
    if tiles * block_m + _MOST_AT_ONCE > 2**31:
        raise ValueError(f"{pairs} pairs in tiles of {block_m} make {tiles * block_m} rows; expected fewer than 2^31")
    order = indices.new_empty(tiles * block_m, dtype=torch.int32)
    tile_experts = indices.new_empty(tiles, dtype=torch.int32)
    if tiles:
        group_tokens_launch(indices.contiguous(), order, tile_experts, experts=experts).run()
    return order, tile_experts


def group_tokens_cost(tokens: int, top_k: int, experts: int, block_m: int) -> tuple[int, int]:
    """(bytes, operations): an int64 read for each pair, an int32 written for each row and each tile; no products."""
    pairs = tokens * top_k
    return 8 * pairs + 4 * (block_m + 1) * most_tiles(pairs, experts, block_m), 0


def compile_cases() -> Iterator[CompileCase]:
    """Published: six of 384 experts; one token, and a chunk of 8192."""
    for name, tokens, block_m in (("decode", 1, 16), ("prefill", 8192, 128)):
        indices = torch.empty(tokens, 6, dtype=torch.int64, device="meta")
        tiles = most_tiles(6 * tokens, 384, block_m)
        launch = group_tokens_launch(
            indices,
            indices.new_empty(tiles * block_m, dtype=torch.int32),
            indices.new_empty(tiles, dtype=torch.int32),
            experts=384,
        )
        # Rows of a group are written one by one, to where they belong.
        yield CompileCase(f"group_tokens_{name}", launch, wide=False)
