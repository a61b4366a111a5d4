#!/usr/bin/env python3
"""The notebooks of the workshop's kit: for participants without the solutions, for the instructor executed with them.

    python ci/workshop_notebooks.py                  build/workshop/notebooks/en/exercises/ and .../solved/
    python ci/workshop_notebooks.py --language de    the German ones, from build/de/executed/

A notebook of exercises has no outputs and no solution, and SCALE is "small", which every laptop can compute; all else
is as the book has it. A solved one is the executed chapter as it is.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import sys
from pathlib import Path

import nbformat
import notebook_form
import notebook_results as results
from nbformat import NotebookNode
from notebook_form import NotebookError, tags
from notebook_rules import NUMBERED
from project import HERE, Project, ProjectError
from workshop_plan import WorkshopError

from ds41.language import LANGUAGES

SCALE = {"SCALE": "small"}
# Comes first in a notebook of another language, whose figures and checks otherwise speak English.
LANGUAGE_LINES = """\
import os

os.environ["DS41_LANGUAGE"] = "{language}"
"""


def executed_folder(project: Project, language: str) -> Path:
    """Where the executed chapters of a language lie."""
    return project.executed if language == "en" else project.build / language / "executed"


def languages(project: Project) -> list[str]:
    """The languages whose chapters have been executed, English first; it is always one of them."""
    return ["en"] + [code for code in LANGUAGES if code != "en" and executed_folder(project, code).is_dir()]


def executed(chapter: Path, project: Project, language: str) -> NotebookNode:
    """An executed chapter.

    Raises:
        WorkshopError: it has not been executed, or in English not since it last changed.
    """
    path = executed_folder(project, language) / chapter.name
    how = "run `make notebooks`" if language == "en" else f"execute the chapters of language {language!r} first"
    if not path.exists():
        raise WorkshopError(f"{path} is missing: {how}")
    if language == "en":
        record = results.read_record(chapter, project)
        if changed := results.differences(record, results.source_fingerprint(chapter, project)):
            raise WorkshopError(f"{chapter.stem}: {', '.join(changed)}: {how}")
    return notebook_form.read(path)


def without_solutions(notebook: NotebookNode, stored: NotebookNode, language: str = "en") -> NotebookNode:
    """The participants' form of a chapter.

    Args:
        notebook: the chapter in the language wanted, with or without outputs.
        stored: the chapter as the book stores it, whose parameters are those of no run.
        language: what figures and checks speak.

    Raises:
        WorkshopError: an exercise of it is answered in a cell that is not tagged as a solution.
    """
    original = {cell.id: cell for cell in stored.cells}
    notebook = copy.deepcopy(notebook)
    notebook.cells = [cell for cell in notebook.cells if "solution" not in tags(cell)]
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count = [], None
        if "parameters" in tags(cell):
            cell.source = results.with_values(original[cell.id].source, SCALE)
        if cell.id.startswith("exercise-") and "answer = ..." not in cell.source:
            raise WorkshopError(f"cell {cell.id!r} has no line `answer = ...`: {cell.source!r}")
        if cell.id == "colab" and language != "en" and "DS41_LANGUAGE" not in cell.source:
            title, *rest = cell.source.split("\n")
            cell.source = "\n".join([title, LANGUAGE_LINES.format(language=language), *rest])
    return notebook


def write(project: Project, language: str, target: Path) -> int:
    """Write both kinds below `target`, in place of what is there; returns the number of chapters.

    Raises:
        WorkshopError: a chapter has not been executed, or has an answer where none may be.
    """
    shutil.rmtree(target, ignore_errors=True)
    for kind in ("exercises", "solved"):
        (target / kind).mkdir(parents=True)
    chapters = [chapter for chapter in project.chapters if NUMBERED.match(chapter.stem)]
    for chapter in chapters:
        solved, stored = executed(chapter, project, language), notebook_form.read(chapter)
        nbformat.write(solved, target / "solved" / chapter.name)
        # The stored form stands for English: it has what the book says, and none of a run's values.
        source = stored if language == "en" else solved
        nbformat.write(without_solutions(source, stored, language), target / "exercises" / chapter.name)
    return len(chapters)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=tuple(LANGUAGES), default="en")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    project = Project(options.root)
    target = project.build / "workshop" / "notebooks" / options.language
    try:
        count = write(project, options.language, target)
    except (ProjectError, NotebookError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{count} notebooks of exercises, {count} solved: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
