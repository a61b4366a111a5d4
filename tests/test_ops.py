"""Which backend runs an operation, and that both give the same bits and refuse the same input."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from ds41 import ops
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, Packed
from ds41.ops import backend as backend_module
from ds41.ops.backend import BackendUnavailable, choose_backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def no_override(monkeypatch):
    monkeypatch.delenv("DS41_BACKEND", raising=False)


def pretend(monkeypatch, *, interpret: bool, triton: bool = True, capability=(8, 0), hip=None):
    """Stand-ins for what the session has, as the chooser looks at it."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(backend_module, "interpreting", lambda: interpret)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: find_spec(name) if triton or name != "triton" else None
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.version, "hip", hip)


@pytest.mark.parametrize("interpret", [False, True])
def test_a_cpu_runs_torch_unless_asked_otherwise(monkeypatch, interpret):
    pretend(monkeypatch, interpret=interpret)
    chosen = choose_backend("cpu")
    assert chosen.name == "torch"
    assert "CPU" in chosen.reason


@pytest.mark.parametrize(
    ("session", "name", "reason"),
    [
        ({"interpret": False, "capability": (7, 5)}, "triton", "cuda"),
        ({"interpret": False, "capability": (12, 0)}, "triton", "cuda"),
        ({"interpret": False, "capability": (7, 0)}, "torch", "need compute capability 7.5; cuda has 7.0"),
        ({"interpret": False, "triton": False}, "torch", "triton is not installed"),
        ({"interpret": False, "hip": "6.2"}, "torch", "NVIDIA"),
        ({"interpret": True}, "torch", "TRITON_INTERPRET"),
    ],
)
def test_a_gpu_runs_kernels_where_they_can(monkeypatch, session, name, reason):
    pretend(monkeypatch, **session)
    chosen = choose_backend("cuda")
    assert chosen.name == name
    assert reason in chosen.reason


def test_other_devices_run_torch():
    assert choose_backend("mps").name == "torch"
    assert "mps" in choose_backend("mps").reason


def test_the_variable_and_the_argument_override(monkeypatch):
    pretend(monkeypatch, interpret=True)
    monkeypatch.setenv("DS41_BACKEND", "triton")
    assert choose_backend("cpu") == ops.Backend("triton", "DS41_BACKEND asks for it")
    assert choose_backend("cpu", "torch") == ops.Backend("torch", "the caller asks for it")
    monkeypatch.setenv("DS41_BACKEND", "torch")
    assert choose_backend("cuda").name == "torch"
    monkeypatch.setenv("DS41_BACKEND", "")
    assert choose_backend("cpu").name == "torch"


@pytest.mark.parametrize(
    ("session", "device", "message"),
    [
        ({"interpret": False}, "cpu", r"DS41_BACKEND asks for backend 'triton' on cpu: .*TRITON_INTERPRET=1 before"),
        ({"interpret": False, "triton": False}, "cuda", "triton is not installed"),
        ({"interpret": False, "capability": (6, 1)}, "cuda", r"7\.5; cuda has 6\.1"),
        ({"interpret": True}, "mps", "not for mps"),
    ],
)
def test_triton_where_it_cannot_run_is_an_error(monkeypatch, session, device, message):
    pretend(monkeypatch, **session)
    monkeypatch.setenv("DS41_BACKEND", "triton")
    with pytest.raises(BackendUnavailable, match=message):
        choose_backend(device)


def test_unknown_names_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="the caller asks for backend 'cuda'"):
        choose_backend("cpu", "cuda")
    monkeypatch.setenv("DS41_BACKEND", "jax")
    with pytest.raises(ValueError, match="DS41_BACKEND asks for backend 'jax'"):
        choose_backend("cpu")


@pytest.mark.parametrize("block_format", [MAIN_KV, INDEX_KEY, WINDOW_KV], ids=lambda f: f.name.replace(" ", "-"))
def test_both_backends_give_the_same_bits(block_format):
    x = torch.randn(3, 5, 128, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    by_torch = ops.encode(block_format, x, backend="torch")
    by_triton = ops.encode(block_format, x, backend="triton")
    assert isinstance(by_triton, Packed)
    assert torch.equal(by_torch.codes, by_triton.codes)
    assert torch.equal(by_torch.scales, by_triton.scales)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        values = [ops.decode(block_format, by_torch, dtype, backend=name) for name in ("torch", "triton")]
        assert values[0].dtype == values[1].dtype == dtype
        assert torch.equal(*values)


def test_the_kernel_is_what_runs_when_it_is_asked_for(monkeypatch):
    from ds41.kernels import decode, encode

    ran = []
    for module, name in ((encode, "encode_launch"), (decode, "decode_launch")):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, name=name, original=original, **k: ran.append(name) or original(*a, **k)
        )
    x = torch.ones(2, 64, device=DEVICE)
    ops.decode(MAIN_KV, ops.encode(MAIN_KV, x, backend="torch"), backend="torch")
    assert ran == []
    monkeypatch.setenv("DS41_BACKEND", "triton")
    ops.decode(MAIN_KV, ops.encode(MAIN_KV, x))
    assert ran == ["encode_launch", "decode_launch"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_both_backends_refuse_what_is_not_finite_with_its_place(bad):
    x = torch.ones(2, 3, 64, device=DEVICE)
    x[1, 2, 17] = bad
    x[1, 2, 18] = bad
    messages = []
    for name in ("torch", "triton"):
        with pytest.raises(ValueError, match=r"x\[1, 2, 17\]") as error:
            ops.encode(WINDOW_KV, x, backend=name)
        messages.append(str(error.value))
        ops.encode(WINDOW_KV, x, validate=False, backend=name)
    assert messages[0] == messages[1]


GOOD = Packed(*(torch.zeros(2, width, dtype=torch.uint8, device=DEVICE) for width in (16, 2)))


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda name: ops.encode(MAIN_KV, torch.ones(2, 24), backend=name), ValueError),
        (lambda name: ops.encode(MAIN_KV, torch.ones(2, 0), backend=name), ValueError),
        (lambda name: ops.encode(MAIN_KV, torch.ones(()), backend=name), ValueError),
        (lambda name: ops.encode(MAIN_KV, torch.ones(2, 32, dtype=torch.float64), backend=name), TypeError),
        (lambda name: ops.decode(MAIN_KV, GOOD, torch.float64, backend=name), TypeError),
        (lambda name: ops.decode(MAIN_KV, Packed(GOOD.codes, GOOD.scales[:1]), backend=name), ValueError),
        (lambda name: ops.decode(MAIN_KV, Packed(GOOD.codes.float(), GOOD.scales), backend=name), TypeError),
    ],
)
def test_both_backends_refuse_the_same_input(name, call, error):
    with torch.device(DEVICE), pytest.raises(error):
        call(name)


def test_a_machine_without_triton_has_the_torch_path():
    program = """
import sys

class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import torch
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "triton" else find_spec(name, package)
sys.meta_path.insert(0, NoTriton())

from ds41 import environment, ops
from ds41.formats import MAIN_KV

session = environment.prepare("cpu")
assert session.triton is None and not session.interpret and "not installed" in session.note, session
assert "no triton" in session.report()
x = torch.randn(4, 64)
assert torch.equal(ops.decode(MAIN_KV, ops.encode(MAIN_KV, x)), MAIN_KV.decode(MAIN_KV.encode(x)))
try:
    ops.encode(MAIN_KV, x, backend="triton")
except ops.BackendUnavailable as error:
    assert "triton is not installed" in str(error)
else:
    raise AssertionError("no error")
assert "triton" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
