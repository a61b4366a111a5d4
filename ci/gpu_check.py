#!/usr/bin/env python3
"""Everything that only a GPU can show, as one program: are the kernels right on it, bit for bit, and how fast.

    python ci/gpu_check.py                      kernel tests, comparison with the reference, times; one table
    python ci/gpu_check.py --skip-tests         without the kernel tests, where there is no pytest
    python ci/gpu_check.py --rows 65536 --channels 512

Differences fail the check; times never do. The numbers, with device and versions, go to build/reports/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """One kernel on one input type. Times are medians; `of_copy` is its bytes a second over those of a copy."""

    kernel: str
    dtype: str
    differing_bytes: int
    milliseconds: float
    gigabytes_per_second: float
    of_copy: float


def inputs(rows: int, channels: int, dtype, device: str):
    """Values whose rows differ in magnitude (2^-12 to 2^12), zeros of both signs among them: [rows, channels]."""
    import torch

    generator = torch.Generator().manual_seed(41)
    magnitude = torch.exp2(torch.randint(-12, 13, (rows, 1), generator=generator))
    x = torch.randn(rows, channels, generator=generator) * magnitude
    x[:, 3::29] = 0.0
    x[:, 5::31] = -0.0
    return x.to(dtype).to(device)


def differing_bytes(one, other) -> int:
    """How many bytes of two tensors of one shape and type differ, on whatever devices they lie."""
    import torch

    pair = [tensor.cpu().contiguous().view(torch.uint8) for tensor in (one, other)]
    return int((pair[0] != pair[1]).sum())


def compare(block_format, x) -> tuple[int, int]:
    """Bytes in which encode and decode of the kernels differ from the torch reference, run on the CPU."""
    from ds41 import ops

    packed = ops.encode(block_format, x, backend="triton")
    expected = block_format.encode(x.cpu())
    encoded = sum(differing_bytes(got, wanted) for got, wanted in zip(packed, expected, strict=True))
    values = ops.decode(block_format, packed, dtype=x.dtype, backend="triton")
    return encoded, differing_bytes(values, block_format.decode(expected, dtype=x.dtype))


def milliseconds(function) -> float:
    from triton.testing import do_bench

    return do_bench(function, warmup=50, rep=200, return_mode="median")


def measure(rows: int, channels: int, device: str) -> list[Row]:
    """Compare and time encode and decode of each format for each input type."""
    import torch

    from ds41 import ops
    from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV

    table = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = inputs(rows, channels, dtype, device)
        copy = 2 * x.nbytes / milliseconds(x.clone) / 1e6
        name = str(dtype).removeprefix("torch.")
        table.append(Row("copy", name, 0, 2 * x.nbytes / copy / 1e6, copy, 1.0))
        for block_format in (MAIN_KV, INDEX_KEY, WINDOW_KV):
            differences = compare(block_format, x)
            packed = ops.encode(block_format, x, backend="triton")
            moved = x.nbytes + packed.nbytes
            operations = {
                # Checking the input for NaN waits for the device, so it is left out of the time.
                "encode": lambda f=block_format, x=x: ops.encode(f, x, validate=False, backend="triton"),
                "decode": lambda f=block_format, p=packed, d=dtype: ops.decode(f, p, dtype=d, backend="triton"),
            }
            for (operation, function), differing in zip(operations.items(), differences, strict=True):
                time = milliseconds(function)
                rate = moved / time / 1e6
                table.append(Row(f"{operation} {block_format.name}", name, differing, time, rate, rate / copy))
    return table


def kernel_tests() -> int:
    """Run the kernels' tests on the GPU and return pytest's exit status."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "kernels"), "-p", "no:cacheprovider"]
    return subprocess.run(command, env=environment, cwd=ROOT).returncode


def versions() -> dict[str, str]:
    import torch

    return {
        "device": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "triton")},
    }


def render(table: list[Row]) -> str:
    lines = [f"{'kernel':<24}{'type':<10}{'differing bytes':>16}{'ms':>9}{'GB/s':>9}{'of copy':>9}"]
    lines += [
        f"{row.kernel:<24}{row.dtype:<10}{row.differing_bytes:>16,}{row.milliseconds:>9.3f}"
        f"{row.gigabytes_per_second:>9,.0f}{row.of_copy:>9.2f}"
        for row in table
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "reports" / "gpu.json")
    options = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        print("error: this check needs a CUDA device that torch can use; there is none", file=sys.stderr)
        return 2
    # Under the interpreter the kernels would be checked on the CPU and prove nothing about the GPU.
    os.environ.pop("TRITON_INTERPRET", None)
    status = None if options.skip_tests else kernel_tests()
    table = measure(options.rows, options.channels, "cuda")
    report = {
        **versions(),
        "shape": [options.rows, options.channels],
        "kernel_tests_exit_status": status,
        "rows": [asdict(row) for row in table],
    }
    print("\n".join(f"{name}: {value}" for name, value in versions().items()))
    print(render(table))
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    differing = sum(row.differing_bytes for row in table)
    if differing:
        print(f"error: {differing:,} bytes differ from the reference", file=sys.stderr)
    if status:
        print(f"error: the kernel tests ended with status {status}", file=sys.stderr)
    return int(bool(differing or status))


if __name__ == "__main__":
    sys.exit(main())
