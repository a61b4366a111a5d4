"""A part's run beside a frozen model: what it goes on from, what it refuses, what it leaves alone."""

import copy
import dataclasses
import json
import shutil
from itertools import pairwise

import pytest
import seeing_model
import torch
from drafting_model import CONFIG, pair
from tiny_run import tiny_corpus

from ds41.checkpoint.rounding import rounded_weights
from ds41.dspark import Drafter
from ds41.moe import Router
from ds41.training import drafting
from ds41.training.corpus import Corpus
from ds41.training.drafting import DraftPlan, draft_recipe, train_drafter
from ds41.training.parts import Balance, PartRecipe, train_part
from ds41.training.run_log import LOG, read_log
from ds41.training.run_state import STATE, ResumeError
from ds41.training.seeing import SeeingPlan, train_vision, vision_recipe

CORPUS = tiny_corpus()
PLAN = DraftPlan(rows=2, length=24, anchors=4)
# Three steps with full weights, two with rounded ones.
RECIPE = draft_recipe(5, PLAN, warm_up=2, rounded=0.6)


@pytest.fixture(scope="module")
def model():
    return pair(dataclasses.replace(CONFIG, dspark_noise_token_id=3))[0]


def same(first, second) -> bool:
    """Whether two states are equal to the last bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def state_of(folder):
    return torch.load(folder / STATE, weights_only=True)


def lines_of(folder):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read_log(folder / LOG)]


def copy_of(module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """A run that nothing stopped: its folder."""
    folder = tmp_path_factory.mktemp("whole")
    drafter = train_drafter(model, CORPUS, folder, RECIPE)
    assert same(dict(drafter.state_dict()), dict(state_of(folder)["module"]))
    return folder


def test_the_log_tells_every_step(whole):
    lines = read_log(whole / LOG)
    assert [line["step"] for line in lines] == list(range(5))
    assert [line["stage"] for line in lines] == ["full"] * 3 + ["rounded"] * 2
    assert [line["rate"] for line in lines] == [RECIPE.rate(step) for step in range(5)]
    for line in lines:
        parts = 0.1 * line["cross_entropy"] + 0.9 * line["distance"] + line["confidence"]
        assert line["total"] == pytest.approx(parts, rel=1e-5)
        assert 0 < line["overlap"] < 1
        assert line["gradient_norm"] > 0


@pytest.mark.parametrize("stops", [(1, None), (2, 3, None), (4, 4, None)])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(model, whole, tmp_path, stops):
    for stop_at in stops:
        train_drafter(model, CORPUS, tmp_path, RECIPE, stop_at=stop_at)
    assert same(state_of(tmp_path), state_of(whole))
    assert lines_of(tmp_path) == lines_of(whole)


def test_a_killed_run_does_the_steps_after_its_checkpoint_again(model, whole, tmp_path):
    def kill(line):
        if line["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(model, CORPUS, tmp_path, RECIPE, save_every=3, progress=kill)
    assert state_of(tmp_path)["step"] == 3
    assert len(read_log(tmp_path / LOG)) == 4
    train_drafter(model, CORPUS, tmp_path, RECIPE)
    assert same(state_of(tmp_path), state_of(whole))
    assert lines_of(tmp_path) == lines_of(whole)


def test_a_finished_run_only_gives_its_part(model, whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    drafter = train_drafter(model, CORPUS, tmp_path, RECIPE, progress=lambda line: pytest.fail("a step was run"))
    assert same(dict(drafter.state_dict()), dict(state_of(whole)["module"]))


@pytest.mark.parametrize(
    ("recipe", "corpus", "name"),
    [
        (dataclasses.replace(RECIPE, seed=1), CORPUS, "recipe"),
        (draft_recipe(5, DraftPlan(rows=2, length=24, anchors=5), warm_up=2, rounded=0.6), CORPUS, "recipe"),
        (RECIPE, Corpus({"other.py": b"x = 1\n" * 50}), "text"),
    ],
)
def test_another_run_is_refused(model, whole, tmp_path, recipe, corpus, name):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    before = (tmp_path / STATE).read_bytes(), (tmp_path / LOG).read_bytes()
    with pytest.raises(ResumeError, match=rf"state.pt belongs to another run: its {name} differs"):
        train_drafter(model, corpus, tmp_path, recipe)
    assert ((tmp_path / STATE).read_bytes(), (tmp_path / LOG).read_bytes()) == before


def test_what_is_no_checkpoint_is_refused(model, whole, tmp_path):
    content = (whole / STATE).read_bytes()
    for damaged in (b"", content[:100], content[:-200], b"no checkpoint"):
        (tmp_path / STATE).write_bytes(damaged)
        with pytest.raises(ResumeError, match=r"state.pt cannot be read as a checkpoint"):
            train_drafter(model, CORPUS, tmp_path, RECIPE)
        assert (tmp_path / STATE).read_bytes() == damaged
    for other, fault in (([1, 2], "holds a list"), (torch.zeros(3), "holds a Tensor"), ({}, "belongs to another run")):
        torch.save(other, tmp_path / STATE)
        with pytest.raises(ResumeError, match=rf"state.pt {fault}"):
            train_drafter(model, CORPUS, tmp_path, RECIPE)


def test_a_checkpoint_with_a_piece_missing_or_of_another_size_is_refused(model, whole, tmp_path):
    state = state_of(whole)
    del state["biases"]
    torch.save(state, tmp_path / STATE)
    with pytest.raises(ResumeError, match="does not fit a drafter of this configuration: 'biases'"):
        train_drafter(model, CORPUS, tmp_path, RECIPE)
    state = state_of(whole)
    state["module"]["mtp.0.main_norm.weight"] = torch.ones(3)
    torch.save(state, tmp_path / STATE)
    with pytest.raises(ResumeError, match="does not fit a drafter of this configuration: Error"):
        train_drafter(model, CORPUS, tmp_path, RECIPE)


def test_a_run_behind_another_model_is_refused(model, whole, tmp_path):
    """Of another size, and of the same with one weight changed."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    smaller = pair(dataclasses.replace(model.config, dspark_markov_rank=8))[0]
    touched = copy.deepcopy(model)
    touched.norm.weight.data[5] += 1
    for other in (smaller, touched):
        with pytest.raises(ResumeError, match="belongs to another run: its model differs"):
            train_drafter(other, CORPUS, tmp_path, RECIPE)


