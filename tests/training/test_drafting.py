"""A drafter's training sees what its drafting sees, and its losses are what they are said to be."""

import dataclasses
import math

import pytest
import torch
from drafting_model import CONFIG, pair, prompt
from tiny_run import tiny_corpus

from ds41.training.drafting import (
    CONFIDENCE,
    CROSS_ENTROPY,
    DECAY,
    DISTANCE,
    Blocks,
    DraftPlan,
    block_losses,
    draft_recipe,
    draw_anchors,
    run_blocks,
    train_drafter,
)
from ds41.training.run_log import LOG, read_log

SIZE, WINDOW, VOCAB = CONFIG.dspark_block_size, CONFIG.sliding_window, CONFIG.vocab_size
LENGTH = 40
# The first token alone, a window that is not full, just full, just slid, and the last place that has a whole block.
ANCHORS = (0, 1, WINDOW - 2, WINDOW - 1, WINDOW, 21, LENGTH - SIZE - 2)


def relative(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def told(truth):
    """Puts at every place of a block the token that the text has there."""
    places = iter(truth.T)
    return lambda logits: next(places)


@pytest.mark.parametrize(("quantization", "limit"), [("none", 1e-5), ("cache", 1e-5), ("full", 1e-5)])
@torch.no_grad()
def test_blocks_are_drafted_as_from_a_cache(quantization, limit):
    model, drafter = pair(quantization=quantization)
    ids = torch.tensor([prompt(LENGTH, 1), prompt(LENGTH, 2)])
    anchors = torch.tensor([ANCHORS, ANCHORS[::-1]]).sort(1).values
    blocks = run_blocks(model, drafter, ids, anchors)
    whole = model(ids)
    assert blocks.drafted.shape == (2 * len(ANCHORS), SIZE, VOCAB)
    for number, (row, anchor) in enumerate((row, anchor) for row in range(2) for anchor in ANCHORS):
        after = ids[row, anchor + 2 : anchor + 2 + SIZE]
        assert torch.equal(blocks.ids[number], after)
        assert torch.equal(blocks.target[number], whole[row, anchor + 1 : anchor + 1 + SIZE])
        cache = drafter.new_cache(model, LENGTH)
        model.prefill(ids[row, : anchor + 1], cache)
        drafts = drafter.draft(model, cache, [int(ids[row, anchor + 1])], pick=told(after[None]))
        assert relative(blocks.drafted[number], drafts.logits[0]) < limit
        assert (blocks.confidence[number] - drafts.confidence[0]).abs().max() < 10 * limit


@torch.no_grad()
def test_a_block_sees_its_own_row_and_nothing_after_its_anchor():
    model, drafter = pair()
    ids = torch.tensor([prompt(LENGTH, 1), prompt(LENGTH, 2)])
    anchors = torch.tensor([[9, 25], [9, 25]])
    before = run_blocks(model, drafter, ids, anchors)
    other = ids.clone()
    other[0, 18:] = torch.randint(0, VOCAB, (LENGTH - 18,), generator=torch.Generator().manual_seed(5))
    after = run_blocks(model, drafter, other, anchors)
    assert torch.allclose(after.drafted[0], before.drafted[0], atol=1e-4)
    assert relative(after.drafted[1], before.drafted[1]) > 0.01
    assert torch.allclose(after.drafted[2:], before.drafted[2:], atol=1e-4)
    # Of its own text a block sees what comes before each place, by the Markov head alone.
    other = ids.clone()
    other[0, 9 + 3] = (other[0, 9 + 3] + 1) % VOCAB
    after = run_blocks(model, drafter, other, anchors)
    assert torch.allclose(after.drafted[0, :2], before.drafted[0, :2], atol=1e-4)
    assert relative(after.drafted[0, 2], before.drafted[0, 2]) > 1e-3


def random_blocks(count=6, vocab=11, seed=0) -> Blocks:
    generator = torch.Generator().manual_seed(seed)
    drafted, target = (torch.randn(count, SIZE, vocab, generator=generator) * 2 for _ in range(2))
    confidence = torch.randn(count, SIZE, generator=generator)
    ids = torch.randint(0, vocab, (count, SIZE), generator=generator)
    return Blocks(drafted, target, confidence, ids)


def test_the_overlap_is_what_verification_accepts():
    blocks = random_blocks()
    smaller = torch.minimum(blocks.drafted.softmax(-1), blocks.target.softmax(-1)).sum(-1)
    assert torch.allclose(blocks.overlap(), smaller, atol=1e-6)
    assert torch.allclose(blocks._replace(drafted=blocks.target).overlap(), torch.ones(6, SIZE))
    apart = torch.full((1, SIZE, 2), -200.0)
    drafted, target = apart.clone(), apart.clone()
    drafted[..., 0], target[..., 1] = 0, 0
    assert torch.allclose(Blocks(drafted, target, torch.zeros(1, SIZE), None).overlap(), torch.zeros(1, SIZE))


def test_losses_by_hand():
    blocks = random_blocks()
    found, count = block_losses(blocks), len(blocks.ids)
    weights = [math.exp(-place / DECAY) for place in range(SIZE)]
    drafted, target = blocks.drafted.double().softmax(-1), blocks.target.double().softmax(-1)
    sums = dict.fromkeys(("cross_entropy", "distance", "confidence"), 0.0)
    for block in range(count):
        for place in range(SIZE):
            weight = weights[place] / sum(weights) / count
            ours, theirs = drafted[block, place], target[block, place]
            accepted = float(torch.minimum(ours, theirs).sum())
            said = 1 / (1 + math.exp(-float(blocks.confidence[block, place])))
            sums["cross_entropy"] -= weight * math.log(float(ours[blocks.ids[block, place]]))
            sums["distance"] += weight * float((ours - theirs).abs().sum())
            sums["confidence"] -= weight * (accepted * math.log(said) + (1 - accepted) * math.log(1 - said))
    for name, expected in sums.items():
        assert float(found[name]) == pytest.approx(expected, rel=1e-5)
    total = CROSS_ENTROPY * sums["cross_entropy"] + DISTANCE * sums["distance"] + CONFIDENCE * sums["confidence"]
    assert float(found["total"]) == pytest.approx(total, rel=1e-5)
    assert float(found["overlap"]) == pytest.approx(float(blocks.overlap().mean()), rel=1e-5)


def test_the_confidence_learns_about_drafts_and_does_not_move_them():
    blocks = random_blocks()
    leaves = [tensor.requires_grad_() for tensor in blocks[:3]]
    block_losses(blocks)["confidence"].backward()
    assert leaves[0].grad is None
    assert leaves[1].grad is None
    assert leaves[2].grad.abs().min() > 0


def test_gradients_reach_the_whole_drafter_and_nothing_of_the_model():
    model, drafter = pair()
    drafter.requires_grad_(True)
    ids = torch.tensor([prompt(LENGTH, 1), prompt(LENGTH, 2)])
    generator = torch.Generator().manual_seed(0)
    blocks = run_blocks(model, drafter, ids, draw_anchors(model, ids.shape, 12, generator))
    assert not blocks.target.requires_grad
    block_losses(blocks)["total"].backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, parameter in drafter.named_parameters():
        if name.endswith(("gate.bias", "gate.bias_vl")):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_a_few_steps_lower_the_loss(tmp_path):
    model, _ = pair(dataclasses.replace(CONFIG, dspark_noise_token_id=3, initializer_range=0.05))
    recipe = draft_recipe(30, DraftPlan(rows=2, length=32, anchors=12), warm_up=3)
    train_drafter(model, tiny_corpus(), tmp_path, recipe)
    lines = read_log(tmp_path / LOG)
    for name in ("total", "cross_entropy", "distance"):
        first, last = (sum(line[name] for line in part) / 5 for part in (lines[:5], lines[-5:]))
        assert last < first, name
    assert lines[-1]["overlap"] > lines[0]["overlap"]


def test_anchors_are_drawn_without_repeats_where_a_block_fits():
    model, _ = pair()
    generator = torch.Generator().manual_seed(3)
    most = LENGTH - 1 - SIZE
    every = draw_anchors(model, (3, LENGTH), most, generator)
    assert torch.equal(every, torch.arange(most).expand(3, -1))
    some = draw_anchors(model, (50, LENGTH), 5, generator)
    assert some.shape == (50, 5)
    assert (some.diff(dim=1) > 0).all()
    assert some.min() == 0
    assert some.max() == most - 1
    again = draw_anchors(model, (3, LENGTH), 5, torch.Generator().manual_seed(3))
    assert torch.equal(again, draw_anchors(model, (3, LENGTH), 5, torch.Generator().manual_seed(3)))
    for count in (0, most + 1):
        with pytest.raises(ValueError, match=rf"{count} anchors in a row of {LENGTH} tokens; expected 1 to {most}"):
            draw_anchors(model, (3, LENGTH), count, generator)


@pytest.mark.parametrize("anchors", [[[0, 0]], [[30, 2]]])
@torch.no_grad()
def test_anchors_in_any_order_and_twice(anchors):
    model, drafter = pair()
    ids = torch.tensor([prompt(LENGTH, 1)])
    together = run_blocks(model, drafter, ids, torch.tensor(anchors))
    for number, anchor in enumerate(anchors[0]):
        alone = run_blocks(model, drafter, ids, torch.tensor([[anchor]]))
        assert torch.allclose(together.drafted[number], alone.drafted[0], atol=1e-4)
