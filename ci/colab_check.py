#!/usr/bin/env python3
"""Open every chapter as a reader on Colab does, on Colab's versions, and run it to its end.

    python ci/colab_check.py                    every chapter of _toc.yml, then the trials
    python ci/colab_check.py 04-fp4 --keep      one chapter; what it installed stays in build/colab/layers/
    python ci/colab_check.py --trials           only the trials: first cell twice, no network, ds41 there already

The versions of ci/colab.txt are installed once into build/colab/base: several gigabytes, a few minutes. A chapter gets
an empty layer above it and a kernel of its own that takes itself for Colab's. Its first cell runs as it stands, and pip
installs ds41 from the repository's address, which git finds in a copy of the working tree. A chapter fails if anything
of the base was replaced, if something came that is not on the list, if a version changed in the running kernel, if a
cell fails, or if its output is unfit to print. Outcomes, versions and seconds go to build/reports/colab.json, executed
notebooks to build/colab/executed/.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import colab_chapter
import colab_environment
import nbformat
import notebook_form
from colab_environment import Base, ColabError, Layer
from colab_trials import TRIALS
from project import HERE, Project, ProjectError

CELL_TIMEOUT_S = 900


class Run:
    """One run of this program: where the base, the layers and the mirror of the working tree lie."""

    def __init__(self, project: Project, options: argparse.Namespace) -> None:
        self.project, self.options = project, options
        self.folder = project.build / "colab"
        self.executed = self.folder / "executed"
        self.executed.mkdir(parents=True, exist_ok=True)
        address = colab_environment.mirror(project, self.folder / "mirror.git")
        self.sources = {project.repository_url: address}
        self.base: Base = colab_environment.base(self.folder / "base", shlex.split(options.pip_flags))

    def layer(self, name: str) -> Layer:
        return Layer.new(self.folder / "layers" / name, self.base)

    def chapter(self, name: str) -> nbformat.NotebookNode:
        notebook = notebook_form.read(self.project.chapter(name))
        return colab_chapter.with_probes(notebook, {"SCALE": self.options.scale, "DEVICE": "auto"})

    def execute(self, name: str, notebook: nbformat.NotebookNode, layer: Layer, sources: dict[str, str]) -> dict:
        """The row of the report for a notebook that was executed in a layer; ``name`` is the executed file's."""
        with tempfile.TemporaryDirectory(prefix="content-") as content:
            seconds = self.options.cell_timeout
            outcome = colab_chapter.run(notebook, layer, sources, Path(content), seconds)
        nbformat.write(notebook, self.executed / f"{name}.ipynb")
        return {"chapter": name} | colab_chapter.judge(notebook, layer, outcome)

    def close(self, layer: Layer) -> None:
        if not self.options.keep:
            shutil.rmtree(layer.folder)


def run_chapter(run: Run, name: str) -> dict:
    layer = run.layer(name)
    row = run.execute(name, run.chapter(name), layer, run.sources)
    run.close(layer)
    return row


def say(row: dict) -> None:
    """What a reader of the log wants to know of one row at once."""
    for cell, line in row["said"]:
        print(f"    {cell}: {line}")
    if row.get("error"):
        print(f"    FAILED in cell {row['cell']}: {row['error']}")
    for fault in row["faults"]:
        print(f"    FAULT {fault}")
    slowest = ", ".join(f"{cell} {seconds:.0f} s" for seconds, cell in row.get("slowest", []) if seconds >= 5)
    print(f"{row['chapter']}: {row['outcome']} in {row['seconds']} s{f' ({slowest})' if slowest else ''}", flush=True)


def table(rows: list[dict]) -> str:
    lines = [f"{'':<24}{'outcome':<10}{'seconds':>8}{'first cell':>12}  installed above Colab's own"]
    for row in rows:
        added = ", ".join(f"{name} {version}" for name, version in sorted(row["added"].items())) or "nothing"
        lines.append(
            f"{row['chapter']:<24}{row['outcome']:<10}{row['seconds']:>8.1f}{row['first_cell_s']:>12.1f}  {added}"
        )
    return "\n".join(lines)


def write_report(rows: list[dict], run: Run, command: list[str], seconds: float) -> Path:
    probes = [row["probe"].get(colab_chapter.BEFORE) for row in rows]
    before = next(filter(None, probes), {"python": None, "installed": {}, "gpu": None})
    report = {
        "command": shlex.join(["python", "ci/colab_check.py", *command]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": next((gpu for row in rows if (gpu := row["probe"].get(colab_chapter.END, {}).get("gpu"))), "CPU"),
        "versions": {"python": before["python"], **before["installed"]},
        "scale": run.options.scale,
        "base": {"built": run.base.fresh, "packages": run.base.packages},
        "seconds": round(seconds, 1),
        "rows": rows,
    }
    run.project.reports.mkdir(parents=True, exist_ok=True)
    path = run.project.reports / "colab.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return path


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="such as 04-fp4; all and the trials if none")
    parser.add_argument("--trials", action="store_true", help="the trials, and no chapter beside those named")
    parser.add_argument(
        "--scale", choices=("small", "full"), default="small", help="SCALE of the chapters (%(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="leave the layers in build/colab/layers/")
    parser.add_argument(
        "--cell-timeout", type=int, default=CELL_TIMEOUT_S, help="seconds a cell may take (%(default)s)"
    )
    parser.add_argument("--pip-flags", default="", help="for pip when it builds the base, such as an index")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    project = Project(options.root)
    # An ordinary end of this program must end the kernel too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    start = time.monotonic()
    everything = not options.chapters and not options.trials
    try:
        names = [project.chapter(name).stem for name in options.chapters]
        if everything:
            names = [chapter.stem for chapter in project.chapters]
        run = Run(project, options)
        built = time.monotonic() - start
        print(f"base {'built' if run.base.fresh else 'reused'} in {built:.0f} s: {run.base.folder}", flush=True)
        rows = []
        jobs = [(name, partial(run_chapter, run, name)) for name in names]
        if everything or options.trials:
            jobs += [(name, partial(trial, run)) for name, trial in TRIALS.items()]
        for name, job in jobs:
            print(f"{name}: runs", flush=True)
            rows.append(job())
            say(rows[-1])
            # Whatever ends the program later, what was found so far is there.
            path = write_report(rows, run, sys.argv[1:] if argv is None else argv, time.monotonic() - start)
    except (ColabError, ProjectError, notebook_form.NotebookError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ended by a signal", file=sys.stderr)
        return 130
    print(f"\n{table(rows)}\n{time.monotonic() - start:.0f} s in all; {path}")
    return int(any(row["outcome"] != "passed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
