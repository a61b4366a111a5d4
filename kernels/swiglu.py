"""The activation between an expert's matrices, in one launch; the arithmetic of ``ds41.moe.swiglu``.

Source: the released model's ``Expert``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch, targets_of
from .numbers import bf16_of_float
from .tiles import FLOAT_TYPES

_TILE = 1024


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, count, LIMIT: tl.constexpr, TILE: tl.constexpr):
    """gate, up, out [count]: silu(min(gate, LIMIT)) * clamp(up, -LIMIT, LIMIT), in float32."""
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    gate = tl.load(gate_ptr + place, mask=place < count, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + place, mask=place < count, other=0.0).to(tl.float32)
    gate = tl.minimum(gate, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    up = tl.clamp(up, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    value = gate * up / (1.0 + tl.exp(-gate))
    if out_ptr.dtype.element_ty == tl.bfloat16:
        value = bf16_of_float(value, EXACT=False)
    else:
        value = value.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, value, mask=place < count)


def swiglu_launch(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, limit: float) -> Launch:
    """The launch for three contiguous tensors of one shape."""
    count = out.numel()
    return Launch(
        kernel=swiglu_kernel,
        grid=(triton.cdiv(count, _TILE),),
        arguments={"gate_ptr": gate, "up_ptr": up, "out_ptr": out, "count": count},
        constants={"LIMIT": limit, "TILE": _TILE},
        num_warps=4,
    )


def swiglu_rows(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """``silu(gate) * up``, the gate clamped from above and up on both sides, in the type of ``gate``.

    Args:
        gate, up: float32, bfloat16 or float16 [..., C], of one shape and type. limit: positive.

    Raises:
        ValueError: they do not belong together, or are of another type.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype or gate.dtype not in FLOAT_TYPES:
        raise ValueError(
            f"gate is {gate.dtype} {list(gate.shape)}, up {up.dtype} {list(up.shape)}; expected one shape and one of "
            f"{', '.join(map(str, FLOAT_TYPES))}"
        )
    if not limit > 0:
        raise ValueError(f"limit is {limit}; expected a positive number")
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if out.numel():
        swiglu_launch(gate.contiguous(), up.contiguous(), out, limit).run()
    return out


def swiglu_rows_cost(rows: int, channels: int, item_bytes: int) -> tuple[int, int]:
    """(bytes, operations): two numbers in and one out; two products, a division and an exponential as one each."""
    return 3 * rows * channels * item_bytes, 4 * rows * channels


def compile_cases() -> Iterator[CompileCase]:
    """The shared expert of the published model, 2304 channels."""
    for dtype in FLOAT_TYPES:
        x = torch.empty(65536, 2304, dtype=dtype, device="meta")
        launch = swiglu_launch(x, x, x, 10.0)
        yield CompileCase(f"swiglu_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
