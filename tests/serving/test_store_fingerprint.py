"""A model's fingerprint changes with everything that changes a page."""

import copy
import dataclasses

import pytest
import torch

from ds41 import Model, ModelConfig
from ds41.serving import fingerprint, model_fingerprint


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model(ModelConfig.nano())


def test_it_is_32_bytes_and_the_same_again(model):
    first = model_fingerprint(model)
    assert isinstance(first, bytes)
    assert len(first) == 32
    assert model_fingerprint(copy.deepcopy(model)) == first


def test_every_tensor_counts(model, monkeypatch):
    # Small pieces, so that the last one of each tensor is one of several.
    monkeypatch.setattr(fingerprint, "_CHUNK", 1024)
    plain = model_fingerprint(model)
    assert plain == model_fingerprint(model)
    tensors = [*model.parameters(), *model.buffers()]
    assert any(tensor is model.hasher.token_map for tensor in tensors)
    for tensor in [*tensors[:: len(tensors) // 12], model.hasher.token_map]:
        last = tensor.data.view(-1)[-1:]
        before = last.clone()
        last.copy_(before + 1)
        assert model_fingerprint(model) != plain
        last.copy_(before)
    assert model_fingerprint(model) == plain


def test_pieces_do_not_change_it(model, monkeypatch):
    plain = model_fingerprint(model)
    monkeypatch.setattr(fingerprint, "_CHUNK", 1000)
    assert model_fingerprint(model) == plain


def test_configuration_quantization_type_and_format_count(model, monkeypatch):
    plain = model_fingerprint(model)
    changed = []
    for name, value in [("quantization", "full"), ("dtype", torch.bfloat16)]:
        with monkeypatch.context() as patch:
            patch.setattr(model, name, value)
            changed.append(model_fingerprint(model))
    with monkeypatch.context() as patch:
        patch.setattr(model, "config", dataclasses.replace(model.config, rope_theta=12345.0))
        changed.append(model_fingerprint(model))
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "LAYOUT_VERSION", fingerprint.LAYOUT_VERSION + 1)
        changed.append(model_fingerprint(model))
    assert len({plain, *changed}) == 5


def test_names_shapes_and_types_count():
    class Bare(torch.nn.Module):
        config, quantization, dtype = ModelConfig.nano(), "none", torch.float32

        def __init__(self, **tensors):
            super().__init__()
            for name, tensor in tensors.items():
                self.register_buffer(name, tensor, persistent=False)

    zeros = torch.zeros(4, 6)
    models = [
        Bare(a=zeros),
        Bare(b=zeros),
        Bare(a=zeros.view(6, 4)),
        Bare(a=zeros.view(torch.int32)),
        Bare(a=zeros[:2], b=zeros[2:]),
        Bare(a=torch.ones(4, 6)),
        Bare(a=torch.ones(4, 6).bfloat16()),
        Bare(),
    ]
    assert len({model_fingerprint(one) for one in models}) == len(models)
    # Where a tensor lies in memory says nothing; one without a dimension or without bytes is a tensor too.
    assert model_fingerprint(Bare(a=torch.arange(24.0).view(6, 4).T)) == model_fingerprint(
        Bare(a=torch.arange(24.0).view(6, 4).T.contiguous())
    )
    assert model_fingerprint(Bare(a=torch.tensor(1.0))) != model_fingerprint(Bare(a=torch.zeros(0)))
