"""The model on kernels against the model on torch: every layer mode, prefill, decode, and what is left in the cache."""

import pytest
import tiny_model
import torch

from ds41.attention import CacheMemory, KernelMemory
from ds41.cache import PagePool
from ds41.environment import interpreting
from ds41.ops.backend import OVERRIDE
from ds41.replay import begin_replay, feed_again, plan_replay
from ds41.step import Step

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() or interpreting()), reason="kernels need a GPU or Triton's interpreter"
)
CONFIG = tiny_model.CONFIG
TOKENS = 30
IDS = torch.randint(3, CONFIG.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def model():
    return tiny_model.build().to("cuda" if torch.cuda.is_available() else "cpu")


def run(model, backend: str, monkeypatch, parts: list[int], decoder: str = "full"):
    """Logits of a prefill and of the decode steps after it, and the cache."""
    monkeypatch.setenv(OVERRIDE, backend)
    cache = model.new_cache(TOKENS)
    assert KernelMemory.suits(cache) == (backend == "triton")
    at = parts[0]
    logits = [model.prefill(IDS[:at], cache, decoder=decoder)]
    for count in parts[1:]:
        logits.append(model.decode(IDS[at : at + count][None], cache)[0])
        at += count
    return torch.cat(logits), cache


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


def kept(cache) -> list[torch.Tensor]:
    """Every entry, index key and visible window row of the one sequence of a cache."""
    length, first = cache.lengths[0], torch.zeros(1, dtype=torch.int64, device=cache.device)
    held = []
    for source in cache.pool.layout.sources:
        entries = torch.arange(length // source.ratio, device=cache.device)[None]
        held += [cache.gather_main(source.layer, first, entries), cache.gather_index(source.layer, first, entries)]
    for layer in range(CONFIG.num_hidden_layers):
        start = max(int(cache.window_start[layer, 0]), length - CONFIG.sliding_window)
        position = torch.arange(start, length, device=cache.device)
        held.append(cache.read_window(layer, torch.zeros_like(position), position))
    return held


@pytest.mark.parametrize(("parts", "decoder"), [([21, 1, 2], "full"), ([22, 1], "bounded")], ids=["full", "bounded"])
def test_prefill_and_decode_equal_the_torch_path(model, parts, decoder, monkeypatch):
    wanted, reference = run(model, "torch", monkeypatch, parts, decoder)
    got, cache = run(model, "triton", monkeypatch, parts, decoder)
    # float32 throughout: what remains are sums in another order, and a code that they tip over now and then.
    assert relative(got, wanted) < 1e-3
    assert relative(got[0], wanted[0]) < 1e-3
    assert torch.equal(cache.window_start, reference.window_start)
    for ours, theirs in zip(kept(cache), kept(reference), strict=True):
        assert float((ours != theirs).float().mean()) < 2e-3


def test_sequences_of_unequal_length_equal_single_runs(model, monkeypatch):
    monkeypatch.setenv(OVERRIDE, "triton")
    # One that is longer than the window and the top-k, one that is shorter.
    together = model.new_cache(TOKENS, batch=2)
    first = model.prefill([IDS[:10], IDS[3:6]], together)
    second = model.decode([int(IDS[10]), int(IDS[6])], together)[:, 0]
    for row, (start, stop) in enumerate(((0, 10), (3, 6))):
        cache = model.new_cache(TOKENS)
        assert relative(first[row], model.prefill(IDS[start:stop], cache)[0]) < 1e-5
        assert relative(second[row], model.decode(int(IDS[stop]), cache)[0, 0]) < 1e-5


def test_each_layer_alone_equals_the_definition(model, monkeypatch):
    """The same input into each layer's attention on both paths: no layer hides behind those after it."""
    inputs = torch.randn(24, CONFIG.hidden_size, generator=torch.Generator().manual_seed(0)).to(model.device)
    outputs = {}
    for backend, kind in (("torch", CacheMemory), ("triton", KernelMemory)):
        monkeypatch.setenv(OVERRIDE, backend)
        cache = model.new_cache(TOKENS)
        cache.reserve([24])
        step, memory, selections = Step.of([24], [0], model.device), kind(cache), {}
        outputs[backend] = [layer.attn(inputs, step, memory, selections).output for layer in model.layers]
        outputs[backend] += [selection.entries for selection in selections.values()]
    for got, wanted in zip(outputs["triton"], outputs["torch"], strict=True):
        assert relative(got.float(), wanted.float()) < 1e-5


@pytest.mark.parametrize("kept", [False, True])
def test_a_replay_on_kernels(model, monkeypatch, kept):
    # After a hit of 21 tokens, odd, inside a page: a replay, or windows put back and the last three tokens fed again.
    hit, window = 21, CONFIG.sliding_window
    logits = []
    for backend in ("torch", "triton"):
        monkeypatch.setenv(OVERRIDE, "torch")
        pool = PagePool(CONFIG, 8, page_tokens=16, dtype=torch.float32, device=model.device)
        owner = model.new_cache(TOKENS, pool=pool)
        model.prefill(IDS[:hit], owner)
        pages = owner.pages_of(0)
        before = pool.data[pages].clone()
        monkeypatch.setenv(OVERRIDE, backend)
        cache = model.new_cache(TOKENS, pool=pool)
        for part in cache._windows.parts:
            part.fill_(255)
        if kept:
            cache.adopt(0, pages, hit)
            cache.restore_windows(0, owner.window_snapshot(0))
            feed_again(model, cache, 0, IDS, hit - 3)
        else:
            begin_replay(model, cache, 0, IDS, pages, plan_replay(hit, window))
        held = [part.clone() for part in cache._windows.parts]
        start = cache.lengths[0]
        steps = [model.prefill(IDS[start : start + 2], cache), model.prefill(IDS[start + 2 : hit], cache)]
        unchanged = all(torch.equal(a, b) for a, b in zip(held, cache._windows.parts, strict=True))
        assert unchanged == kept
        steps.append(model.prefill(IDS[hit:], cache, decoder="bounded"))
        logits.append(torch.cat(steps))
        assert torch.equal(pool.data[pages], before)
    assert relative(logits[1], logits[0]) < 2e-3
