"""The norm kernel against the torch definition."""

import pytest
import torch

from ds41.kernels.norm import rms_norm_rows
from ds41.norm import rms_norm

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1280,), (3, 128), (2, 3, 33), (1, 1)], ids=str)
def test_equals_the_definition(shape, dtype, device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).mul_(3).to(dtype)
    weight = torch.randn(shape[-1], generator=generator)
    got = rms_norm_rows(x.to(device), weight.to(device), 1e-6).cpu()
    wanted = rms_norm(x.double(), weight.double(), 1e-6)
    assert got.dtype == dtype
    assert (got.double() - wanted).abs().le(TOLERANCE[dtype] * wanted.abs() + 1e-7).all()


def test_strides_and_empty_input(device):
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(1)).to(device)
    weight = torch.ones(20, device=device)
    for view in (x[::2, 5:25], x[:, ::2], x.t()[:20].t()):
        assert torch.equal(rms_norm_rows(view, weight, 1e-20), rms_norm_rows(view.contiguous(), weight, 1e-20))
    assert rms_norm_rows(x[:0, :20], weight, 1e-20).shape == (0, 20)
    wide = torch.randn(20, 2, generator=torch.Generator().manual_seed(2)).to(device)
    for strided in (wide[:, 0], torch.full((1,), 2.0, device=device).expand(20)):
        got = rms_norm_rows(x[:, :20], strided, 1e-20)
        assert torch.equal(got, rms_norm_rows(x[:, :20], strided.contiguous(), 1e-20))


def test_a_row_of_zeros_stays_finite_and_the_published_epsilon_does_not_vanish(device):
    x = torch.zeros(2, 64, dtype=torch.float16, device=device)
    x[1] = 1e-4
    got = rms_norm_rows(x, torch.ones(64, device=device), 1e-20)
    assert torch.equal(got[0], torch.zeros_like(got[0]))
    assert torch.allclose(got[1].float(), torch.ones(64, device=device), atol=1e-3)


def test_refuses_what_does_not_fit(device):
    x = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match=r"weight is \[4\], x \[2, 8\]"):
        rms_norm_rows(x, torch.ones(4, device=device), 1e-20)
    with pytest.raises(TypeError, match=r"torch\.float64"):
        rms_norm_rows(x.double(), torch.ones(8, device=device), 1e-20)
    with pytest.raises(TypeError, match=r"weight is torch\.int64"):
        rms_norm_rows(x, torch.ones(8, dtype=torch.int64, device=device), 1e-20)
    with pytest.raises(ValueError, match=r"eps is -1\.0"):
        rms_norm_rows(x, torch.ones(8, device=device), -1.0)
    with pytest.raises(ValueError, match="rms_norm: weight is on meta; expected"):
        rms_norm_rows(x, torch.ones(8, device="meta"), 1e-20)
