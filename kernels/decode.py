"""Decode: codes and scale bytes back to numbers, for the three cache formats; bit-identical to the torch definition.

Source: report section 2.4.4; OCP Microscaling Formats (MX) v1.0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch, targets_of
from .numbers import bf16_of_float, e2m1_to_float, e4m3_to_float, e8m0_to_float
from .tiles import FLOAT_TYPES, NUM_WARPS, Tiling, as_rows, check_format, element_bits


@triton.jit
def _scaled(element, scale, out_ptr, ELEMENT: tl.constexpr, SCALE: tl.constexpr, LARGEST: tl.constexpr):
    """element * scale as the numbers that out_ptr points to."""
    value = element * scale
    if SCALE == "e8m0":
        # 448 * 6 is the most that an E4M3 scale reaches; E8M0 reaches past the ends of all output types.
        value = tl.clamp(value, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    if out_ptr.dtype.element_ty == tl.bfloat16:
        # Six significant bits at most, and an E2M1 product ends far above the smallest bf16.
        return bf16_of_float(value, EXACT=ELEMENT == "e2m1")
    else:
        return value.to(out_ptr.dtype.element_ty)


@triton.jit
def decode_kernel(
    codes_ptr,
    scales_ptr,
    out_ptr,
    rows,
    codes_row_stride,
    codes_byte_stride,
    scales_row_stride,
    scales_byte_stride,
    CHANNELS: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """codes [rows, CHANNELS / 2] (E2M1) or [rows, CHANNELS], scales [rows, CHANNELS / BLOCK] -> out [rows, CHANNELS].

    LARGEST is the largest finite number of the output's type.
    """
    TILE_BLOCKS: tl.constexpr = TILE_CHANNELS // BLOCK
    PER_BYTE: tl.constexpr = 2 if ELEMENT == "e2m1" else 1
    TILE_BYTES: tl.constexpr = TILE_CHANNELS // PER_BYTE
    row = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]

    block = tl.program_id(1) * TILE_BLOCKS + tl.arange(0, TILE_BLOCKS)[None, :]
    scale_code = tl.load(
        scales_ptr + (row * scales_row_stride + block.to(tl.int64) * scales_byte_stride),
        mask=(row < rows) & (block < CHANNELS // BLOCK),
        other=0,
    ).to(tl.int32)
    scale = e4m3_to_float(scale_code) if SCALE == "e4m3" else e8m0_to_float(scale_code)

    byte = tl.program_id(1) * TILE_BYTES + tl.arange(0, TILE_BYTES)[None, :]
    code = tl.load(
        codes_ptr + (row * codes_row_stride + byte.to(tl.int64) * codes_byte_stride),
        mask=(row < rows) & (byte < CHANNELS // PER_BYTE),
        other=0,
    ).to(tl.int32)
    code = code.reshape(TILE_ROWS, TILE_BLOCKS, BLOCK // PER_BYTE)
    scale = scale[:, :, None]
    if ELEMENT == "e2m1":
        even = _scaled(e2m1_to_float(code & 15), scale, out_ptr, ELEMENT, SCALE, LARGEST)
        odd = _scaled(e2m1_to_float(code >> 4), scale, out_ptr, ELEMENT, SCALE, LARGEST)
        values = tl.join(even, odd)
    else:
        values = _scaled(e4m3_to_float(code), scale, out_ptr, ELEMENT, SCALE, LARGEST)

    channel = tl.program_id(1) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)[None, :]
    tl.store(
        out_ptr + (row * CHANNELS + channel),
        values.reshape(TILE_ROWS, TILE_CHANNELS),
        mask=(row < rows) & (channel < CHANNELS),
    )


def decode_launch(
    codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, *, element: str, scale: str, block: int
) -> Launch:
    """The launch for rows: codes [N, bytes] and scales [N, C/block] of any strides, out [N, C] contiguous."""
    rows, channels = out.shape
    tiling = Tiling.of(rows, channels)
    return Launch(
        kernel=decode_kernel,
        grid=tiling.grid,
        arguments={
            "codes_ptr": codes,
            "scales_ptr": scales,
            "out_ptr": out,
            "rows": rows,
            "codes_row_stride": codes.stride(0),
            "codes_byte_stride": codes.stride(1),
            "scales_row_stride": scales.stride(0),
            "scales_byte_stride": scales.stride(1),
        },
        constants={
            "CHANNELS": channels,
            "ELEMENT": element,
            "SCALE": scale,
            "BLOCK": block,
            "LARGEST": torch.finfo(out.dtype).max,
            "TILE_ROWS": tiling.rows,
            "TILE_CHANNELS": tiling.channels,
        },
        num_warps=NUM_WARPS,
    )


def decode_blocks(
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    element: str,
    scale: str,
    block: int,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """codes uint8 [..., C/2] (E2M1) or [..., C] and scales uint8 [..., C/block], any strides -> values [..., C].

    Values beyond the finite range of ``dtype`` saturate; a byte that is NaN in its format gives NaN.

    Raises:
        TypeError: a tensor of another type.
        ValueError: a shape or device that does not fit, or a format that is none; the message names it.
    """
    check_format(element, scale, block)
    if dtype not in FLOAT_TYPES:
        raise TypeError(f"dtype is {dtype}; expected one of {', '.join(map(str, FLOAT_TYPES))}")
    for name, tensor in (("codes", codes), ("scales", scales)):
        if tensor.dtype != torch.uint8:
            raise TypeError(f"{name} are {tensor.dtype}; expected torch.uint8")
        if tensor.dim() == 0:
            raise ValueError(f"{name} are a scalar; expected [..., bytes]")
    if codes.device != scales.device:
        raise ValueError(f"codes are on {codes.device}, scales on {scales.device}; expected one device")
    channels = codes.shape[-1] * 8 // element_bits(element)
    if channels == 0 or channels % block:
        raise ValueError(f"codes hold {channels} channels a row; expected a positive multiple of {block}")
    expected = (*codes.shape[:-1], channels // block)
    if tuple(scales.shape) != expected:
        raise ValueError(f"scales have shape {list(scales.shape)}; codes {list(codes.shape)} need {list(expected)}")
    out = codes.new_empty((*codes.shape[:-1], channels), dtype=dtype)
    if out.numel():
        rows = out.view(-1, channels)
        decode_launch(as_rows(codes), as_rows(scales), rows, element=element, scale=scale, block=block).run()
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Published widths: 512 channels for main and window KV, 128 for index keys; all three output types."""
    for name, element, scale, block, channels in (
        ("main_kv", "e2m1", "e4m3", 16, 512),
        ("index_key", "e2m1", "e8m0", 32, 128),
        ("window_kv", "e4m3", "e8m0", 32, 512),
    ):
        for dtype in FLOAT_TYPES:
            out = torch.empty(65536, channels, dtype=dtype, device="meta")
            launch = decode_launch(
                out.new_empty((65536, channels * element_bits(element) // 8), dtype=torch.uint8),
                out.new_empty((65536, channels // block), dtype=torch.uint8),
                out,
                element=element,
                scale=scale,
                block=block,
            )
            yield CompileCase(f"decode_{name}_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
