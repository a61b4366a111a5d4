"""The kernels as torch operators: their schemas, their shapes without values, and torch.compile over them."""

import dataclasses

import kernel_cases
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ds41 import ModelConfig
from ds41.environment import interpreting
from ds41.kernel_floors import kernel_floors
from ds41.ops.backend import OVERRIDE
from ds41.ops.launches import count_launches
from ds41.ops.operators import OPERATORS, operators

pytestmark = [
    pytest.mark.skipif(
        not (torch.cuda.is_available() or interpreting()), reason="kernels need a GPU or Triton's interpreter"
    ),
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered"),
]
CONFIG = dataclasses.replace(ModelConfig.nano(), hc_sinkhorn_iters=1)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Calls(TorchDispatchMode):
    """Operators of ours that are called within, with their arguments; each once."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, tuple] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "ds41":
            self.seen[function._opname] = (function, args, kwargs or {})
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def run():
    """Every case of the benchmark at small size: the operators it called, and its difference from torch."""
    patch = pytest.MonkeyPatch()
    patch.setenv(OVERRIDE, "triton")
    with torch.no_grad(), Calls() as calls:
        found = {
            case.name: kernel_cases.differences(case)
            for case in kernel_cases.cases(CONFIG, 100, 2, DEVICE, torch.float32)
        }
    yield calls.seen, found
    patch.undo()


def test_every_case_of_the_benchmark_gives_what_torch_gives(run):
    _, found = run
    assert set(found) == {floor.name for floor in kernel_floors(CONFIG, 100, 2)}
    assert {name: difference for name, difference in found.items() if not difference < 1e-4} == {}


def test_an_exact_case_that_is_off_by_one_is_infinitely_wrong():
    floor = kernel_floors(CONFIG, 100, 2)[0]
    right = torch.arange(1000)
    wrong = right.clone()
    wrong[7] += 1
    assert kernel_cases.differences(kernel_cases.Case(floor, lambda: wrong, lambda: right, True)) == float("inf")
    assert 0 < kernel_cases.differences(kernel_cases.Case(floor, lambda: wrong, lambda: right)) < 1e-3


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_schema_and_shapes_of(name, run):
    if name in ("encode_blocks", "decode_blocks"):
        x = torch.randn(3, 64, device=DEVICE)
        codes, scales = operators.encode_blocks(x, "e4m3", "e8m0", 32, 1e-4)
        calls = {
            "encode_blocks": (operators.encode_blocks.default, (x, "e4m3", "e8m0", 32, 1e-4), {}),
            "decode_blocks": (
                operators.decode_blocks.default,
                (codes, scales, "e4m3", "e8m0", 32, torch.bfloat16),
                {},
            ),
        }
    else:
        calls = run[0]
    function, args, kwargs = calls[name]
    torch.library.opcheck(function, args, kwargs, test_utils=("test_schema", "test_faketensor"))


def test_compiled_in_one_graph():
    x, weight = torch.randn(3, 64, device=DEVICE), torch.ones(64, device=DEVICE)

    def function(x):
        return operators.swiglu_rows(operators.rms_norm_rows(x, weight, 1e-20), x, 1.0) + 1

    wanted = function(x)
    assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(x), wanted)


def test_unknown_operators_are_named():
    with pytest.raises(AttributeError, match=r"no operator 'abacus'; there are .*sparse_attention_packed"):
        operators.abacus  # noqa: B018


def test_launches_are_counted_ours_by_name_and_torch_by_operator():
    x, weight = torch.randn(3, 64, device=DEVICE), torch.ones(64, device=DEVICE)
    with count_launches() as launches:
        y = operators.rms_norm_rows(x, weight, 1e-20).view(64, 3)[1:]
        torch.nn.functional.linear(y.t(), torch.empty(2, 63, device=DEVICE))
    assert launches.kernels == ["rms_norm_kernel"]
    assert launches.torch == ["aten::mm"]
    assert launches.count == 2
