#!/usr/bin/env python3
"""Everything that only a GPU can show, as one program of under six minutes: are the kernels right on it, how fast.

    python ci/gpu_check.py                 tests, formats, kernels, launches, a layer as a graph, and the chapters
    python ci/gpu_check.py --rehearse      the same program on a CPU, under Triton's interpreter, in small shapes
    python ci/gpu_check.py --skip-tests --seconds 200 --chapters 0

It needs torch, triton and numpy; pytest for the kernel tests; papermill for the chapters. What is missing is left out
and said. Wrong results and failed tests fail the check; times never do. The numbers go to gpu.json and the table to
gpu.txt in the folder named by $OUT, else in build/reports; ci/record_results.py keeps them in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "ci"), str(ROOT / "benchmarks")]

from checkout import use_checkout  # noqa: E402

# Seconds for the kernel tests, of which most is compilation; the rest of the check takes about two minutes.
TEST_SECONDS = 200


def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    use_checkout()
    import torch

    if not options.rehearse and not torch.cuda.is_available():
        print("error: this check needs a CUDA device that torch can use; there is none", file=sys.stderr)
        return 2
    os.environ["DS41_BACKEND"] = "triton"
    if options.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        # Under the interpreter the kernels would be checked on the CPU and prove nothing about the GPU.
        os.environ.pop("TRITON_INTERPRET", None)
    check = Check(options, time.monotonic() + options.seconds)
    check.part("tests", check.tests)
    for name, part in check.measurements().items():
        check.part(name, part)
    check.part("chapters", check.chapters)
    return check.finish()


class Check:
    """The parts of the check, what they found, and what is wrong. A part that fails does not stop the others."""

    def __init__(self, options: argparse.Namespace, end: float) -> None:
        self.options, self.end = options, end
        self.report: dict = {**where(options), "seconds": {}, "left_out": []}
        self.problems: list[str] = []
        self.lines: list[str] = []
        facts = {name: value for name, value in self.report.items() if isinstance(value, str)}
        for name, value in (facts | self.report["versions"]).items():
            self.say(f"{name}: {value}")

    def say(self, line: str) -> None:
        """Print a line of the table now, and keep it."""
        self.lines.append(line)
        print(line, flush=True)

    def part(self, name: str, run) -> None:
        start = time.monotonic()
        try:
            found = run()
        except Exception as error:
            found = None
            self.problems.append(f"{name}: {type(error).__name__}: {error}")
        self.report[name] = found
        self.report["seconds"][name] = round(time.monotonic() - start, 1)
        # Whatever ends the program later, what was found so far is there.
        self.write()

    def left(self) -> float:
        return self.end - time.monotonic()

    def leave_out(self, what: str, why: str) -> None:
        self.report["left_out"].append(f"{what}: {why}")
        self.say(f"left out: {what}: {why}")

    def tests(self) -> list[dict] | None:
        from gpu_tests import run_tests

        if self.options.skip_tests:
            return self.leave_out("kernel tests", "as asked")
        if importlib.util.find_spec("pytest") is None:
            return self.leave_out("kernel tests", "pytest is not installed")
        outcomes = run_tests(min(TEST_SECONDS, self.left()), interpreted=self.options.rehearse)
        for outcome in outcomes:
            self.say(f"{outcome.file:<32} {outcome.seconds:6.1f} s  {outcome.summary}")
            if outcome.status is None:
                self.leave_out(outcome.file, "time was up")
            elif not outcome.good:
                self.problems.append(f"{outcome.file}: {outcome.summary}")
        return [asdict(outcome) for outcome in outcomes]

    def measurements(self) -> dict:
        from gpu_measure import Measurements

        measured = Measurements(self)
        return {
            "formats": measured.formats,
            "kernels": measured.kernels,
            "launches": measured.launches,
            "graph": measured.graph,
        }

    def chapters(self) -> dict | None:
        """Chapters at small scale on the device, the shortest first, until the time is up."""
        seconds = max(1, int(min(self.options.chapters, self.left())))
        if not self.options.chapters:
            return self.leave_out("chapters", "as asked")
        if importlib.util.find_spec("papermill") is None:
            return self.leave_out("chapters", "papermill is not installed")
        command = [sys.executable, str(ROOT / "ci" / "run_notebooks.py"), "--scale", "small"]
        command += ["--device", "cpu" if self.options.rehearse else "cuda", "--budget", str(seconds)]
        try:
            # The last chapter started in time may take longer.
            process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
            status = process.wait(seconds + 60)
        except subprocess.TimeoutExpired:
            # A chapter's kernel is a grandchild, and would go on holding the GPU.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return self.leave_out("the last chapters", f"{seconds:.0f} s were up")
        if status:
            self.problems.append(f"chapters: ci/run_notebooks.py ended with status {status}")
        return {"status": status}

    def write(self) -> None:
        """The report and the table as far as they are."""
        folder = Path(os.environ.get("OUT") or ROOT / "build" / "reports")
        folder.mkdir(parents=True, exist_ok=True)
        self.report["problems"] = self.problems
        (folder / "gpu.json").write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        (folder / "gpu.txt").write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def finish(self) -> int:
        total = sum(self.report["seconds"].values())
        self.say(f"{total:.0f} s in all, {len(self.problems)} problems")
        for problem in self.problems:
            self.say(f"PROBLEM {problem}")
        self.write()
        return int(bool(self.problems))


def where(options: argparse.Namespace) -> dict:
    """The device, what its driver and software are, the date and the command."""
    from origin import origin

    if not options.rehearse:
        return origin("cuda")
    return origin("cpu") | {"device": "CPU under Triton's interpreter: a rehearsal, no measurement"}


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, under the interpreter")
    parser.add_argument("--skip-tests", action="store_true", help="leave the kernel tests out")
    parser.add_argument("--seconds", type=float, default=350, help="for everything (350)")
    parser.add_argument("--chapters", type=float, default=120, help="seconds for the chapters; 0 leaves them out (120)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
