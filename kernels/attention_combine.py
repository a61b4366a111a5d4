"""The end of an attention: partial sums over keys folded into one, the sink, the rotation back, the output.

A query's keys may be spread over several programs. Each leaves its running maximum, the sum of its weights and its
weighted sum of values; they are folded here, always in the same order. Maxima are of logits in units of log 2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .attention_softmax import NO_KEY, finish
from .launch import CompileCase, Launch, targets_of

HEAD_TILE = 4
NUM_WARPS = 4


@triton.jit(do_not_specialize=["splits", "split_stride"])
def attention_combine_kernel(
    partial_ptr,
    largest_ptr,
    total_ptr,
    sink_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    splits,
    split_stride,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAIRS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    """partial fp32 [splits, rows, HEADS, 2, HALF], largest and total fp32 [splits, rows, HEADS] -> out."""
    HEAD_TILES: tl.constexpr = (HEADS + HEAD_TILE - 1) // HEAD_TILE
    program = tl.program_id(0)
    row = (program // HEAD_TILES).to(tl.int64)
    head = (program % HEAD_TILES) * HEAD_TILE + tl.arange(0, HEAD_TILE)
    real = head < HEADS
    first = row * HEADS + head
    top = tl.full([HEAD_TILE], NO_KEY, tl.float32)
    place = first
    for _ in range(splits):
        top = tl.maximum(top, tl.load(largest_ptr + place, mask=real, other=NO_KEY))
        place += split_stride
    total = tl.zeros([HEAD_TILE], tl.float32)
    even = tl.zeros([HEAD_TILE, HALF], tl.float32)
    odd = tl.zeros([HEAD_TILE, HALF], tl.float32)
    column = tl.arange(0, HALF)[None, :]
    place = first
    for _ in range(splits):
        weight = tl.exp2(tl.load(largest_ptr + place, mask=real, other=NO_KEY) - top)
        total += weight * tl.load(total_ptr + place, mask=real, other=0.0)
        half = partial_ptr + ((place * (2 * HALF))[:, None] + column)
        even += weight[:, None] * tl.load(half, mask=real[:, None], other=0.0)
        odd += weight[:, None] * tl.load(half + HALF, mask=real[:, None], other=0.0)
        place += split_stride
    finish(
        even, odd, top, total, row, head, sink_ptr, cos_ptr, sin_ptr, out_ptr, HEADS, CHANNELS, PAIRS, HEAD_TILE, HALF
    )  # fmt: skip


def attention_combine_launch(
    partial: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    sink: torch.Tensor,
    turn_cos: torch.Tensor | None,
    turn_sin: torch.Tensor | None,
    out: torch.Tensor,
) -> Launch:
    """The launch that folds partial fp32 [splits, N, H, 2, C/2 padded], largest and total [splits, N, H] into out.

    sink: fp32 [H]. turn_cos, turn_sin: fp32 [N, R/2] contiguous, or None. out: [N, H, C] contiguous.
    """
    rows, heads, channels = out.shape
    return Launch(
        kernel=attention_combine_kernel,
        grid=(rows * triton.cdiv(heads, HEAD_TILE),),
        arguments={
            "partial_ptr": partial,
            "largest_ptr": largest,
            "total_ptr": total,
            "sink_ptr": sink,
            "cos_ptr": turn_cos,
            "sin_ptr": turn_sin,
            "out_ptr": out,
            "splits": partial.shape[0],
            "split_stride": rows * heads,
        },
        constants={
            "HEADS": heads,
            "CHANNELS": channels,
            "PAIRS": 0 if turn_cos is None else turn_cos.shape[1],
            "HEAD_TILE": HEAD_TILE,
            "HALF": partial.shape[-1],
        },
        num_warps=NUM_WARPS,
    )


def compile_cases() -> Iterator[CompileCase]:
    """One token at the published shape, its keys in 20 parts."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        out = torch.empty(1, 64, 512, dtype=dtype, device="meta")
        partial = out.new_empty((20, 1, 64, 2, 256), dtype=torch.float32)
        sums = partial.new_empty((20, 1, 64))
        turn = partial.new_empty((1, 32))
        launch = attention_combine_launch(partial, sums, sums, sums[0, 0], turn, turn, out)
        yield CompileCase(f"attention_combine_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