def test_a_loss_that_is_not_finite_leaves_the_last_checkpoint(model, whole, tmp_path, monkeypatch):
    real, steps = drafting.block_losses, []

    def losses(blocks):
        steps.append(len(steps))
        found = real(blocks)
        return found | {"total": found["total"] * torch.nan} if len(steps) == 4 else found

    monkeypatch.setattr(drafting, "block_losses", losses)
    with pytest.raises(FloatingPointError, match=r"step 3: loss nan.*the last checkpoint stands"):
        train_drafter(model, CORPUS, tmp_path, RECIPE, save_every=2)
    assert state_of(tmp_path)["step"] == 2
    assert len(read_log(tmp_path / LOG)) == 3
    monkeypatch.undo()
    train_drafter(model, CORPUS, tmp_path, RECIPE)
    assert same(state_of(tmp_path), state_of(whole))


def test_a_gradient_that_is_not_finite_is_caught_too(tmp_path):
    layer = torch.nn.Linear(2, 2)
    before = copy_of(layer)

    def losses(step):
        # The root has no derivative at zero; its value is fine.
        return {"total": (layer.weight * 0).square().sum().sqrt()}

    with pytest.raises(FloatingPointError, match="gradient norm nan"):
        train_part(layer, losses, Balance([]), PartRecipe("drafter", 1, rounded=2), {}, tmp_path)
    assert same(dict(layer.state_dict()), before)
    assert not (tmp_path / STATE).exists()


def test_rounded_steps_see_what_a_checkpoint_keeps(model, tmp_path, monkeypatch):
    """The losses of the last steps are taken at the stored values; the full weights are trained on."""
    real, rounds = drafting.run_blocks, []

    def run(model, drafter, ids, anchors):
        kept = dict(rounded_weights(model.config, drafter.named_parameters()))
        parameters = dict(drafter.named_parameters())
        rounds.append(all(torch.equal(parameters[name], value) for name, value in kept.items()))
        return real(model, drafter, ids, anchors)

    monkeypatch.setattr(drafting, "run_blocks", run)
    drafter = train_drafter(model, CORPUS, tmp_path, RECIPE)
    assert rounds == [False] * 3 + [True] * 2
    kept = dict(rounded_weights(model.config, drafter.named_parameters()))
    assert not all(torch.equal(dict(drafter.named_parameters())[name], value) for name, value in kept.items())


