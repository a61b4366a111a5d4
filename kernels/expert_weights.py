"""Device functions of the experts' kernels: packed FP4 weights to numbers, products with them, rounding to FP8.

A weight row holds two E2M1 codes a byte, the even column in the low nibble, and one E8M0 scale for every 32 columns:
16 bytes of codes a scale.

Source: the released checkpoint's expert tensors; OCP Microscaling Formats 1.0.
"""

import triton
import triton.language as tl

from .numbers import (
    as_float,
    bf16_of_float,
    e2m1_to_float,
    e4m3_of_magnitude,
    e4m3_to_float,
    e8m0_not_below,
    e8m0_to_float,
    float_bits,
)


@triton.jit
def _codes_and_scales(codes_ptr, scales_ptr, code_row, scale_row, in_rows, first, COLUMNS, BLOCK_N, BLOCK_K):
    """int32 bytes [BLOCK_N, BLOCK_K / 32, 16] and fp32 scales [BLOCK_N, BLOCK_K / 32] of columns first to BLOCK_K on.

    code_row, scale_row: int64 offsets [BLOCK_N, 1] of the rows; in_rows: which of them exist.
    """
    byte = first // 2 + tl.arange(0, BLOCK_K // 2)[None, :]
    code = tl.load(codes_ptr + (code_row + byte.to(tl.int64)), mask=in_rows & (byte < COLUMNS // 2), other=0)
    block = first // 32 + tl.arange(0, BLOCK_K // 32)[None, :]
    scale = tl.load(scales_ptr + (scale_row + block.to(tl.int64)), mask=in_rows & (block < COLUMNS // 32), other=0)
    return code.to(tl.int32).reshape(BLOCK_N, BLOCK_K // 32, 16), e8m0_to_float(scale.to(tl.int32))


@triton.jit
def accumulate_dot(
    total, x, codes_ptr, scales_ptr, code_row, scale_row, in_rows, first,
    COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """total [BLOCK_M, BLOCK_N] plus x [BLOCK_M, BLOCK_K] times the weights' columns from ``first`` on.

    The weights take the type of x, bf16 or fp32. Both hold them exactly: two significant bits and any exponent.
    """
    code, scale = _codes_and_scales(
        codes_ptr, scales_ptr, code_row, scale_row, in_rows, first, COLUMNS, BLOCK_N, BLOCK_K
    )
    even = e2m1_to_float(code & 15) * scale[:, :, None]
    odd = e2m1_to_float(code >> 4) * scale[:, :, None]
    if x.dtype == tl.bfloat16:
        weight = tl.join(bf16_of_float(even, EXACT=True), bf16_of_float(odd, EXACT=True))
    else:
        weight = tl.join(even, odd)
    weight = weight.reshape(BLOCK_N, BLOCK_K)
    return tl.dot(x, tl.trans(weight), total, input_precision=PRECISION)


@triton.jit
def accumulate_sums(
    total, x_even, x_odd, codes_ptr, scales_ptr, code_row, scale_row, in_rows, first,
    COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """total [BLOCK_M, BLOCK_N, BLOCK_K / 32] plus the products of one step, summed over the columns of a scale alone.

    For GPUs where tl.dot has no matrix instruction. x_even, x_odd: fp32 [BLOCK_M, BLOCK_K / 32, 16].
    """
    code, scale = _codes_and_scales(
        codes_ptr, scales_ptr, code_row, scale_row, in_rows, first, COLUMNS, BLOCK_N, BLOCK_K
    )
    even, odd = e2m1_to_float(code & 15), e2m1_to_float(code >> 4)
    products = x_even[:, None, :, :] * even[None, :, :, :] + x_odd[:, None, :, :] * odd[None, :, :, :]
    return total + tl.sum(products, axis=3) * scale[None, :, :]


@triton.jit
def e4m3_rounded(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """fp32 x [ROWS, COLUMNS] rounded to E4M3 with a power-of-two scale for every 32 columns; finite input.

    The rule is the window cache's: the largest magnitude, at least 1e-4, over 448, rounded up to a power of two.
    """
    bits = float_bits(x).reshape(ROWS, COLUMNS // 32, 32)
    magnitude = bits & 0x7FFFFFFF
    amax = tl.maximum(as_float(tl.max(magnitude, axis=2)), 1e-4)
    scale_code = e8m0_not_below(float_bits(amax * (1 / 448.0)))[:, :, None]
    scaled = as_float(magnitude) * as_float((254 - scale_code) << 23)
    rounded = e4m3_to_float(e4m3_of_magnitude(float_bits(scaled))) * e8m0_to_float(scale_code)
    return as_float(float_bits(rounded) | (bits & -(2**31))).reshape(ROWS, COLUMNS)
