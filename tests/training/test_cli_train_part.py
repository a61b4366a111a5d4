"""``ds41 train --part``: what it refuses before it writes, and the parts that it leaves beside the model."""

import re
import shutil
from pathlib import Path

import golden_io
import pytest
import tiny_parts
import torch

from ds41.checkpoint import inspect_checkpoint, load_checkpoint
from ds41.cli import main
from ds41.dspark import load_drafter
from ds41.training.run_log import LOG, read_log
from ds41.vision import load_vision

LOADERS = {"drafter": load_drafter, "vision": load_vision}
SMALL = {
    "drafter": ["rounded=0.5", "rows=1", "length=64", "anchors=4"],
    "vision": ["rounded=0.5", "rows=1", "matching=2", "matched=2"],
}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A checkpoint with both parts."""
    return tiny_parts.save(tmp_path_factory.mktemp("tiny") / "model")


def arguments(part: str, given: str, *more: str) -> list[str]:
    sets = [word for one in SMALL[part] for word in ("--set", one)]
    return ["--part", part, "--model", given, "--steps", "3", "--device", "cpu", "--threads", "1", *sets, *more]


def weights(folder: str, part: str) -> dict[str, torch.Tensor]:
    return LOADERS[part](folder, dtype=torch.float32).state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("part", ["drafter", "vision"])
def test_a_run_leaves_model_trained_part_and_the_other(tmp_path, capsys, given, part):
    if part == "vision":
        pytest.importorskip("sklearn")
    folder = tmp_path / "run"
    assert main(["train", str(folder), *arguments(part, given)]) == 0
    out, err = capsys.readouterr()
    written = folder / "model"
    assert sorted(out.split()) == sorted(str(path) for path in written.iterdir())
    names = {"drafter": "cross_entropy", "vision": "digit"}
    first, *_, last = err.splitlines()
    assert re.fullmatch(rf"step 3/3 rounded: total \d.*\b{names[part]} \d.* s a step, 0 min 00 s left", last)
    assert first.startswith("step 1/2 matching: total " if part == "vision" else "step 1/3 full: total ")
    assert len(read_log(folder / LOG)) == 3

    other = "vision" if part == "drafter" else "drafter"
    assert not same(weights(written, part), weights(given, part))
    assert same(weights(written, other), weights(given, other))
    before, after = (load_checkpoint(one, dtype=torch.float32).state_dict() for one in (given, written))
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    biases = {name for name in before if name.endswith("gate.bias_vl")}
    assert changed == (biases if part == "vision" else set())
    assert (written / "tokenizer.json").read_bytes() == Path(given, "tokenizer.json").read_bytes()


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch, given):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    options = arguments("drafter", given, "--save-every", "1", "--seed", "4")
    assert main(["train", str(whole), *options]) == 0

    def interrupted(line: dict) -> str:
        if line["step"] == 2:
            raise KeyboardInterrupt
        return ""

    with monkeypatch.context() as patch:
        patch.setattr("ds41.cli_train_part._losses", interrupted)
        assert main(["train", str(stopped), *options]) == 130
    assert not (stopped / "model").exists()
    assert main(["train", str(stopped), *options]) == 0
    assert [line["step"] for line in read_log(stopped / LOG)] == [0, 1, 2]
    assert same(weights(stopped / "model", "drafter"), weights(whole / "model", "drafter"))


def test_another_recipe_is_another_run(tmp_path, capsys, given):
    folder = tmp_path / "run"
    assert main(["train", str(folder), *arguments("drafter", given)]) == 0
    capsys.readouterr()
    assert main(["train", str(folder), *arguments("drafter", given, "--set", "clip=2")]) == 2
    assert "belongs to another run: its recipe differs" in capsys.readouterr().err


def test_the_shipped_nano_is_the_default_and_a_part_may_be_alone(tmp_path, capsys, monkeypatch):
    alone = tiny_parts.save(tmp_path / "alone", parts=())
    monkeypatch.setattr("ds41.trained.trained_folder", lambda: alone)
    options = arguments("drafter", alone)
    del options[2:4]
    assert main(["train", str(tmp_path / "run"), *options]) == 0
    written = tmp_path / "run" / "model"
    assert inspect_checkpoint(written, "drafter").tensors
    assert not inspect_checkpoint(written, "vision").tensors


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--part", "drafter", "--preset", "nano"], "a part is trained beside a checkpoint: give that with --model"),
        (["--model", "somewhere"], "--model is 'somewhere'; only a --part is trained beside a model"),
        (["--part", "drafter", "--model", "somewhere"], "somewhere is not a folder"),
        (["--part", "drafter", "--steps", "0"], "steps is 0; expected more than 0"),
        (["--part", "drafter", "--seed", str(2**31)], f"--seed is {2**31}; expected 0 to {2**31 - 1}"),
        (["--part", "drafter", "--save-every", "0"], "--save-every is 0"),
        (["--part", "drafter", "--set", "warm_up=soon"], "--set warm_up is 'soon'; expected a whole number"),
        (
            ["--part", "drafter", "--set", "matching=3"],
            "--set is 'matching=3'; expected NAME=VALUE with one of anchors",
        ),
        (["--part", "drafter", "--set", "rows=0"], "--set rows is 0; expected 1 or more"),
        (["--part", "vision", "--set", "matching=-1"], "--set matching is -1; expected 0 or more"),
        (["--part", "vision", "--set", "settings=1"], "--set is 'settings=1'"),
        (["--part", "vision", "--text", "."], "--text is '.'; vision is trained on pictures"),
    ],
)
def test_a_bad_setting_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys, options, told):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run", "--device", "cpu", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("ds41: ")
    assert told in err
    assert list(tmp_path.iterdir()) == []


def test_a_model_over_other_tokens_is_refused(tmp_path, capsys, given):
    other = tmp_path / "other"
    shutil.copytree(given, other)
    shutil.copy(golden_io.FOLDER / "tinyC" / "tokenizer.json", other)
    assert main(["train", str(tmp_path / "run"), *arguments("drafter", str(other))]) == 2
    assert "a part is trained for a model over bytes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_several_processes_are_refused(tmp_path, monkeypatch, capsys, given):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", str(tmp_path / "run"), *arguments("drafter", given)]) == 2
    assert "WORLD_SIZE is 2; a part is trained by one process" in capsys.readouterr().err


def test_pictures_need_scikit_learn(tmp_path, monkeypatch, capsys, given):
    def missing(split):
        raise ModuleNotFoundError("the digits are scikit-learn's: install it")

    monkeypatch.setattr("ds41.training.digits.digit_pictures", missing)
    assert main(["train", str(tmp_path / "run"), *arguments("vision", given)]) == 2
    assert capsys.readouterr().err == "ds41: the digits are scikit-learn's: install it\n"
    assert not (tmp_path / "run").exists()
