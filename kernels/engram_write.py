"""The Engram gate and its write to the residual streams, after the projection, in one pass over both.

Source: the released ``inference/model.py``; report section 2.4.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch, targets_of
from .numbers import as_float, bf16_of_float, float_bits
from .tiles import FLOAT_TYPES

# A program holds a whole stream of one token.
MAX_CHANNELS = 16384
# Below this the match no longer moves the gate.
_SMALLEST_MATCH = 1e-6


@triton.jit
def engram_write_kernel(
    streams_ptr, projected_ptr, q_weight_ptr, k_weight_ptr, image_mask_ptr, out_ptr,
    streams_token_stride, streams_stream_stride, projected_row_stride, image_mask_stride,
    STREAMS: tl.constexpr, CHANNELS: tl.constexpr, EPS: tl.constexpr, SMALLEST_MATCH: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):  # fmt: skip
    """out [tokens, STREAMS, CHANNELS] = streams + gate * value; projected holds STREAMS keys and then the value."""
    token = (tl.program_id(0) // STREAMS).to(tl.int64)
    stream = (tl.program_id(0) % STREAMS).to(tl.int64)
    channel = tl.arange(0, TILE_CHANNELS)
    mask = channel < CHANNELS
    x_place = token * streams_token_stride + stream * streams_stream_stride + channel
    x = tl.load(streams_ptr + x_place, mask=mask, other=0.0).to(tl.float32)
    key_place = token * projected_row_stride + stream * CHANNELS + channel
    key = tl.load(projected_ptr + key_place, mask=mask, other=0.0).to(tl.float32)
    value_place = token * projected_row_stride + STREAMS * CHANNELS + channel.to(tl.int64)
    value = tl.load(projected_ptr + value_place, mask=mask, other=0.0).to(tl.float32)
    q_weight = tl.load(q_weight_ptr + (stream * CHANNELS + channel), mask=mask, other=0.0).to(tl.float32)
    k_weight = tl.load(k_weight_ptr + (stream * CHANNELS + channel), mask=mask, other=0.0).to(tl.float32)

    product = tl.sum(x * key * (q_weight * k_weight))
    x_norm = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(x * x) * (1 / CHANNELS) + EPS))
    key_norm = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(key * key) * (1 / CHANNELS) + EPS))
    match = product * (x_norm * key_norm) * (CHANNELS**-0.5)
    # The sign is copied, that of zero too; a maximum may drop a NaN.
    magnitude = tl.abs(match)
    root = tl.sqrt_rn(tl.where(magnitude < SMALLEST_MATCH, SMALLEST_MATCH, magnitude))
    signed = as_float(float_bits(root) | (float_bits(match) & -(2**31)))
    gate = tl.div_rn(1.0, 1.0 + tl.exp(-signed))
    written = x + gate * value
    if image_mask_ptr is not None:
        is_image = tl.load(image_mask_ptr + token * image_mask_stride) != 0
        written = tl.where(is_image, x, written)
    out_place = (token * STREAMS + stream) * CHANNELS + channel
    if out_ptr.dtype.element_ty == tl.bfloat16:
        tl.store(out_ptr + out_place, bf16_of_float(written, EXACT=False), mask=mask)
    else:
        tl.store(out_ptr + out_place, written.to(out_ptr.dtype.element_ty), mask=mask)


def engram_write_launch(
    streams: torch.Tensor,
    projected: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    image_mask: torch.Tensor | None,
    out: torch.Tensor,
    *,
    eps: float,
) -> Launch:
    """The launch for streams [N, n, d] and projected [N, (n + 1) d] with channels side by side; the rest contiguous.

    image_mask: uint8 [N], any stride.
    """
    tokens, count, channels = streams.shape
    width = triton.next_power_of_2(channels)
    return Launch(
        kernel=engram_write_kernel,
        grid=(tokens * count,),
        arguments={
            "streams_ptr": streams,
            "projected_ptr": projected,
            "q_weight_ptr": q_weight,
            "k_weight_ptr": k_weight,
            "image_mask_ptr": image_mask,
            "out_ptr": out,
            "streams_token_stride": streams.stride(0),
            "streams_stream_stride": streams.stride(1),
            "projected_row_stride": projected.stride(0),
            "image_mask_stride": 0 if image_mask is None else image_mask.stride(0),
        },
        constants={
            "STREAMS": count,
            "CHANNELS": channels,
            "EPS": eps,
            "SMALLEST_MATCH": _SMALLEST_MATCH,
            "TILE_CHANNELS": width,
        },
        num_warps=min(max(width // 512, 1), 16),
    )


def engram_write(
    streams: torch.Tensor,
    projected: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    image_mask: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Add the gated value to every stream: ``streams + gate * value``, all in float32.

    Args:
        streams: float32, bfloat16 or float16 [N, n, d], d up to 16384. projected: [N, (n + 1) d], n keys and the
            value. q_weight, k_weight: [n, d]; only their product is used. image_mask: bool [N], or None for text
            alone; streams of images stay as they are. eps: positive, inside the RMS statistics.

    Returns:
        [N, n, d] in the type of streams, a tensor of its own.

    Raises:
        TypeError: a tensor of another type.
        ValueError: another shape, or ``eps`` not above 0.
    """
    for name, tensor in (
        ("streams", streams), ("projected", projected), ("q_weight", q_weight), ("k_weight", k_weight),
    ):  # fmt: skip
        if tensor.dtype not in FLOAT_TYPES:
            raise TypeError(f"{name} is {tensor.dtype}; expected one of {', '.join(map(str, FLOAT_TYPES))}")
    if streams.dim() != 3 or not 1 <= streams.shape[2] <= MAX_CHANNELS:
        raise ValueError(f"streams are {list(streams.shape)}; expected [N, n, 1 to {MAX_CHANNELS}]")
    tokens, count, channels = streams.shape
    for name, tensor, expected in (
        ("projected", projected, (tokens, (count + 1) * channels)),
        ("q_weight", q_weight, (count, channels)),
        ("k_weight", k_weight, (count, channels)),
    ):
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"{name} is {list(tensor.shape)}; expected {list(expected)} with streams {list(streams.shape)}"
            )
    if not eps > 0:
        raise ValueError(f"eps is {eps}; expected a positive number")
    if image_mask is not None:
        if image_mask.dtype != torch.bool or tuple(image_mask.shape) != (tokens,):
            raise ValueError(
                f"image_mask is {image_mask.dtype} {list(image_mask.shape)}; expected torch.bool [{tokens}]"
            )
        image_mask = image_mask.view(torch.uint8)
    out = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    if out.numel():
        streams, projected = (
            t.detach() if t.stride(-1) == 1 else t.detach().contiguous() for t in (streams, projected)
        )
        engram_write_launch(
            streams,
            projected,
            q_weight.detach().contiguous(),
            k_weight.detach().contiguous(),
            image_mask,
            out,
            eps=eps,
        ).run()
    return out


def engram_write_cost(
    tokens: int, streams: int, channels: int, element_bytes: int, images: bool = False
) -> tuple[int, int]:
    """(bytes, operations): streams in and out, keys and value in, two weights a stream; all of element_bytes.

    Operations: a stream's channel takes three multiply-adds for its statistics and one for the write.
    """
    moved = tokens * (3 * streams + 1) * channels * element_bytes + 2 * streams * channels * element_bytes
    return moved + images * tokens, 2 * 4 * tokens * streams * channels


def compile_cases() -> Iterator[CompileCase]:
    """Published: four streams of 5120."""
    for name, dtype, images in (
        ("bfloat16", torch.bfloat16, False),
        ("images", torch.bfloat16, True),
        ("float16", torch.float16, False),
        ("float32", torch.float32, False),
    ):
        streams = torch.empty(4096, 4, 5120, dtype=dtype, device="meta")
        weight = streams.new_empty((4, 5120))
        mask = streams.new_empty(4096, dtype=torch.uint8) if images else None
        launch = engram_write_launch(
            streams, streams.new_empty((4096, 25600)), weight, weight, mask, streams, eps=1e-20
        )
        yield CompileCase(f"engram_write_{name}", launch, targets=targets_of(dtype))
