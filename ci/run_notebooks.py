#!/usr/bin/env python3
"""Execute the book's chapters with papermill and keep the results in build/executed/.

    python ci/run_notebooks.py                            every chapter of _toc.yml, on the device there is
    python ci/run_notebooks.py 04-fp4 --force             one chapter, even if nothing changed since
    python ci/run_notebooks.py --device cpu --scale small
    python ci/run_notebooks.py 04-fp4 -p ROWS=4096        another value for a parameter of the chapter

A chapter runs in a fresh `python3` kernel, one at a time, in an empty folder. Its result is published only
if every cell ran, within the time allowed, and its output is fit to print; a failed chapter fails the run
and the others still run. A result is reused while the notebook, src/ds41, kernels/, parameters, device and
installed packages are all unchanged. Seconds, memory, device and outcome go to build/reports/notebooks.json.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import notebook_results as results
import papermill
from chapter_process import run_chapter
from notebook_form import NotebookError
from notebook_rules import executed_faults
from project import HERE, Project, ProjectError

sys.path.append(str(HERE.root / "benchmarks"))

from origin import origin

CELL_TIMEOUT_S = 600
NOTEBOOK_TIMEOUT_S = 1800


class UsageError(Exception):
    """The command line asks for something that does not exist."""


def resolve_device(wanted: str) -> tuple[str, str]:
    """The device as chapters are told it ("cpu" or "cuda") and as a person would name it."""
    import torch

    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise UsageError("--device cuda: this machine has no CUDA device that torch can use")
    if wanted == "cpu" or not available:
        return "cpu", "cpu"
    return "cuda", torch.cuda.get_device_name()


def parse_parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def positive(text: str) -> int:
    """Whole seconds above zero."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return int(text)


