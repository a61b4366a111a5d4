"""Encode: numbers to codes and scale bytes, one scale for each block of neighbouring channels.

Serves the three cache formats (main KV, index key, window KV) by its constants; bit-identical to the torch
definition.

Source: report section 2.4.4 and the released inference code's quantisers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .blocks import encode_tile
from .launch import CompileCase, Launch, targets_of
from .numbers import INFINITY_BITS, float_bits
from .tiles import FLOAT_TYPES, NUM_WARPS, Tiling, as_rows, check_format, element_bits


@triton.jit
def encode_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    not_finite_ptr,
    rows,
    x_row_stride,
    x_channel_stride,
    CHANNELS: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    AMAX_FLOOR: tl.constexpr,
    CHECK: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """x [rows, CHANNELS] -> codes [rows, CHANNELS / 2] (E2M1) or [rows, CHANNELS], scales [rows, CHANNELS / BLOCK].

    With CHECK, not_finite (one int32, zero before) becomes 1 if any input is NaN or infinite; the bytes of such a
    block mean nothing.
    """
    TILE_BLOCKS: tl.constexpr = TILE_CHANNELS // BLOCK
    ROW_BYTES: tl.constexpr = CHANNELS // 2 if ELEMENT == "e2m1" else CHANNELS
    TILE_BYTES: tl.constexpr = TILE_CHANNELS // 2 if ELEMENT == "e2m1" else TILE_CHANNELS
    row = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    channel = tl.program_id(1) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)[None, :]
    x = tl.load(
        x_ptr + (row * x_row_stride + channel.to(tl.int64) * x_channel_stride),
        mask=(row < rows) & (channel < CHANNELS),
        other=0.0,
    )
    code_bytes, scale_code, amax_bits = encode_tile(
        float_bits(x), ELEMENT, SCALE, BLOCK, AMAX_FLOOR, TILE_ROWS, TILE_CHANNELS
    )
    block = tl.program_id(1) * TILE_BLOCKS + tl.arange(0, TILE_BLOCKS)[None, :]
    block_mask = (row < rows) & (block < CHANNELS // BLOCK)
    tl.store(scales_ptr + (row * (CHANNELS // BLOCK) + block), scale_code.to(tl.uint8), mask=block_mask)
    if CHECK:
        places = not_finite_ptr + tl.zeros([TILE_ROWS, TILE_BLOCKS], tl.int64)
        tl.store(places, 1, mask=amax_bits >= INFINITY_BITS)
    byte = tl.program_id(1) * TILE_BYTES + tl.arange(0, TILE_BYTES)[None, :]
    byte_mask = (row < rows) & (byte < ROW_BYTES)
    tl.store(codes_ptr + (row * ROW_BYTES + byte), code_bytes.to(tl.uint8), mask=byte_mask)


def encode_launch(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    not_finite: torch.Tensor | None,
    *,
    element: str,
    scale: str,
    block: int,
    amax_floor: float,
) -> Launch:
    """The launch for rows x [N, C], codes and scales contiguous, not_finite int32 [1] or None (no check)."""
    rows, channels = x.shape
    tiling = Tiling.of(rows, channels)
    return Launch(
        kernel=encode_kernel,
        grid=tiling.grid,
        arguments={
            "x_ptr": x,
            "codes_ptr": codes,
            "scales_ptr": scales,
            "not_finite_ptr": not_finite,
            "rows": rows,
            "x_row_stride": x.stride(0),
            "x_channel_stride": x.stride(1),
        },
        constants={
            "CHANNELS": channels,
            "ELEMENT": element,
            "SCALE": scale,
            "BLOCK": block,
            "AMAX_FLOOR": amax_floor,
            "CHECK": not_finite is not None,
            "TILE_ROWS": tiling.rows,
            "TILE_CHANNELS": tiling.channels,
        },
        num_warps=NUM_WARPS,
    )


def encode_blocks(
    x: torch.Tensor, *, element: str, scale: str, block: int, amax_floor: float, check: bool = True
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Quantise the last dimension of x [..., C] in blocks.

    Args:
        x: float32, bfloat16 or float16, any strides, C a multiple of ``block``. Leading dimensions that no single
            stride describes are copied first; nothing else is.
        element, scale: "e2m1" or "e4m3"; "e4m3" or "e8m0". amax_floor: the smallest maximum of a block.
        check: look for NaN and infinity, which have no code. This waits for the device.

    Returns:
        codes uint8 [..., C/2] (E2M1, even channel in the low nibble) or [..., C]; scales uint8 [..., C/block];
        whether all input was finite (True unless checked).

    Raises:
        TypeError: a tensor of another type.
        ValueError: a shape or device that does not fit, or a format that is none; the message names it.
    """
    check_format(element, scale, block)
    if x.dtype not in FLOAT_TYPES:
        raise TypeError(f"x is {x.dtype}; expected one of {', '.join(map(str, FLOAT_TYPES))}")
    if x.dim() == 0 or x.shape[-1] == 0 or x.shape[-1] % block:
        raise ValueError(f"x has shape {list(x.shape)}; expected [..., C] with C a positive multiple of {block}")
    channels = x.shape[-1]
    codes = x.new_empty((*x.shape[:-1], channels * element_bits(element) // 8), dtype=torch.uint8)
    scales = x.new_empty((*x.shape[:-1], channels // block), dtype=torch.uint8)
    if x.numel() == 0:
        return codes, scales, True
    not_finite = x.new_zeros(1, dtype=torch.int32) if check else None
    encode_launch(
        as_rows(x.detach()),
        codes,
        scales,
        not_finite,
        element=element,
        scale=scale,
        block=block,
        amax_floor=amax_floor,
    ).run()
    return codes, scales, not_finite is None or not bool(not_finite.item())


def compile_cases() -> Iterator[CompileCase]:
    """Published widths: 512 channels for main and window KV, 128 for index keys; all three input types."""
    for name, element, scale, block, amax_floor, channels in (
        ("main_kv", "e2m1", "e4m3", 16, 6 * 2.0**-9, 512),
        ("index_key", "e2m1", "e8m0", 32, 6 * 2.0**-126, 128),
        ("window_kv", "e4m3", "e8m0", 32, 1e-4, 512),
    ):
        for dtype in FLOAT_TYPES:
            x = torch.empty(65536, channels, dtype=dtype, device="meta")
            launch = encode_launch(
                x,
                x.new_empty((65536, channels * element_bits(element) // 8), dtype=torch.uint8),
                x.new_empty((65536, channels // block), dtype=torch.uint8),
                x.new_empty(1, dtype=torch.int32),
                element=element,
                scale=scale,
                block=block,
                amax_floor=amax_floor,
            )
            yield CompileCase(f"encode_{name}_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
