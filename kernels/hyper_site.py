"""Device functions of a hyper-connection site: expand, collapse, and coefficients from mixes. Four streams."""

import triton
import triton.language as tl

from .numbers import to_float

# Columns of a token's mixes: comb row by row, pre, post, then nothing. Two of the empty ones carry the sums of squares
# of streams and collapsed row where programs leave their parts to each other.
MIXES = tl.constexpr(32)
STREAM_SQUARES = tl.constexpr(24)
ROW_SQUARES = tl.constexpr(25)


@triton.jit
def four_columns(ptr, offset, given, STEP: tl.constexpr):
    """Four times fp32 [T, 1], at ptr + offset + STEP * (0 to 3) for offset [T]; zero where not given.

    Loaded as vectors: a column would be loaded anew for each channel that a thread has.
    """
    a = tl.load(ptr + offset, mask=given, other=0.0)
    b = tl.load(ptr + (offset + STEP), mask=given, other=0.0)
    c = tl.load(ptr + (offset + 2 * STEP), mask=given, other=0.0)
    d = tl.load(ptr + (offset + 3 * STEP), mask=given, other=0.0)
    return a[:, None], b[:, None], c[:, None], d[:, None]


@triton.jit
def weighted_sum(x0, x1, x2, x3, weights):
    """Sum of four tiles [T, channels], each with its weight [T, 1]."""
    return x0 * weights[0] + x1 * weights[1] + x2 * weights[2] + x3 * weights[3]


@triton.jit
def _halves(x, T: tl.constexpr, WIDTH: tl.constexpr):
    """[T, WIDTH] -> its left and its right half."""
    return tl.split(x.reshape(T, 2, WIDTH // 2).permute(0, 2, 1))


@triton.jit
def store_coefficients(
    mixes,
    base_ptr,
    scale_ptr,
    pre_ptr,
    post_ptr,
    comb_ptr,
    first,
    tokens,
    EPS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    T: tl.constexpr,
):
    """mixes fp32 [T, MIXES], over the root mean square, of tokens from ``first`` on -> pre, post and comb.

    comb: a softmax over each row, then rows and columns in turn are divided by their sum, columns first and last.
    """
    comb, rest = _halves(mixes, T, 32)
    rest, _ = _halves(rest, T, 16)
    pre, post = _halves(rest, T, 8)

    token = first + tl.arange(0, T)[:, None]
    one = tl.arange(0, 4)[None, :]
    pre = tl.sigmoid(pre * tl.load(scale_ptr) + tl.load(base_ptr + one))
    tl.store(pre_ptr + (token * 4 + one), pre + EPS, mask=token < tokens)
    post = tl.sigmoid(post * tl.load(scale_ptr + 1) + tl.load(base_ptr + 4 + one))
    tl.store(post_ptr + (token * 4 + one), 2 * post, mask=token < tokens)

    token = first + tl.arange(0, T)[:, None, None]
    place = tl.arange(0, 4)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    logits = comb.reshape(T, 4, 4) * tl.load(scale_ptr + 2) + tl.load(base_ptr + 8 + place)
    matrix = tl.exp(logits - tl.max(logits, axis=2)[:, :, None])
    matrix = tl.div_rn(matrix, tl.broadcast_to(tl.sum(matrix, axis=2)[:, :, None], T, 4, 4)) + EPS
    matrix = tl.div_rn(matrix, tl.broadcast_to(tl.sum(matrix, axis=1)[:, None, :] + EPS, T, 4, 4))
    for _ in range(ITERATIONS - 1):
        matrix = tl.div_rn(matrix, tl.broadcast_to(tl.sum(matrix, axis=2)[:, :, None] + EPS, T, 4, 4))
        matrix = tl.div_rn(matrix, tl.broadcast_to(tl.sum(matrix, axis=1)[:, None, :] + EPS, T, 4, 4))
    tl.store(comb_ptr + (token * 16 + place), matrix, mask=token < tokens)


@triton.jit
def inverse_root(squares, COUNT: tl.constexpr, EPS: tl.constexpr):
    """1 / sqrt(squares / COUNT + EPS)."""
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, COUNT * 1.0) + EPS))


@triton.jit
def normalised(x, factor, weight_ptr, channel, inside):
    """x [T, channels] times factor [T] and the norm's weight, fp32."""
    weight = to_float(tl.load(weight_ptr + channel, mask=inside, other=0.0))
    return to_float(x) * factor[:, None] * weight
