"""Device functions: tiles of attention keys, found through their indices and decoded from their stored bytes.

A key is also a value. A tile of them comes as two halves, even and odd channels, because a byte of E2M1 codes holds
one of each: nothing has to be interleaved, and a dot product does not care about the order of channels.
"""

import triton
import triton.language as tl

from .numbers import e2m1_to_float, e4m3_to_float, e8m0_to_float


@triton.jit
def key_indices(
    tile,
    window_tiles,
    choice_ptr,
    choice_width,
    selected_ptr,
    selected_width,
    HAS_MAIN: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Indices [KEY_TILE] of a tile of keys, -1 where there is none.

    The first ``window_tiles`` tiles are window slots, and an index is a row of the window buffer; the others are
    selected entries, and an index is an entry's number.
    """
    indices, start, width = choice_ptr, tile * KEY_TILE, choice_width
    if HAS_MAIN:
        in_window = tile < window_tiles
        indices = tl.where(in_window, choice_ptr, selected_ptr)
        start = tl.where(in_window, start, start - window_tiles * KEY_TILE)
        width = tl.where(in_window, choice_width, selected_width)
    slot = start + tl.arange(0, KEY_TILE)
    return tl.load(indices + slot, mask=slot < width, other=-1)


@triton.jit
def _window_half(code, scale, OPERAND: tl.constexpr, KEY_TILE: tl.constexpr, HALF: tl.constexpr):
    """E4M3 codes [KEY_TILE, HALF] of every second channel times E8M0 scales, 16 such channels each."""
    value = e4m3_to_float(code.to(tl.int32)).reshape(KEY_TILE, HALF // 16, 16) * scale[:, :, None]
    if tl.float16 == OPERAND:
        value = tl.clamp(value, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return value.to(OPERAND).reshape(KEY_TILE, HALF)


@triton.jit
def window_keys(
    row,
    window_rows,
    codes_ptr,
    scales_ptr,
    codes_stride,
    scales_stride,
    CHANNELS: tl.constexpr,
    OPERAND: tl.constexpr,
    KEY_TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    """(even, odd) OPERAND [KEY_TILE, HALF] of window rows ``row`` [KEY_TILE]; zeros for a row that there is not."""
    there = ((row >= 0) & (row < window_rows))[:, None]
    row = row.to(tl.int64)
    channel = tl.arange(0, 2 * HALF)[None, :]
    codes = tl.load(codes_ptr + ((row * codes_stride)[:, None] + channel), mask=there & (channel < CHANNELS), other=0)
    block = tl.arange(0, HALF // 16)[None, :]
    scales = tl.load(
        scales_ptr + ((row * scales_stride)[:, None] + block), mask=there & (block < CHANNELS // 32), other=0
    )
    scale = e8m0_to_float(scales.to(tl.int32))
    even, odd = tl.split(codes.reshape(KEY_TILE, HALF, 2))
    return (
        _window_half(even, scale, OPERAND, KEY_TILE, HALF),
        _window_half(odd, scale, OPERAND, KEY_TILE, HALF),
    )


@triton.jit
def main_keys(
    entry,
    table_ptr,
    table_width,
    codes_ptr,
    scales_ptr,
    codes_page_stride,
    codes_row_stride,
    scales_page_stride,
    scales_row_stride,
    PER_PAGE: tl.constexpr,
    CHANNELS: tl.constexpr,
    OPERAND: tl.constexpr,
    KEY_TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    """(even, odd) OPERAND [KEY_TILE, HALF] of main entries ``entry`` [KEY_TILE], found through their sequence's pages.

    Zeros for entry -1, and for an entry whose page there is not.
    """
    # Entries are not negative where anything is loaded; without a sign the division by a power of two is a shift.
    number = entry.to(tl.uint32)
    column, place = number // PER_PAGE, (number % PER_PAGE).to(tl.int64)
    page = tl.load(table_ptr + column, mask=(entry >= 0) & (column < table_width), other=-1)
    there = (page >= 0)[:, None]
    byte = tl.arange(0, HALF)[None, :]
    codes = tl.load(
        codes_ptr + ((page * codes_page_stride + place * codes_row_stride)[:, None] + byte),
        mask=there & (byte < CHANNELS // 2),
        other=0,
    )
    block = tl.arange(0, HALF // 8)[None, :]
    scales = tl.load(
        scales_ptr + ((page * scales_page_stride + place * scales_row_stride)[:, None] + block),
        mask=there & (block < CHANNELS // 16),
        other=0,
    )
    scale = e4m3_to_float(scales.to(tl.int32))[:, :, None]
    code = codes.to(tl.int32).reshape(KEY_TILE, HALF // 8, 8)
    even = e2m1_to_float(code & 15) * scale
    odd = e2m1_to_float(code >> 4) * scale
    return even.to(OPERAND).reshape(KEY_TILE, HALF), odd.to(OPERAND).reshape(KEY_TILE, HALF)
