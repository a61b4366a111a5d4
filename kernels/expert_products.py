"""The experts' products with packed FP4 weights: a program takes a tile of rows of one expert.

``up``: swiglu of the gate and up products, times the routing weight. ``down``: the product with w2.

Source: report section 2.1.1; the released model's ``Expert``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .expert_tiles import DOT_TARGETS, ExpertTiles, product_constants, rows_per_tile
from .expert_weights import accumulate_dot, accumulate_sums, e4m3_rounded
from .group_tokens import most_tiles
from .launch import CompileCase, Launch
from .numbers import bf16_of_float


@triton.jit
def _operand(x, OPERAND: tl.constexpr):
    """Numbers as tl.dot gets them; bf16 passes untouched, since the interpreter knows only its bits."""
    if OPERAND == "bf16":
        tl.static_assert(x.dtype == tl.bfloat16)
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def _halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """fp32 even and odd columns, [ROWS, COLUMNS / 32, 16] each."""
    return tl.split(x.to(tl.float32).reshape(ROWS, COLUMNS // 32, 16, 2))


@triton.jit
def _nothing(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr, DOT: tl.constexpr):
    """The empty sum: of a dot product, or one for each group of columns, added up at the end."""
    if DOT:
        return tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    else:
        return tl.zeros([BLOCK_M, BLOCK_N, GROUPS], tl.float32)


@triton.jit
def _store(pointer, x, mask):
    if pointer.dtype.element_ty == tl.bfloat16:
        tl.store(pointer, bf16_of_float(x, EXACT=False), mask=mask)
    else:
        tl.store(pointer, x.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def experts_up_kernel(
    x_ptr, order_ptr, tile_experts_ptr, routing_ptr, hidden_ptr,
    gate_codes_ptr, gate_scales_ptr, up_codes_ptr, up_scales_ptr,
    x_row_stride, codes_expert_stride, codes_row_stride, scales_expert_stride, scales_row_stride,
    COLUMNS: tl.constexpr, OUTPUTS: tl.constexpr, TOP_K: tl.constexpr, LIMIT: tl.constexpr, ROUND: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, DOT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """x [tokens, COLUMNS] -> hidden [tiles * BLOCK_M, OUTPUTS], rows in the order of ``order``; zero without a pair."""
    across: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0) // across
    row = tile.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = (tl.program_id(0) % across) * BLOCK_N + tl.arange(0, BLOCK_N)
    place = row[:, None] * OUTPUTS + output.to(tl.int64)[None, :]
    in_rows = (output < OUTPUTS)[:, None]
    expert = tl.load(tile_experts_ptr + tile.to(tl.int64)).to(tl.int64)
    if expert < 0:
        _store(hidden_ptr + place, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.trans(in_rows))
        return
    pair = tl.load(order_ptr + row)
    weight = tl.load(routing_ptr + pair.to(tl.int64), mask=pair >= 0, other=0.0)
    x_row = (pair // TOP_K).to(tl.int64)[:, None] * x_row_stride
    codes_row = expert * codes_expert_stride + output.to(tl.int64)[:, None] * codes_row_stride
    scales_row = expert * scales_expert_stride + output.to(tl.int64)[:, None] * scales_row_stride

    gate = _nothing(BLOCK_M, BLOCK_N, BLOCK_K // 32, DOT)
    up = _nothing(BLOCK_M, BLOCK_N, BLOCK_K // 32, DOT)
    for first in range(0, COLUMNS, BLOCK_K):
        column = first + tl.arange(0, BLOCK_K)[None, :]
        x = tl.load(x_ptr + (x_row + column.to(tl.int64)), mask=(pair >= 0)[:, None] & (column < COLUMNS), other=0.0)
        if DOT:
            x = _operand(x, OPERAND)
            gate = accumulate_dot(
                gate, x, gate_codes_ptr, gate_scales_ptr, codes_row, scales_row, in_rows, first,
                COLUMNS, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
            up = accumulate_dot(
                up, x, up_codes_ptr, up_scales_ptr, codes_row, scales_row, in_rows, first,
                COLUMNS, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
        else:
            even, odd = _halves(x, BLOCK_M, BLOCK_K)
            gate = accumulate_sums(
                gate, even, odd, gate_codes_ptr, gate_scales_ptr, codes_row, scales_row, in_rows, first,
                COLUMNS, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            up = accumulate_sums(
                up, even, odd, up_codes_ptr, up_scales_ptr, codes_row, scales_row, in_rows, first,
                COLUMNS, BLOCK_N, BLOCK_K,
            )  # fmt: skip
    if not DOT:
        gate = tl.sum(gate, axis=2)
        up = tl.sum(up, axis=2)

    # NaN must pass: a plain minimum drops it on a GPU.
    gate = tl.where(gate > LIMIT, LIMIT, gate)
    up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
    hidden = gate / (1.0 + tl.exp(-gate)) * up * weight[:, None]
    if ROUND:
        if hidden_ptr.dtype.element_ty == tl.bfloat16:
            hidden = bf16_of_float(hidden, EXACT=False).to(tl.float32)
        else:
            hidden = hidden.to(hidden_ptr.dtype.element_ty).to(tl.float32)
        hidden = e4m3_rounded(hidden, BLOCK_M, BLOCK_N)
    # Also a row without a pair: zero times a weight that is no number is none.
    _store(hidden_ptr + place, tl.where((pair >= 0)[:, None], hidden, 0.0), tl.trans(in_rows))


@triton.jit
def experts_down_kernel(
    hidden_ptr, order_ptr, tile_experts_ptr, rows_ptr, codes_ptr, scales_ptr,
    hidden_row_stride, codes_expert_stride, codes_row_stride, scales_expert_stride, scales_row_stride,
    COLUMNS: tl.constexpr, OUTPUTS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, DOT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """hidden [tiles * BLOCK_M, COLUMNS] -> rows [pairs, OUTPUTS], each where its pair belongs."""
    across: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0) // across
    expert = tl.load(tile_experts_ptr + tile.to(tl.int64)).to(tl.int64)
    if expert < 0:
        return
    row = tile.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = (tl.program_id(0) % across) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows = (output < OUTPUTS)[:, None]
    codes_row = expert * codes_expert_stride + output.to(tl.int64)[:, None] * codes_row_stride
    scales_row = expert * scales_expert_stride + output.to(tl.int64)[:, None] * scales_row_stride

    total = _nothing(BLOCK_M, BLOCK_N, BLOCK_K // 32, DOT)
    for first in range(0, COLUMNS, BLOCK_K):
        column = first + tl.arange(0, BLOCK_K)[None, :]
        x = tl.load(
            hidden_ptr + (row[:, None] * hidden_row_stride + column.to(tl.int64)), mask=column < COLUMNS, other=0.0
        )
        if DOT:
            total = accumulate_dot(
                total, _operand(x, OPERAND), codes_ptr, scales_ptr, codes_row, scales_row, in_rows, first,
                COLUMNS, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
        else:
            even, odd = _halves(x, BLOCK_M, BLOCK_K)
            total = accumulate_sums(
                total, even, odd, codes_ptr, scales_ptr, codes_row, scales_row, in_rows, first,
                COLUMNS, BLOCK_N, BLOCK_K,
            )  # fmt: skip
    if not DOT:
        total = tl.sum(total, axis=2)
    pair = tl.load(order_ptr + row)[:, None]
    place = pair.to(tl.int64) * OUTPUTS + output.to(tl.int64)[None, :]
    _store(rows_ptr + place, total, (pair >= 0) & tl.trans(in_rows))


def experts_up_launch(
    x: torch.Tensor,
    order: torch.Tensor,
    tile_experts: torch.Tensor,
    routing: torch.Tensor,
    gate: tuple[torch.Tensor, torch.Tensor],
    up: tuple[torch.Tensor, torch.Tensor],
    hidden: torch.Tensor,
    *,
    limit: float,
    round_output: bool,
    tiles: ExpertTiles,
    target: int,
) -> Launch:
    """The launch for x [N, C]; routing [N, k] and hidden [rows, I] contiguous; codes and scales of w1 and of w3."""
    outputs, columns = gate[0].shape[1], x.shape[1]
    return Launch(
        kernel=experts_up_kernel,
        grid=(tile_experts.numel() * triton.cdiv(outputs, tiles.block_n),),
        arguments={
            "x_ptr": x,
            "order_ptr": order,
            "tile_experts_ptr": tile_experts,
            "routing_ptr": routing,
            "hidden_ptr": hidden,
            "gate_codes_ptr": gate[0],
            "gate_scales_ptr": gate[1],
            "up_codes_ptr": up[0],
            "up_scales_ptr": up[1],
            "x_row_stride": x.stride(0),
            **_weight_strides(*gate),
        },
        constants={
            "COLUMNS": columns,
            "OUTPUTS": outputs,
            "TOP_K": routing.shape[1],
            "LIMIT": limit,
            "ROUND": round_output,
            **product_constants(x.dtype, tiles, target),
        },
        num_warps=tiles.warps,
        options=tiles.options,
    )


def experts_down_launch(
    hidden: torch.Tensor,
    order: torch.Tensor,
    tile_experts: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    rows: torch.Tensor,
    *,
    tiles: ExpertTiles,
    target: int,
) -> Launch:
    """The launch for hidden [rows, I] in the order of ``order``, codes and scales of w2, rows [pairs, O] contiguous."""
    outputs, columns = codes.shape[1], hidden.shape[1]
    return Launch(
        kernel=experts_down_kernel,
        grid=(tile_experts.numel() * triton.cdiv(outputs, tiles.block_n),),
        arguments={
            "hidden_ptr": hidden,
            "order_ptr": order,
            "tile_experts_ptr": tile_experts,
            "rows_ptr": rows,
            "codes_ptr": codes,
            "scales_ptr": scales,
            "hidden_row_stride": hidden.stride(0),
            **_weight_strides(codes, scales),
        },
        constants={"COLUMNS": columns, "OUTPUTS": outputs, **product_constants(hidden.dtype, tiles, target)},
        num_warps=tiles.warps,
        options=tiles.options,
    )


def _weight_strides(codes: torch.Tensor, scales: torch.Tensor) -> dict[str, int]:
    return {
        "codes_expert_stride": codes.stride(0),
        "codes_row_stride": codes.stride(1),
        "scales_expert_stride": scales.stride(0),
        "scales_row_stride": scales.stride(1),
    }


def compile_cases() -> Iterator[CompileCase]:
    """Published: 384 experts of 5120 x 2304, six a token; a decode step, and chunks of 2048 and 8192 tokens."""
    for name, tokens, dtype, targets, round_output in (
        ("decode", 16, torch.bfloat16, DOT_TARGETS, False),
        ("decode_rounded", 16, torch.bfloat16, DOT_TARGETS, True),
        ("chunk", 2048, torch.bfloat16, DOT_TARGETS, False),
        ("prefill", 8192, torch.bfloat16, DOT_TARGETS, False),
        ("prefill_rounded", 8192, torch.bfloat16, DOT_TARGETS, True),
        ("decode_float16", 16, torch.float16, (80, 90), False),
        ("decode_float32", 16, torch.float32, (80, 90), False),
        ("prefill_float16", 8192, torch.float16, (80, 90), False),
        ("prefill_float32", 8192, torch.float32, (80, 90), False),
        ("sums_float16", 16, torch.float16, (75,), False),
        ("sums_rounded", 16, torch.float16, (75,), True),
        ("sums_float32", 16, torch.float32, (75,), False),
        ("sums_bfloat16", 16, torch.bfloat16, (75,), False),
    ):
        target = targets[0]
        tiles = ExpertTiles.of(rows_per_tile(6 * tokens, 384, dtype, target), dtype, target)
        x = torch.empty(tokens, 5120, dtype=dtype, device="meta")
        count = most_tiles(6 * tokens, 384, tiles.block_m)
        order = x.new_empty(count * tiles.block_m, dtype=torch.int32)
        tile_experts = x.new_empty(count, dtype=torch.int32)
        hidden = x.new_empty((len(order), 2304))
        weight = [x.new_empty((384, 2304, 5120 // each), dtype=torch.uint8) for each in (2, 32)]
        routing = x.new_empty((tokens, 6), dtype=torch.float32)
        up = experts_up_launch(
            x, order, tile_experts, routing, weight, weight, hidden,
            limit=10.0, round_output=round_output, tiles=tiles, target=target,
        )  # fmt: skip
        # Bulk loads are asynchronous copies to shared memory, 16 bytes each; stores are a small part of the bytes.
        yield CompileCase(f"experts_up_{name}", up, wide=False, targets=targets, matrix=tiles.dot)
        if not round_output:
            down = experts_down_launch(
                hidden, order, tile_experts,
                *[x.new_empty((384, 5120, 2304 // each), dtype=torch.uint8) for each in (2, 32)],
                x.new_empty((6 * tokens, 5120)), tiles=tiles, target=target,
            )  # fmt: skip
            yield CompileCase(f"experts_down_{name}", down, wide=False, targets=targets, matrix=tiles.dot)
