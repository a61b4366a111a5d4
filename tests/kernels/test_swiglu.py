"""The activation kernel against the torch definition."""

import pytest
import torch

from ds41.kernels.swiglu import swiglu_rows
from ds41.moe import swiglu

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# exp of a large number overflows on the way to a share of zero.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 5), (3, 1025), (2, 3, 4)], ids=str)
def test_equals_the_definition(shape, dtype, device):
    generator = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(shape, generator=generator).mul_(8).to(dtype) for _ in range(2))
    got = swiglu_rows(gate.to(device), up.to(device), 10.0).cpu()
    wanted = swiglu(gate.double(), up.double(), 10.0)
    assert got.dtype == dtype
    assert (got.double() - wanted).abs().le(TOLERANCE[dtype] * wanted.abs() + 1e-6).all()


def test_limits_infinity_nan_and_strides(device):
    gate = torch.tensor([1e30, -1e30, float("inf"), 3.0, float("nan"), 3.0], device=device)
    up = torch.tensor([-1e30, 5.0, 2.0, float("inf"), 1.0, float("nan")], device=device)
    got = swiglu_rows(gate, up, 7.0).cpu()
    wanted = swiglu(gate, up, 7.0).cpu()
    assert torch.equal(got.isnan(), torch.tensor([False, False, False, False, True, True]))
    torch.testing.assert_close(got[:4], wanted[:4], rtol=1e-6, atol=1e-6)
    wide = torch.randn(4, 12, generator=torch.Generator().manual_seed(1)).to(device)
    assert torch.equal(swiglu_rows(wide[:, ::2], wide[:, 1::2], 7.0), swiglu_rows(*wide.view(4, 6, 2).unbind(2), 7.0))
    assert swiglu_rows(wide[:0], wide[:0], 7.0).shape == (0, 12)


def test_refuses_what_does_not_fit(device):
    x = torch.zeros(2, 3, device=device)
    with pytest.raises(ValueError, match=r"gate is torch\.float32 \[2, 3\], up torch\.float32 \[3, 2\]"):
        swiglu_rows(x, x.t(), 1.0)
    with pytest.raises(ValueError, match="expected one shape and one of"):
        swiglu_rows(x.double(), x.double(), 1.0)
    for limit in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="expected a positive number"):
            swiglu_rows(x, x, limit)
