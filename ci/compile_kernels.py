"""Compile every kernel for every GPU generation the book speaks of, and print what each costs.

Needs no GPU. Fails on a compile error, on a spill, on more shared memory than the target has, and where a kernel that
should move its data 16 bytes at a time does not; also where a kernel costs more than the committed table says
(benchmarks/results/kernels_compiled.json, which --record writes). The full numbers go to build/reports/kernels.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import kernel_table

REPORT = Path(__file__).resolve().parents[1] / "build" / "reports" / "kernels.json"
# Shared memory that one program may have, by target (CUDA programming guide, compute capabilities).
SHARED_LIMIT = {target: kilobytes * 1024 for target, kilobytes in
                {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}.items()}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    # Under the interpreter a kernel is a Python function, which cannot be compiled.
    os.environ.pop("TRITON_INTERPRET", None)
    from ds41.kernels import aot

    targets = options.targets or list(aot.TARGETS)
    unknown = sorted(set(targets) - set(aot.TARGETS))
    if unknown:
        print(f"unknown targets {unknown}; known are {list(aot.TARGETS)}", file=sys.stderr)
        return 2
    cases = [case for case in aot.all_cases() if any(part in case.name for part in options.kernels)]
    names = [case.name for case in cases]
    if not names:
        print(f"no kernel's name contains {' or '.join(options.kernels)}", file=sys.stderr)
        return 2

    start = time.monotonic()
    tasks = [(case.name, target) for case in cases for target in targets if target in (case.targets or aot.TARGETS)]
    if not tasks:
        print(f"none of {', '.join(names)} is for {targets}", file=sys.stderr)
        return 2
    # Spawned, so that no worker inherits a compiler or a device in mid-use.
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(compile_one, *zip(*tasks, strict=True), chunksize=4))
    seconds = time.monotonic() - start

    print(_table(results, names, targets))
    problems = [problem for result in results for problem in result["problems"]]
    versions = _versions()
    if options.record and not problems and len(results) == _everything():
        kernel_table.record(results, versions)
    elif kernel_table.TABLE.exists():
        problems += kernel_table.regressions(results, versions)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    report = {"versions": versions, "seconds": round(seconds, 1), "problems": problems, "kernels": results}
    options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for problem in problems:
        print(f"FAIL {problem}", file=sys.stderr)
    print(f"{len(results)} binaries of {len(names)} kernels in {seconds:.0f} s, {len(problems)} problems")
    return 1 if problems else 0


def compile_one(name: str, target: int) -> dict:
    """Compile one case for one target; never raises: what went wrong is in ``problems``."""
    from ds41.kernels import aot
    from ds41.kernels.resources import measure, wide_share

    result = {"kernel": name, "target": target, "problems": []}
    where = f"{name} for sm_{target}"
    try:
        case = next(case for case in aot.all_cases() if case.name == name)
        resources = measure(aot.compile_launch(case.launch, target))
    except Exception as error:
        result["problems"].append(f"{where}: {type(error).__name__}: {error}")
        return result
    result |= asdict(resources)
    result["num_warps"] = case.launch.num_warps
    if resources.spill_bytes:
        result["problems"].append(f"{where}: spills {resources.spill_bytes} bytes a thread")
    limit = SHARED_LIMIT[target]
    if resources.shared_bytes > limit:
        result["problems"].append(f"{where}: {resources.shared_bytes} bytes of shared memory; the limit is {limit}")
    if resources.traps:
        result["problems"].append(f"{where}: the code holds a trap instruction")
    if case.matrix and not resources.matrix:
        result["problems"].append(f"{where}: no matrix instruction")
    if case.wide:
        for kind in ("loads", "stores"):
            accesses = getattr(resources, kind)
            if wide_share(accesses) < 0.5:
                result["problems"].append(f"{where}: {kind} by bytes a thread {accesses}; expected 16 for most")
    return result


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", type=_integers, help="compute capabilities, such as 75,90 (all)")
    parser.add_argument("--kernels", type=_words, default=[""], help="parts of names, such as decode,index (all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--record", action="store_true", help="write the committed table anew, if nothing is wrong")
    parser.add_argument("--report", type=Path, default=REPORT, help="where the JSON goes (build/reports/kernels.json)")
    return parser.parse_args(arguments)


def _everything() -> int:
    """How many binaries there are in all."""
    from ds41.kernels import aot

    return sum(len(case.targets or aot.TARGETS) for case in aot.all_cases())


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _versions() -> dict[str, str]:
    import torch
    import triton

    return {"triton": triton.__version__, "torch": torch.__version__}


def _registers(result: dict | None) -> str:
    """A cell of the table; "-" where the case is not for the target."""
    return f"{'-' if result is None else result.get('registers', 'error'):>7}"


def _table(results: list[dict], names: list[str], targets: list[int]) -> str:
    """One line a kernel: registers on each target, then the most of each other resource over all targets."""
    width = max(len(name) for name in names)
    heads = "".join(f"{'sm_' + str(target):>7}" for target in targets)
    lines = [
        f"{'registers a thread':<{width}}{heads}  {'spill B':>7} {'shared B':>8} {'load B':>6} {'store B':>7}",
    ]
    by_case = {(result["kernel"], result["target"]): result for result in results}
    for name in names:
        row = [by_case[name, target] for target in targets if (name, target) in by_case]
        registers = "".join(_registers(by_case.get((name, target))) for target in targets)
        good = [result for result in row if "registers" in result]
        if good:
            spill = max(result["spill_bytes"] for result in good)
            shared = max(result["shared_bytes"] for result in good)
            load, store = (min(max(result[kind], default=0) for result in good) for kind in ("loads", "stores"))
            registers += f"  {spill:>7} {shared:>8} {load:>6} {store:>7}"
        lines.append(f"{name:<{width}}{registers}")
    lines.append("spill and shared: the most over the targets; load and store: the widest access, the least over them")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
