"""The one form in which a chapter's notebook is stored: metadata, derived cells, and how it is written.

`normalise` brings any notebook into that form; `ci/notebooks.py check` reports what differs from it.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.validator import iter_validate
from project import Project

CELL_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
NOTEBOOK_METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": KERNELSPEC,
    "language_info": {"name": "python"},
}
# On a machine that already has ds41 the cell only reports. On Colab it installs the package, which pins
# nothing, so the running torch, triton and numpy stay; replacing a loaded library breaks the session. %pip
# raises nothing when it fails. `make colab-check` runs this cell on Colab's versions.
COLAB_CELL = """\
# @title Make ready: installs ds41 on Colab; torch, triton and numpy stay as they are
import sys
from importlib import metadata, util

if util.find_spec("ds41") is None:
    repository = "{url}"
    if "google.colab" not in sys.modules:
        raise ModuleNotFoundError(f"no ds41 here: `make book` in {repository}")
    loaded = [name for name in ("torch", "triton", "numpy") if util.find_spec(name)]
    before = {name: metadata.version(name) for name in loaded}
    %pip install -q "ds41 @ git+{repository}@{branch}"
    if util.find_spec("ds41") is None:
        raise RuntimeError(f"pip could not get {repository}: see above; no network?")
    after = {name: metadata.version(name) for name in loaded}
    assert after == before, f"{before} became {after}: restart the runtime"

from ds41 import environment

env = environment.prepare()
print(env.report())
if env.device == "cpu":
    print("no GPU: times are this CPU's, kernels interpreted, some parts left out")
    if "google.colab" in sys.modules:
        print("Colab lends one: Runtime > Change runtime type > T4 GPU")"""
# What the set-up cell of a chapter in another language does beside.
LANGUAGE_LINES = """

from ds41 import language

language.use("{code}")"""
COLAB_METADATA = {
    "cellView": "form",
    "mystnb": {"code_prompt_show": "Show the set-up", "code_prompt_hide": "Hide the set-up"},
    "tags": ["hide-input"],
}
SOLUTION_PROMPTS = {"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}
HINT_PROMPTS = {"code_prompt_show": "Show a hint", "code_prompt_hide": "Hide the hint"}
FOLDS = {"solution": SOLUTION_PROMPTS, "hint": HINT_PROMPTS}


class NotebookError(Exception):
    """A notebook or its text form cannot be used; the message names the cell."""


def read(path: Path) -> NotebookNode:
    """The notebook as it is: nbformat's own reader would give new ids to cells that share one."""
    try:
        notebook = nbformat.reader.reads(path.read_text(encoding="utf-8"))
        fault = next(iter_validate(notebook), None)
    except (OSError, ValueError, KeyError, nbformat.reader.NotJSONError) as error:
        raise NotebookError(f"{path} is not a readable notebook: {error!r}") from error
    if fault:
        raise NotebookError(f"{path} is not a valid notebook: {fault.message}")
    return notebook


def dumps(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook) + "\n"


def write(notebook: NotebookNode, path: Path) -> bool:
    """Write the notebook if its text changed, and say whether it did."""
    text = dumps(notebook)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True


def colab_source(project: Project) -> str:
    # str.format would trip over the cell's own braces should it ever hold any.
    source = COLAB_CELL.replace("{url}", project.repository_url).replace("{branch}", project.repository_branch)
    if project.language == "en":
        return source
    # Catalogues are read by Babel.
    return source.replace('"ds41 @', '"ds41[german] @') + LANGUAGE_LINES.replace("{code}", project.language)


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def normalise(notebook: NotebookNode, project: Project) -> NotebookNode:
    """A copy in the stored form: no outputs, fixed metadata, ids given, derived cells written."""
    cells = [_normalise_cell(cell) for cell in notebook.cells if cell.get("id") != "colab"]
    give_ids(cells)
    first_code = next((i for i, cell in enumerate(cells) if cell.cell_type == "code"), len(cells))
    colab = nbformat.v4.new_code_cell(colab_source(project), id="colab", metadata=COLAB_METADATA)
    cells.insert(first_code, colab)
    return nbformat.from_dict({"cells": cells, "metadata": NOTEBOOK_METADATA, "nbformat": 4, "nbformat_minor": 5})


def _normalise_cell(cell: NotebookNode) -> NotebookNode:
    kept = {"id": cell.get("id"), "cell_type": cell.cell_type, "source": cell.source.rstrip()}
    metadata = {key: cell.metadata[key] for key in ("tags", "mystnb") if cell.metadata.get(key)}
    if cell.cell_type == "code":
        kept |= {"outputs": [], "execution_count": None}
        kind = next((kind for kind in FOLDS if kind in metadata.get("tags", [])), None)
        if kind:
            metadata = fold(metadata, kind)
    return nbformat.from_dict(kept | {"metadata": metadata})


def fold(metadata: dict, kind: str) -> dict:
    """Metadata that folds a hint or a solution in the built book; a solution in JupyterLab and Colab too."""
    cell_tags = metadata["tags"] if "hide-cell" in metadata["tags"] else [*metadata["tags"], "hide-cell"]
    mystnb = metadata.get("mystnb", {}) | FOLDS[kind]
    # One line that says hint gives nothing away.
    derived = {"jupyter": {"source_hidden": True}, "cellView": "form"} if kind == "solution" else {}
    return metadata | {"tags": cell_tags, "mystnb": mystnb} | derived


def unfold(metadata: dict) -> dict:
    """The metadata a person writes: what `fold` adds is left out."""
    kept = {key: value for key, value in metadata.items() if key not in ("jupyter", "cellView")}
    if any(kind in kept.get("tags", []) for kind in FOLDS):
        kept["tags"] = [tag for tag in kept["tags"] if tag != "hide-cell"]
        mystnb = {key: value for key, value in kept["mystnb"].items() if key not in SOLUTION_PROMPTS}
        kept.pop("mystnb")
        kept |= {"mystnb": mystnb} if mystnb else {}
    return kept


def give_ids(cells: list[NotebookNode]) -> list[str]:
    """Give every cell without an id one that a person can read, and return the ids given.

    A cell that opens with a heading is named after it, any other after the cell before it.
    """
    ids = [cell["id"] for cell in cells if cell.get("id")]
    twice = sorted({cell_id for cell_id in ids if ids.count(cell_id) > 1})
    if twice:
        raise NotebookError(f"more than one cell has the id {', '.join(twice)}")
    taken = set(ids)
    given, previous = [], "cell"
    for cell in cells:
        if not cell.get("id"):
            heading = re.match(r"#{1,6} +(.+)", cell.source) if cell.cell_type == "markdown" else None
            base = slug(heading[1]) if heading else f"{re.sub(r'-(text|code)(-[0-9]+)?$', '', previous)}-"
            if not heading:
                base += "text" if cell.cell_type == "markdown" else "code"
            cell["id"] = _free(base, taken)
            taken.add(cell["id"])
            given.append(cell["id"])
        previous = cell["id"]
    return given


def slug(heading: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
    return words[:48].strip("-") or "cell"


def _free(base: str, taken: set[str]) -> str:
    names = [base, *(f"{base}-{n}" for n in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)
