#!/usr/bin/env python3
"""Measure the built book with Lighthouse, as a phone on a slow network sees it, and fail where it falls short.

    python ci/lighthouse.py                      the front door and three chapters, each three times
    python ci/lighthouse.py --runs 5 book/04-fp4

The book is served as GitHub Pages serves it. Accessibility, best practices and SEO must be 100, performance 95 in the
median of the runs. Lighthouse slows its machine's processor down to a phone's, four times for a machine whose
benchmark index is 1500; a slower or busier one is a phone sooner, so the factor follows the index, down to 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import book_rules
import browser
import npm_tools
from page_meta import Site
from page_server import serve
from project import HERE, Project

PAGES = ("index", "book/03-csa2", "book/05-ledger", "book/13-serving")
LEAST = {"performance": 95, "accessibility": 100, "best-practices": 100, "seo": 100}
TIMES = {
    "first-contentful-paint": "FCP s",
    "largest-contentful-paint": "LCP s",
    "total-blocking-time": "TBT ms",
    "cumulative-layout-shift": "CLS",
}
SLOWDOWN = 4.0
BENCHMARK = 1500
TIMEOUT_S = 180


class LighthouseError(Exception):
    """Lighthouse gave no result."""


def slowdown(benchmark_index: float) -> float:
    """How far to slow this machine's processor down to a phone's."""
    return round(min(SLOWDOWN, max(1.0, SLOWDOWN * benchmark_index / BENCHMARK)), 2)


def measure(program: Path, address: str, factor: float) -> dict:
    """One run; Lighthouse's report.

    Raises:
        LighthouseError: it failed, or the page did not load.
    """
    node = shutil.which("node")
    if node is None:
        raise LighthouseError("Lighthouse runs on Node.js, and there is no node here")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        command = [node, str(program), address, "--quiet", "--output=json"]
        command += [f"--output-path={output}", f"--throttling.cpuSlowdownMultiplier={factor}"]
        command += [f"--chrome-flags=--headless=new {' '.join(browser.ARGUMENTS)}"]
        environment = os.environ | {"CHROME_PATH": str(shutil.which(browser.find()))}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder, env=environment, check=False
        )
        if done.returncode or not output.exists():
            raise LighthouseError(f"no result for {address}:\n{(done.stderr or done.stdout).strip()[-2000:]}")
        report = json.loads(output.read_text(encoding="utf-8"))
    if "runtimeError" in report:
        raise LighthouseError(f"{address}: {report['runtimeError']['message']}")
    return report


def summary(reports: list[dict]) -> dict:
    """The median score of each category over the runs, the median times, and what cost points in the last run."""
    scores = {name: [round(100 * report["categories"][name]["score"]) for report in reports] for name in LEAST}
    times = {key: [report["audits"][key]["numericValue"] for report in reports] for key in TIMES}
    last = reports[-1]
    audits = {ref["id"] for name in LEAST for ref in last["categories"][name]["auditRefs"] if ref["weight"]}
    short = {
        key: audit.get("displayValue") or audit["title"]
        for key, audit in last["audits"].items()
        if key in audits and audit["score"] is not None and audit["score"] < 0.9
    }
    return {
        "scores": {name: int(statistics.median_low(values)) for name, values in scores.items()},
        "performance of each run": scores["performance"],
        "times": {key: round(statistics.median(values), 3) for key, values in times.items()},
        "benchmark index": [round(report["environment"]["benchmarkIndex"]) for report in reports],
        "slowdown": [report["configSettings"]["throttling"]["cpuSlowdownMultiplier"] for report in reports],
        "bytes": round(last["audits"]["total-byte-weight"]["numericValue"]),
        "short": short,
    }


def shortfalls(page: str, found: dict) -> list[str]:
    """What the page lacks, a sentence for each category."""
    faults = []
    for name, least in LEAST.items():
        if found["scores"][name] < least:
            short = ", ".join(f"{key} ({value})" for key, value in found["short"].items())
            faults.append(f"{page}: {name} is {found['scores'][name]}, below {least}: {short}")
    return faults


def table(results: dict[str, dict]) -> str:
    width = max(map(len, results))
    head = f"{'page':<{width}}" + "".join(f"  {name:>14}" for name in LEAST)
    head += "".join(f"  {label:>7}" for label in TIMES.values()) + "  KB sent  slowdown"
    lines = [head]
    for page, found in results.items():
        times = found["times"]
        line = f"{page:<{width}}" + "".join(f"  {found['scores'][name]:>14}" for name in LEAST)
        line += f"  {times['first-contentful-paint'] / 1000:>7.1f}  {times['largest-contentful-paint'] / 1000:>7.1f}"
        line += f"  {times['total-blocking-time']:>7.0f}  {times['cumulative-layout-shift']:>7.3f}"
        lines.append(f"{line}  {found['bytes'] / 1000:>7.0f}  {'/'.join(f'{x:g}' for x in found['slowdown'])}")
    return "\n".join(lines)


def check(project: Project, pages: list[str], runs: int) -> int:
    addresses = dict(zip(pages, book_rules.addresses(project.html, pages), strict=True))
    program = npm_tools.package(project, "lighthouse") / "cli" / "index.js"
    results = {}
    with serve(project.html, Site.of(project).path) as site:
        # A first run warms the disk and says how fast this machine is just now.
        factor = slowdown(measure(program, f"{site}/{addresses[pages[0]]}", SLOWDOWN)["environment"]["benchmarkIndex"])
        for page, address in addresses.items():
            reports = []
            for _ in range(runs):
                reports.append(measure(program, f"{site}/{address}", factor))
                factor = slowdown(reports[-1]["environment"]["benchmarkIndex"])
            results[page] = summary(reports)
            print(f"{page}: {results[page]['performance of each run']}", flush=True)
    project.reports.mkdir(parents=True, exist_ok=True)
    (project.reports / "lighthouse.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results))
    faults = [fault for page, found in results.items() for fault in shortfalls(page, found)]
    print("\n".join(faults) or f"{len(results)} pages in order")
    return bool(faults)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"default: {', '.join(PAGES)}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        browser.find()
    except browser.NoBrowserError as error:
        return browser.without_browser(error, "the speed of the built book")
    pages = [page.removesuffix(".html") for page in options.pages] or list(PAGES)
    try:
        return check(Project(options.root), pages, options.runs)
    except (FileNotFoundError, LighthouseError, npm_tools.NpmError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
