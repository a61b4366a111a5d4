"""Root-mean-square normalisation of rows in one launch; the arithmetic of ``ds41.norm.rms_norm``.

Source: the released model's ``RMSNorm``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch, targets_of
from .numbers import bf16_of_float
from .tiles import FLOAT_TYPES, as_rows


@triton.jit
def rms_norm_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    x_row_stride,
    EPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
):
    """x, out [rows, CHANNELS]: weight * x over the root of mean(x^2) + eps, in float32. One row a program."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, TILE)
    here = channel < CHANNELS
    x = tl.load(x_ptr + (row * x_row_stride + channel), mask=here, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + channel, mask=here, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / CHANNELS + EPS) * weight
    if out_ptr.dtype.element_ty == tl.bfloat16:
        normed = bf16_of_float(normed, EXACT=False)
    else:
        normed = normed.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row * CHANNELS + channel), normed, mask=here)


def rms_norm_launch(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float) -> Launch:
    """The launch for rows x [N, C] with neighbouring channels, weight [C], out [N, C] contiguous."""
    rows, channels = x.shape
    tile = triton.next_power_of_2(channels)
    return Launch(
        kernel=rms_norm_kernel,
        grid=(rows,),
        arguments={"x_ptr": x, "weight_ptr": weight, "out_ptr": out, "x_row_stride": x.stride(0)},
        constants={"EPS": eps, "CHANNELS": channels, "TILE": tile},
        num_warps=max(1, min(8, tile // 512)),
    )


def rms_norm_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last dimension, in the type of ``x``.

    Args:
        x: [..., C], float32, bfloat16 or float16. weight: [C]. eps: added to the mean square, in float32.

    Raises:
        TypeError, ValueError: another type, or a weight of another length.
    """
    if x.dtype not in FLOAT_TYPES:
        raise TypeError(f"x is {x.dtype}; expected one of {', '.join(map(str, FLOAT_TYPES))}")
    if weight.dtype not in FLOAT_TYPES:
        raise TypeError(f"weight is {weight.dtype}; expected one of {', '.join(map(str, FLOAT_TYPES))}")
    if not eps >= 0:
        raise ValueError(f"eps is {eps}; expected zero or more")
    if x.dim() == 0 or x.shape[-1] == 0 or tuple(weight.shape) != tuple(x.shape[-1:]):
        raise ValueError(f"weight is {list(weight.shape)}, x {list(x.shape)}; expected [C] and [..., C]")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        rows = as_rows(x)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        rms_norm_launch(rows, weight.contiguous(), out.view(-1, x.shape[-1]), eps).run()
    return out


def rms_norm_rows_cost(rows: int, channels: int, item_bytes: int) -> tuple[int, int]:
    """(bytes, operations): every row is read and written once; a square, a sum, and two products for each channel."""
    return 2 * rows * channels * item_bytes, 4 * rows * channels


def compile_cases() -> Iterator[CompileCase]:
    """The query latent of the published model, 1280 channels."""
    for dtype in FLOAT_TYPES:
        x = torch.empty(65536, 1280, dtype=dtype, device="meta")
        launch = rms_norm_launch(x, x.new_empty(1280, dtype=torch.float32), torch.empty_like(x), 1e-20)
        yield CompileCase(f"rms_norm_{str(dtype).removeprefix('torch.')}", launch, False, targets_of(dtype))
