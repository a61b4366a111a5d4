"""How sparse attention is cut into programs, and the least that it must move and compute.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

# Multiprocessors of a large GPU of each capability: T4, A100, RTX 3090, RTX 4090, H100/H200, B200, RTX 5090.
_MULTIPROCESSORS = {75: 40, 80: 108, 86: 82, 89: 128, 90: 132, 100: 148, 120: 170}
# Heads that share one decoding of a tile of keys, where matrix instructions do the products. The sums of 64 heads
# just fit the registers of sm_90, whose instructions read the other operands from shared memory; not with more to do,
# as where the query is rotated, nor in what the compiler makes of a layer with a window only. Elsewhere operands take
# registers too, and the tensor memory of sm_100 has no room for both the sums and the logits of 64 heads.
_MATRIX_HEADS, _MATRIX_HEADS_SM90 = 32, 64
_FEWEST_MATRIX_HEADS = 16
_MATRIX_KEYS = 32
# Without matrix instructions: every warp works on one key at a time.
_LANE_HEADS, _LANE_KEYS = 4, 8
# A part of a query's keys should be worth the 4 * C bytes a head that its sums take on their way to the others'.
_FEWEST_KEYS_A_SPLIT = 32
_OPERANDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@dataclass(frozen=True)
class Plan:
    """A program takes ``head_tile`` heads of one query and ``tiles`` tiles of ``key_tile`` keys.

    matrix: products by matrix instructions, on operands of type ``operand``; otherwise in fp32 arithmetic.
    splits: programs that share the keys of one query.
    """

    matrix: bool
    operand: tl.dtype
    head_tile: int
    key_tile: int
    tiles: int
    splits: int
    num_warps: int = 8

    @classmethod
    def of(
        cls,
        rows: int,
        heads: int,
        window: int,
        selected: int,
        dtype: torch.dtype,
        capability: int,
        splits: int = 0,
        rotate_query: bool = False,
    ) -> Plan:
        """The plan for ``rows`` queries of ``heads`` heads over window and selected slots.

        capability: 75 for sm_75 and so on; 0 for the interpreter, where a program is costly and none runs beside
        another. splits: as many, if there are keys enough; 0 takes what fills the GPU. fp32 queries keep their
        precision: matrix instructions would round them.
        """
        known = max((c for c in _MULTIPROCESSORS if c <= capability), default=75)
        matrix = capability == 0 or (known >= 80 and dtype != torch.float32)
        key_tile = _MATRIX_KEYS if matrix else _LANE_KEYS
        tiles = triton.cdiv(window, key_tile) + triton.cdiv(selected, key_tile)
        wanted = _MULTIPROCESSORS[known] if capability else 1
        if matrix:
            fit = _MATRIX_HEADS_SM90 if known == 90 and selected and not rotate_query else _MATRIX_HEADS
            most = min(fit, max(_FEWEST_MATRIX_HEADS, triton.next_power_of_2(heads)))
            fills = rows * triton.cdiv(heads, most) * tiles >= wanted
            head_tile = most if fills or not capability else _FEWEST_MATRIX_HEADS
            operand = _OPERANDS[dtype] if capability else tl.float32
        else:
            head_tile, operand = _LANE_HEADS, tl.float32
        if splits == 0:
            programs = rows * triton.cdiv(heads, head_tile)
            splits = min(triton.cdiv(wanted, programs), tiles * key_tile // _FEWEST_KEYS_A_SPLIT)
        each = triton.cdiv(tiles, max(1, min(splits, tiles)))
        return cls(matrix, operand, head_tile, key_tile, each, triton.cdiv(tiles, each) if tiles else 1)


def sparse_attention_packed_cost(
    rows: int, heads: int, channels: int, window: int, selected: int, element_bytes: int = 2, turn_pairs: int = 0
) -> tuple[int, int]:
    """(bytes, operations) that sparse attention cannot do without.

    Bytes: each query once in and once out, ``element_bytes`` a channel; each slot's index, 8 bytes; a window key of
    C + C/32 bytes and a selected one of C/2 + C/16 for each slot, once for all heads; the rotation. Queries that have
    keys in common can find them in a cache, so that less may come from memory. Operations: two for each of the
    multiply-adds of a key, C for its logit and C for its value, for each head.
    """
    keys = window * (channels + channels // 32) + selected * (channels // 2 + channels // 16)
    own = 2 * heads * channels * element_bytes + 8 * (window + selected) + keys + 2 * 4 * turn_pairs
    return rows * own + 4 * heads, rows * 4 * heads * channels * (window + selected)
