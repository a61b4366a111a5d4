"""``ds41 evaluate --part``: tables and JSON of what was measured, and what is refused."""

import functools
import json
import re

import pytest
import tiny_parts
import torch

from ds41.checkpoint import load_checkpoint
from ds41.cli import main
from ds41.dspark import load_drafter
from ds41.training import draft_evaluation
from ds41.training.corpus import standard_library
from ds41.training.draft_evaluation import draft_rounds
from ds41.training.seeing import accuracy
from ds41.vision import load_vision


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_parts.save(tmp_path_factory.mktemp("tiny") / "model")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["evaluate", *arguments, "--device", "cpu"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_drafter_by_kind_temperature_and_place(capsys, folder):
    options = (folder, "--part", "drafter", "--rows", "1", "--length", "128")
    status, out, err = run(capsys, *options, "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    cases = [(one["kind"], one["temperature"]) for one in found["cases"]]
    assert cases == [("source", 0), ("source", 1), ("planted", 1)]
    size = tiny_parts.CONFIG.dspark_block_size
    for case in found["cases"]:
        means = [share["mean"] for share in case["by_place"]]
        assert len(means) == size
        # The drafts that stand and the one token that is no draft.
        assert case["tokens_a_round"]["mean"] == pytest.approx(1 + sum(means))
        assert all(share["low"] <= share["mean"] <= share["high"] for share in case["by_place"])
    assert list(found["calibration_errors"]) == ["as_they_are"]
    assert all(0 <= error <= 1 for error in found["calibration_errors"]["as_they_are"])

    model, drafter = load_checkpoint(folder, dtype=torch.float32), load_drafter(folder, dtype=torch.float32)
    rounds = draft_rounds(model, drafter, standard_library("held-out"), 1, "source", 1.0, 128)
    assert found["cases"][1]["rounds"] == len(rounds.accepted)
    assert found["calibration_errors"]["as_they_are"] == rounds.errors()


def test_a_calibration_beside_the_drafter_is_measured_too(capsys, tmp_path, monkeypatch):
    # What the table looks like does not depend on how far each prompt is continued.
    monkeypatch.setattr(draft_evaluation, "draft_rounds", functools.partial(draft_rounds, new_tokens=8))
    folder = tiny_parts.save(tmp_path / "model", parts=("drafter",))
    content = {"calibration": {"temperatures": [8.0] * tiny_parts.CONFIG.dspark_block_size}}
    (tmp_path / "model" / "drafting.json").write_text(json.dumps(content))
    status, out, _ = run(capsys, folder, "--part", "drafter", "--rows", "1", "--length", "128")
    assert status == 0
    assert re.search(r"tokens a round, source at temperature 0\s+\d\.\d\d \[", out)
    assert len(re.findall(r"calibration error of", out)) == 2


def test_eyes_by_question(capsys, folder):
    pytest.importorskip("sklearn")
    status, out, err = run(capsys, folder, "--part", "vision", "--rows", "3", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)["accuracy"]
    model, vision = load_checkpoint(folder, dtype=torch.float32), load_vision(folder, torch.float32)
    expected = accuracy(model, vision, 3)
    assert {question: share["mean"] for question, share in found.items()} == {
        question: share.mean for question, share in expected.items()
    }
    status, out, _ = run(capsys, folder, "--part", "vision", "--rows", "3")
    assert status == 0
    assert re.search(r"answers right, digit +\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\] +3 pictures", out)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--part", "drafter", "--rows", "0"], "--rows is 0; expected 1 or more"),
        (["--part", "drafter", "--length", "0"], "--length is 0; expected 1 or more"),
        (["--part", "drafter", "--longer", "512"], "--longer is for the model"),
        (
            ["--part", "vision", "--length", "64"],
            "--length is 64; the pictures of --part vision have sizes of their own",
        ),
        (["/no/such/folder", "--part", "vision"], "/no/such/folder is not a folder"),
    ],
)
def test_bad_input_is_one_line(capsys, options, told):
    status, out, err = run(capsys, *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert told in err


@pytest.mark.parametrize("part", ["drafter", "vision"])
def test_a_checkpoint_without_the_part_is_one_line(capsys, tmp_path, part):
    alone = tiny_parts.save(tmp_path / "alone", parts=())
    name = {"drafter": "drafter", "vision": "vision part"}[part]
    assert run(capsys, alone, "--part", part) == (2, "", f"ds41: {alone}/model.safetensors holds no {name}\n")
