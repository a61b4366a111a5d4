"""A chapter as a text that a person edits: jupytext's percent format, ids and tags in cell headers."""

from __future__ import annotations

import re

import jupytext
import nbformat
from nbformat import NotebookNode
from notebook_form import NotebookError, unfold

FORMAT = "py:percent"
TEXT_METADATA = {"jupytext": {"cell_metadata_filter": "all", "notebook_metadata_filter": "-all"}}


def to_text(notebook: NotebookNode) -> str:
    """The notebook's cells as percent text, less the `colab` cell, which is derived."""
    cells = []
    for cell in notebook.cells:
        if cell["id"] == "colab":
            continue
        if any(line.startswith("# %%") for line in cell.source.splitlines()):
            raise NotebookError(f"cell {cell['id']!r} holds a line that starts with '# %%': text cannot carry it")
        # The id goes first so that every header opens alike.
        copy = nbformat.from_dict({**cell, "metadata": {"id": cell["id"], **unfold(cell.metadata)}})
        cells.append(copy)
    text = jupytext.writes(nbformat.from_dict({**notebook, "cells": cells, "metadata": TEXT_METADATA}), fmt=FORMAT)
    text = re.sub(r"^# %%.*$", lambda header: _unescaped(header[0]), text, flags=re.MULTILINE)
    _check_round_trip(cells, from_text(text).cells)
    return text


def _unescaped(header: str) -> str:
    """A cell header with its letters as people write them; jupytext writes them as ASCII JSON."""

    def letter(escape: re.Match) -> str:
        found = chr(int(escape[1], 16))
        return found if found.isprintable() and not found.isspace() else escape[0]

    return re.sub(r"(?<!\\)\\u([0-9a-f]{4})", letter, header)


def from_text(text: str) -> NotebookNode:
    """The notebook of a percent text; a cell whose header gives no id comes back with the id None."""
    try:
        notebook = jupytext.reads(text, fmt=FORMAT)
    except nbformat.ValidationError as error:
        raise NotebookError(f"a cell's header makes no valid notebook: {error.message}") from error
    for number, cell in enumerate(notebook.cells, start=1):
        cell.metadata.pop("lines_to_next_cell", None)
        cell["id"] = cell.metadata.pop("id", None)
        if "title" in cell.metadata:
            raise NotebookError(
                f"cell {number} has the words {cell.metadata['title']!r} in its header: "
                'write id="..." and tags=[...] there, and prose in a cell'
            )
        _check_header(number, cell)
        unknown = set(cell.metadata) - {"tags", "mystnb"}
        if unknown:
            name = cell["id"] or f"number {number}"
            raise NotebookError(f"cell {name} has unknown header entries {sorted(unknown)}: use id, tags, mystnb")
    return notebook


def _check_header(number: int, cell: NotebookNode) -> None:
    """Refuse values of the wrong kind here, where the cell can still be named."""
    mystnb = cell.metadata.get("mystnb", {})
    if not (cell["id"] is None or isinstance(cell["id"], str)):
        raise NotebookError(f'cell {number} has id={cell["id"]!r}: write id="..."')
    if not isinstance(mystnb, dict):
        raise NotebookError(f"cell {number} has mystnb={mystnb!r}: write mystnb={{...}}")


def _check_round_trip(before: list[NotebookNode], after: list[NotebookNode]) -> None:
    for old, new in zip(before, after, strict=False):
        if old.source.rstrip() != new.source.rstrip() or old.cell_type != new.cell_type:
            raise NotebookError(f"cell {old['id']!r} would change on its way through text")
    if len(before) != len(after):
        raise NotebookError(f"{len(before)} cells became {len(after)} on their way through text")
