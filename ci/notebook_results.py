"""The result of an executed chapter: made fit to print, published whole, reused while nothing changed."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from notebook_rules import WIDGET_TYPE
from project import Project

# Written by ds41.environment.Environment.report, which every chapter prints; the device stands in its second part.
ENVIRONMENT = re.compile(r"^Python \S+, torch .*$", re.MULTILINE)
DEVICE = re.compile(r"; (.*?) \((?:cpu|cuda)\b")
RUNNER_FILES = (
    "run_notebooks",
    "chapter_process",
    "execute_notebook",
    "notebook_results",
    "notebook_rules",
    "notebook_form",
)


def fingerprint(chapter: Path, project: Project, parameters: dict[str, Any], device: str) -> dict[str, str]:
    """A hash of each thing that a chapter's result depends on. Equal fingerprints mean an equal result."""
    here = Path(__file__).parent
    return source_fingerprint(chapter, project) | {
        "parameters": digest_text(json.dumps(parameters, sort_keys=True)),
        "device": device,
        "environment": digest_text("\n".join([platform.python_version(), platform.machine(), *installed()])),
        "runner": digest_files((here / f"{name}.py" for name in RUNNER_FILES), here),
    }


def source_fingerprint(chapter: Path, project: Project) -> dict[str, str]:
    """The part of the fingerprint that the checkout alone decides, whatever machine executed the chapter."""
    library = (
        path
        for folder in (project.root / "src" / "ds41", project.root / "kernels")
        for path in folder.rglob("*")
        # Catalogues change no English page, and other languages are not executed.
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".po"
    )
    return {
        "notebook": digest_files([chapter], project.root),
        "library": digest_files(library, project.root),
    }


@cache
def installed() -> tuple[str, ...]:
    """Every installed distribution as `name==version`."""
    found = {(dist.metadata["Name"].lower(), dist.version) for dist in importlib.metadata.distributions()}
    return tuple(sorted(f"{name}=={version}" for name, version in found))


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest_files(paths: Iterable[Path], base: Path) -> str:
    """One hash of the files' names below `base` and their contents."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(base).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def record_path(chapter: Path, project: Project) -> Path:
    return project.executed / f"{chapter.stem}.json"


def result_path(chapter: Path, project: Project) -> Path:
    return project.executed / chapter.name


def read_record(chapter: Path, project: Project) -> dict[str, Any] | None:
    """What is known of the published result, or None if there is no whole one."""
    try:
        record = json.loads(record_path(chapter, project).read_text(encoding="utf-8"))
        whole = record["output"] == digest_files([result_path(chapter, project)], project.executed)
    except (OSError, ValueError, KeyError):
        return None
    return record if whole else None


def differences(record: dict[str, Any] | None, wanted: dict[str, str]) -> list[str]:
    """Why a published result cannot stand for a run with this fingerprint; empty if it can."""
    if record is None:
        return ["no result yet"]
    return [f"{part} changed" for part, value in wanted.items() if record["fingerprint"].get(part) != value]


def publish(notebook: NotebookNode, chapter: Path, project: Project, record: dict[str, Any]) -> None:
    """Put a whole result in place at once; the record goes last, so a torn pair is never taken for whole."""
    project.executed.mkdir(parents=True, exist_ok=True)
    target = result_path(chapter, project)
    withdraw(chapter, project)
    partial = target.with_suffix(".partial")
    partial.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    os.replace(partial, target)
    text = json.dumps(record | {"output": digest_files([target], project.executed)}, indent=1)
    record_path(chapter, project).write_text(text + "\n", encoding="utf-8")


def withdraw(chapter: Path, project: Project) -> None:
    """Remove a published result: what a failed run leaves must not look like its outcome."""
    record_path(chapter, project).unlink(missing_ok=True)
    result_path(chapter, project).unlink(missing_ok=True)


def finish(notebook: NotebookNode, parameters: dict[str, Any]) -> NotebookNode:
    """The executed notebook as the book prints it: equal runs give equal bytes, nothing of the run shows.

    The cell that papermill injects is dropped and its values are written into the chapter's own parameters
    cell, so a page says which values its numbers come from.
    """
    notebook.cells = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    for key in ("papermill", "widgets"):
        notebook.metadata.pop(key, None)
    count = 0
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = [_finish_output(output, count) for output in _static(_joined(cell.outputs))]
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = with_values(cell.source, parameters)
    return notebook


def _finish_output(output: NotebookNode, count: int) -> NotebookNode:
    if output.output_type == "execute_result":
        output.execution_count = count
    return output


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of one stream as one: where a slow machine cuts them must not show."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if output.output_type == "stream" and last and last.output_type == "stream" and last.name == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _static(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs without widgets, which need a kernel, if something else is left for the page to show."""
    kept = [output for output in outputs if WIDGET_TYPE not in output.get("data", {})]
    return kept or outputs


def environment(chapter: Path, project: Project) -> str | None:
    """The line in which an executed chapter names its Python, torch, triton and device, if it does."""
    notebook = nbformat.read(result_path(chapter, project), as_version=4)
    outputs = (output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    found = (ENVIRONMENT.search(output.text) for output in outputs if output.output_type == "stream")
    return next((match[0] for match in found if match), None)


def devices(chapter: Path, project: Project) -> list[str]:
    """The name of the device that an executed chapter says it ran on, if it does."""
    named = DEVICE.search(environment(chapter, project) or "")
    return [named[1]] if named else []


def with_values(source: str, values: dict[str, Any]) -> str:
    """The source of a parameters cell with the values that a run was given in place of the defaults."""
    lines = source.splitlines()
    for statement in reversed(ast.parse(source).body):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        value = statement.value
        if target.id in values and value.lineno == value.end_lineno:
            text = values[target.id]
            text = json.dumps(text, ensure_ascii=False) if isinstance(text, str) else repr(text)
            line = lines[value.lineno - 1].encode()
            # ast counts columns in UTF-8 bytes.
            line = line[: value.col_offset] + text.encode() + line[value.end_col_offset :]
            lines[value.lineno - 1] = line.decode()
    return "\n".join(lines)
