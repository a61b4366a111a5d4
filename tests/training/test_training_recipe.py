"""The recipe: its schedule, its stages, and what it refuses."""

import math
from dataclasses import replace

import pytest
from tiny_run import OVERRIDES, tiny_recipe

from ds41.training.recipe import PRESETS, Recipe, Stage, preset_recipe


def test_the_rate_rises_holds_falls_and_holds():
    recipe = preset_recipe("nano", 1000, warm_up=20)
    assert [recipe.rate(step) for step in (0, 9, 19)] == pytest.approx([0.05, 0.5, 1.0])
    assert all(recipe.rate(step) == 1 for step in range(19, 621))
    falling = [recipe.rate(step) for step in range(620, 891)]
    assert falling == sorted(falling, reverse=True)
    assert recipe.rate(621) < 1
    # Half-way down a cosine from 1 to a tenth.
    assert recipe.rate(755) == pytest.approx(0.55)
    assert all(recipe.rate(step) == pytest.approx(0.1) for step in range(890, 1000))


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert preset_recipe("nano", 100, warm_up=0).rate(0) == 1


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("steps", [5, 6, 7, 13, 100, 1801, None])
def test_stages_sum_to_the_steps(preset, steps):
    recipe = preset_recipe(preset, steps)
    assert recipe.steps == (steps or PRESETS[preset].steps)
    assert all(stage.steps >= 1 for stage in recipe.stages)
    names = [recipe.at(step).name for step in range(recipe.steps)]
    assert names == [stage.name for stage in recipe.stages for _ in range(stage.steps)]
    with pytest.raises(ValueError, match=f"the recipe has {recipe.steps} steps"):
        recipe.at(recipe.steps)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_extends_late_and_ends_as_it_serves(preset):
    recipe = preset_recipe(preset)
    lengths = [stage.length for stage in recipe.stages]
    assert lengths == sorted(lengths)
    assert [stage.serving for stage in recipe.stages] == [False] * 4 + [True]
    assert recipe.tokens == sum(recipe.at(step).rows * recipe.at(step).length for step in range(recipe.steps))
    # Post-training needs needles that neither window nor recency reach.
    config = recipe.config()
    assert lengths[-1] > config.sliding_window + 2 * config.index_topk


def test_settings_and_overrides_reach_the_recipe():
    recipe = preset_recipe("nano", 100, seed=3, replayed=0.25, overrides={"index_topk": 16})
    assert (recipe.seed, recipe.replayed, recipe.config().index_topk) == (3, 0.25, 16)


def test_a_dictionary_of_a_recipe_is_plain():
    kept = tiny_recipe().to_dict()
    assert kept["stages"][1] == {"name": "post", "steps": 3, "length": 40, "rows": 4, "mix": {"stream": 1.0},
                                 "serving": True}  # fmt: skip
    assert kept["overrides"] == OVERRIDES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1), ("seed", 2**16), ("matrix_rate", 0), ("matrix_rate", math.nan), ("other_rate", -1e-3),
        ("clip", 0.0), ("clip", math.inf), ("weight_decay", -0.1), ("warm_up", -1), ("alignment", -0.1),
        ("aligned", 0), ("bias_speed", -1e-3), ("balance", -1e-4), ("replayed", -0.1), ("replayed", 1.1),
        ("legal", "all"), ("preset", "flash"), ("stages", ()), ("overrides", {"width": 3}),
        ("overrides", {"index_topk": 0}),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_by_its_name(name, value):
    wrong = name if name != "overrides" else next(iter(value))
    with pytest.raises(ValueError, match=wrong):
        replace(tiny_recipe(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0), ("rows", 0), ("length", 17), ("length", 2**20),
        ("mix", {}), ("mix", {"prose": 1.0}), ("mix", {"copy": -1.0, "source": 2.0}), ("mix", {"copy": 0}),
    ],
)  # fmt: skip
def test_a_bad_stage_is_refused_by_its_name(name, value):
    stage = replace(Stage("middle", 1, 40, 2, {"source": 1.0}), **{name: value})
    with pytest.raises(ValueError, match=f"{name} of stage 'middle' is"):
        Recipe("nano", (stage,))


def test_a_preset_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="preset is 'flash'; expected one of 'nano', 'mini'"):
        preset_recipe("flash")
    with pytest.raises(ValueError, match="steps is 4; expected 5 or more"):
        preset_recipe("nano", 4)
    with pytest.raises(ValueError, match="unknown settings stages, width; expected some of"):
        preset_recipe("nano", 5, width=3, stages=())
