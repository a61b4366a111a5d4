"""A participant's machine, as the try-out of a kit sets it up: an environment of its own, and notebooks run in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from chapter_process import end_tree
from nbformat import NotebookNode
from notebook_form import tags
from project import HERE

NOTEBOOK_TIMEOUT_S = 1800
CELL_TIMEOUT_S = 600
# Settings of whoever tries the kit, which its participants do not have.
_OWN = re.compile(r"PIP_|PYTHON|DS41_|JUPYTER_|VIRTUAL_ENV|TRITON_|MPL")
# How a check shows its outcome, in any language: ds41.exercises.Result.
MARK = re.compile(r"^([✓·]) .*?\b(\d\d\.\d+)\b")
_REGISTRY = """
import json
import sys
from ds41.exercises import of_chapter
print(json.dumps({chapter: [one.name for one in of_chapter(chapter)] for chapter in sys.argv[1:]}))
"""


class TryError(Exception):
    """A step of the try-out failed, and those after it make no sense."""


class Room:
    """An environment of Python in a folder, with a home of its own.

    Args:
        folder: an empty folder.
        language: code of what figures and checks speak.
    """

    def __init__(self, folder: Path, language: str) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        kept = {name: value for name, value in os.environ.items() if not _OWN.match(name)}
        self.environment = kept | {
            "HOME": str(folder / "home"),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            # Else pip would read what this machine's settings say of indexes.
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "JUPYTER_PREFER_ENV_PATH": "1",
            "PYTHONHASHSEED": "0",
        }
        if language != "en":
            self.environment["DS41_LANGUAGE"] = language
        (folder / "home").mkdir()

    def make(self, python: str, lend: bool) -> None:
        """Make the environment: bare, or with `lend` on the packages that `python` has.

        Raises:
            TryError: it cannot be made.
        """
        self.run([python, "-m", "venv", str(self.folder / "venv")], "making an environment")
        if lend:
            code = "import sysconfig; print(sysconfig.get_path('purelib'))"
            theirs = self.run([python, "-c", code], "asking for the packages")
            ours = self.run([str(self.python), "-c", code], "asking for the folder of packages")
            # A plain path: what is installed there for editing, such as ds41 itself, is not seen.
            Path(ours.strip(), "lent.pth").write_text(theirs, encoding="utf-8")

    def install(self, kit: Path, wheels: bool) -> None:
        """Install the kit's package, and before it its requirements if their wheels are there; nothing else is asked.

        Raises:
            TryError: pip failed.
        """
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-index"]
        if wheels:
            requirements = ["-r", str(kit / "requirements.txt")]
            self.run([*pip, "--find-links", str(kit / "wheels"), *requirements], "installing the wheels")
        wheel = next((kit / "wheel").glob("ds41-*.whl"))
        self.run([*pip, "--no-deps", str(wheel)], "installing the package")
        if wheels:
            self.run([str(self.python), "-m", "pip", "check"], "asking pip for what is missing")
        kernel = ["-m", "ipykernel", "install", "--sys-prefix", "--name", "python3"]
        self.run([str(self.python), *kernel], "registering the kernel")
        place = self.run([str(self.python), "-c", "import ds41; print(ds41.__file__)"], "importing the package").strip()
        if not Path(place).is_relative_to(self.folder):
            raise TryError(f"the package comes from {place}, not from the kit")

    def run(self, command: Sequence[str], what: str) -> str:
        """What a command prints.

        Raises:
            TryError: it failed; the message ends with its last lines.
        """
        done = subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            last = "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-12:])
            raise TryError(f"{what} failed with exit code {done.returncode}:\n  {last}")
        return done.stdout

    def exercises(self, chapters: Sequence[str]) -> dict[str, list[str]]:
        """The names of the exercises of chapters such as "04", as the installed package has them."""
        return json.loads(self.run([str(self.python), "-c", _REGISTRY, *chapters], "reading the registry"))

    def execute(self, notebook: NotebookNode, name: str) -> tuple[NotebookNode, float]:
        """A notebook run to its end in an empty folder, and the seconds that it took.

        Raises:
            TryError: a cell failed, or it took too long.
        """
        scratch = self.folder / "runs" / name
        (scratch / "work").mkdir(parents=True)
        source, target, job = scratch / "source.ipynb", scratch / "target.ipynb", scratch / "job.json"
        nbformat.write(notebook, source)
        facts: dict[str, Any] = {"parameters": {}, "cell_timeout": CELL_TIMEOUT_S, "cuda": False}
        facts |= {"source": str(source), "target": str(target), "folder": str(scratch / "work")}
        job.write_text(json.dumps(facts), encoding="utf-8")
        start = time.monotonic()
        process = subprocess.Popen(
            [str(self.python), str(HERE.root / "ci" / "execute_notebook.py"), str(job)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            printed, warned = process.communicate(timeout=NOTEBOOK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TryError(f"{name}: ran longer than {NOTEBOOK_TIMEOUT_S} s") from None
        finally:
            end_tree(process)
        seconds = time.monotonic() - start
        end = next((event for event in map(_event, reversed(printed.splitlines())) if event.get("event") == "end"), {})
        if end.get("outcome") != "passed":
            lines = end.get("traceback") or warned.splitlines()[-12:]
            where = f"{name}, cell {end.get('cell')}: {end.get('error', 'ended without an outcome')}"
            raise TryError("\n  ".join([where, *lines]))
        return nbformat.read(target, as_version=4), seconds


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def marks(notebook: NotebookNode) -> dict[str, list[str]]:
    """The exercises that cells of an executed notebook mark as solved, "✓", and as open, "·"."""
    found: dict[str, list[str]] = {"✓": [], "·": []}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if match := MARK.match(output.get("data", {}).get("text/plain", "")):
                found[match[1]].append(match[2])
    return found


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """A copy of an executed notebook to be run again."""
    notebook = nbformat.from_dict(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def differences(exercises: NotebookNode, solved: NotebookNode) -> list[str]:
    """Ids of cells in which the two notebooks of a chapter differ, solutions, set-up and parameters aside."""
    left = {cell.id: cell.source for cell in exercises.cells if cell.id not in ("colab", "parameters")}
    right = {
        cell.id: cell.source
        for cell in solved.cells
        if cell.id not in ("colab", "parameters") and "solution" not in tags(cell)
    }
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