def chapter_parameters(chapter: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters to pass. papermill only logs a name that the notebook does not have, so this checks."""
    known = papermill.inspect_notebook(chapter)
    if not known:
        raise UsageError(f"{chapter.name}: fail: notebook has no cell tagged 'parameters'")
    unknown = sorted(set(given) - set(known))
    if unknown:
        names = ", ".join(f"{name} (default {facts['default']})" for name, facts in known.items())
        raise UsageError(f"{chapter.name} has no parameter {', '.join(unknown)}; it has {names}")
    return given


def execute(chapter: Path, parameters: dict[str, Any], options) -> dict[str, Any]:
    """Execute a chapter and judge its output. The outcome of one that passed holds its `notebook`."""
    with tempfile.TemporaryDirectory(prefix=f"{chapter.stem}-") as scratch:
        folder = Path(scratch, "work")
        folder.mkdir()
        target = Path(scratch, chapter.name)
        start = time.monotonic()
        outcome = run_chapter(chapter, target, folder, parameters, options)
        outcome["seconds"] = round(time.monotonic() - start, 1)
        if outcome["outcome"] == "passed":
            notebook = results.finish(nbformat.read(target, as_version=4), parameters)
            faults = executed_faults(notebook)
            if faults:
                outcome |= {"outcome": "failed", "error": "output unfit to print", "traceback": faults}
    return outcome | ({"notebook": notebook} if outcome["outcome"] == "passed" else {})


def process_chapter(chapter: Path, project: Project, options) -> dict[str, Any]:
    parameters = chapter_parameters(
        chapter, {"SCALE": options.scale, "DEVICE": options.device, **dict(options.parameters)}
    )
    key = results.fingerprint(chapter, project, parameters, options.device_name)
    record = results.read_record(chapter, project)
    reasons = ["asked for"] if options.force else results.differences(record, key)
    facts = {"chapter": chapter.stem, "device": options.device_name, "parameters": parameters}
    if not reasons:
        print(f"{chapter.stem}: nothing changed, result reused", flush=True)
        return facts | record["facts"] | {"outcome": "reused"}
    print(f"{chapter.stem}: runs ({', '.join(reasons)})", flush=True)
    outcome = execute(chapter, parameters, options)
    notebook = outcome.pop("notebook", None)
    facts |= outcome
    if notebook is None:
        results.withdraw(chapter, project)
        place = f" in cell {outcome['cell']}" if outcome.get("cell") else ""
        print(f"{chapter.stem}: {outcome['outcome'].upper()}{place}: {outcome['error']}")
        print("".join(f"    {line}\n" for line in outcome.get("traceback", [])), end="", flush=True)
    else:
        results.publish(notebook, chapter, project, {"fingerprint": key, "facts": facts})
        print(f"{chapter.stem}: passed in {outcome['seconds']} s", flush=True)
    return facts


def shortest_first(chapters: list[Path], project: Project) -> list[Path]:
    """By the seconds of the last report; chapters that it does not know come last, by size."""
    try:
        report = json.loads((project.reports / "notebooks.json").read_text(encoding="utf-8"))
        seconds = {row["chapter"]: row["seconds"] for row in report["chapters"] if row.get("seconds")}
    except (OSError, ValueError):
        seconds = {}
    return sorted(chapters, key=lambda chapter: (seconds.get(chapter.stem, float("inf")), chapter.stat().st_size))


def table(rows: list[dict[str, Any]]) -> str:
    def mebibytes(row: dict[str, Any], key: str) -> str:
        return f"{row[key] / 2**20:,.0f}" if row.get(key) else "-"

    lines = [f"{'chapter':<24}{'outcome':<12}{'seconds':>9}{'peak MiB':>10}{'CUDA MiB':>10}  device"]
    for row in rows:
        lines.append(
            f"{row['chapter']:<24}{row['outcome']:<12}{row.get('seconds', 0):>9.1f}"
            f"{mebibytes(row, 'peak_rss_bytes'):>10}{mebibytes(row, 'cuda_peak_bytes'):>10}  {row['device']}"
        )
    return "\n".join(lines)


def write_report(rows: list[dict[str, Any]], project: Project, options) -> None:
    facts = origin(options.device, [str(Path(__file__).resolve()), *options.arguments])
    report = {**facts, "device": options.device_name, "scale": options.scale, "chapters": rows}
    project.reports.mkdir(parents=True, exist_ok=True)
    path = project.reports / "notebooks.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{table(rows)}\n{path}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("chapters", nargs="*", metavar="CHAPTER", help="such as 04-fp4; all of _toc.yml if none is named")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add(
        "--scale",
        choices=("auto", "small", "full"),
        default="auto",
        help="auto: full on CUDA, small on a CPU",
    )
    add("-p", dest="parameters", action="append", default=[], type=parse_parameter, metavar="NAME=VALUE")
    add("--timeout", type=positive, default=NOTEBOOK_TIMEOUT_S, help="seconds a notebook may take (%(default)s)")
    add("--cell-timeout", type=positive, default=CELL_TIMEOUT_S, help="seconds a cell may take (%(default)s)")
    add("--budget", type=positive, help="start no chapter after this many seconds; the shortest come first")
    add("--force", action="store_true", help="run chapters even if nothing changed")
    add("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.arguments = sys.argv[1:] if argv is None else argv
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    project = Project(options.root)
    # An ordinary end of this program must end the kernel too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        options.device, options.device_name = resolve_device(options.device)
        if options.scale == "auto":
            options.scale = "full" if options.device == "cuda" else "small"
        chapters = [project.chapter(name) for name in options.chapters] or project.chapters
        for chapter in chapters:
            chapter_parameters(chapter, {"SCALE": 0, "DEVICE": 0, **dict(options.parameters)})
    except (UsageError, ProjectError, NotebookError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if importlib.util.find_spec("matplotlib"):
        # The first import on a machine builds the font cache and says so on stderr, which a page would show.
        subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=False, capture_output=True)
    if options.budget is not None:
        chapters = shortest_first(chapters, project)
    start, rows = time.monotonic(), []
    for chapter in chapters:
        if options.budget is not None and time.monotonic() - start > options.budget:
            print(f"{chapter.stem}: left out, {options.budget} s were up", flush=True)
            rows.append({"chapter": chapter.stem, "device": options.device_name, "outcome": "left out"})
            continue
        rows.append(process_chapter(chapter, project, options))
    write_report(rows, project, options)
    return int(any(row["outcome"] not in ("passed", "reused", "left out") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
