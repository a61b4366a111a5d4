"""The drafter on kernels against the drafter on torch."""

import pytest
import torch
from drafting_model import CONFIG, pair, prompt

from ds41.attention import KernelMemory
from ds41.dspark.block_memory import KernelBlockMemory
from ds41.environment import interpreting
from ds41.ops.backend import OVERRIDE

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() or interpreting()), reason="kernels need a GPU or Triton's interpreter"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_drafts_after_a_prefill_and_a_rejection(monkeypatch):
    """Two sequences, one of them shorter than a window; then four tokens fed and three taken back."""
    model, drafter = (part.to(DEVICE) for part in pair())
    rows = [prompt(CONFIG.sliding_window + 5, 1), prompt(3, 2)]
    found = {}
    for backend in ("torch", "triton"):
        monkeypatch.setenv(OVERRIDE, backend)
        cache = drafter.new_cache(model, 40, batch=2)
        assert KernelMemory.suits(cache) == (backend == "triton")
        for part in cache._windows.parts:
            part.fill_(255)
        model.prefill(rows, cache)
        drafts = [drafter.draft(model, cache, [5, 9], (0, 1))]
        model.decode([[5, 1, 2, 3], [9, 4, 4, 4]], cache)
        for row in (0, 1):
            cache.truncate(row, cache.lengths[row] - 3)
        before = [part.clone() for part in cache._windows.parts]
        drafts.append(drafter.draft(model, cache, [7, 8], (0, 1)))
        # A draft leaves nothing behind.
        assert all(torch.equal(a, b) for a, b in zip(before, cache._windows.parts, strict=True))
        found[backend] = drafts
    for ours, theirs in zip(found["triton"], found["torch"], strict=True):
        assert torch.isfinite(ours.logits).all()
        assert float((ours.logits - theirs.logits).norm() / theirs.logits.norm()) < 2e-3
        assert torch.allclose(ours.confidence, theirs.confidence, atol=2e-3)


def test_context_rows_are_copied_as_bytes(monkeypatch):
    model, drafter = (part.to(DEVICE) for part in pair())
    cache = drafter.new_cache(model, 40)
    # The ring holds the same bytes whoever wrote them.
    monkeypatch.setenv(OVERRIDE, "torch")
    model.prefill([prompt(20)], cache)
    monkeypatch.setenv(OVERRIDE, "triton")
    step, memory = drafter._block(cache, [0], [20])
    assert isinstance(memory, KernelBlockMemory)
    layer = drafter.mtp[0].plan.index
    with memory.window_plane(layer, step) as plane:
        ring = cache.window_plane(layer)
        at = cache.window_slots(torch.zeros(8, dtype=torch.int64), torch.arange(12, 20)).to(DEVICE)
        assert torch.equal(plane.rows.codes[:8], ring.codes[at])
        assert plane.choice.shape == (4, 8 + 4)
        assert plane.place.tolist() == [8, 9, 10, 11]
