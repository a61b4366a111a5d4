"""Device functions: a tile of numbers to codes and scale bytes, one scale for each block of neighbouring channels.

Shared by every kernel that stores a cache format; bit-identical to the torch definition. Source of the formats:
report section 2.4.4 and the released inference code's quantisers.
"""

import triton
import triton.language as tl

from .numbers import (
    as_float,
    e2m1_of_quotient,
    e4m3_of_magnitude,
    e4m3_of_sixth,
    e4m3_to_float,
    e8m0_not_below,
    e8m0_to_float,
    float_bits,
)


@triton.jit
def encode_tile(
    bits,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    AMAX_FLOOR: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """fp32 bits [TILE_ROWS, TILE_CHANNELS] (int32) -> code bytes, scale codes, largest magnitudes; all int32.

    Returns:
        code bytes [TILE_ROWS, TILE_CHANNELS / 2] (E2M1, even channel in the low nibble) or [TILE_ROWS, TILE_CHANNELS];
        scale codes and fp32 bits of the largest magnitude, [TILE_ROWS, TILE_CHANNELS / BLOCK]. The largest magnitude
        is at or above INFINITY_BITS where the block is not finite; codes and scale of such a block mean nothing.
    """
    TILE_BLOCKS: tl.constexpr = TILE_CHANNELS // BLOCK
    LARGEST: tl.constexpr = 6.0 if ELEMENT == "e2m1" else 448.0
    bits = bits.reshape(TILE_ROWS, TILE_BLOCKS, BLOCK)
    magnitude_bits = bits & 0x7FFFFFFF

    # Non-negative floats order as their bits do, and NaN lies above infinity: an integer maximum finds the largest
    # magnitude and whether all are finite, and means the same on a GPU and under the interpreter.
    amax_bits = tl.max(magnitude_bits, axis=2)
    amax = tl.maximum(as_float(amax_bits), AMAX_FLOOR)
    if SCALE == "e4m3":
        tl.static_assert(ELEMENT == "e2m1")
        scale_code = e4m3_of_sixth(float_bits(amax))
        scale = e4m3_to_float(scale_code)
    else:
        # By the fp32 reciprocal, as in the released code. A division would end at the same power of two for every amax.
        scale_code = e8m0_not_below(float_bits(amax * (1 / LARGEST)))
        scale = e8m0_to_float(scale_code)

    if ELEMENT == "e2m1":
        code = e2m1_of_quotient(as_float(magnitude_bits), scale[:, :, None]) | ((bits >> 28) & 8)
        even, odd = tl.split(code.reshape(TILE_ROWS, TILE_CHANNELS // 2, 2))
        code_bytes = even | (odd << 4)
    else:
        # The reciprocal of a power of two is exact, and so is the product down to far below the smallest code.
        reciprocal = as_float((254 - scale_code) << 23)
        scaled = float_bits(as_float(magnitude_bits) * reciprocal[:, :, None])
        code = e4m3_of_magnitude(scaled) | ((bits >> 24) & 0x80)
        code_bytes = code.reshape(TILE_ROWS, TILE_CHANNELS)
    return code_bytes, scale_code, amax_bits
