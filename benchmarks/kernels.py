"""Every kernel on the GPU at hand: its time over its floor, and over torch's time for the same result.

    python benchmarks/kernels.py [--tokens 131072] [--batch 64] [--json FILE]

One decode step of the published configuration. The floor is the time in which the device's datasheet rates move the
kernel's bytes or do its operations, whichever is longer; "of floor" is floor over measured, 1.00 at best. Without a GPU
the floors alone are printed, for six of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from kernel_cases import Case, cases, differences, on_torch
from origin import origin

from ds41 import ModelConfig
from ds41.kernel_floors import KernelFloor, kernel_floors
from ds41.roofline import DEVICES, datasheet


@dataclass(frozen=True)
class Row:
    """Times in milliseconds, medians; of_floor and torch_over are None where there is no datasheet or no peer."""

    kernel: str
    nbytes: int
    operations: int
    milliseconds: float
    of_floor: float | None
    torch_milliseconds: float | None
    difference: float


def milliseconds(function) -> float:
    from triton.testing import do_bench

    return do_bench(function, warmup=25, rep=100, return_mode="median")


@torch.no_grad()
def measure(config: ModelConfig, tokens: int, batch: int, device: torch.device, dtype: torch.dtype) -> list[Row]:
    """Time and check each case. Those that do not fit the device's memory are left out, and named on stderr."""
    sheet = datasheet(torch.cuda.get_device_name(device))
    rows = []
    try:
        for case in cases(config, tokens, batch, device, dtype):
            try:
                rows.append(_row(case, sheet))
            except torch.cuda.OutOfMemoryError as error:
                print(f"{case.name} does not fit the device: {error}", file=sys.stderr)
    except torch.cuda.OutOfMemoryError as error:
        # The inputs did not fit; cases are in order of size, so those that follow would not either.
        print(f"the inputs of the next case do not fit the device: {error}", file=sys.stderr)
    return rows


def _row(case: Case, sheet) -> Row:
    difference = differences(case)
    seconds = milliseconds(case.kernel) / 1e3
    with on_torch():
        by_torch = milliseconds(case.torch)
    of_floor = None if sheet is None else case.floor.seconds(sheet) / seconds
    return Row(case.name, case.floor.nbytes, case.floor.operations, seconds * 1e3, of_floor, by_torch, difference)


def print_rows(rows: list[Row], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in ("kernel", "MB", "GFLOP", "ms", "of floor", "torch, ms", "difference"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for row in rows:
        table.add_row(
            row.kernel,
            f"{row.nbytes / 1e6:,.2f}",
            f"{row.operations / 1e9:,.3f}",
            f"{row.milliseconds:.4f}",
            "" if row.of_floor is None else f"{row.of_floor:.2f}",
            "" if row.torch_milliseconds is None else f"{row.torch_milliseconds:.3f}",
            f"{row.difference:.1e}",
        )
    Console(width=120).print(table)


def print_floors(floors: list[KernelFloor], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in ("kernel", "MB", "GFLOP", "FLOP/B", *(f"{name}, us" for name in DEVICES)):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for floor in floors:
        times = (f"{floor.seconds(device) * 1e6:,.2f}" for device in DEVICES.values())
        sizes = (f"{floor.nbytes / 1e6:,.3f}", f"{floor.operations / 1e9:,.4f}", f"{floor.intensity:,.1f}")
        table.add_row(floor.name, *sizes, *times)
    Console(width=140).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=131072, help="context of each sequence (131072)")
    parser.add_argument("--batch", type=int, default=64, help="sequences (64)")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    config = ModelConfig.flash()
    shape = f"decode, {options.batch} sequences of {options.tokens:,} tokens"
    if not torch.cuda.is_available():
        floors = kernel_floors(config, options.tokens, options.batch)
        print_floors(floors, f"floors by datasheet; {shape}")
        rows = [asdict(floor) for floor in floors]
    else:
        device = torch.device("cuda")
        dtype = torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
        measured = measure(config, options.tokens, options.batch, device, dtype)
        print_rows(measured, f"{torch.cuda.get_device_name()}; {shape}")
        rows = [asdict(row) for row in measured]
    if options.json:
        where = origin("cuda" if torch.cuda.is_available() else "cpu")
        result = {**where, "tokens": options.tokens, "batch": options.batch, "rows": rows}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
