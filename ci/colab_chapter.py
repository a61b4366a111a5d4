"""Runs one chapter as a reader on Colab does: first cell, parameters, everything else, and no restart."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import nbformat
import notebook_results as results
from colab_environment import Layer
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from notebook_rules import executed_faults, tags

# What the first cell may bring: the package itself, and a small simulator in plain Python that Colab lacks and that
# replaces nothing there.
ALLOWED = {"ds41", "simpy"}
# Code that runs on a GPU alone.
GPU_ONLY = re.compile(r"\bon_gpu\b|torch\.cuda\.Event")
LEFT_OUT = re.compile(
    r"\b(no GPU|no CUDA|skipped|left out|not here|not run|nothing is timed|cannot run here)\b", re.IGNORECASE
)
# Asks the running kernel what is installed and what it has loaded. `metadata` alone would not tell: a library that
# was replaced on the disk goes on in its old version until a restart.
PROBE = """\
def _probe():
    import json, platform, sys
    from importlib import metadata
    names = ("torch", "triton", "numpy", "ipywidgets", "matplotlib", "IPython", "ipykernel")
    found = {"installed": {}, "loaded": {}, "python": platform.python_version()}
    for name in names:
        found["installed"][name] = metadata.version(name)
        if name in sys.modules:
            found["loaded"][name] = sys.modules[name].__version__.partition("+")[0]
    torch = sys.modules.get("torch")
    found["gpu"] = torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None
    print(json.dumps(found))
_probe()
del _probe"""
BEFORE, AFTER, END = "probe-before", "probe-after", "probe-end"


class Client(NotebookClient):
    """A client that ends with its program: nbclient's own goes on to the next notebook after a signal."""

    signalled = False

    async def async_start_new_kernel(self, **kwargs):
        await super().async_start_new_kernel(**kwargs)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._end)

    def _end(self) -> None:
        self.signalled = True
        self._ending = asyncio.ensure_future(self.km.signal_kernel(signal.SIGKILL))


def with_probes(notebook: NotebookNode, values: dict[str, Any]) -> NotebookNode:
    """A copy with the parameters set to ``values`` and a probe before the first cell, after it, and at the end."""
    cells = []
    for cell in notebook.cells:
        cell = nbformat.from_dict(dict(cell))
        if "parameters" in tags(cell):
            cell.source = results.with_values(cell.source, values)
        first = cell.id == "colab"
        cells += [_probe(BEFORE), cell, _probe(AFTER)] if first else [cell]
    return nbformat.from_dict(dict(notebook) | {"cells": [*cells, _probe(END)]})


def _probe(name: str) -> NotebookNode:
    return nbformat.v4.new_code_cell(PROBE, id=name)


def run(notebook: NotebookNode, layer: Layer, sources: dict[str, str], folder: Path, cell_timeout: int) -> dict:
    """Execute a notebook that has probes, in place, and return its outcome.

    outcome: "passed" or "failed"; cell and error of the cell that failed; seconds of the first cell and in all.
    """
    took: dict[str, float] = {}
    start = time.monotonic()
    manager = AsyncKernelManager(
        kernel_name="colab", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(layer.folder / "kernels")])
    )
    running: dict[str, Any] = {"cell": None}

    def begins(cell, cell_index, **_):
        running.update(cell=cell.id, since=time.monotonic())

    def ended(cell, cell_index, **_):
        took[cell.id] = round(time.monotonic() - running["since"], 2)

    client = Client(
        notebook,
        km=manager,
        timeout=cell_timeout,
        startup_timeout=cell_timeout,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=begins,
        on_cell_executed=ended,
    )
    outcome: dict[str, Any] = {"outcome": "passed"}
    try:
        # The client leaves a kernel that it was handed alone, unless told.
        client.execute(env=layer.environment(sources), cleanup_kc=True)
    except CellExecutionError as error:
        outcome = {"outcome": "failed", "cell": running["cell"], "error": f"{error.ename}: {error.evalue}"}
    except CellTimeoutError:
        outcome = {"outcome": "failed", "cell": running["cell"], "error": f"ran longer than {cell_timeout} s"}
    except DeadKernelError:
        outcome = {"outcome": "failed", "cell": running["cell"], "error": "the kernel died"}
    except Exception:
        # Without its kernel the client stumbles in ways of its own.
        if not client.signalled:
            raise
    if client.signalled:
        raise KeyboardInterrupt
    return outcome | {
        "seconds": round(time.monotonic() - start, 1),
        "first_cell_s": took.get("colab", 0.0),
        "slowest": sorted(((took[name], name) for name in took if name != "colab"), reverse=True)[:3],
    }


def judge(notebook: NotebookNode, layer: Layer, outcome: dict) -> dict:
    """What an executed chapter says of itself, and what is wrong with it beside a cell that failed.

    probe: versions before the first cell and after it. added: what was installed. said: the lines on what was left
    out. faults: sentences; the outcome is "failed" if there are any.
    """
    probes = {cell.id: printed(cell) for cell in notebook.cells if cell.id in (BEFORE, AFTER, END)}
    seen = {name: json.loads(text) for name, text in probes.items() if text}
    chapter = nbformat.from_dict(
        dict(notebook) | {"cells": [cell for cell in notebook.cells if cell.id not in (BEFORE, AFTER, END)]}
    )
    faults = [*installed_faults(layer.added, layer.replaced), *version_faults(seen)]
    said = left_out(chapter)
    if outcome["outcome"] == "passed":
        faults += executed_faults(results.finish(chapter, {}))
        gpu = seen[END]["gpu"]
        if not gpu and wants_gpu(chapter) and not any(cell != "colab" for cell, _ in said):
            faults.append("has parts that run on a GPU alone, and prints no line on what it leaves out without one")
    installed = {"added": layer.added, "replaced": layer.replaced}
    row = outcome | installed | {"probe": seen, "said": said, "faults": faults}
    return row | {"outcome": "failed" if faults else outcome["outcome"]}


def installed_faults(added: dict[str, str], replaced: dict[str, str]) -> list[str]:
    """Sentences on what the first cell installed and should not have."""
    faults = [f"installed {name} {version} over the one there was" for name, version in sorted(replaced.items())]
    others = sorted(set(added) - set(replaced) - ALLOWED)
    return faults + [f"installed {name} {added[name]}, which is not on the list of what it may" for name in others]


def version_faults(seen: dict[str, dict]) -> list[str]:
    """Sentences on versions that changed while the kernel ran."""
    before = seen.get(BEFORE)
    if before is None:
        return ["the kernel did not say its versions before the first cell"]
    faults = []
    for when in (AFTER, END):
        for kind in ("installed", "loaded"):
            for name, version in seen.get(when, {}).get(kind, {}).items():
                if before["installed"][name] != version:
                    faults.append(f"{name} {version} is {kind} ({when}), and it was {before['installed'][name]}")
    return faults


def wants_gpu(notebook: NotebookNode) -> bool:
    """Whether some cell runs on a GPU alone."""
    return any(cell.cell_type == "code" and GPU_ONLY.search(cell.source) for cell in notebook.cells)


def left_out(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Cell and line of everything printed about what was left out."""
    return [
        (cell.id, line.strip())
        for cell in notebook.cells
        if cell.cell_type == "code"
        for line in printed(cell).splitlines()
        if LEFT_OUT.search(line)
    ]


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream")
