"""The sweep of a hyper-connection site: one pass over the streams, for a tile of tokens.

The whole of a site where one program sees all channels of its tokens; otherwise ``hyper_finish.py`` adds up what the
programs found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .hyper_site import (
    MIXES,
    ROW_SQUARES,
    STREAM_SQUARES,
    four_columns,
    inverse_root,
    normalised,
    store_coefficients,
    weighted_sum,
)
from .launch import CompileCase, Launch
from .numbers import as_float, float_bits, to_float, to_type

STREAMS = 4
# One row and eight channels of each stream for a thread; sixteen rows are the fewest that matrix instructions take.
TILE_TOKENS = 16
TILE_CHANNELS = 64
NUM_WARPS = 4
# Programs that fill a GPU; with fewer tiles of tokens, channels are split.
_PROGRAMS = 128


@triton.jit
def add_mixes(mixes, s, fn, MATRIX: tl.constexpr, T: tl.constexpr, TILE_CHANNELS: tl.constexpr):
    """mixes [T, MIXES] + s [T, channels] times the transpose of fn [MIXES, channels], all fp32.

    With MATRIX s must be exact in TF32, as bf16 and fp16 numbers are. fn is cut in two TF32 numbers, which leaves an
    error of 2^-20 of each product; matrix instructions truncate what they add up, so only one tile of channels is
    added up there, and the tiles in fp32.
    """
    # A sum of one number each, which the compiler does not move. Otherwise it computes s anew in the layout of the
    # product: every warp would read and expand all streams once more.
    s = tl.sum(s.reshape(T, TILE_CHANNELS, 1), axis=2)
    if MATRIX:
        upper = as_float(float_bits(fn) & -8192)
        part = tl.dot(s, tl.trans(fn - upper), input_precision="tf32")
        part = tl.dot(s, tl.trans(upper), part, input_precision="tf32")
        return mixes + part
    else:
        return tl.dot(s, tl.trans(fn), mixes, input_precision="ieee")


@triton.jit
def hyper_sweep_kernel(
    streams_ptr,
    y_ptr,
    post_ptr,
    comb_ptr,
    pre_ptr,
    fn_ptr,
    base_ptr,
    scale_ptr,
    weight_ptr,
    x_ptr,
    new_streams_ptr,
    new_pre_ptr,
    new_post_ptr,
    new_comb_ptr,
    parts_ptr,
    tokens,
    chunks,
    token_stride,
    stream_stride,
    y_stride,
    CHANNELS: tl.constexpr,
    NORM_EPS: tl.constexpr,
    EPS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    MATRIX: tl.constexpr,
    T: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """Tokens of program_id(0), ``chunks`` tiles of channels of program_id(1).

    y_ptr None: the streams are as they are. fn_ptr None: no coefficients and no new streams are wanted. parts_ptr
    None: this program sees all channels of its tokens and finishes; otherwise it leaves its parts of the sums,
    [splits, tokens, MIXES], and the row not yet normalised.
    """
    stream_type: tl.constexpr = streams_ptr.dtype.element_ty
    first = tl.program_id(0).to(tl.int64) * T
    token = first + tl.arange(0, T)
    given = token < tokens
    row = token[:, None]
    start = tl.program_id(1) * chunks
    mixes = tl.zeros([T, MIXES], tl.float32)
    stream_squares = tl.zeros([T], tl.float32)
    row_squares = tl.zeros([T], tl.float32)
    # Columns of the mixes are the rows of fn in another order, comb first.
    mix = tl.arange(0, MIXES)[:, None]
    fn_row = tl.where(mix < 16, mix + 8, mix - 16).to(tl.int64) * (4 * CHANNELS)

    pre = four_columns(pre_ptr, token * 4, given, 1)
    if y_ptr is not None:
        # New stream k takes comb[j, k] of old stream j.
        post = four_columns(post_ptr, token * 4, given, 1)
        comb0 = four_columns(comb_ptr, token * 16, given, 4)
        comb1 = four_columns(comb_ptr + 1, token * 16, given, 4)
        comb2 = four_columns(comb_ptr + 2, token * 16, given, 4)
        comb3 = four_columns(comb_ptr + 3, token * 16, given, 4)

    for chunk in range(start, start + chunks):
        channel = chunk * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)[None, :]
        inside = channel < CHANNELS
        mask = given[:, None] & inside
        old = row * token_stride + channel
        x0 = to_float(tl.load(streams_ptr + old, mask=mask, other=0.0))
        x1 = to_float(tl.load(streams_ptr + (old + stream_stride), mask=mask, other=0.0))
        x2 = to_float(tl.load(streams_ptr + (old + 2 * stream_stride), mask=mask, other=0.0))
        x3 = to_float(tl.load(streams_ptr + (old + 3 * stream_stride), mask=mask, other=0.0))
        if y_ptr is not None:
            y = to_float(tl.load(y_ptr + (row * y_stride + channel), mask=mask, other=0.0))
            s0 = to_float(to_type(y * post[0] + weighted_sum(x0, x1, x2, x3, comb0), stream_type))
            s1 = to_float(to_type(y * post[1] + weighted_sum(x0, x1, x2, x3, comb1), stream_type))
            s2 = to_float(to_type(y * post[2] + weighted_sum(x0, x1, x2, x3, comb2), stream_type))
            s3 = to_float(to_type(y * post[3] + weighted_sum(x0, x1, x2, x3, comb3), stream_type))
        else:
            s0, s1, s2, s3 = x0, x1, x2, x3
        if fn_ptr is not None:
            new = row * (4 * CHANNELS) + channel
            tl.store(new_streams_ptr + new, to_type(s0, stream_type), mask=mask)
            tl.store(new_streams_ptr + (new + CHANNELS), to_type(s1, stream_type), mask=mask)
            tl.store(new_streams_ptr + (new + 2 * CHANNELS), to_type(s2, stream_type), mask=mask)
            tl.store(new_streams_ptr + (new + 3 * CHANNELS), to_type(s3, stream_type), mask=mask)
            stream_squares += tl.sum(s0 * s0 + s1 * s1 + s2 * s2 + s3 * s3, axis=1)
            fn = fn_ptr + (fn_row + channel)
            fn_mask = (mix < 24) & inside
            f0 = tl.load(fn, mask=fn_mask, other=0.0)
            mixes = add_mixes(mixes, s0, f0, MATRIX, T, TILE_CHANNELS)
            f1 = tl.load(fn + CHANNELS, mask=fn_mask, other=0.0)
            mixes = add_mixes(mixes, s1, f1, MATRIX, T, TILE_CHANNELS)
            f2 = tl.load(fn + 2 * CHANNELS, mask=fn_mask, other=0.0)
            mixes = add_mixes(mixes, s2, f2, MATRIX, T, TILE_CHANNELS)
            f3 = tl.load(fn + 3 * CHANNELS, mask=fn_mask, other=0.0)
            mixes = add_mixes(mixes, s3, f3, MATRIX, T, TILE_CHANNELS)
        x = to_type(weighted_sum(s0, s1, s2, s3, pre), stream_type)
        tl.store(x_ptr + (row * CHANNELS + channel), x, mask=mask)
        row_squares += tl.sum(to_float(x) * to_float(x), axis=1)

    if parts_ptr is not None:
        kind = tl.arange(0, MIXES)[None, :]
        parts = tl.where(kind == STREAM_SQUARES, stream_squares[:, None], mixes)
        parts = tl.where(kind == ROW_SQUARES, row_squares[:, None], parts)
        split = tl.program_id(1).to(tl.int64)
        tl.store(parts_ptr + ((split * tokens + row) * MIXES + kind), parts, mask=given[:, None])
    else:
        if fn_ptr is not None:
            mixes *= inverse_root(stream_squares, 4 * CHANNELS, NORM_EPS)[:, None]
            store_coefficients(
                mixes, base_ptr, scale_ptr, new_pre_ptr, new_post_ptr, new_comb_ptr, first, tokens, EPS, ITERATIONS, T
            )
        # What other threads stored is read back.
        tl.debug_barrier()
        factor = inverse_root(row_squares, CHANNELS, NORM_EPS)
        for chunk in range(0, chunks):
            channel = chunk * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)[None, :]
            inside = channel < CHANNELS
            place = x_ptr + (row * CHANNELS + channel)
            x = tl.load(place, mask=given[:, None] & inside, other=0.0)
            x = normalised(x, factor, weight_ptr, channel, inside)
            tl.store(place, to_type(x, stream_type), mask=given[:, None] & inside)


@dataclass(frozen=True)
class SweepTiling:
    """How tokens and channels are cut: tiles of tokens, and ``splits`` programs for each, of ``chunks`` tiles each."""

    tiles: int
    splits: int
    chunks: int

    @classmethod
    def of(cls, tokens: int, channels: int) -> SweepTiling:
        tiles, chunks = triton.cdiv(tokens, TILE_TOKENS), triton.cdiv(channels, TILE_CHANNELS)
        each = triton.cdiv(chunks, min(chunks, triton.cdiv(_PROGRAMS, tiles)))
        return cls(tiles, triton.cdiv(chunks, each), each)


@dataclass(frozen=True)
class Site:
    """Operands of one sweep, as :func:`hyper_connection_site` takes and gives them; None for what is not there."""

    streams: torch.Tensor
    y: torch.Tensor | None
    post: torch.Tensor | None
    comb: torch.Tensor | None
    pre: torch.Tensor
    fn: torch.Tensor | None
    base: torch.Tensor | None
    scale: torch.Tensor | None
    norm_weight: torch.Tensor
    norm_eps: float
    eps: float
    iterations: int
    x: torch.Tensor
    new_streams: torch.Tensor | None
    new_pre: torch.Tensor | None
    new_post: torch.Tensor | None
    new_comb: torch.Tensor | None


def sweep_launch(site: Site, parts: torch.Tensor | None, capability: int) -> Launch:
    """The sweep; parts: float32 [splits, tokens, MIXES] where :class:`SweepTiling` splits the channels, else None."""
    tokens, _, channels = site.streams.shape
    tiling = SweepTiling.of(tokens, channels)
    return Launch(
        kernel=hyper_sweep_kernel,
        grid=(tiling.tiles, tiling.splits),
        arguments={
            "streams_ptr": site.streams,
            "y_ptr": site.y,
            "post_ptr": site.post,
            "comb_ptr": site.comb,
            "pre_ptr": site.pre,
            "fn_ptr": site.fn,
            "base_ptr": site.base,
            "scale_ptr": site.scale,
            "weight_ptr": site.norm_weight,
            "x_ptr": site.x,
            "new_streams_ptr": site.new_streams,
            "new_pre_ptr": site.new_pre,
            "new_post_ptr": site.new_post,
            "new_comb_ptr": site.new_comb,
            "parts_ptr": parts,
            "tokens": tokens,
            "chunks": tiling.chunks,
            "token_stride": site.streams.stride(0),
            "stream_stride": site.streams.stride(1),
            "y_stride": None if site.y is None else site.y.stride(0),
        },
        constants={
            "CHANNELS": channels,
            "NORM_EPS": site.norm_eps,
            "EPS": site.eps,
            "ITERATIONS": site.iterations,
            "MATRIX": capability >= 80 and site.streams.dtype != torch.float32,
            "T": TILE_TOKENS,
            "TILE_CHANNELS": TILE_CHANNELS,
        },
        num_warps=NUM_WARPS,
        # Registers are better spent on a second program than on loads ahead of time.
        options={"enable_fp_fusion": True, "num_stages": 1},
    )


def compile_cases() -> Iterator[CompileCase]:
    """The published site, 5120 channels: many tokens in one launch, few in two; without an update, without a predictor.

    float32 streams are multiplied without matrix instructions everywhere, the others on sm_75.
    """
    old, new = (75,), (80, 86, 89, 90, 100, 120)
    shapes = {"many": (8192, True, True), "few": (16, True, True)}
    ends = {"first": (16, False, True), "last": (16, True, False)}
    for dtype, targets, suffix in (
        (torch.float32, (75, 90), "float32"),
        (torch.bfloat16, old, "bfloat16_sums"),
        (torch.bfloat16, new, "bfloat16_matrix"),
        (torch.float16, old, "float16_sums"),
        (torch.float16, (80, 90), "float16_matrix"),
    ):
        for name, (tokens, has_y, predicts) in (shapes | ends if dtype == torch.bfloat16 else shapes).items():
            site = meta_site(tokens, 5120, dtype, has_y, predicts)
            splits = SweepTiling.of(tokens, 5120).splits
            parts = None if splits == 1 else torch.empty(splits, tokens, MIXES.value, device="meta")
            launch = sweep_launch(site, parts, (targets or old)[0])
            matrix = launch.constants["MATRIX"] and predicts
            # The last sweep's loop loads in 16 bytes, yet the coefficients before it are more instructions.
            yield CompileCase(f"hyper_sweep_{name}_{suffix}", launch, wide=predicts, targets=targets, matrix=matrix)


def meta_site(tokens: int, channels: int, dtype: torch.dtype, has_y: bool, predicts: bool) -> Site:
    """Operands on the meta device, for compile cases."""
    streams = torch.empty(tokens, STREAMS, channels, dtype=dtype, device="meta")
    pre, post, comb = (torch.empty(shape, device="meta") for shape in coefficient_shapes(tokens))
    fn, base, scale = (torch.empty(shape, device="meta") for shape in ((24, 4 * channels), (24,), (3,)))
    x, weight = streams.new_empty(tokens, channels), fn.new_empty(channels)
    update = (x, post, comb) if has_y else (None, None, None)
    predictor = (fn, base, scale) if predicts else (None, None, None)
    results = (streams, pre, post, comb) if predicts else (None, None, None, None)
    return Site(streams, *update, pre, *predictor, weight, 1e-20, 1e-6, 20, x, *results)


def coefficient_shapes(tokens: int) -> tuple[tuple[int, ...], ...]:
    """Of pre, post and comb."""
    return (tokens, STREAMS), (tokens, STREAMS), (tokens, STREAMS, STREAMS)
