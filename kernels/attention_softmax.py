"""Device functions: a running softmax over tiles of keys, and its end with the sink and the rotation back.

Logits are in units of log 2. Even and odd channels are apart, so a rotation of interleaved pairs is a matter of two
numbers in the same place of two tiles.
"""

import triton
import triton.language as tl

from .numbers import bf16_of_float

LOG2_E = tl.constexpr(1.4426950408889634)
# A running maximum starts here: a finite number, so that a program without usable keys has no infinity to subtract.
NO_KEY = tl.constexpr(-1e30)


@triton.jit
def fold_matrix(even, odd, key_even, key_odd, usable, largest, total, sum_even, sum_odd, SCALE: tl.constexpr):
    """One tile of keys into the running softmax of [heads], by matrix products."""
    logit = tl.dot(odd, tl.trans(key_odd), tl.dot(even, tl.trans(key_even))) * SCALE
    logit = tl.where(usable[None, :], logit, NO_KEY)
    top = tl.maximum(largest, tl.max(logit, 1))
    weight = tl.where(usable[None, :], tl.exp2(logit - top[:, None]), 0.0)
    fade = tl.exp2(largest - top)
    share = weight.to(key_even.dtype)
    sum_even = tl.dot(share, key_even, sum_even * fade[:, None])
    sum_odd = tl.dot(share, key_odd, sum_odd * fade[:, None])
    return top, total * fade + tl.sum(weight, 1), sum_even, sum_odd


@triton.jit
def head_lanes(half, LANES: tl.constexpr):
    """[heads, HALF] -> [heads, HALF / LANES, 1, LANES], to meet the keys of :func:`fold_lanes`."""
    return half.reshape(half.shape[0], LANES, half.shape[1] // LANES).permute(0, 2, 1)[:, :, None, :]


@triton.jit
def fold_lanes(
    even, odd, key_even, key_odd, usable, largest, total, sum_even, sum_odd, SCALE: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """One tile of keys without matrix products.

    Tiles are [heads, HALF / LANES, keys, LANES]: the compiler gives the last dimension to the threads of a warp and
    the one before it to the warps, so that each warp has keys of its own, and a thread has the neighbouring channels
    that it loaded. Every place in the tile has a running softmax [heads, keys] of its own; keys are added up at the
    end only, by :func:`gather_lanes`.
    """
    key_even = key_even.reshape(key_even.shape[0], LANES, key_even.shape[1] // LANES).permute(2, 0, 1)[None, :, :, :]
    key_odd = key_odd.reshape(key_odd.shape[0], LANES, key_odd.shape[1] // LANES).permute(2, 0, 1)[None, :, :, :]
    logit = tl.sum(tl.sum(even * key_even + odd * key_odd, 1), 2) * SCALE
    logit = tl.where(usable[None, :], logit, NO_KEY)
    top = tl.maximum(largest, logit)
    weight = tl.where(usable[None, :], tl.exp2(logit - top), 0.0)
    fade = tl.exp2(largest - top)
    sum_even = sum_even * fade[:, None, :, None] + weight[:, None, :, None] * key_even
    sum_odd = sum_odd * fade[:, None, :, None] + weight[:, None, :, None] * key_odd
    return top, total * fade + weight, sum_even, sum_odd


@triton.jit
def gather_lanes(largest, total, sum_even, sum_odd, HALF: tl.constexpr):
    """The running softmaxes of :func:`fold_lanes` as one: largest, total [heads], sums [heads, HALF]."""
    top = tl.max(largest, 1)
    weight = tl.exp2(largest - top[:, None])
    even = tl.sum(sum_even * weight[:, None, :, None], 2).permute(0, 2, 1)
    odd = tl.sum(sum_odd * weight[:, None, :, None], 2).permute(0, 2, 1)
    heads: tl.constexpr = largest.shape[0]
    return top, tl.sum(total * weight, 1), even.reshape(heads, HALF), odd.reshape(heads, HALF)


@triton.jit
def turn_tile(cos_ptr, sin_ptr, row, CHANNELS: tl.constexpr, PAIRS: tl.constexpr, HALF: tl.constexpr):
    """fp32 (cos, sin), [HALF] each, of a query's rotation; pairs before the last PAIRS of a row do not turn."""
    pair = tl.arange(0, HALF) - (CHANNELS // 2 - PAIRS)
    turns = (pair >= 0) & (pair < PAIRS)
    cos = tl.load(cos_ptr + (row * PAIRS + pair), mask=turns, other=1.0)
    sin = tl.load(sin_ptr + (row * PAIRS + pair), mask=turns, other=0.0)
    return cos, sin


@triton.jit
def finish(
    even,
    odd,
    largest,
    total,
    row,
    head,
    sink_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAIRS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    """Weighted sums fp32 [HEAD_TILE, HALF] of even and odd channels, and what they are relative to -> out.

    largest, total: fp32 [HEAD_TILE], the maximum that the weights are relative to, and their sum. row: int64.
    """
    sink = tl.load(sink_ptr + head, mask=head < HEADS, other=0.0) * LOG2_E
    # Clamped, so that an infinite sink leaves zeros and no NaN.
    top = tl.minimum(tl.maximum(tl.maximum(largest, sink), -1e30), 1e30)
    weight = tl.exp2(largest - top)
    # Without a usable key and with a sink of minus infinity the sum is zero.
    share = weight / tl.maximum(total * weight + tl.exp2(sink - top), 1e-30)
    even *= share[:, None]
    odd *= share[:, None]
    if PAIRS > 0:
        cos, sin = turn_tile(cos_ptr, sin_ptr, row, CHANNELS, PAIRS, HALF)
        even, odd = even * cos[None, :] + odd * sin[None, :], odd * cos[None, :] - even * sin[None, :]
    if out_ptr.dtype.element_ty == tl.bfloat16:
        values = tl.join(bf16_of_float(even, EXACT=False), bf16_of_float(odd, EXACT=False))
    else:
        values = tl.join(even.to(out_ptr.dtype.element_ty), odd.to(out_ptr.dtype.element_ty))
    channel = tl.arange(0, 2 * HALF)[None, :]
    tl.store(
        out_ptr + ((row * HEADS + head[:, None]) * CHANNELS + channel),
        values.reshape(HEAD_TILE, 2 * HALF),
        mask=(head < HEADS)[:, None] & (channel < CHANNELS),
    )
