#!/usr/bin/env python3
"""Keep what a GPU measured: build/reports/gpu.json and notebooks.json become files of benchmarks/results/.

    python ci/record_results.py [--reports build/reports] [--where colab]

gpu_check.py writes the first, run_notebooks.py the second. A file is named after what was measured and the device, such
as gpu_tesla-t4.json; --where adds a word for another set of versions on the same device. Refused is a report of a
rehearsal, one that names a problem or a chapter that failed, and one without its device, its versions or its command.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from origin import faults  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
KINDS = {"gpu": "gpu", "notebooks": "chapters"}


def refusals(report: dict) -> list[str]:
    """Why a report must not stand as a result."""
    found = faults(report)
    if "rehearsal" in str(report.get("device")):
        found.append("it is a rehearsal")
    if report.get("device") == "cpu":
        found.append("it was not made on a GPU")
    found += [f"it names a problem: {problem}" for problem in report.get("problems", [])]
    rows = report.get("chapters") if isinstance(report.get("chapters"), list) else []
    return found + [f"{row['chapter']} {row['outcome']}" for row in rows if row["outcome"] not in ("passed", "reused")]


def file_name(kind: str, device: str, where: str) -> str:
    """Such as chapters_tesla-t4_colab.json."""
    words = [KINDS[kind], re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-"), where]
    return "_".join(filter(None, words)) + ".json"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=Path, default=ROOT / "build" / "reports")
    parser.add_argument("--where", default="", help="a word for the versions, such as colab")
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    refused = kept = 0
    for kind in KINDS:
        source = options.reports / f"{kind}.json"
        if not source.exists():
            print(f"{source} is not there")
            continue
        text = source.read_text(encoding="utf-8")
        report = json.loads(text)
        why = refusals(report)
        for fault in why:
            print(f"{source} is refused: {fault}", file=sys.stderr)
        refused += bool(why)
        if not why:
            target = options.results / file_name(kind, report["device"], options.where)
            target.write_text(text, encoding="utf-8")
            kept += 1
            print(f"{source} -> {target}")
    return int(bool(refused) or not kept)


if __name__ == "__main__":
    sys.exit(main())
