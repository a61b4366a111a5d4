"""The committed table of what compiled kernels cost: a kernel that grew fails until the table is recorded anew."""

from __future__ import annotations

import json
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "kernels_compiled.json"
# A compiler may place a few values elsewhere without anything having changed; this many registers are no regression.
REGISTER_SLACK = 8
_COLUMNS = ("registers", "shared_bytes", "spill_bytes", "widest_load", "widest_store", "matrix", "num_warps")


def rows_of(results: list[dict]) -> dict[str, dict[str, dict[str, int]]]:
    """{kernel: {target: costs}} of what :func:`compile_kernels.compile_one` returned; what failed is left out."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for result in results:
        if "registers" not in result:
            continue
        widest = {f"widest_{kind}": max(map(int, result[f"{kind}s"]), default=0) for kind in ("load", "store")}
        row = {name: (result | widest)[name] for name in _COLUMNS}
        table.setdefault(result["kernel"], {})[f"sm_{result['target']}"] = row
    return table


def record(results: list[dict], versions: dict[str, str], path: Path = TABLE) -> None:
    """Write the table of all kernels."""
    table = {
        "device": "none: compiled ahead of time, not run",
        "versions": versions,
        "command": "python ci/compile_kernels.py --record",
        "kernels": rows_of(results),
    }
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def regressions(results: list[dict], versions: dict[str, str], path: Path = TABLE) -> list[str]:
    """What is worse than the committed table, or not in it. Another compiler version is not compared: no finding."""
    recorded = json.loads(path.read_text(encoding="utf-8"))
    if recorded["versions"]["triton"] != versions["triton"]:
        return []
    found = []
    for kernel, targets in rows_of(results).items():
        for target, row in targets.items():
            where = f"{kernel} for {target}"
            before = recorded["kernels"].get(kernel, {}).get(target)
            if before is None:
                found.append(f"{where} is not in {path.name}; record it with ci/compile_kernels.py --record")
                continue
            if row["registers"] > before["registers"] + REGISTER_SLACK:
                found.append(f"{where}: {row['registers']} registers, {before['registers']} in {path.name}")
            found += [
                f"{where}: {name} is {row[name]}, {before[name]} in {path.name}"
                for name in ("shared_bytes", "spill_bytes")
                if row[name] > before[name]
            ]
            found += [
                f"{where}: {name} is {row[name]}, {before[name]} in {path.name}"
                for name in ("widest_load", "widest_store")
                if row[name] < before[name]
            ]
            if before["matrix"] and not row["matrix"]:
                found.append(f"{where}: no matrix instruction, {before['matrix']} in {path.name}")
    return found
