#!/usr/bin/env python3
"""The notebooks of the workshop's kit: for participants without the solutions, for the instructor executed with them.

    python ci/workshop_notebooks.py                  build/workshop/notebooks/en/exercises/ and .../solved/
    python ci/workshop_notebooks.py --language de    the German ones, from the translated copy in build/de/

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
from translation import edition
from workshop_plan import WorkshopError

from ds41.language import LANGUAGES

SCALE = {"SCALE": "small"}


def languages(project: Project) -> list[str]:
    """The languages whose chapters have been executed or translated, English first; it is always one of them."""
    return ["en"] + [code for code in LANGUAGES if code != "en" and edition(project, code).executed.is_dir()]


def executed(chapter: Path, project: Project, language: str) -> NotebookNode:
    """An executed chapter in a language.

    Raises:
        WorkshopError: there is none, or the chapter or the library has changed since.
    """
    of_language = edition(project, language)
    how = "make notebooks" if language == "en" else f"python ci/build_book.py --language {language}"
    record = results.read_record(of_language.book / chapter.name, of_language)
    if changed := results.differences(record, results.source_fingerprint(chapter, project)):
        raise WorkshopError(f"{chapter.stem}, language {language!r}: {', '.join(changed)}: run `{how}`")
    return notebook_form.read(results.result_path(of_language.book / chapter.name, of_language))


def without_solutions(stored: NotebookNode) -> NotebookNode:
    """The participants' form of a chapter as it is stored.

    Raises:
        WorkshopError: an exercise of it has an answer already.
    """
    notebook = copy.deepcopy(stored)
    notebook.cells = [cell for cell in notebook.cells if "solution" not in tags(cell)]
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if "parameters" in tags(cell):
            cell.source = results.with_values(cell.source, SCALE)
        if cell.id.startswith("exercise-") and "answer = ..." not in cell.source:
            raise WorkshopError(f"cell {cell.id!r} has no line `answer = ...`: {cell.source!r}")
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
        nbformat.write(executed(chapter, project, language), target / "solved" / chapter.name)
        stored = notebook_form.read(edition(project, language).book / chapter.name)
        nbformat.write(without_solutions(stored), target / "exercises" / chapter.name)
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
