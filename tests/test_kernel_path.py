"""The model on kernels against the model on torch: every layer mode, prefill, decode, and what is left in the cache."""

import golden_io
import golden_model
import pytest
import torch

from ds41.attention import CacheMemory, KernelMemory
from ds41.environment import interpreting
from ds41.ops.backend import OVERRIDE

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() or interpreting()), reason="kernels need a GPU or Triton's interpreter"
)
NAME = "tinyA"
IDS = golden_io.load(NAME, "fp32")["input_ids"].flatten()


@pytest.fixture(scope="module")
def model():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return golden_model.build(NAME, "fp32_cacheq").to(device)


def run(model, backend: str, monkeypatch, parts: list[int], decoder: str = "full"):
    """Logits of a prefill and of the decode steps after it, and the cache."""
    monkeypatch.setenv(OVERRIDE, backend)
    cache = model.new_cache(len(IDS))
    assert KernelMemory.suits(cache) == (backend == "triton")
    at = parts[0]
    logits = [model.prefill(IDS[:at], cache, decoder=decoder)]
    for count in parts[1:]:
        logits.append(model.decode(IDS[at : at + count][None], cache)[0])
        at += count
    return torch.cat(logits), cache


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("parts", [[21, 1, 2, 3], [20, 1, 1]], ids=str)
def test_prefill_and_decode_equal_the_torch_path(model, parts, monkeypatch):
    wanted, reference = run(model, "torch", monkeypatch, parts)
    got, cache = run(model, "triton", monkeypatch, parts)
    # float32 throughout: what remains are sums in another order, and now and then a code that they tip over.
    assert relative(got, wanted) < 5e-3
    assert relative(got[0], wanted[0]) < 5e-3
    same = (cache.pool.data == reference.pool.data)[cache.pages_of(0)].float().mean()
    assert float(same) > 0.995
    windows = [c.read_window(0, torch.zeros(1, dtype=torch.int64), torch.tensor([c.lengths[0] - 1])) for c in (cache, reference)]
    assert torch.equal(*windows)


def test_bounded_prefill(model, monkeypatch):
    wanted, reference = run(model, "torch", monkeypatch, [30, 1], "bounded")
    got, cache = run(model, "triton", monkeypatch, [30, 1], "bounded")
    assert torch.equal(cache.window_start, reference.window_start)
    assert relative(got, wanted) < 5e-3


def test_a_layer_alone_equals_the_definition(model, monkeypatch):
    """The same input into each layer's attention on both paths: no layer hides behind the ones after it."""
    inputs = {}
    hooks = [
        layer.attn.register_forward_pre_hook(
            lambda module, args, index=index: inputs.__setitem__(index, args[0].clone()), with_kwargs=False
        )
        for index, layer in enumerate(model.layers)
    ]
    run(model, "torch", monkeypatch, [24])
    for hook in hooks:
        hook.remove()
    outputs = {}
    for backend, kind in (("torch", CacheMemory), ("triton", KernelMemory)):
        monkeypatch.setenv(OVERRIDE, backend)
        cache = model.new_cache(len(IDS))
        cache.reserve([24])
        from ds41.step import Step

        step, memory, selections = Step.of([24], [0], model.device), kind(cache), {}
        outputs[backend] = [
            layer.attn(inputs[index], step, memory, selections).output for index, layer in enumerate(model.layers)
        ]
    for got, wanted in zip(outputs["triton"], outputs["torch"], strict=True):
        errors = (got - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert float(errors.median()) < 1e-5
