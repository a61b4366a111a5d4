"""Small matrix products compiled for GPUs that need not be there: which instruction does the compiler emit?

Run as a program in a process of its own, without Triton's interpreter; :mod:`ds41.matrix_instructions` does so.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from ds41.kernels.aot import compile_launch
from ds41.kernels.launch import Launch

_INSTRUCTION = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)[\w.:]*")


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr, OPERAND: tl.constexpr):
    """out = a @ b.T for square tiles; OPERAND "e4m3" reads bytes as that type, "" takes the tensors' own."""
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    if OPERAND == "e4m3":
        a, b = a.to(tl.float8e4nv, bitcast=True), b.to(tl.float8e4nv, bitcast=True)
    tl.store(out_ptr + at, tl.dot(a, tl.trans(b)))


@triton.jit
def scaled_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SCALE: tl.constexpr
):
    """out = a @ b.T of packed E2M1 tiles, one scale for every BLOCK numbers along the dimension that is summed over."""
    row = tl.arange(0, SIZE)[:, None]
    codes = row * (SIZE // 2) + tl.arange(0, SIZE // 2)[None, :]
    scales = row * (SIZE // BLOCK) + tl.arange(0, SIZE // BLOCK)[None, :]
    a_scale, b_scale = tl.load(a_scale_ptr + scales), tl.load(b_scale_ptr + scales)
    if SCALE == "e4m3":
        a_scale, b_scale = a_scale.to(tl.float8e4nv, bitcast=True), b_scale.to(tl.float8e4nv, bitcast=True)
    b = tl.trans(tl.load(b_ptr + codes))
    out = tl.dot_scaled(tl.load(a_ptr + codes), a_scale, "e2m1", b, b_scale, "e2m1")
    tl.store(out_ptr + (row * SIZE + tl.arange(0, SIZE)[None, :]), out)


def launches(capability: int) -> Iterator[tuple[str, Launch]]:
    """One product for each kind of operand that the compiler takes for this GPU.

    The tiles are large enough for the widest instructions. Without matrix instructions a tile is unrolled, so it
    stays small.
    """
    size = 32 if capability < 80 else 64
    for name, dtype, operand in (
        ("fp16", torch.float16, ""),
        ("bf16", torch.bfloat16, ""),
        ("fp8", torch.uint8, "e4m3"),
    ):
        tile = torch.empty(size, size, dtype=dtype, device="meta")
        arguments = {"a_ptr": tile, "b_ptr": tile, "out_ptr": tile.to(torch.float32)}
        yield name, Launch(product_kernel, (1,), arguments, {"SIZE": size, "OPERAND": operand}, num_warps=4)
    for name, block, scale in (("mxfp4", 32, "e8m0"), ("nvfp4", 16, "e4m3")):
        if scale == "e4m3" and capability < 100:
            # Triton's fallback for GPUs without the instruction knows power-of-two scales alone.
            continue
        size = 128 if capability >= 100 else size
        codes, scales = (
            torch.empty(size, width, dtype=torch.uint8, device="meta") for width in (size // 2, size // block)
        )
        arguments = {"a_ptr": codes, "a_scale_ptr": scales, "b_ptr": codes, "b_scale_ptr": scales}
        arguments["out_ptr"] = torch.empty(size, size, device="meta")
        yield name, Launch(scaled_kernel, (1,), arguments, {"SIZE": size, "BLOCK": block, "SCALE": scale}, num_warps=4)


def instruction(launch: Launch, capability: int) -> str | None:
    """The commonest matrix instruction of the compiled launch, "" where it has none, None if it does not compile."""
    try:
        ptx = compile_launch(launch, capability).asm["ptx"]
    except Exception:
        return None
    found = Counter(_INSTRUCTION.findall(ptx)).most_common(1)
    return found[0][0] if found else ""


if __name__ == "__main__":
    table = {
        argument: {name: instruction(launch, int(argument)) for name, launch in launches(int(argument))}
        for argument in sys.argv[1:]
    }
    print(json.dumps(table))
