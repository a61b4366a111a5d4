"""What readers on Colab also do: the first cell twice, a runtime that reaches nothing, ds41 there already."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import colab_chapter
import nbformat
from colab_environment import ColabError, Layer

if TYPE_CHECKING:
    from colab_check import Run

# The shortest chapter of the book; the trials are about its first cell.
CHAPTER = "intro"


def twice(run: Run) -> dict:
    """The first cell is run again: it reports, and installs nothing more."""
    layer = run.layer("first-cell-twice")
    notebook = run.chapter(CHAPTER)
    at = _first_cell(notebook)
    again = nbformat.from_dict(dict(notebook.cells[at]) | {"id": "colab-again"})
    notebook.cells.insert(at + 1, again)
    row = run.execute("first-cell-twice", notebook, layer, run.sources)
    said = [colab_chapter.printed(cell) for cell in notebook.cells if cell.id in ("colab", "colab-again")]
    if row["outcome"] == "passed" and not said[0].endswith(said[1]):
        row |= {"outcome": "failed", "faults": [f"the second run of the first cell printed {said[1]!r}"]}
    run.close(layer)
    return row


def no_network(run: Run) -> dict:
    """Nothing can be fetched: the first cell must fail and say that pip reached nothing."""
    layer = run.layer("no-network")
    notebook = run.chapter(CHAPTER)
    notebook.cells = notebook.cells[: _first_cell(notebook) + 1]
    nowhere = {run.project.repository_url: (layer.folder / "nowhere.git").as_uri()}
    row = run.execute("no-network", notebook, layer, nowhere)
    clear = row["outcome"] == "failed" and row.get("cell") == "colab" and "network" in row.get("error", "")
    # The failure is what was wanted, so it is no fault of the row; its words stay in the report.
    faults = [] if clear else [f"the first cell did not say that pip reached nothing: {row.get('error')}"]
    faults += colab_chapter.installed_faults(row["added"], row["replaced"])
    run.close(layer)
    told = [("colab", row["error"])] if clear else row["said"]
    return row | {"outcome": "failed" if faults else "passed", "error": None, "faults": faults, "said": told}


def there_already(run: Run) -> dict:
    """ds41 is installed when the notebook opens: the first cell only reports, and reaches for nothing."""
    layer = run.layer("ds41-there-already")
    _install(run, layer)
    nowhere = {run.project.repository_url: (layer.folder / "nowhere.git").as_uri()}
    row = run.execute("ds41-there-already", run.chapter(CHAPTER), layer, nowhere)
    run.close(layer)
    return row


def _first_cell(notebook: nbformat.NotebookNode) -> int:
    """Where the cell that installs ds41 stands; a probe is before it."""
    return next(i for i, cell in enumerate(notebook.cells) if cell.id == "colab")


def _install(run: Run, layer: Layer) -> None:
    address = run.sources[run.project.repository_url]
    command = [layer.folder / "bin" / "python", "-m", "pip", "install", "--quiet", f"ds41 @ git+{address}"]
    environment = layer.environment({})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ColabError(f"pip could not install the working tree:\n{done.stderr.strip()}")


TRIALS = {"first-cell-twice": twice, "no-network": no_network, "ds41-there-already": there_already}
