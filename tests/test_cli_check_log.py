"""``ds41 check-log``: what it prints, its exit status, and how it refuses."""

import argparse
import json
from importlib import resources
from pathlib import Path

import pytest

from ds41.cli_check_log import add_check_log_command
from ds41.engine_logs import read_lines

RECORDED = {
    log["key"]: log
    for log in json.loads(resources.files("ds41").joinpath("data/engine_logs.json").read_text("utf-8"))["logs"]
}
FLAT_FILE = Path(__file__).parent / "golden" / "flash_inference_config.json"


def run(capsys, *arguments):
    parser = argparse.ArgumentParser()
    add_check_log_command(parser.add_subparsers())
    options = parser.parse_args(["check-log", *map(str, arguments)])
    status = options.run(options)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def log_file(tmp_path):
    def write(key):
        path = tmp_path / f"{key}.log"
        path.write_text("\n".join(RECORDED[key]["lines"]), encoding="utf-8")
        return path

    return write


def test_the_command_tells_what_holds(capsys, log_file):
    status, out, _ = run(capsys, log_file("qwen3-235b-sglang"))
    assert status == 0
    assert "printed     16.46 GiB a GPU, 367,404 tokens: 48,105 bytes a token" in out
    assert "this engine stores 48,128 bytes a token on a GPU: BF16" in out


def test_the_command_tells_what_does_not(capsys, log_file):
    status, out, _ = run(capsys, log_file("v41-h100-tp8"))
    assert status == 1
    assert "predicted   17,369,117 tokens: 1,790 bytes a token (V4's FP8 rows, FP8 keys; named by the log)" in out
    assert "difference  -47.7%: does not hold within 2.0%" in out
    assert "is charged 0.840 GiB: the ledger's 0.440 and +0.400" in out


def test_a_wider_tolerance_and_another_storage(capsys, log_file):
    path = log_file("v41-h100-tp8")
    assert run(capsys, path, "--tolerance", "48")[0] == 0
    status, out, _ = run(capsys, path, "--storage", "mxfp8", "--config", FLAT_FILE)
    assert status == 1
    assert "1,490 bytes a token (MXFP8 records, MXFP4 keys; asked for)" in out


def test_the_json_object(capsys, log_file):
    status, out, _ = run(capsys, log_file("v41-h100-tp8"), "--json")
    report = json.loads(out)
    assert status == 1
    assert report["schema"] == "ds41.check-log/1"
    assert report["holds"] is False
    assert report["expected"]["storage"] == "v4-fp8keys"
    assert len(report["predictions"]) == 7
    assert report["printed_tokens"] == 9_092_381
    assert report["request_tokens"] == 262_144


@pytest.mark.parametrize(
    ("key", "arguments", "message"),
    [
        ("llama-8b-sglang", [], "no line names the model"),
        ("llama-8b-sglang", [], "--model NAME"),
        ("llama-8b-sglang", ["--model", "mistral-7b"], "'mistral-7b' is none of"),
        ("llama-8b-sglang", ["--model", "llama-8b"], "of DeepSeek-V4.1's family, --config config.json"),
        ("v41-rtx-pro-tp4", ["--model", "deepseek-v4.1-flash"], "no line like 'Available KV cache memory"),
        ("v41-h100-tp8", ["--storage", "fp8"], "storage is 'fp8'"),
        ("v41-h100-tp8", ["--tolerance", "0"], "--tolerance is 0; expected more than zero"),
        ("v41-h100-tp8", ["--tolerance", "-1"], "--tolerance is -1; expected more than zero"),
        ("v41-h100-tp8", ["--recorded", "v41-h100-tp8"], "expected either FILE or --recorded [KEY]; both"),
        ("v41-h100-tp8", ["--tensor-parallel", "0"], "--tensor-parallel is 0"),
    ],
)
def test_unusable_input_is_one_line_and_status_2(capsys, log_file, key, arguments, message):
    status, out, err = run(capsys, log_file(key), *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("ds41: ")
    assert err.count("\n") == 1
    assert message in err


def test_the_model_may_be_named(capsys, log_file):
    assert run(capsys, log_file("llama-8b-sglang"), "--model", "llama-3.1-8b")[0] == 0


def test_the_split_may_be_named(capsys, log_file):
    # Without its command the log says nothing of four GPUs.
    path = log_file("qwen3-235b-vllm")
    path.write_text("\n".join(RECORDED["qwen3-235b-vllm"]["lines"][2:]), encoding="utf-8")
    assert run(capsys, path, "--model", "qwen3-235b-a22b")[0] == 1
    assert run(capsys, path, "--model", "qwen3-235b-a22b", "--tensor-parallel", "4")[0] == 0


def test_recorded_logs_are_listed(capsys):
    status, out, _ = run(capsys, "--recorded")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(RECORDED)
    status, out, _ = run(capsys, "--recorded", "--json")
    assert status == 0
    assert [one["source"] for one in json.loads(out)["recorded"]] == [one["source"] for one in RECORDED.values()]


@pytest.mark.parametrize(("key", "status"), [("llama-8b-sglang", 0), ("qwen3-235b-vllm", 0), ("v41-h100-tp8", 1)])
def test_a_recorded_log_is_checked_by_its_key(capsys, key, status):
    found, out, err = run(capsys, "--recorded", key)
    assert (found, err) == (status, "")
    assert RECORDED[key]["source"] in out
    assert RECORDED[key]["note"] in out


def test_a_recorded_log_says_what_its_lines_do_not(capsys):
    # Neither the model's name nor the four GPUs are in the two lines that the comment quotes.
    assert read_lines(RECORDED["v4-0731-rtx-pro-tp4"]["lines"]).tensor_parallel is None
    report = json.loads(run(capsys, "--recorded", "v4-0731-rtx-pro-tp4", "--json")[1])
    assert (report["system"], report["gpus"]) == ("DeepSeek-V4-Flash", 4)
    assert report["file"] == RECORDED["v4-0731-rtx-pro-tp4"]["source"]
    assert (
        json.loads(run(capsys, "--recorded", "v4-0731-rtx-pro-tp4", "--json", "--tensor-parallel", 8)[1])["gpus"] == 8
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either FILE or --recorded [KEY]; neither is given"),
        (["--recorded", "v5"], "--recorded is 'v5'; expected one of v41-h100-tp8, "),
        (["--recorded", "deepseek-v3-sglang"], "no line like 'Available KV cache memory"),
    ],
)
def test_what_is_not_recorded_is_refused(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
