"""A book of a few small chapters in a folder of its own, with a stand-in for the package, for tests of ci/."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import notebook_form
from project import HERE, Project

PARAMETERS = """\
SCALE = "full"  # how much to compute
DEVICE = "auto"  # where"""

# Chapters import this in place of the real package, so that a kernel starts without torch.
ENVIRONMENT = """\
from types import SimpleNamespace
def prepare(device="auto"):
    return SimpleNamespace(device="cpu", report=lambda: "a stand-in")
"""


def make(root: Path, chapters: dict[str, list[str]], parameters: str = PARAMETERS) -> Project:
    """A project whose chapters, by name, hold these code cells; the first chapter is the book's front page."""
    (root / "book").mkdir(parents=True)
    (root / "kernels").mkdir()
    package = root / "src" / "ds41"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('VALUE = "old"\n')
    (package / "environment.py").write_text(ENVIRONMENT)
    shutil.copy(HERE.root / "_config.yml", root)
    first, *others = chapters
    toc = f"format: jb-book\nroot: book/{first}\n" + ("chapters:\n" if others else "")
    (root / "_toc.yml").write_text(toc + "".join(f"  - file: book/{name}\n" for name in others))
    project = Project(root)
    for name, cells in chapters.items():
        write_chapter(project, name, cells, parameters)
    return project


def write_chapter(project: Project, name: str, cells: list[str], parameters: str = PARAMETERS) -> Path:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_markdown_cell(f"# {name}", id="title"),
        nbformat.v4.new_code_cell(parameters, id="parameters", metadata={"tags": ["parameters"]}),
        *(nbformat.v4.new_code_cell(source, id=f"step-{n}") for n, source in enumerate(cells, start=1)),
        nbformat.v4.new_markdown_cell("## Summary", id="summary"),
    ]
    path = project.book / f"{name}.ipynb"
    notebook_form.write(notebook_form.normalise(notebook, project), path)
    return path
