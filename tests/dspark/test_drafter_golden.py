"""The drafter against reference tensors of tinyC; tests/golden/README.md has their origin.

Context rows come from the model's own steps, so in the rounded modes a flip in the backbone moves them. In bfloat16 the
drafter is given the reference's own stream means.
"""

import golden_io
import golden_model
import pytest
import torch
from test_golden_model import relative

from ds41.checkpoint.names import module_weights
from ds41.dspark import Drafter, load_drafter
from ds41.step import Step

NAME = "tinyC"
LIMIT = {"fp32": 2e-6, "fp32_cacheq": 3e-4, "fp32_fullq": 3e-4}


def build(mode):
    """Model and drafter in one mode."""
    model = golden_model.build(NAME, mode)
    drafter = Drafter(model.config, model.quantization, model.dtype)
    weights = golden_io.weights(NAME)
    with torch.no_grad():
        for name, memory in module_weights(drafter).items():
            memory.copy_(weights[name])
    return model, drafter.requires_grad_(False)


@pytest.mark.parametrize("mode", LIMIT)
@torch.no_grad()
def test_every_draft_of_a_greedy_run(mode):
    model, drafter = build(mode)
    io, limit = golden_io.load(NAME, mode), LIMIT[mode]
    ids, start = io["input_ids"], int(io["decode.prefill_len"])
    cache = drafter.new_cache(model, len(ids) + model.config.dspark_block_size)
    seen = []
    cache.follower = lambda hidden, cache: (seen.append(torch.cat(hidden.entering, -1)), drafter.follow(hidden, cache))
    model.prefill(ids[:start], cache)
    assert relative(seen[0], io["decode_fixed.dspark.main_hidden_prefill"]) < limit
    steps = len(ids) - start
    for number in range(steps):
        logits = model.decode(ids[start + number : start + number + 1], cache)[0, -1]
        assert relative(seen[-1][0], io["decode_fixed.dspark.main_hidden"][number]) < limit
        expected = io["decode_fixed.dspark.output_ids"][number].tolist()
        first = int(logits.argmax())
        drafts = drafter.draft(model, cache, [first])
        assert [first, *drafts.ids[0].tolist()] == expected
        assert (drafts.confidence[0] - io["decode_fixed.dspark.confidence"][number]).abs().max() < 10 * limit
        late = number - (steps - len(io["decode_fixed.dspark.logits_last8"]))
        if late >= 0:
            assert relative(drafts.logits[0], io["decode_fixed.dspark.logits_last8"][late]) < limit


@torch.no_grad()
def test_drafts_in_bfloat16_from_the_references_stream_means():
    model, drafter = build("bf16_native")
    io = golden_io.load(NAME, "bf16_native")
    size, targets = model.config.hidden_size, len(model.config.dspark_target_layer_ids)
    means = torch.cat((io["decode_fixed.dspark.main_hidden_prefill"], io["decode_fixed.dspark.main_hidden"]))
    start, same, errors = int(io["decode.prefill_len"]), 0, []
    cache = drafter.new_cache(model, len(means) + 8)
    late = io["decode_fixed.dspark.logits_last8"]
    for number, mean in enumerate(means):
        cache.reserve([1])
        step = Step.of([1], cache.lengths)
        rows = drafter.context_rows(drafter.main(mean[None].to(torch.bfloat16).split(size, -1)), step)
        assert len(mean) == size * targets
        for block, row in zip(drafter.mtp, rows, strict=True):
            cache.write_window(block.plan.index, step.sequence, step.position, row)
        cache.advance([1])
        if number < start:
            continue
        expected = io["decode_fixed.dspark.output_ids"][number - start].tolist()
        drafts = drafter.draft(model, cache, expected[:1])
        same += drafts.ids[0].tolist() == expected[1:]
        if number - len(means) + len(late) >= 0:
            errors.append(relative(drafts.logits[0], late[number - len(means)]))
    # Random weights in bfloat16: near ties fall either way, and a fall changes the drafts after it.
    assert same >= 0.8 * (len(means) - start)
    assert torch.tensor(errors).median() < 5e-2


def test_a_drafter_is_read_from_the_reference_checkpoint():
    loaded = load_drafter(golden_io.FOLDER / NAME, "none", torch.float32)
    expected = module_weights(build("fp32")[1])
    for name, memory in module_weights(loaded).items():
        assert torch.equal(memory, expected[name]), name
