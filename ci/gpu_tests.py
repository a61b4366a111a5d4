"""The kernel tests on the device, several files at a time, within a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "kernels"


@dataclass(frozen=True)
class Outcome:
    """One file of tests: pytest's exit status, None if the time was up; its last line; seconds; all it printed."""

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
    running: list[tuple[Path, subprocess.Popen, float]] = []
    outcomes = []
    while waiting or running:
        late = time.monotonic() > end
        while waiting and len(running) < jobs and not late:
            path = waiting.pop(0)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(path)]
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            running.append((path, process, time.monotonic()))
        if late:
            outcomes += [Outcome(path.name, None, "not started: time was up", 0.0, "") for path in waiting]
            waiting = []
            for _, process, _ in running:
                process.kill()
        for entry in [entry for entry in running if entry[1].poll() is not None]:
            running.remove(entry)
            path, process, start = entry
            output = process.stdout.read()
            status = None if process.returncode < 0 else process.returncode
            summary = output.strip().splitlines()[-1] if output.strip() else "stopped: time was up"
            outcomes.append(Outcome(path.name, status, summary, time.monotonic() - start, output))
        time.sleep(0.05)
    return outcomes
