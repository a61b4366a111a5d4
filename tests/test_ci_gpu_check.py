"""The GPU check, as far as a machine without a GPU can go: what it compares, counts, and refuses."""

from __future__ import annotations

import json

import gpu_check
import pytest
import torch

from ds41 import ops
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, Packed

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")
each_format = pytest.mark.parametrize("block_format", [MAIN_KV, INDEX_KEY, WINDOW_KV], ids=lambda f: f.name)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@each_format
def test_kernels_and_reference_agree(block_format):
    x = gpu_check.inputs(8, 512, torch.bfloat16, DEVICE)
    assert gpu_check.compare(block_format, x) == (0, 0)


@each_format
def test_every_wrong_byte_is_counted(block_format, monkeypatch):
    x = gpu_check.inputs(2, 64, torch.float32, DEVICE)

    def wrong(fmt, x, **_):
        codes, scales = fmt.encode(x)
        codes[1, 3] ^= 1
        scales[0, 0] ^= 2
        return Packed(codes, scales)

    monkeypatch.setattr(ops, "encode", wrong)
    encoded, decoded = gpu_check.compare(block_format, x)
    assert encoded == 2
    assert decoded > 0


def test_signs_of_zero_count():
    assert gpu_check.differing_bytes(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])) == 1


def test_a_difference_fails_the_check_and_is_reported(monkeypatch, tmp_path, capsys):
    rows = [gpu_check.Row("encode main KV", "bfloat16", 3, 0.5, 200.0, 0.8)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_check, "versions", lambda: {"device": "a GPU"})
    monkeypatch.setattr(gpu_check, "measure", lambda rows_, channels, device: rows)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    report = tmp_path / "reports" / "gpu.json"
    assert gpu_check.main(["--skip-tests", "--report", str(report)]) == 1
    printed = capsys.readouterr()
    assert "device: a GPU" in printed.out
    assert "3 bytes differ from the reference" in printed.err
    assert json.loads(report.read_text())["rows"][0]["differing_bytes"] == 3

    rows[0] = gpu_check.Row("encode main KV", "bfloat16", 0, 0.5, 200.0, 0.8)
    assert gpu_check.main(["--skip-tests", "--report", str(report)]) == 0
    monkeypatch.setattr(gpu_check, "kernel_tests", lambda: 1)
    assert gpu_check.main(["--report", str(report)]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_so(capsys):
    assert gpu_check.main([]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err
