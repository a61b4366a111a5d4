"""Execute one notebook with papermill, in a process of its own that the runner can time out and kill.

Reads a job from the JSON file named on its command line and prints one JSON event a line: `start` for each
code cell and `end` with the outcome. `chapter_process.py` is the only caller.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.engines import NBClientEngine, papermill_engines

TRACEBACK_LINES = 15
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Runs last, in the chapter's own kernel, and is not part of the result.
MEMORY_CELL_ID = "peak-memory"
MEMORY_CELL = """\
import sys
print(sys.modules["torch"].cuda.max_memory_allocated() if "torch" in sys.modules else 0)"""


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


class SpokenEngine(NBClientEngine):
    """papermill's own engine, which also says which cell it runs and keeps the last notebook it was given."""

    notebook: nbformat.NotebookNode
    running: str | None = None

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, **options):
        cls.notebook = nb_man.nb
        quiet_start = nb_man.cell_start

        def cell_start(cell, cell_index=None, **more):
            cls.running = cell.id
            if cell.cell_type == "code":
                say("start", cell=cell.id, number=cell_index + 1, cells=len(nb_man.nb.cells))
            quiet_start(cell, cell_index, **more)

        nb_man.cell_start = cell_start
        return super().execute_managed_notebook(nb_man, kernel_name, **options)


def peak_child_bytes() -> int:
    """The largest resident size that the kernel process, by now waited for, ever had."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def tail(lines: list[str]) -> list[str]:
    text = ANSI.sub("", "\n".join(lines)).splitlines()
    return text[-TRACEBACK_LINES:]


def execute(job: dict[str, Any]) -> dict[str, Any]:
    source = nbformat.read(job["source"], as_version=4)
    if job["cuda"]:
        source.cells.append(nbformat.v4.new_code_cell(MEMORY_CELL, id=MEMORY_CELL_ID))
    papermill_engines.register("spoken", SpokenEngine)
    try:
        result = papermill.execute_notebook(
            source,
            job["target"],
            parameters=job["parameters"],
            engine_name="spoken",
            kernel_name="python3",
            progress_bar=False,
            request_save_on_cell_execute=False,
            cwd=job["folder"],
            execution_timeout=job["cell_timeout"],
        )
    except papermill.PapermillExecutionError as error:
        return failure(f"{error.ename}: {error.evalue}", tail(error.traceback))
    except CellTimeoutError:
        return failure(f"ran longer than the {job['cell_timeout']} s allowed for a cell") | {"outcome": "timed out"}
    except DeadKernelError:
        return failure("the kernel died; a process that takes too much memory is killed in this way")
    return {"outcome": "passed"} | ({"cuda_peak_bytes": take_memory_cell(result, job)} if job["cuda"] else {})


def failure(error: str, traceback: list[str] | None = None) -> dict[str, Any]:
    return {"outcome": "failed", "cell": SpokenEngine.running, "error": error, "traceback": traceback or []}


def take_memory_cell(result: nbformat.NotebookNode, job: dict[str, Any]) -> int:
    cell = result.cells.pop()
    nbformat.write(result, job["target"])
    return int(cell.outputs[0].text)


def main() -> None:
    outcome = execute(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    say("end", **outcome, peak_rss_bytes=peak_child_bytes())


if __name__ == "__main__":
    main()
