"""The GPU check, as far as a machine without a GPU can go: what it compares, counts, leaves out and refuses."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import time

import gpu_check
import gpu_measure
import gpu_tests
import pytest
import torch
from checkout import ROOT

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
    assert "rehearsal" in report["versions"]["device"]
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


def test_files_run_side_by_side_and_stop_when_the_time_is_up(tmp_path):
    texts = {
        "test_good.py": "def test(): pass",
        "test_bad.py": "def test(): assert False",
        "test_slow.py": "import time\ndef test(): time.sleep(300)" + "#" * 200,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    start = time.monotonic()
    outcomes = gpu_tests.run_tests(20, interpreted=True, jobs=3, files=sorted(tmp_path.glob("*.py")))
    assert time.monotonic() - start < 120
    status = {outcome.file: outcome.status for outcome in outcomes}
    assert status == {"test_good.py": 0, "test_bad.py": 1, "test_slow.py": None}
    assert next(o for o in outcomes if o.file == "test_bad.py").summary.startswith("1 failed")


def test_runs_from_a_checkout_that_is_not_installed():
    code = (
        "import sys; sys.path.insert(0, 'ci'); import checkout; checkout.use_checkout(); "
        "import ds41.formats, ds41.kernels.launch; print(ds41.__file__, ds41.kernels.launch.__file__)"
    )
    # -S: without the .pth file by which an editable installation is found.
    environment = {"PYTHONPATH": sysconfig.get_path("purelib"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    package, launch = done.stdout.split()
    assert package == str(ROOT / "src" / "ds41" / "__init__.py")
    assert launch == str(ROOT / "kernels" / "launch.py")
