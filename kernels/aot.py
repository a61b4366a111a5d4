"""Compiling launches ahead of time, for GPUs that need not be there.

A case is a :class:`~ds41.kernels.launch.Launch` on tensors of the ``meta`` device, so the code compiled here is the
code that a launch with those shapes, types and strides compiles: the same rules of specialisation apply to it. (They
matter: without knowing that a pointer is divisible by 16, the compiler may not use 16-byte accesses.)
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .launch import CompileCase, Launch

# Compute capability of each target: T4, A100, A10/RTX 30, L4/RTX 40, H100/H200, B200, RTX 50.
TARGETS = (75, 80, 86, 89, 90, 100, 120)

# Every module with kernels; each has compile_cases(), which yields its cases at the published shapes.
MODULES = (
    "encode", "decode", "norm", "swiglu", "router", "group_tokens", "expert_products", "sum_choices",
    "engram", "engram_write", "cache_write", "pooled_write", "hyper_sweep", "hyper_finish", "index_scores",
    "index_scores_sums", "selection", "selection_rows", "attention_kernel", "attention_combine",
)  # fmt: skip

_POINTEE = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.uint8: "u8", torch.int8: "i8",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


def all_cases() -> Iterator[CompileCase]:
    """The cases of every kernel module, in the order of MODULES."""
    for module in MODULES:
        yield from import_module(f"{__package__}.{module}").compile_cases()


def specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list]]:
    """Signature, constants and attributes that Triton gives a launch.

    An integer 1 and None become constants; a pointer or an integer divisible by 16 is marked so, unless the kernel
    asks not to look at its value; an integer is 32 bits wide if it fits.
    """
    unseen = set(getattr(launch.kernel, "do_not_specialize", None) or ())
    signature: dict[str, str] = {}
    constants = dict(launch.constants)
    attributes: dict[tuple[int], list] = {}
    for index, name in enumerate(launch.kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        value = launch.arguments[name]
        looked_at = name not in unseen and index not in unseen
        if value is None or (looked_at and isinstance(value, int) and value == 1):
            signature[name] = "constexpr"
            constants[name] = value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = "*" + _POINTEE[value.dtype]
            divisible = value.data_ptr() % 16 == 0
        elif isinstance(value, int) and not isinstance(value, bool):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            divisible = value % 16 == 0
        else:
            raise TypeError(f"argument {name} is {value!r}; a launch takes tensors, integers and None")
        if divisible and looked_at:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def compile_launch(launch: Launch, capability: int):
    """Compile for one target; the result's ``asm`` holds ttir, ptx and cubin, ``metadata`` the shared memory."""
    signature, constants, attributes = specialise(launch)
    source = ASTSource(launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": launch.num_warps, **launch.options}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
