"""``--draft`` as a user meets it in ``ds41 generate`` and ``ds41 chat``."""

import io
import json
import re
import sys

import pytest
import tiny_parts

from ds41.cli import main
from ds41.cli_draft import load_calibration
from ds41.dspark import Calibration
from ds41.trained import load_trained_drafter, trained_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_parts.save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def run(capsys):
    """Run a command at temperature 0 on the CPU; gives status, stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main([*arguments, "--device", "cpu", "--temperature", "0"])
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.mark.parametrize("draft", [("--draft",), ("--draft", "threshold:0.5")])
def test_nano_writes_the_same_text_in_fewer_steps(run, draft):
    arguments = ("generate", "--preset", "nano", "# json.py\nimport ", "--max-new-tokens", "16")
    plain = run(*arguments)
    status, out, err = run(*arguments, "--verbose", *draft)
    assert plain == (0, out, "")
    assert status == 0
    rounds, each = re.search(r"ds41: drafted in (\d+) rounds, (\d+\.\d\d) tokens a round; ", err).groups()
    assert int(rounds) < 15
    assert float(each) > 1
    assert len(re.findall(r"\d+ of \d+", err.rpartition("accepted by place: ")[2])) == 5


def test_always_verifies_more_than_a_threshold_of_one(run, folder):
    arguments = ("generate", folder, "Hello", "--max-new-tokens", "12", "--verbose")
    verified = {}
    for policy in ("always", "threshold:1"):
        status, out, err = run(*arguments, f"--draft={policy}")
        assert (status, out) == run(*arguments)[:2]
        verified[policy] = re.findall(r"\d+ of (\d+)", err)
    assert int(verified["always"][0]) > 0
    assert verified["threshold:1"] == ["0"] * tiny_parts.CONFIG.dspark_block_size


def test_the_optimum_is_by_times_that_are_measured_and_told(run, folder):
    arguments = ("generate", folder, "Hello", "--max-new-tokens", "12")
    status, out, err = run(*arguments, "--draft", "optimum", "--verbose")
    assert (status, out) == run(*arguments)[:2]
    assert re.search(
        r"ds41: profiled in [\d.]+ s at 256 tokens: a step of 1 token takes [\d.]+ ms, of 5 tokens [\d.]+ ms, a draft "
        r"[\d.]+ ms\n",
        err,
    )
    assert run(*arguments, "--draft", "optimum")[2] == ""


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("policy", ["Hello", "threshold", "threshold:", "threshold:2", "threshold:nan", "Always"])
def test_a_policy_that_is_none_is_refused(run, folder, command, policy):
    status, out, err = run(command, "--draft", policy, folder)
    assert (status, out) == (2, "")
    assert f"argument --draft: '{policy}' is no policy; expected always, optimum, or threshold:C" in err


def test_a_checkpoint_without_a_drafter_is_one_line(run, tmp_path):
    alone = tiny_parts.save(tmp_path / "alone", parts=())
    for arguments in (("generate", alone, "Hello"), ("chat", alone, "--no-store")):
        status, out, err = run(*arguments, "--draft")
        assert (status, out, err) == (2, "", f"ds41: {alone}/model.safetensors holds no drafter\n")


def test_a_preset_with_random_weights_has_no_drafter(run, monkeypatch):
    monkeypatch.setattr("ds41.trained.TRAINED", ())
    status, out, err = run("generate", "--preset", "nano", "Hello", "--draft")
    assert (status, out) == (2, "")
    expected = "ds41: preset nano has random weights and no drafter; expected a checkpoint that holds one"
    assert err.splitlines()[-1] == expected


def test_a_calibration_lies_beside_the_drafter(tmp_path):
    assert load_calibration(trained_folder()) == load_trained_drafter()[1]
    assert load_calibration(tmp_path) is None
    (tmp_path / "drafting.json").write_text('{"calibration": {"temperatures": [2, 0.5]}}')
    assert load_calibration(tmp_path) == Calibration((2, 0.5))


def test_a_calibration_decides_what_a_threshold_takes(run, tmp_path):
    folder = tiny_parts.save(tmp_path / "model")
    arguments = ("generate", folder, "Hello", "--max-new-tokens", "12", "--verbose", "--draft", "threshold:0.4")
    taken = {}
    # Confidences of these weights are below a half; a large temperature takes them there, a small one to 0.
    for temperature in (0.001, 1000):
        content = {"calibration": {"temperatures": [temperature] * tiny_parts.CONFIG.dspark_block_size}}
        (tmp_path / "model" / "drafting.json").write_text(json.dumps(content))
        taken[temperature] = sum(map(int, re.findall(r"\d+ of (\d+)", run(*arguments)[2])))
    assert taken[1000] > taken[0.001]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"calibration": {"temperatures": [0]}}', '{"calibration": 1}'])
def test_a_damaged_calibration_is_one_line(run, tmp_path, content):
    folder = tiny_parts.save(tmp_path / "model", parts=("drafter",))
    (tmp_path / "model" / "drafting.json").write_text(content)
    status, out, err = run("generate", folder, "Hello", "--draft")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"ds41: {folder}/drafting.json holds no calibration of a drafter: ")


@pytest.fixture
def chat(run, folder, monkeypatch):
    def say(text: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return run("chat", folder, "--max-new-tokens", "6", *arguments)

    return say


def test_a_conversation_drafts_and_says_what_became_of_it(chat):
    plain_status, plain, without = chat("Hello\nMore\n", "--no-store")
    status, out, err = chat("Hello\nMore\n", "--no-store", "--draft")
    assert (status, out) == (plain_status, plain) == (0, plain)
    found = re.findall(r"generated (\d+) \(drafted (\d+), verified (\d+), accepted (\d+)\); stored", err)
    assert len(found) == 2
    for generated, drafted, verified, accepted in (map(int, one) for one in found):
        assert drafted >= verified >= accepted
        assert verified > 0
        assert accepted < generated
    assert "drafted" not in without


def test_a_conversation_goes_on_with_drafts_where_it_began_without(chat, tmp_path):
    options = ("--store", str(tmp_path), "--session", "s", "--json")
    chat("A message that is longer than the window of this model.\n", *options)
    status, out, _ = chat("Two\n", *options, "--draft", "always")
    (turn,) = map(json.loads, out.splitlines())
    assert (status, turn["turn"]) == (0, 2)
    assert turn["report"]["store_tokens"] > 0
    assert turn["report"]["drafted_tokens"] >= turn["report"]["verified_tokens"] > 0
