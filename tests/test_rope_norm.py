"""Rotation and norm: published spot values, the interleaved layout, the inverse, the precision of the statistic."""

import pytest
import torch

from ds41 import ModelConfig
from ds41.norm import RMSNorm, rms_norm
from ds41.rope import frequencies, layer_frequencies, rotate


def test_yarn_frequencies_at_the_published_settings():
    freqs = layer_frequencies(ModelConfig.flash(), ratio=2)
    expected = {
        0: 1.0, 15: 3.6355386e-3, 16: 2.265625e-3, 20: 2.9697778e-4, 24: 1.953125e-5, 25: 5.3723127e-6,
        31: 5.6805290e-7,
    }  # fmt: skip
    for pair, value in expected.items():
        assert float(freqs[pair]) == pytest.approx(value, rel=1e-6), pair
    assert torch.equal(freqs, layer_frequencies(ModelConfig.flash(), ratio=1))


def test_window_only_layers_have_the_plain_table():
    freqs = layer_frequencies(ModelConfig.flash(), ratio=0)
    assert torch.allclose(freqs, torch.tensor([10000 ** (-2 * i / 64) for i in range(32)]))


def test_pairs_are_interleaved():
    turned = rotate(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(1), frequencies(4, 10000.0))
    expected = [-1.1426396637476532, 1.922075596544176, 2.9598506679133294, 4.029799501669161]
    assert torch.allclose(turned, torch.tensor(expected))


def test_output_rotation_at_the_query_leaves_the_distance():
    freqs = frequencies(2, 10000.0)
    value = rotate(torch.tensor([1.0, 0.0]), torch.tensor(5), freqs)
    back = rotate(value, torch.tensor(7), freqs, inverse=True)
    assert torch.allclose(back, torch.tensor([-0.4161468365471424, -0.9092974268256817]))


def test_rotation_keeps_the_norm_and_the_leading_channels():
    torch.manual_seed(0)
    x = torch.randn(3, 7, 512)
    turned = rotate(x, torch.arange(7) * 149_999, layer_frequencies(ModelConfig.flash(), 1))
    assert torch.equal(turned[..., :448], x[..., :448])
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6)
    with pytest.raises(ValueError, match="x has 32 channels; the rotation needs 64"):
        rotate(torch.zeros(32), torch.tensor(0), layer_frequencies(ModelConfig.flash(), 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norm_takes_its_statistic_in_float32(dtype):
    x = torch.full((2, 512), 1e-3).to(dtype)
    assert torch.allclose(rms_norm(x).float(), torch.ones(2, 512), atol=1e-2)
    assert rms_norm(x).dtype == dtype
    assert torch.equal(rms_norm(torch.zeros(512)), torch.zeros(512))


def test_norm_weight_scales_each_channel():
    norm = RMSNorm(4)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 0.0, -1.0]))
    assert torch.allclose(norm(torch.tensor([2.0, 2.0, 2.0, 2.0])), torch.tensor([1.0, 2.0, 0.0, -1.0]))
