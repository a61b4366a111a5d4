"""The kernel tests on the device, several files at a time, within a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "kernels"


@dataclass(frozen=True)
class Outcome:
    """One file of tests: its exit status, negative for a signal, None if it was stopped because the time was up; its
    last line; seconds; all it printed."""

    file: str
    status: int | None
    summary: str
    seconds: float
    output: str

    @property
    def good(self) -> bool:
        return self.status == 0


def run_tests(
    seconds: float, interpreted: bool = False, jobs: int | None = None, files: list[Path] | None = None
) -> list[Outcome]:
    """Run every file of tests/kernels, the largest first, until ``seconds`` have passed; what runs then is stopped.

    Compilation takes most of the time and uses one core a process, so files run side by side.
    """
    waiting = sorted(FOLDER.glob("test_*.py") if files is None else files, key=lambda path: -path.stat().st_size)
    jobs = jobs or max(1, min(8, (os.cpu_count() or 1) // 2))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpreted:
        environment["TRITON_INTERPRET"] = "1"
    end = time.monotonic() + seconds
    running: list[_Run] = []
    outcomes = []
    while waiting or running:
        late = time.monotonic() > end
        while waiting and len(running) < jobs and not late:
            path = waiting.pop(0)
            running.append(_start(path, environment))
        if late:
            outcomes += [Outcome(path.name, None, "not started: time was up", 0.0, "") for path in waiting]
            waiting = []
            for run in running:
                if run.process.poll() is None:
                    run.stopped = True
                    run.process.kill()
        for run in [run for run in running if run.process.poll() is not None]:
            running.remove(run)
            outcomes.append(run.outcome())
        time.sleep(0.05)
    return outcomes


@dataclass
class _Run:
    path: Path
    process: subprocess.Popen
    # A file and not a pipe: nobody reads while it runs, and a full pipe would stop it.
    printed: IO[str]
    start: float
    stopped: bool = False

    def outcome(self) -> Outcome:
        self.printed.seek(0)
        output = self.printed.read()
        self.printed.close()
        status, seconds = self.process.returncode, time.monotonic() - self.start
        if self.stopped:
            return Outcome(self.path.name, None, "stopped: time was up", seconds, output)
        if status < 0:
            return Outcome(self.path.name, status, f"ended by {signal.Signals(-status).name}", seconds, output)
        lines = output.strip().splitlines()
        return Outcome(self.path.name, status, lines[-1] if lines else "printed nothing", seconds, output)


def _start(path: Path, environment: dict[str, str]) -> _Run:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(path)]
    printed = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT)
    return _Run(path, process, printed, time.monotonic())