def test_the_model_stays_as_it_is_and_nobody_watches_it(model, tmp_path):
    before = copy_of(model)
    drafter = train_drafter(model, CORPUS, tmp_path, RECIPE, stop_at=2)
    assert same(copy_of(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    routers = [each for module in (model, drafter) for each in module.modules() if isinstance(each, Router)]
    assert not any(router._forward_hooks for router in routers)
    assert any(router.bias.any() for router in routers)


def test_hooks_go_when_a_run_fails(model, tmp_path, monkeypatch):
    made = []

    class Watched(Drafter):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(drafting, "Drafter", Watched)
    monkeypatch.setattr(drafting, "run_blocks", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_drafter(model, CORPUS, tmp_path, RECIPE)
    assert made
    assert not any(block.ffn.gate._forward_hooks for block in made[0].mtp)


def router(experts: int = 4) -> Router:
    return Router(dataclasses.replace(CONFIG, n_routed_experts=experts, num_experts_per_tok=1))


def test_balance_moves_a_bias_by_the_load_of_its_own_modality():
    """Text to one expert, pictures to another; each balance sees what it is told to."""
    gate = router()
    gate.weight.requires_grad_(False).zero_()
    mask = torch.tensor([True, False, True, False, False])
    gate.bias.copy_(torch.tensor([0.0, 9.0, 0.0, 0.0]))
    gate.bias_vl.copy_(torch.tensor([0.0, 0.0, 9.0, 0.0]))
    text, images = gate.bias.clone(), gate.bias_vl.clone()
    balance = Balance([gate], images=True)
    gate(torch.ones(5, CONFIG.hidden_size), mask)
    balance.update(0.5)
    balance.close()
    assert torch.equal(gate.bias, text)
    assert torch.equal(gate.bias_vl - images, torch.tensor([0.5, 0.5, -0.5, 0.5]))
    balance = Balance([gate])
    images = gate.bias_vl.clone()
    gate(torch.ones(5, CONFIG.hidden_size), mask)
    gate(torch.ones(5, CONFIG.hidden_size))
    balance.update(0.25)
    assert torch.equal(gate.bias_vl, images)
    assert torch.equal(gate.bias - text, torch.tensor([0.25, -0.25, 0.25, 0.25]))
    # Loads are forgotten with every update, and after the end none is counted.
    moved = gate.bias.clone()
    balance.update(0.25)
    balance.close()
    gate(torch.ones(5, CONFIG.hidden_size))
    balance.update(0.25)
    assert torch.equal(gate.bias, moved)


@pytest.mark.parametrize("mask", [None, torch.zeros(3, dtype=torch.bool)])
def test_text_alone_moves_no_bias_of_pictures(mask):
    gate = router()
    balance = Balance([gate], images=True)
    gate(torch.randn(3, CONFIG.hidden_size), mask)
    balance.update(1.0)
    assert not gate.bias_vl.any()
    assert not gate.bias.any()


def test_of_a_model_that_learns_to_see_only_the_biases_of_pictures_change(tmp_path):
    """And a run that is stopped goes on to the same weights and biases, on a model read anew."""
    recipe = vision_recipe(3, SeeingPlan(rows=2, matching=2, matched=4), warm_up=1, rounded=0.6, bias_speed=0.01)
    model = seeing_model.build()
    before = copy_of(model)
    vision = train_vision(model, tmp_path / "whole", recipe)
    after = copy_of(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.endswith("ffn.gate.bias_vl") for name in changed)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(block.ffn.gate._forward_hooks for block in model.layers)
    for stop_at in (1, None):
        again = seeing_model.build()
        parts = train_vision(again, tmp_path / "parts", recipe, stop_at=stop_at)
    assert same(dict(parts.state_dict()), dict(vision.state_dict()))
    assert same(copy_of(again), after)
    assert lines_of(tmp_path / "parts") == lines_of(tmp_path / "whole")
    with pytest.raises(ResumeError, match="its recipe differs"):
        train_vision(seeing_model.build(), tmp_path / "parts", dataclasses.replace(recipe, steps=4))


def test_a_drafters_folder_is_no_towers(whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ResumeError, match="its recipe differs"):
        train_vision(seeing_model.build(), tmp_path, vision_recipe(5, SeeingPlan(matching=0)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps is 0; expected more than 0"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"matrix_rate": float("nan")}, "matrix_rate is nan"),
        ({"seed": -1}, r"seed is -1; expected 0 to 2\^31 - 1"),
        ({"rounded": -0.1}, "rounded is -0.1"),
        ({"bias_speed": float("nan")}, "bias_speed is nan"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        PartRecipe("drafter", **({"steps": 3} | settings))
    if "steps" not in settings:
        with pytest.raises(ValueError, match=message):
            draft_recipe(3, **settings)


def test_save_every_below_one_writes_nothing(model, tmp_path):
    with pytest.raises(ValueError, match="save_every is 0; expected 1 or more"):
        train_drafter(model, CORPUS, tmp_path / "new", RECIPE, save_every=0)
    assert not (tmp_path / "new").exists()


def test_the_rate_rises_holds_and_falls():
    recipe = PartRecipe("vision", 100, warm_up=4)
    rates = [recipe.rate(step) for step in range(100)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[4:51] == [1.0] * 47
    assert all(before > after for before, after in pairwise(rates[50:]))
    assert 0.05 < rates[-1] < 0.06
    assert PartRecipe("vision", 100, warm_up=0).rate(0) == 1.0
    assert json.loads(json.dumps(recipe.to_dict())) == recipe.to_dict()
