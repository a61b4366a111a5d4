"""The variants: what each changes, and that it can be built, priced and branched off."""

from dataclasses import replace

import pytest
import torch
from tiny_run import tiny_corpus, tiny_recipe

from ds41 import Model, ModelConfig
from ds41.ledger import Storage, bytes_per_token
from ds41.training.ablations import ablation_recipe, branch, run_variant, variants
from ds41.training.run_log import LOG, read_log
from ds41.training.trainer import STATE, ResumeError, train

NANO, LONGEST = ModelConfig.nano(), 192
VARIANTS = {variant.name: variant for variant in variants(NANO, LONGEST)}
# Two layers of ratio 2 and one of ratio 1 own entries of 32 + 4 and 16 + 1 bytes: 53 * (2 / 2 + 1) = 106. Without
# sharing four layers of ratio 2 and five of ratio 1 do; unrounded, an entry has 2 * (64 + 32) bytes.
BYTES = {
    "base": 106,
    "window only": 0,
    "dense": 106,
    "no sharing": 53 * (4 / 2 + 5),
    "m = 1": 53 * 3,
    "no Reindex": 106,
    "no FP4": 192 * 2,
    "no replay in training": 106,
    "indexer taught by selected": 106,
}


def config_of(variant):
    return replace(NANO, **variant.overrides)


def test_the_base_comes_first_and_changes_nothing():
    first = next(iter(VARIANTS.values()))
    assert (first.name, dict(first.overrides), dict(first.settings)) == ("base", {}, {})
    assert VARIANTS.keys() == BYTES.keys()


@pytest.mark.parametrize("name", BYTES)
def test_a_variant_can_be_built(name):
    config = config_of(VARIANTS[name])
    model = Model(config, "cache")
    owners = [layer for layer, block in enumerate(model.layers) if hasattr(block.attn, "compressor")]
    assert owners == list(config.kv_source_layer_ids)


@pytest.mark.parametrize(("name", "expected"), BYTES.items())
def test_bytes_of_a_token_are_those_of_a_hand_count(name, expected):
    variant = VARIANTS[name]
    config = config_of(variant)
    storage = Storage.published(config) if variant.settings.get("rounds", True) else Storage.bf16(config)
    assert bytes_per_token(config, storage) == expected


def test_each_variant_takes_one_thing_away():
    assert all(plan.owns_kv for plan in config_of(VARIANTS["no sharing"]).layers if plan.ratio)
    assert not any(plan.ratio for plan in config_of(VARIANTS["window only"]).layers)
    assert {plan.ratio for plan in config_of(VARIANTS["m = 1"]).layers} == {0, 1}
    sources = [plan.index for plan in config_of(VARIANTS["no Reindex"]).layers if plan.owns_selection]
    assert sources == [plan.index for plan in NANO.layers if plan.owns_kv]
    dense = config_of(VARIANTS["dense"])
    assert dense.index_topk >= LONGEST
    assert dense.candidate_source_layer_id == -1


def test_only_what_acts_in_post_training_branches():
    assert {name for name, variant in VARIANTS.items() if variant.branches} == {"no FP4", "no replay in training"}
    for variant in VARIANTS.values():
        assert not (variant.branches and variant.overrides)
        replace(ablation_recipe(50), **variant.settings)


def test_the_recipe_ends_on_rows_with_far_needles():
    recipe = ablation_recipe(50)
    assert recipe.steps == 50
    assert recipe.stages[-1].serving
    assert max(stage.length for stage in recipe.stages) == LONGEST > 32 + 2 * 32


def test_a_branch_keeps_weights_and_step_and_changes_the_recipe(tmp_path):
    recipe, corpus = tiny_recipe(steps=1), tiny_corpus()
    train(recipe, corpus, tmp_path / "trunk", stop_at=1)
    branch(tmp_path / "trunk", tmp_path / "own", replace(recipe, rounds=False))
    trunk, own = (torch.load(tmp_path / name / STATE, weights_only=True) for name in ("trunk", "own"))
    assert own["step"] == trunk["step"] == 1
    assert all(torch.equal(own["model"][name], value) for name, value in trunk["model"].items())
    assert (trunk["recipe"]["rounds"], own["recipe"]["rounds"]) == (True, False)
    with pytest.raises(ResumeError, match="its recipe differs"):
        train(recipe, corpus, tmp_path / "own")
    train(replace(recipe, rounds=False), corpus, tmp_path / "own")
    assert [line["step"] for line in read_log(tmp_path / "own" / LOG)] == [0, 1]


def test_a_variant_of_post_training_shares_the_trunk(tmp_path):
    recipe, steps = tiny_recipe(steps=1), []
    for name in ("no FP4", "no replay in training"):
        run_variant(VARIANTS[name], recipe, tiny_corpus(), tmp_path, lambda line: steps.append(line["stage"]))
    assert steps == ["pre", "post", "post"]
    assert {path.name for path in tmp_path.iterdir()} == {"trunk", "no-FP4", "no-replay-in-training"}
