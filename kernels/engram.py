"""Engram: from look-back windows to row numbers by exact hashes, and from row numbers to the values of a packed table.

Source: report section 2.4.2; the released ``inference/engram.py`` and ``inference/model.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch, targets_of
from .numbers import bf16_of_float, e4m3_to_float, e8m0_to_float
from .tiles import FLOAT_TYPES, NUM_WARPS, Tiling

# Stands in a window where nothing may be looked up.
DEAD = -1
_HASH_TOKENS = 64


@triton.jit
def hash_rows_kernel(
    windows_ptr, multipliers_ptr, primes_ptr, offsets_ptr, rows_ptr,
    tokens, pad_id,
    DEAD: tl.constexpr, MAX_NGRAM: tl.constexpr, HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr, TILE_HEADS: tl.constexpr,
):  # fmt: skip
    """windows int64 [tokens, MAX_NGRAM] -> rows int64 [layers, tokens, (MAX_NGRAM - 1) * HEADS].

    Products reach 2^63, so the whole of it is integers.
    """
    COLUMNS: tl.constexpr = (MAX_NGRAM - 1) * HEADS
    layer = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)[:, None]
    head = tl.arange(0, TILE_HEADS)[None, :]
    blocked = tl.zeros([TILE_TOKENS, 1], tl.int1)
    mixed = tl.zeros([TILE_TOKENS, 1], tl.int64)
    for distance in tl.static_range(MAX_NGRAM):
        compressed = tl.load(windows_ptr + (token * MAX_NGRAM + distance), mask=token < tokens, other=DEAD)
        blocked = blocked | (compressed == DEAD)
        multiplier = tl.load(multipliers_ptr + (layer * MAX_NGRAM + distance))
        mixed = mixed ^ (tl.where(blocked, pad_id, compressed) * multiplier)
        if distance > 0:
            column = layer * COLUMNS + (distance - 1) * HEADS + head
            prime = tl.load(primes_ptr + column, mask=head < HEADS, other=1)
            offset = tl.load(offsets_ptr + column, mask=head < HEADS, other=0)
            bucket = mixed % prime
            # A hash is negative only for what is no compressed id; even then the row stays inside its column.
            bucket = tl.where(bucket < 0, bucket + prime, bucket)
            place = (layer * tokens + token) * COLUMNS + ((distance - 1) * HEADS + head)
            tl.store(rows_ptr + place, bucket + offset, mask=(token < tokens) & (head < HEADS))


@triton.jit
def engram_rows_kernel(
    codes_ptr, scales_ptr, row_ids_ptr, out_ptr,
    wanted, table_rows, codes_row_stride, scales_row_stride,
    CHANNELS: tl.constexpr, LARGEST: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_CHANNELS: tl.constexpr,
):  # fmt: skip
    """codes [table_rows, CHANNELS], scales [table_rows, CHANNELS / 32], row_ids [wanted] -> out [wanted, CHANNELS].

    LARGEST is the largest finite number of the output's type.
    """
    TILE_BLOCKS: tl.constexpr = TILE_CHANNELS // 32
    place = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    row = tl.load(row_ids_ptr + place, mask=place < wanted, other=-1)[:, None]
    place = place[:, None]
    exists = (row >= 0) & (row < table_rows)
    block = tl.program_id(1) * TILE_BLOCKS + tl.arange(0, TILE_BLOCKS)[None, :]
    scale = tl.load(
        scales_ptr + (row * scales_row_stride + block.to(tl.int64)), mask=exists & (block < CHANNELS // 32), other=255
    )
    channel = tl.program_id(1) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)[None, :]
    code = tl.load(
        codes_ptr + (row * codes_row_stride + channel.to(tl.int64)), mask=exists & (channel < CHANNELS), other=0x7F
    )
    element = e4m3_to_float(code.to(tl.int32)).reshape(TILE_ROWS, TILE_BLOCKS, 32)
    value = element * e8m0_to_float(scale.to(tl.int32))[:, :, None]
    value = tl.clamp(value, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL).reshape(TILE_ROWS, TILE_CHANNELS)
    mask = (place < wanted) & (channel < CHANNELS)
    if out_ptr.dtype.element_ty == tl.bfloat16:
        value = bf16_of_float(value, EXACT=False)
    else:
        value = value.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (place * CHANNELS + channel), value, mask=mask)


def hash_rows_launch(
    windows: torch.Tensor,
    multipliers: torch.Tensor,
    primes: torch.Tensor,
    offsets: torch.Tensor,
    rows: torch.Tensor,
    *,
    pad_id: int,
) -> Launch:
    """The launch for windows [N, max_ngram] and rows [layers, N, columns]; all int64 and contiguous."""
    layers, tokens, _ = rows.shape
    heads = primes.shape[2]
    return Launch(
        kernel=hash_rows_kernel,
        grid=(triton.cdiv(tokens, _HASH_TOKENS), layers),
        arguments={
            "windows_ptr": windows,
            "multipliers_ptr": multipliers,
            "primes_ptr": primes,
            "offsets_ptr": offsets,
            "rows_ptr": rows,
            "tokens": tokens,
            "pad_id": pad_id,
        },
        constants={
            "DEAD": DEAD,
            "MAX_NGRAM": windows.shape[1],
            "HEADS": heads,
            "TILE_TOKENS": _HASH_TOKENS,
            "TILE_HEADS": triton.next_power_of_2(heads),
        },
        num_warps=NUM_WARPS,
    )


def hash_rows(
    windows: torch.Tensor, multipliers: torch.Tensor, primes: torch.Tensor, offsets: torch.Tensor, pad_id: int
) -> torch.Tensor:
    """The table rows that each token reads in each Engram layer.

    A column that is DEAD (-1) blocks all columns further back; the hash takes pad_id in their place.

    Args:
        windows: int64 [N, max_ngram] of compressed ids, column k the one k tokens back.
        multipliers: int64 [layers, max_ngram]. primes: int64 [layers, max_ngram - 1, heads], the rows of each column.
            offsets: int64 [layers, (max_ngram - 1) * heads], the first of them. All on the device of windows.

    Returns:
        int64 [layers, N, (max_ngram - 1) * heads].

    Raises:
        ValueError: a tensor of another type, shape or device; the message names it.
    """
    for name, tensor, dims in (
        ("windows", windows, 2), ("multipliers", multipliers, 2), ("primes", primes, 3), ("offsets", offsets, 2),
    ):  # fmt: skip
        if tensor.dtype != torch.int64 or tensor.dim() != dims or tensor.device != windows.device:
            raise ValueError(
                f"{name} are {tensor.dtype} {list(tensor.shape)} on {tensor.device}; expected torch.int64 with {dims} "
                f"dimensions on {windows.device}"
            )
    layers, orders, heads = primes.shape
    for name, tensor, expected in (
        ("windows", windows, (len(windows), orders + 1)),
        ("multipliers", multipliers, (layers, orders + 1)),
        ("offsets", offsets, (layers, orders * heads)),
    ):
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{name} are {list(tensor.shape)}; expected {list(expected)} with primes {list(primes.shape)}"
            )
    rows = windows.new_empty((layers, len(windows), orders * heads))
    if rows.numel():
        hash_rows_launch(
            windows.contiguous(),
            multipliers.contiguous(),
            primes.contiguous(),
            offsets.contiguous(),
            rows,
            pad_id=pad_id,
        ).run()
    return rows


def hash_rows_cost(tokens: int, layers: int, max_ngram: int, heads: int) -> tuple[int, int]:
    """(bytes, operations): a window in, a row number out for each column, and the layers' constants; an int64 each.

    One 64-bit product for each window column and layer counts as a multiply-add.
    """
    columns = layers * (max_ngram - 1) * heads
    return 8 * (tokens * (max_ngram + columns) + layers * max_ngram + 2 * columns), 2 * tokens * layers * max_ngram


def engram_rows_launch(codes: torch.Tensor, scales: torch.Tensor, row_ids: torch.Tensor, out: torch.Tensor) -> Launch:
    """The launch for codes [R, C] and scales [R, C / 32] with bytes side by side, row_ids int64, out [rows, C]."""
    wanted, channels = out.shape
    tiling = Tiling.of(wanted, channels)
    return Launch(
        kernel=engram_rows_kernel,
        grid=tiling.grid,
        arguments={
            "codes_ptr": codes,
            "scales_ptr": scales,
            "row_ids_ptr": row_ids,
            "out_ptr": out,
            "wanted": wanted,
            "table_rows": len(codes),
            "codes_row_stride": codes.stride(0),
            "scales_row_stride": scales.stride(0),
        },
        constants={
            "CHANNELS": channels,
            "LARGEST": torch.finfo(out.dtype).max,
            "TILE_ROWS": tiling.rows,
            "TILE_CHANNELS": tiling.channels,
        },
        num_warps=NUM_WARPS,
    )


def engram_rows(
    codes: torch.Tensor, scales: torch.Tensor, row_ids: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Rows of a packed table, side by side: the input of the Engram projection.

    Args:
        codes: uint8 [R, C], E4M3. scales: uint8 [R, C / 32], E8M0. row_ids: int64 [N, columns], on their device.

    Returns:
        ``dtype`` [N, columns * C]. A row that does not exist reads as NaN; nothing outside the table is touched.

    Raises:
        TypeError: ``dtype`` is none of the three float types.
        ValueError: a tensor of another type, shape, device or layout.
    """
    if dtype not in FLOAT_TYPES:
        raise TypeError(f"dtype is {dtype}; expected one of {', '.join(map(str, FLOAT_TYPES))}")
    for name, tensor in (("codes", codes), ("scales", scales)):
        if tensor.dtype != torch.uint8 or tensor.dim() != 2 or tensor.stride(1) != 1 or tensor.device != row_ids.device:
            raise ValueError(
                f"{name} are {tensor.dtype} {list(tensor.shape)}, strides {list(tensor.stride())}, on "
                f"{tensor.device}; expected torch.uint8 [rows, bytes], bytes side by side, on {row_ids.device}"
            )
    table_rows, channels = codes.shape
    if not channels or channels % 32 or tuple(scales.shape) != (table_rows, channels // 32):
        raise ValueError(
            f"codes are {list(codes.shape)} and scales {list(scales.shape)}; expected [R, C] and [R, C / 32] with C a "
            "positive multiple of 32"
        )
    if row_ids.dtype != torch.int64 or row_ids.dim() != 2:
        raise ValueError(f"row_ids are {row_ids.dtype} {list(row_ids.shape)}; expected torch.int64 [N, columns]")
    out = codes.new_empty((row_ids.numel(), channels), dtype=dtype)
    if out.numel():
        engram_rows_launch(codes, scales, row_ids.contiguous(), out).run()
    return out.view(len(row_ids), row_ids.shape[1] * channels)


def engram_rows_cost(tokens: int, columns: int, channels: int, element_bytes: int) -> tuple[int, int]:
    """(bytes, operations): for each wanted row its number, codes and scales in, its values out; a product a value."""
    wanted = tokens * columns
    return wanted * (8 + channels + channels // 32 + channels * element_bytes), 2 * wanted * channels


def compile_cases() -> Iterator[CompileCase]:
    """Published: two layers of 24 columns, tables of 384 million rows of 256; a chunk of 4096 tokens."""
    windows = torch.empty(4096, 4, dtype=torch.int64, device="meta")
    launch = hash_rows_launch(
        windows,
        windows.new_empty((2, 4)),
        windows.new_empty((2, 3, 8)),
        windows.new_empty((2, 24)),
        windows.new_empty((2, 4096, 24)),
        pad_id=2,
    )
    # A window column is one number of four, each read on its own.
    yield CompileCase("hash_rows", launch, wide=False)
    codes = torch.empty(384_006_168, 256, dtype=torch.uint8, device="meta")
    for dtype in FLOAT_TYPES:
        launch = engram_rows_launch(
            codes,
            codes.new_empty((len(codes), 8)),
            windows.new_empty((4096, 24)),
            codes.new_empty((4096 * 24, 256), dtype=dtype),
        )
        yield CompileCase(f"engram_rows_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
