"""Device functions: fp32 to and from the stored number formats, shared by all kernels.

The same code has to be right on sm_75, which has no conversions to bf16, fp8 or fp4, and under Triton's
interpreter, whose own fp8 and bf16 conversions round wrongly. So none of them is used: a number is taken apart and
put together as the integer that its bits are. Ties go to the even code everywhere.

E2M1 is sign, two exponent bits (bias 1), one mantissa bit. E4M3 is sign, four exponent bits (bias 7), three mantissa
bits; all ones is NaN. E8M0 is an exponent alone (bias 127); 255 is NaN.

Source: OCP Microscaling Formats 1.0.
"""

import triton
import triton.language as tl

# The bits of fp32 infinity: a magnitude at or above them is infinite or NaN.
INFINITY_BITS = tl.constexpr(0x7F800000)


@triton.jit
def float_bits(x):
    """int32 bits of fp32, bf16 or fp16 numbers, after the (exact) widening to fp32."""
    if x.dtype == tl.bfloat16:
        return x.to(tl.uint16, bitcast=True).to(tl.int32) << 16
    else:
        return x.to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def as_float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def e2m1_of_quotient(magnitude, scale):
    """E2M1 code 0..7 nearest to magnitude / scale, saturating; no division happens.

    The code grows by one at each midpoint between two neighbours, so it is found by comparing the magnitude with
    midpoint * scale. A midpoint has at most three significant bits and a scale at most four, so these products are
    exact, and the comparison decides as the exact quotient would. So does a correctly rounded fp32 division: no
    quotient on one side of a midpoint rounds onto it, for the gap is more than half a unit in the last place. The
    approximate division that GPUs offer for "/" does not have this property.

    A tie takes the even code: upward (>=) into codes 2, 4 and 6, downward (>) from them.
    """
    four = magnitude >= 1.75 * scale
    six_or_two = tl.where(four, 3.5 * scale, 0.75 * scale)
    odd_above = tl.where(four, 5.0 * scale, 1.25 * scale)
    odd_below = tl.where(four, 2.5 * scale, 0.25 * scale)
    code = tl.where(four, 4, 0)
    two = magnitude >= six_or_two
    code += tl.where(two, 2, 0)
    one = magnitude > tl.where(two, odd_above, odd_below)
    return code + tl.where(one, 1, 0)


@triton.jit
def e2m1_to_float(code):
    """fp32 of E2M1 codes 0..15 (int32).

    In the exponent and mantissa fields of fp32 a code stands for its number times 2^-126, subnormal codes included;
    multiplying that off is exact. E4M3 works alike.
    """
    return as_float(((code & 7) << 22) | ((code & 8) << 28)) * 2.0**126


@triton.jit
def e4m3_round(mantissa, exponent):
    """E4M3 code 0..126 nearest to mantissa * 2^(exponent - 150), saturating at 448.

    mantissa: int32 with bit 23 set and none above it; exponent: the biased one of fp32. The mantissa loses 20 bits,
    and one more for each power of two below 2^-6, where E4M3 becomes subnormal. The carry of a mantissa that rounds
    up runs into the exponent field, as it should.
    """
    shift = 20 + tl.minimum(tl.maximum(121 - exponent, 0), 5)
    rounded = (mantissa + (1 << (shift - 1)) - 1 + ((mantissa >> shift) & 1)) >> shift
    return tl.minimum(rounded + (tl.maximum(exponent - 121, 0) << 3), 126)


@triton.jit
def e4m3_of_magnitude(bits):
    """E4M3 code 0..126 nearest to a magnitude given as fp32 bits (sign bit clear), saturating at 448."""
    return e4m3_round((bits & 0x7FFFFF) | 0x800000, bits >> 23)


@triton.jit
def e4m3_of_sixth(bits):
    """E4M3 code 0..126 nearest to a sixth of a normal magnitude given as fp32 bits, saturating at 448.

    The mantissa is divided by three as an integer; whatever the division cut off is kept as one sticky last bit,
    which is all that a later rounding to fewer bits can depend on.
    """
    mantissa = (bits & 0x7FFFFF) | 0x800000
    third = mantissa // 3
    twice = 2 * third + tl.where(3 * third != mantissa, 1, 0)
    short = tl.where(twice < 0x800000, 1, 0)
    return e4m3_round(twice << short, (bits >> 23) - 2 - short)


@triton.jit
def e4m3_to_float(code):
    """fp32 of E4M3 codes 0..255 (int32)."""
    number = as_float(((code & 0x7F) << 20) | ((code & 0x80) << 24)) * 2.0**120
    return tl.where((code & 0x7F) == 0x7F, float("nan"), number)


@triton.jit
def e8m0_not_below(bits):
    """E8M0 code of the smallest power of two that is not below a positive normal number, given as fp32 bits."""
    return (bits >> 23) + tl.where((bits & 0x7FFFFF) != 0, 1, 0)


@triton.jit
def e8m0_to_float(code):
    """fp32 of E8M0 codes 0..255 (int32). Code 0 is 2^-127, a subnormal of fp32, which a plain shift would lose."""
    power = as_float(tl.where(code == 0, 1 << 22, code << 23))
    return tl.where(code == 255, float("nan"), power)


@triton.jit
def bf16_of_float(x, EXACT: tl.constexpr):
    """bf16 of fp32 by its bits; EXACT promises that nothing needs rounding."""
    bits = x.to(tl.uint32, bitcast=True)
    if EXACT:
        upper = bits >> 16
    else:
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # The payload of a NaN could carry into its sign and beyond.
        upper = tl.where(x == x, upper, 0x7FC0)
    return upper.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def to_float(x):
    """fp32 of fp32, bf16 or fp16 numbers; exact."""
    return as_float(float_bits(x))


@triton.jit
def to_type(x, dtype: tl.constexpr):
    """fp32 rounded to fp32, bf16 or fp16, in that type."""
    if dtype == tl.bfloat16:
        return bf16_of_float(x, EXACT=False)
    else:
        return x.to(dtype)
