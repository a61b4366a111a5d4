"""The end of a hyper-connection site whose channels were split among programs: sums, coefficients, norm."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .hyper_site import MIXES, ROW_SQUARES, STREAM_SQUARES, inverse_root, normalised, store_coefficients
from .hyper_sweep import Site, SweepTiling, meta_site
from .launch import CompileCase, Launch, targets_of
from .numbers import to_type
from .tiles import FLOAT_TYPES

_TILE_CHANNELS = 1024
_NUM_WARPS = 4


@triton.jit
def hyper_finish_kernel(
    parts_ptr,
    base_ptr,
    scale_ptr,
    weight_ptr,
    x_ptr,
    pre_ptr,
    post_ptr,
    comb_ptr,
    tokens,
    splits,
    CHANNELS: tl.constexpr,
    NORM_EPS: tl.constexpr,
    EPS: tl.constexpr,
    ITERATIONS: tl.constexpr,
    TILE_SPLITS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """One token: add up the parts [splits, tokens, MIXES], predict its coefficients, normalise its row in place."""
    token = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, TILE_SPLITS)[:, None]
    kind = tl.arange(0, MIXES)[None, :]
    parts = tl.load(parts_ptr + ((split.to(tl.int64) * tokens + token) * MIXES + kind), mask=split < splits, other=0.0)
    sums = tl.sum(parts, axis=0)[None, :]
    row_squares = tl.sum(tl.where(kind == ROW_SQUARES, sums, 0.0), axis=1)
    if base_ptr is not None:
        stream_squares = tl.sum(tl.where(kind == STREAM_SQUARES, sums, 0.0), axis=1)
        mixes = sums * inverse_root(stream_squares, 4 * CHANNELS, NORM_EPS)[:, None]
        store_coefficients(mixes, base_ptr, scale_ptr, pre_ptr, post_ptr, comb_ptr, token, tokens, EPS, ITERATIONS, 1)
    factor = inverse_root(row_squares, CHANNELS, NORM_EPS)
    for start in range(0, CHANNELS, TILE_CHANNELS):
        channel = start + tl.arange(0, TILE_CHANNELS)[None, :]
        inside = channel < CHANNELS
        place = x_ptr + (token * CHANNELS + channel)
        x = normalised(tl.load(place, mask=inside, other=0.0), factor, weight_ptr, channel, inside)
        tl.store(place, to_type(x, x_ptr.dtype.element_ty), mask=inside)


def finish_launch(site: Site, parts: torch.Tensor) -> Launch:
    """What is left to do where the sweep was split."""
    splits, tokens, _ = parts.shape
    channels = site.x.shape[1]
    return Launch(
        kernel=hyper_finish_kernel,
        grid=(tokens,),
        arguments={
            "parts_ptr": parts,
            "base_ptr": site.base,
            "scale_ptr": site.scale,
            "weight_ptr": site.norm_weight,
            "x_ptr": site.x,
            "pre_ptr": site.new_pre,
            "post_ptr": site.new_post,
            "comb_ptr": site.new_comb,
            "tokens": tokens,
            "splits": splits,
        },
        constants={
            "CHANNELS": channels,
            "NORM_EPS": site.norm_eps,
            "EPS": site.eps,
            "ITERATIONS": site.iterations,
            "TILE_SPLITS": triton.next_power_of_2(splits),
            "TILE_CHANNELS": min(_TILE_CHANNELS, triton.next_power_of_2(channels)),
        },
        num_warps=_NUM_WARPS,
        options={"enable_fp_fusion": True},
    )


def compile_cases() -> Iterator[CompileCase]:
    """The published site, 5120 channels, for 16 tokens."""
    for dtype in FLOAT_TYPES:
        site = meta_site(16, 5120, dtype, True, True)
        parts = torch.empty(SweepTiling.of(16, 5120).splits, 16, MIXES.value, device="meta")
        launch = finish_launch(site, parts)
        yield CompileCase(f"hyper_finish_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
