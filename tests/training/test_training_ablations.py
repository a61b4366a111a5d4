"""The variants: what each changes, and that it can be built, priced and begun from a model that has learnt."""

from dataclasses import replace

import pytest
import torch
from tiny_run import tiny_corpus, tiny_recipe

from ds41 import Model, ModelConfig
from ds41.ledger import Storage, bytes_per_token
from ds41.training.ablations import adaptation_recipe, adapted_weights, run_variant, twin_recipe, variants, window_only
from ds41.training.run_state import STATE, ResumeError

NANO, LONGEST = ModelConfig.nano(), 192
VARIANTS = {variant.name: variant for variant in (*variants(NANO, LONGEST), window_only(NANO))}
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


def test_settings_are_those_of_a_recipe():
    for variant in VARIANTS.values():
        replace(adaptation_recipe(8), **variant.settings)


@pytest.mark.parametrize("recipe", [adaptation_recipe(8), twin_recipe(50)], ids=["adaptation", "twin"])
def test_recipes_end_on_served_rows_with_far_needles(recipe):
    assert recipe.steps in (8, 50)
    assert recipe.stages[-1].serving
    assert not recipe.stages[0].serving
    assert max(stage.length for stage in recipe.stages) == LONGEST > 32 + 2 * 32


def numbered_weights(config):
    """Every tensor of a model with a number of its own."""
    weights = Model(config).state_dict()
    return {name: torch.full_like(value, number) for number, (name, value) in enumerate(weights.items())}


@pytest.mark.parametrize("name", BYTES)
def test_a_variant_begins_with_what_it_had_or_borrowed(name):
    weights = numbered_weights(NANO)
    config = config_of(VARIANTS[name])
    begun = adapted_weights(weights, NANO, config)
    Model(config).load_state_dict(begun)
    for path, value in begun.items():
        if path in weights:
            assert value is weights[path]
    if name == "no sharing":
        for path, source in (
            ("layers.2.attn.compressor.wgate.weight", 1),
            ("layers.8.attn.compressor.norm.weight", 5),
            ("layers.8.attn.indexer.keys.wk.weight", 5),
            ("layers.8.attn.indexer.wq_b.weight", 7),
            ("layers.7.attn.indexer.keys.k_norm.weight", 5),
        ):
            borrowed = path.replace(f"layers.{path.split('.')[1]}.", f"layers.{source}.", 1)
            assert torch.equal(begun[path], weights[borrowed]), path


def test_a_run_belongs_to_the_weights_that_it_began_with(tmp_path):
    recipe, corpus, base = tiny_recipe(steps=1), tiny_corpus(), VARIANTS["base"]
    start = Model(recipe.config()).state_dict()
    run_variant(base, recipe, corpus, tmp_path, start)
    assert (tmp_path / "base" / STATE).exists()
    other = {name: value + 1 if name == "norm.weight" else value for name, value in start.items()}
    with pytest.raises(ResumeError, match="its initial differs"):
        run_variant(base, recipe, corpus, tmp_path, other)


def test_a_run_begins_where_it_was_told_to(tmp_path):
    recipe = replace(tiny_recipe(steps=1), matrix_rate=1e-12, other_rate=1e-12, weight_decay=0.0, bias_speed=0.0)
    start = Model(recipe.config()).state_dict()
    model = run_variant(VARIANTS["base"], recipe, tiny_corpus(), tmp_path, start)
    for name, value in model.state_dict().items():
        assert torch.allclose(value, start[name], atol=1e-6), name
