"""Experts held packed against experts held as numbers."""

import dataclasses

import pytest
import torch

from ds41 import ModelConfig, save_checkpoint
from ds41.checkpoint import CheckpointError
from ds41.model import Model
from ds41.moe import MoE
from ds41.ops.backend import OVERRIDE
from ds41.packed_experts import PackedExperts, pack_experts
from ds41.weight_formats import EXPERT_ROWS

CONFIG = ModelConfig.nano()


@pytest.fixture
def layer() -> MoE:
    torch.manual_seed(0)
    layer = MoE(CONFIG, "cache").requires_grad_(False)
    with torch.no_grad():
        for name in ("w1", "w2", "w3"):
            weight = getattr(layer.experts, name)
            weight.copy_(EXPERT_ROWS.decode(EXPERT_ROWS.encode(weight * 3), torch.float32))
    return layer


def test_the_same_bits_where_the_weights_are_fp4_already(layer):
    x = torch.randn(9, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1))
    wanted = layer(x)
    layer.experts = PackedExperts(layer.experts)
    assert torch.equal(layer(x), wanted)


def test_half_a_byte_a_weight_and_a_scale_for_every_32(layer):
    weights = sum(parameter.numel() for parameter in layer.experts.parameters())
    packed = PackedExperts(layer.experts)
    assert not list(packed.parameters())
    assert sum(buffer.nbytes for buffer in packed.buffers()) == weights * 17 // 32


def test_a_whole_model_packs_generates_and_refuses_to_be_saved(tmp_path):
    torch.manual_seed(0)
    model = Model(CONFIG)
    assert pack_experts(model) is model
    assert all(isinstance(block.ffn.experts, PackedExperts) for block in model.layers)
    assert torch.isfinite(model.prefill(torch.arange(20, 40), model.new_cache(32))).all()
    with pytest.raises(CheckpointError, match="packed for inference"):
        save_checkpoint(model, tmp_path / "out")
    assert not list(tmp_path.rglob("*.safetensors"))


def test_experts_of_another_format_are_refused():
    layer = MoE(dataclasses.replace(CONFIG, expert_dtype="fp8"))
    with pytest.raises(ValueError, match="'fp8'; expected 'fp4'"):
        PackedExperts(layer.experts)


@pytest.mark.parametrize("tokens", [1, 7])
def test_on_kernels(layer, tokens, monkeypatch):
    x = torch.randn(tokens, CONFIG.hidden_size, generator=torch.Generator().manual_seed(2))
    wanted = layer(x)
    layer.experts = PackedExperts(layer.experts)
    monkeypatch.setenv(OVERRIDE, "triton")
    with torch.no_grad():
        got = layer(x)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
