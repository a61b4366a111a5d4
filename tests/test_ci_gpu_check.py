"""The GPU check, as far as a machine without a GPU can go: what it compares, counts, leaves out and refuses."""

from __future__ import annotations

import argparse
import json
import subprocess
import sysconfig
import time
import venv
from pathlib import Path

import gpu_check
import gpu_measure
import gpu_tests
import pytest
import torch
from checkout import ROOT
from origin import faults

from ds41 import ops
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, Packed

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")
each_format = pytest.mark.parametrize("block_format", [MAIN_KV, INDEX_KEY, WINDOW_KV], ids=lambda f: f.name)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def check() -> gpu_check.Check:
    options = argparse.Namespace(rehearse=True, skip_tests=True, seconds=60.0, chapters=0.0)
    return gpu_check.Check(options, time.monotonic() + 60)


@each_format
def test_kernels_and_reference_agree(block_format):
    x = gpu_measure.inputs(8, 512, torch.bfloat16, DEVICE)
    assert gpu_measure.compare(block_format, x) == (0, 0)


@each_format
def test_every_wrong_byte_is_counted(block_format, monkeypatch):
    x = gpu_measure.inputs(2, 64, torch.float32, DEVICE)

    def wrong(fmt, x, **_):
        codes, scales = fmt.encode(x)
        codes[1, 3] ^= 1
        scales[0, 0] ^= 2
        return Packed(codes, scales)

    monkeypatch.setattr(ops, "encode", wrong)
    encoded, decoded = gpu_measure.compare(block_format, x)
    assert encoded == 2
    assert decoded > 0


def test_signs_of_zero_count():
    assert gpu_measure.differing_bytes(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])) == 1


def test_differing_bytes_are_a_problem(check, monkeypatch):
    monkeypatch.setattr(gpu_measure, "compare", lambda block_format, x: (0, 3))
    monkeypatch.setattr(gpu_measure, "_CHANNELS", 64)
    rows = gpu_measure.Measurements(check).formats()
    assert len(rows) == 18
    assert check.problems[0] == "decode main KV, bfloat16: 3 bytes differ"
    assert len(check.problems) == 9


def test_a_part_that_fails_is_a_problem_and_stops_no_other(check, monkeypatch, tmp_path, capsys):
    def broken():
        raise RuntimeError("no such luck")

    check.part("broken", broken)
    check.part("good", lambda: 7)
    check.leave_out("a thing", "as asked")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert check.finish() == 1
    report = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert report["problems"] == ["broken: RuntimeError: no such luck"]
    assert (report["good"], report["broken"]) == (7, None)
    assert report["left_out"] == ["a thing: as asked"]
    assert "rehearsal" in report["device"]
    assert faults(report) == []
    assert (tmp_path / "out" / "gpu.txt").read_text().endswith(capsys.readouterr().out)


def test_nothing_wrong_is_status_0(check, monkeypatch, tmp_path):
    monkeypatch.setenv("OUT", str(tmp_path))
    assert check.tests() is None
    assert check.chapters() is None
    assert check.finish() == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_refuses(capsys):
    assert gpu_check.main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err


def outcomes_of(folder: Path, seconds: float, jobs: int, texts: dict[str, str]) -> dict[str, gpu_tests.Outcome]:
    """What became of each file of tests, by its name without test_ and .py."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
    found = gpu_tests.run_tests(seconds, interpreted=True, jobs=jobs, files=sorted(folder.glob("*.py")))
    return {outcome.file.removeprefix("test_").removesuffix(".py"): outcome for outcome in found}


def test_files_run_side_by_side_and_stop_when_the_time_is_up(tmp_path):
    texts = {
        "test_good.py": "def test(): pass",
        "test_bad.py": "def test(): assert False",
        "test_loud.py": "def test(): assert not print('x' * 200_000)\ndef test_too(): assert False, 'y' * 200_000",
        "test_dead.py": "import os, signal\ndef test(): os.kill(os.getpid(), signal.SIGSEGV)",
    }
    outcomes = outcomes_of(tmp_path / "all", 300, 4, texts)
    status = {name: outcome.status for name, outcome in outcomes.items()}
    assert status == {"good": 0, "bad": 1, "loud": 1, "dead": -11}
    assert outcomes["bad"].summary.startswith("1 failed")
    assert outcomes["dead"].summary == "ended by SIGSEGV"

    start = time.monotonic()
    sleeps = "import time\ndef test(): time.sleep(300)"
    slow = outcomes_of(tmp_path / "slow", 1, 2, {f"test_{name}.py": sleeps for name in "abc"})
    assert time.monotonic() - start < 120
    assert {outcome.status for outcome in slow.values()} == {None}
    assert sorted(outcome.summary for outcome in slow.values()) == [
        "not started: time was up",
        "stopped: time was up",
        "stopped: time was up",
    ]


def test_runs_from_a_checkout_that_is_not_installed(tmp_path):
    # A virtual environment that sees the packages of this one, but not the .pth file that leads to the checkout.
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    packages = {path.name for path in Path(sysconfig.get_path("purelib")).iterdir()}
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    visible = Path(subprocess.check_output([python, "-c", where], text=True).strip())
    for name in packages:
        if not name.endswith(".pth") and "ds41" not in name and "hypothesis" not in name:
            (visible / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    code = "import importlib.util as u; print(u.find_spec('ds41'), u.find_spec('hypothesis'))"
    assert subprocess.check_output([python, "-c", code], cwd=tmp_path, text=True).split() == ["None", "None"]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels/test_norm.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
