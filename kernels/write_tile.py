"""Device functions of both cache writes: a tile from the norm to the stored bytes, and where its rows go."""

import triton
import triton.language as tl

from .blocks import encode_tile
from .numbers import INFINITY_BITS, float_bits, to_float, to_type


@triton.jit
def norm_rotate_store(
    x,
    x_type: tl.constexpr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    codes_ptr,
    scales_ptr,
    latent_ptr,
    row,
    given,
    page,
    place,
    kept,
    cos_row_stride,
    cos_pair_stride,
    sin_row_stride,
    sin_pair_stride,
    codes_page_stride,
    codes_entry_stride,
    scales_page_stride,
    scales_entry_stride,
    CHANNELS: tl.constexpr,
    ROTATED: tl.constexpr,
    EPS: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    AMAX_FLOOR: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """What is left to do with fp32 x [TILE_ROWS, TILE_CHANNELS], zero beyond CHANNELS; x_type is the activation type.

    row, page, place: int64 [TILE_ROWS, 1]. given: whose latents are written; kept: whose bytes are.
    """
    channel = tl.arange(0, TILE_CHANNELS)[None, :]
    inside = channel < CHANNELS
    weight = to_float(tl.load(weight_ptr + channel, mask=inside, other=0.0))
    # Correctly rounded, so that a mean square that is a power of four scales without an error on every device.
    mean_square = tl.div_rn(tl.sum(x * x, axis=1), CHANNELS * 1.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean_square + EPS))
    latent = to_type(x * factor[:, None] * weight, x_type)
    if latent_ptr is not None:
        tl.store(latent_ptr + (row * CHANNELS + channel), latent, mask=given & inside)

    even, odd = tl.split(to_float(latent).reshape(TILE_ROWS, TILE_CHANNELS // 2, 2))
    pair = tl.arange(0, TILE_CHANNELS // 2)[None, :]
    # Only the last ROTATED channels turn; the others keep their bits, the sign of a zero included.
    turn = pair - (CHANNELS - ROTATED) // 2
    turns = (turn >= 0) & (turn < ROTATED // 2)
    offset = turn.to(tl.int64)
    cos = tl.load(cos_ptr + (row * cos_row_stride + offset * cos_pair_stride), mask=kept & turns, other=0.0)
    sin = tl.load(sin_ptr + (row * sin_row_stride + offset * sin_pair_stride), mask=kept & turns, other=0.0)
    turned_even = to_float(to_type(even * cos - odd * sin, x_type))
    turned_odd = to_float(to_type(even * sin + odd * cos, x_type))
    even = tl.where(turns, turned_even, even)
    odd = tl.where(turns, turned_odd, odd)

    bits = float_bits(tl.join(even, odd)).reshape(TILE_ROWS, TILE_CHANNELS)
    code_bytes, scale_code, amax_bits = encode_tile(bits, ELEMENT, SCALE, BLOCK, AMAX_FLOOR, TILE_ROWS, TILE_CHANNELS)
    # What is not finite has no code. The scale that is NaN keeps it from being read back as a number.
    scale_code = tl.where(amax_bits >= INFINITY_BITS, 0x7F if SCALE == "e4m3" else 0xFF, scale_code)
    ROW_BYTES: tl.constexpr = CHANNELS // 2 if ELEMENT == "e2m1" else CHANNELS
    byte = tl.arange(0, TILE_CHANNELS // 2 if ELEMENT == "e2m1" else TILE_CHANNELS)[None, :]
    tl.store(
        codes_ptr + (page * codes_page_stride + place * codes_entry_stride + byte),
        code_bytes.to(tl.uint8),
        mask=kept & (byte < ROW_BYTES),
    )
    block = tl.arange(0, TILE_CHANNELS // BLOCK)[None, :]
    tl.store(
        scales_ptr + (page * scales_page_stride + place * scales_entry_stride + block),
        scale_code.to(tl.uint8),
        mask=kept & (block < CHANNELS // BLOCK),
    )


@triton.jit
def find_places(page_ptr, place_ptr, first_row, rows, pages, entries, TILE_ROWS: tl.constexpr):
    """Page and place of rows, int64 [TILE_ROWS, 1], and whether there is such a place; page 0 without a page_ptr.

    Loaded as vectors: a column would be loaded anew for each channel that a thread has.
    """
    row = first_row + tl.arange(0, TILE_ROWS)
    place = tl.load(place_ptr + row, mask=row < rows, other=-1)
    kept = (place >= 0) & (place < entries)
    if page_ptr is None:
        page = tl.zeros_like(place)
    else:
        page = tl.load(page_ptr + row, mask=row < rows, other=-1)
        kept = kept & (page >= 0) & (page < pages)
    return page[:, None], place[:, None], kept[:, None]
