"""``ds41 generate`` as a user meets it: what goes to stdout and stderr, and the exit status."""

import io
import os
import re
import signal
import subprocess
import sys

import golden_io
import pytest
import torch

from ds41.checkpoint import load_checkpoint
from ds41.cli import main
from ds41.generation import generate
from ds41.tokenizer import load_tokenizer

FOLDER = str(golden_io.FOLDER / "tinyC")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(["generate", *arguments, "--device", "cpu"])
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_checkpoint_continues_a_text(capsys):
    status, out, err = run(capsys, FOLDER, "Hello", "--seed", "3", "--max-new-tokens", "8")
    assert (status, err) == (0, "")
    tokenizer = load_tokenizer(FOLDER)
    model = load_checkpoint(FOLDER, dtype=torch.float32)
    ids = [model.config.bos_token_id, *tokenizer.encode("Hello").ids]
    expected = list(generate(model, ids, 8, seed=3))
    assert out == tokenizer.decode(expected, skip_special_tokens=False) + "\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (FOLDER, "--seed", "3", "Hi", "--max-new-tokens", "2"),
        ("--max-new-tokens", "2", "--seed", "3", FOLDER, "Hi"),
        ("--max-new-tokens", "2", FOLDER, "Hi", "--seed", "3"),
    ],
)
def test_options_may_stand_anywhere(capsys, arguments):
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert out == run(capsys, "--seed", "3", "--max-new-tokens", "2", FOLDER, "Hi")[1]


def test_the_prompt_may_come_from_stdin(capsys, monkeypatch):
    options = ("--temperature", "0", "--max-new-tokens", "3")
    direct = run(capsys, FOLDER, "grüße", *options)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("grüße".encode())))
    assert run(capsys, FOLDER, "-", *options) == direct
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    status, out, err = run(capsys, FOLDER, "-")
    assert (status, out, err) == (2, "", "ds41: the prompt on stdin is not UTF-8: byte 2\n")


def test_options_reach_the_model(capsys):
    options = ("--engram-on-disk", "--quantization", "full", "--decoder", "bounded", "--dtype", "bfloat16", "--verbose")
    status, _, err = run(capsys, FOLDER, "Hello", "--seed", "1", "--max-new-tokens", "3", *options)
    assert status == 0
    assert "parameters in bfloat16, quantization full" in err
    assert re.search(r"prompt of \d+ tokens; \d generated, the first after \d+\.\d\d s, then \d+\.\d tokens/s", err)


def test_a_trained_preset_writes_text_and_says_nothing_else(capsys):
    arguments = ("--preset", "nano", "# json.py\nimport ", "--max-new-tokens", "8", "--temperature", "0")
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    assert out.strip().isascii()
    assert run(capsys, *arguments)[1] == out


def test_a_preset_that_was_not_trained_says_that_its_weights_are_random(capsys, monkeypatch):
    monkeypatch.setattr("ds41.trained.TRAINED", ())
    arguments = ("--preset", "nano", "text", "--max-new-tokens", "2", "--seed", "0")
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "ds41: preset nano has random weights; its text means nothing\n")
    assert run(capsys, *arguments)[1] == out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "generate takes FOLDER PROMPT, or --preset and PROMPT; it was given 0 of 2 words"),
        (("just a prompt",), "it was given 1 of 2 words"),
        (("--preset", "nano"), "generate takes --preset nano PROMPT; it was given 0 of 1 words"),
        (("--preset", "nano", FOLDER, "text"), "it was given 2 of 1 words"),
        ((FOLDER, ""), "the prompt is empty"),
        (("/no/such/folder", "text"), "/no/such/folder is not a folder"),
        ((FOLDER, "text", "--temperature", "-1"), "temperature is -1.0"),
        ((FOLDER, "text", "--top-p", "2"), "top_p is 2.0"),
        ((FOLDER, "text", "--seed", "-4"), "seed is -4"),
        ((FOLDER, "text", "--max-new-tokens", "-1"), "max_new_tokens is -1"),
        ((FOLDER, "x" * 300), "a prompt of 301 tokens and max_new_tokens 128 are more than the model's 256 positions"),
        (("--preset", "huge", "text"), "invalid choice: 'huge'"),
        ((FOLDER, "text", "--decoder", "half"), "invalid choice: 'half'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("ds41")


def test_a_damaged_checkpoint_is_one_line(capsys, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    status, out, err = run(capsys, str(tmp_path), "text")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"ds41: {tmp_path}/model.safetensors is no whole safetensors file of 0 bytes")


def test_a_missing_gpu_is_one_line(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["generate", FOLDER, "text", "--device", "cuda"]) == 2
    assert capsys.readouterr().err.startswith("ds41: device 'cuda' was asked for")


def test_text_streams_and_an_interrupt_ends_it():
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "ds41", "generate", FOLDER, "text", "--seed", "0", "--max-new-tokens", "230"]
    # A parent that ignores the interrupt, as some test runners do, would hand that down.
    options = {"env": environment, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"\nds41: interrupted\n")
