"""The comparison formats against error levels measured independently, and where they must agree with ours."""

import math

import pytest
import torch

from ds41 import comparison_formats as others
from ds41.formats import INDEX_KEY, MAIN_KV


def latents(kind: str) -> torch.Tensor:
    """4,096 rows of 512 with the norm that an RMSNorm of weight one gives."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 512, generator=generator)
    if kind == "student-t":
        x /= (torch.randn(4, 4096, 512, generator=generator).square().sum(0) / 4).sqrt()
    if kind == "outliers":
        x[:, ::128] *= 20
    return x * (math.sqrt(512) / x.norm(dim=-1, keepdim=True))


# Columns: with a tensor scale, E4M3 per 32, MXFP4 rounded down (relative L2 error).
LEVELS = {
    "gaussian": (0.0950, 0.1017, 0.1149),
    "student-t": (0.0919, 0.1040, 0.1302),
    "outliers": (0.0921, 0.1197, 0.1681),
}


@pytest.mark.parametrize("kind", LEVELS)
def test_error_levels(kind):
    x = latents(kind)
    for quantise, level in zip((others.nvfp4, others.e4m3_scale_per_32, others.mxfp4_floor), LEVELS[kind], strict=True):
        error = float((quantise(x) - x).norm() / x.norm())
        assert error == pytest.approx(level, rel=0.015), quantise.__name__


def test_a_tensor_scale_changes_nothing_but_small_blocks():
    """In E4M3's normal range the tensor scale moves errors by a hair; at rms 0.001 it decides."""
    x = latents("gaussian")
    for rms, factor in ((1.0, 1.0), (0.1, 1.0), (0.001, 3.0)):
        scaled = x * rms
        without = (MAIN_KV.fake_quantize(scaled) - scaled).norm()
        with_scale = (others.nvfp4(scaled) - scaled).norm()
        assert float(without / with_scale) == pytest.approx(factor, rel=0.05)


def test_rounding_the_scale_up_never_clips():
    x = latents("gaussian")
    blocks = x.view(-1, 16)
    decoded = others.scale_rounded_up(x).view(-1, 16)
    largest = blocks.abs().argmax(-1, keepdim=True)
    stored = decoded.gather(1, largest).abs()
    # The maximum is stored as 6 or 4 times a scale that is at least amax / 6, never cut to a smaller number.
    exact = blocks.gather(1, largest).abs()
    assert bool((stored >= exact * (5 / 6)).all())
    assert not torch.equal(decoded, MAIN_KV.fake_quantize(x).view(-1, 16))


def test_floor_and_ceil_agree_where_neither_clips():
    """Maxima in (4, 6] have the same exponent under both rules of MXFP4."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(3)).clamp(-4, 4)
    x[:, 0] = torch.linspace(4.1, 6, 64)
    assert torch.equal(others.mxfp4_floor(x), INDEX_KEY.fake_quantize(x))


def test_zero_blocks_stay_zero_and_wrong_widths_are_named():
    for quantise in (others.nvfp4, others.mxfp4_floor, others.e4m3_scale_per_32, others.scale_rounded_up, others.int4):
        assert not quantise(torch.zeros(2, 64)).any()
        assert quantise(torch.ones(2, 3, 64)).shape == (2, 3, 64)
        with pytest.raises(ValueError, match="40 channels"):
            quantise(torch.zeros(2, 40))
