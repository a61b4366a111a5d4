"""What a session finds out about itself. What depends on import order runs in processes of its own."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

from ds41.environment import Environment, EnvironmentUnavailable, compute_dtype, describe, prepare, triton_version

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")


def fresh(program: str, interpret: str | None = None) -> str:
    """Run a program in a new Python, TRITON_INTERPRET unset or as given; returns what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpret is not None:
        environment["TRITON_INTERPRET"] = interpret
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


RUN_A_KERNEL = """
import torch
from ds41 import ops
from ds41.formats import MAIN_KV

x = torch.randn(4, 64)
assert torch.equal(ops.encode(MAIN_KV, x, backend="triton").codes, MAIN_KV.encode(x).codes)
"""


def test_on_a_cpu_kernels_run_interpreted_after_prepare_which_prints_nothing():
    program = """
import sys
from ds41.environment import prepare
session = prepare("cpu")
assert "triton" not in sys.modules
assert session.interpret and session.note == "" and session.device == "cpu", session
"""
    assert fresh(program + RUN_A_KERNEL + "assert prepare('cpu') == session\n") == ""


def test_triton_imported_too_early_is_said_and_breaks_nothing():
    program = """
import triton.language
from ds41.environment import prepare
session = prepare("cpu")
assert not session.interpret
print(session.note)
print(session.report())
from ds41 import ops
try:
    ops.choose_backend("cpu", "triton")
except ops.BackendUnavailable:
    pass
else:
    raise AssertionError("no error")
"""
    note, report = fresh(program).splitlines()
    assert "imported before TRITON_INTERPRET=1 was set" in note
    assert report.endswith(f"note: {note}")


def test_triton_imported_early_but_interpreting_is_fine():
    program = """
import triton.language
from ds41.environment import prepare
session = prepare("cpu")
assert session.interpret and session.note == "", session
"""
    fresh(program + RUN_A_KERNEL, interpret="1")


def test_a_variable_that_is_set_stays():
    program = """
import os
from ds41.environment import prepare
session = prepare("cpu")
assert os.environ["TRITON_INTERPRET"] == "0"
assert not session.interpret and "TRITON_INTERPRET=0 is set" in session.note, session
"""
    fresh(program, interpret="0")


@without_gpu
def test_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(EnvironmentUnavailable, match=r"'cuda' was asked for.*sees no CUDA device.*'auto' or 'cpu'"):
        prepare("cuda")
    assert prepare("auto").device == "cpu"


def test_unknown_devices_are_refused():
    with pytest.raises(ValueError, match="'tpu'; expected 'auto', 'cpu' or 'cuda'"):
        prepare("tpu")


@pytest.mark.parametrize(
    ("capability", "dtype", "reason"),
    [
        (None, torch.float32, "CPU"),
        ((6, 1), torch.float32, "sm_61 has no tensor cores"),
        ((7, 0), torch.float16, "sm_70"),
        ((7, 5), torch.float16, "sm_75 take fp16 and no bf16"),
        ((8, 0), torch.bfloat16, "sm_80 has bf16"),
        ((9, 0), torch.bfloat16, "sm_90"),
        ((12, 0), torch.bfloat16, "sm_120"),
    ],
)
def test_compute_type_follows_the_capability(capability, dtype, reason):
    chosen, why = compute_dtype(capability)
    assert chosen == dtype
    assert reason in why


def test_a_gpu_session_is_described(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla T4")
    session = prepare("auto")
    assert (session.device, session.capability, session.compute_dtype) == ("cuda", (7, 5), torch.float16)
    assert "Tesla T4 (cuda, sm_75)" in session.report()
    assert describe("cpu").capability is None


def test_an_interpreter_left_on_beside_a_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "H100")
    monkeypatch.setattr("ds41.environment.interpreting", lambda: True)
    assert "although there is a GPU" in prepare("cuda").note


def test_the_report_is_one_line_with_all_of_it():
    session = Environment(
        python="3.13.1",
        torch="2.11.0",
        triton="3.6.0",
        device="cpu",
        device_name="Some CPU",
        capability=None,
        interpret=True,
        compute_dtype=torch.float32,
        compute_reason="because",
    )
    assert session.report() == (
        "Python 3.13.1, torch 2.11.0, triton 3.6.0 interpreted; Some CPU (cpu); float32: because"
    )
    assert dataclasses.replace(session, triton=None, interpret=False, note="hm").report() == (
        "Python 3.13.1, torch 2.11.0, no triton; Some CPU (cpu); float32: because; note: hm"
    )


def test_the_description_names_what_is_installed():
    session = describe("cpu")
    assert session.torch == torch.__version__
    assert session.python == ".".join(map(str, sys.version_info[:3]))
    assert session.device_name
    import triton

    assert triton_version() == triton.__version__
