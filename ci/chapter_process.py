"""The process that executes one chapter, seen from outside: its environment, its time, its memory, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

SLOW_CELL_S = 2.0


def kernel_environment(device: str) -> dict[str, str]:
    environment = dict(os.environ)
    # A kernel called python3 in a person's home folder must not be taken for this environment's.
    environment |= {"JUPYTER_PREFER_ENV_PATH": "1", "PYTHONHASHSEED": "0", "TQDM_DISABLE": "1"}
    if device == "cpu":
        environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    else:
        environment.pop("TRITON_INTERPRET", None)
    return environment


def end_tree(process: subprocess.Popen) -> None:
    """Kill the process and all that it started; a kernel has a session of its own and would live on."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.kill()
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=10)
    process.wait()


class Listener(threading.Thread):
    """Turns the events of the executing process into plain lines and remembers where it is."""

    def __init__(self, stream, label: str) -> None:
        super().__init__(daemon=True)
        self.stream, self.label = stream, label
        self.cell: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self._since = time.monotonic()
        self.start()

    def run(self) -> None:
        for line in self.stream:
            try:
                event = json.loads(line)
                kind = event.pop("event")
            except (ValueError, TypeError, AttributeError, KeyError):
                print(f"{self.label}: {line.rstrip()}", flush=True)
                continue
            self._report_slow_cell()
            self.cell, self._since = event if kind == "start" else None, time.monotonic()
            if kind == "end":
                self.end = event

    def _report_slow_cell(self) -> None:
        seconds = time.monotonic() - self._since
        if self.cell and seconds >= SLOW_CELL_S:
            where = f"cell {self.cell['number']}/{self.cell['cells']} {self.cell['cell']}"
            print(f"{self.label}: {where} took {seconds:.1f} s", flush=True)


def run_chapter(chapter: Path, target: Path, folder: Path, parameters: dict, options) -> dict[str, Any]:
    """Execute a chapter into `target` and return the outcome, whatever happens in it."""
    job = {
        "source": str(chapter),
        "target": str(target),
        "folder": str(folder),
        "parameters": parameters,
        "cell_timeout": options.cell_timeout,
        "cuda": options.device == "cuda",
    }
    job_file, error_file = target.with_name("job.json"), target.with_name("stderr")
    job_file.write_text(json.dumps(job), encoding="utf-8")
    timed_out = False
    # The kernel warns there on its own account; it matters only if execution ends without an outcome.
    with error_file.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("execute_notebook.py")), str(job_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=kernel_environment(options.device),
            text=True,
        )
        listener = Listener(process.stdout, chapter.stem)
        try:
            process.wait(timeout=options.timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end_tree(process)
    listener.join(timeout=10)
    if listener.end:
        return listener.end
    cell = (listener.cell or {}).get("cell")
    if timed_out:
        error = f"ran longer than the {options.timeout:g} s allowed for a notebook"
        return {"outcome": "timed out", "cell": cell, "error": error}
    error = f"execution ended with exit code {process.returncode}"
    last_words = error_file.read_text(errors="replace").splitlines()[-15:]
    return {"outcome": "failed", "cell": cell, "error": error, "traceback": last_words}
