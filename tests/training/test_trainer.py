"""A run: what stops it, what it goes on from, and what it refuses."""

import json
import shutil

import pytest
import torch
from tiny_run import read_signals, tiny_corpus, tiny_recipe

from ds41.expert_balance import expert_load
from ds41.model import Model
from ds41.training import trainer
from ds41.training.corpus import Corpus
from ds41.training.distributed import Workers
from ds41.training.run_log import LOG, read_log
from ds41.training.run_state import STATE, ResumeError
from ds41.training.serving_conditions import set_conditions
from ds41.training.stream import make_batch
from ds41.training.trainer import train

CORPUS = tiny_corpus()
# Two steps of pre-training, two under serving conditions.
RECIPE = tiny_recipe(steps=2, warm_up=2)


def same(first, second) -> bool:
    """Whether two states are equal to the last bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def state_of(folder):
    return torch.load(folder / STATE, weights_only=True)


def lines_of(folder):
    """The log without the times, and with numbers that compare as text: NaN equals NaN there."""
    return [json.dumps({name: value for name, value in line.items() if name != "seconds"})
            for line in read_log(folder / LOG)]  # fmt: skip


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing stopped: its folder."""
    folder = tmp_path_factory.mktemp("whole")
    model = train(RECIPE, CORPUS, folder, save_every=3)
    assert same(dict(model.state_dict()), dict(state_of(folder)["model"]))
    return folder


def assert_same_run(folder, whole):
    assert same(state_of(folder), state_of(whole))
    assert lines_of(folder) == lines_of(whole)
    assert {path.name for path in folder.iterdir()} - {"tensorboard"} == {STATE, LOG}


def test_the_log_tells_every_step(whole):
    lines = read_log(whole / LOG)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [line["stage"] for line in lines] == ["pre", "pre", "post", "post"]
    assert [line["rate"] for line in lines] == [RECIPE.rate(step) for step in range(4)]
    assert [line["tokens"] for line in lines] == [96, 96, 160, 160]
    for line in lines:
        assert line["total"] == pytest.approx(line["text"] + 0.1 * line["alignment"] + line["balance"], rel=1e-5)
        assert min(line["text"], line["alignment"], line["gradient_norm"], line["seconds"]) > 0
    assert state_of(whole)["step"] == 4


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(whole, tmp_path):
    for stop_at in (1, 3, None):
        train(RECIPE, CORPUS, tmp_path, stop_at=stop_at)
    assert_same_run(tmp_path, whole)


def test_a_killed_run_does_the_steps_after_its_checkpoint_again(whole, tmp_path):
    def kill(line):
        if line["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, CORPUS, tmp_path, save_every=2, progress=kill)
    assert state_of(tmp_path)["step"] == 2
    assert len(read_log(tmp_path / LOG)) == 3
    # What a kill in the middle of a line leaves.
    with (tmp_path / LOG).open("a") as log:
        log.write('{"step": 3, "sta')
    train(RECIPE, CORPUS, tmp_path)
    assert_same_run(tmp_path, whole)


def test_a_finished_run_only_gives_its_model(whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    model = train(RECIPE, CORPUS, tmp_path, progress=lambda line: pytest.fail("a step was run"))
    assert same(dict(model.state_dict()), dict(state_of(whole)["model"]))
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize(
    ("recipe", "corpus", "name"),
    [
        (tiny_recipe(steps=2, warm_up=2, seed=1), CORPUS, "recipe"),
        (RECIPE, Corpus({"other.py": b"x = 1\n" * 50}), "text"),
    ],
)
def test_another_run_is_refused(whole, tmp_path, recipe, corpus, name):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    before = contents(tmp_path)
    with pytest.raises(ResumeError, match=rf"belongs to another run: its {name} differs"):
        train(recipe, corpus, tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_truncated_checkpoint_is_refused(whole, tmp_path, share):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    stored = (tmp_path / STATE).read_bytes()
    (tmp_path / STATE).write_bytes(stored[: int(share * len(stored))])
    before = contents(tmp_path)
    with pytest.raises(ResumeError, match="cannot be read as a checkpoint"):
        train(RECIPE, CORPUS, tmp_path)
    assert contents(tmp_path) == before


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, monkeypatch):
    real, calls = trainer.step_losses, []

    def broken(*given):
        calls.append(given)
        losses = real(*given)
        return losses if len(calls) < 2 else losses._replace(total=losses.total * torch.inf)

    monkeypatch.setattr(trainer, "step_losses", broken)
    with pytest.raises(FloatingPointError, match="step 1: loss inf"):
        train(RECIPE, CORPUS, tmp_path, save_every=1)
    kept = state_of(tmp_path)
    assert kept["step"] == 1
    assert all(bool(value.isfinite().all()) for value in kept["model"].values() if value.is_floating_point())
    assert [line["step"] for line in read_log(tmp_path / LOG)] == [0]


def test_router_biases_follow_the_load_of_their_step(tmp_path):
    trained = train(RECIPE, CORPUS, tmp_path, stop_at=1)
    torch.manual_seed(RECIPE.seed)
    model = Model(RECIPE.config(), "cache")
    set_conditions(model, serving=False)
    stage = RECIPE.stages[0]
    ids = make_batch(CORPUS, stage.mix, stage.rows, stage.length, f"train {RECIPE.seed} 0").ids
    with torch.no_grad():
        signals = read_signals(model, ids, rounds=False)
    for layer, routing in signals.routing.items():
        load = expert_load(routing.indices, 4)
        expected = torch.sign(load.float().mean() - load) * RECIPE.bias_speed
        assert torch.equal(trained.layers[layer].ffn.gate.bias.detach(), expected)
        # There were no images.
        assert not bool(trained.layers[layer].ffn.gate.bias_vl.any())
    assert len(signals.routing) == 5
    assert any(bool(block.ffn.gate.bias.any()) for block in trained.layers)


def test_rows_that_do_not_divide_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="4 rows for 3 workers; expected a multiple"):
        train(RECIPE, CORPUS, tmp_path / "run", Workers(0, 3))
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_every_zero_steps_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="save_every is 0; expected 1 or more"):
        train(RECIPE, CORPUS, tmp_path / "run", save_every=0)
    assert not (tmp_path / "run").exists()
