"""What a compiled kernel costs its GPU: registers, spills, shared memory, and the width of its memory accesses."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from triton import knobs

_LETTER_BITS = re.compile(r"\.(?:v(\d)\.)?[bfsu](\d+)$")
# Copies that run beside the code, from global to shared memory: loads all the same.
_ASYNC_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared(?:::cta)?\.global\S*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(\w+)")
_TRAP = re.compile(r"^\s*trap;", re.MULTILINE)
_MATRIX = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
_ACCESS = re.compile(r"\b(ld|st)\.(?:relaxed\.|volatile\.|weak\.)*global((?:\.\w+(?:::\w+)*)*)")


@dataclass(frozen=True)
class Resources:
    """Per thread: registers; spill_bytes, the local memory that takes what registers cannot hold.

    shared_bytes: shared memory of one program. loads, stores: instructions by the bytes each moves for one thread.
    matrix: matrix instructions in the code. traps: instructions that end the program; a compiler that gives up may
    leave one in place of a kernel.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    loads: dict[int, int]
    stores: dict[int, int]
    matrix: int
    traps: int


def measure(compiled) -> Resources:
    """Read the resources of what :func:`ds41.kernels.aot.compile_launch` returned."""
    usage = _resource_usage(compiled.asm["cubin"])
    accesses = global_accesses(compiled.asm["ptx"])
    return Resources(
        registers=usage["REG"],
        spill_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        loads=accesses["ld"],
        stores=accesses["st"],
        matrix=len(_MATRIX.findall(compiled.asm["ptx"])),
        traps=len(_TRAP.findall(compiled.asm["ptx"])),
    )


def global_accesses(ptx: str) -> dict[str, dict[int, int]]:
    """{"ld": {bytes: instructions}, "st": {...}} of the accesses to global memory in PTX text."""
    found = {"ld": Counter(), "st": Counter()}
    for kind, suffix in _ACCESS.findall(ptx):
        width = _LETTER_BITS.search(suffix)
        if width is None:
            raise ValueError(f"cannot read the width of {kind}.global{suffix}")
        found[kind][int(width[1] or 1) * int(width[2]) // 8] += 1
    for width in _ASYNC_COPY.findall(ptx):
        found["ld"][int(width, 0)] += 1
    return {kind: dict(sorted(counts.items(), reverse=True)) for kind, counts in found.items()}


def wide_share(accesses: dict[int, int]) -> float:
    """Share of the bytes that move 16 or more at a time; 1 where nothing moves."""
    total = sum(width * count for width, count in accesses.items())
    return sum(width * count for width, count in accesses.items() if width >= 16) / total if total else 1.0


def _resource_usage(cubin: bytes) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    missing = {"REG", "STACK", "LOCAL"} - usage.keys()
    if missing:
        raise ValueError(f"cuobjdump -res-usage names no {', '.join(sorted(missing))}; it printed: {text.strip()}")
    return usage
