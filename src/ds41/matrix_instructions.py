"""Which operands the matrix units of each GPU generation take: what vendors publish, and what a compiler emits.

Source: NVIDIA, PTX ISA 9.0, sections on ``mma``, ``wgmma.mma_async`` and ``tcgen05.mma``; what a compiler emits is read
from its output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

OPERANDS = ("fp16", "bf16", "fp8", "mxfp4", "nvfp4")
"""Operand types of matrix instructions, in the order in which generations gained them."""


@dataclass(frozen=True)
class Generation:
    """One compute capability: its name, its GPUs, and the operands that its matrix instructions take (published)."""

    capability: int
    name: str
    gpus: str
    operands: tuple[str, ...]


GENERATIONS = (
    Generation(75, "Turing", "T4", OPERANDS[:1]),
    Generation(80, "Ampere", "A100", OPERANDS[:2]),
    Generation(89, "Ada", "L4, RTX 40", OPERANDS[:3]),
    Generation(90, "Hopper", "H100, H200", OPERANDS[:3]),
    Generation(100, "Blackwell", "B200", OPERANDS),
    Generation(120, "Blackwell", "RTX 50", OPERANDS),
)
"""GPU generations by compute capability, with the operand types of their matrix instructions."""


class CompilerUnavailable(RuntimeError):
    """Triton's compiler cannot run here."""


def compiled(capabilities: Sequence[int]) -> dict[int, dict[str, str | None]]:
    """The matrix instruction that Triton emits for a product of each kind of operand, on each GPU.

    Returns:
        By capability and operand: the instruction; "" for code without one; None where Triton refuses. An operand
        that is not there was not tried. Takes about ten seconds for four GPUs, and needs none of them.

    Raises:
        CompilerUnavailable: there is no Triton, or it ends with an error; the message ends with its last line.
    """
    # A process of its own: where kernels are interpreted, as on a CPU, this one cannot compile any.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "ds41.matrix_probe", *map(str, capabilities)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
        raise CompilerUnavailable(f"compiling for {list(capabilities)} failed: {lines[-1]}")
    return {int(capability): found for capability, found in json.loads(run.stdout).items()}
