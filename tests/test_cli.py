"""The command line: tables at any width, the JSON object, one line for every mistake."""

import io
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console
from rich.text import Text
from small_configs import with_plan

from ds41 import ModelConfig
from ds41.cli import main
from ds41.cli_tables import print_ledger
from ds41.report import ledger_report
from ds41.systems import systems

FLAT_FILE = Path(__file__).parent / "golden" / "flash_inference_config.json"


@pytest.fixture(autouse=True)
def _no_forced_colour(monkeypatch):
    # Rich takes a pipe for a terminal where these are set.
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


NUMBER = {"type": "number", "minimum": 0}
COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}


def obj(**properties) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def array(items: dict) -> dict:
    return {"type": "array", "items": items}


ROW = obj(name=TEXT, bytes=NUMBER, formula=TEXT, source={"enum": ["published", "derived", "measured"]}, note=TEXT)
SCHEMA = obj(
    schema={"const": "ds41.ledger/1"},
    config=TEXT,
    tokens=COUNT,
    bytes_per_token=obj(main=NUMBER, index=NUMBER, total=NUMBER, entry=COUNT, entries=NUMBER),
    sources=array(obj(layer=COUNT, ratio={"enum": [1, 2]}, main=NUMBER, index=NUMBER, total=NUMBER)),
    sequence=obj(
        **{"global": COUNT},
        window=COUNT,
        total=COUNT,
        rows=array(obj(name=TEXT, bytes=COUNT, formula=TEXT, note=TEXT)),
    ),
    capacity=array(obj(pool_bytes=COUNT, contexts=NUMBER, live_contexts=NUMBER)),
    comparison={
        "oneOf": [
            {"type": "null"},
            obj(
                systems=array(
                    obj(
                        key=TEXT,
                        name=TEXT,
                        family={"enum": ["gqa", "mla", "dsa", "csa_hca", "csa2"]},
                        precision={"enum": ["bf16", "fp8", "fp4"]},
                        status={"enum": ["published", "cross-checked", "calculated", "from memory"]},
                        bytes_per_token=NUMBER,
                        factor={"type": ["number", "null"]},
                        formula=TEXT,
                        note=TEXT,
                    )
                ),
                counterfactuals=array(ROW),
                engines=array(ROW),
                candidates=array(
                    obj(
                        letter={"enum": ["A", "B", "C", "D"]},
                        name=TEXT,
                        bytes=NUMBER,
                        formula=TEXT,
                        percent_off={"type": "number"},
                        assumes=TEXT,
                        misses=TEXT,
                    )
                ),
            ),
        ]
    },
)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def as_json(capsys, *arguments: str) -> dict:
    status, out, err = run(capsys, "ledger", *arguments, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    jsonschema.validate(report, SCHEMA)
    return report


def test_json_of_the_published_configuration(capsys):
    report = as_json(capsys)
    assert report["bytes_per_token"] == {"main": 720, "index": 170, "total": 890, "entry": 356, "entries": 2.5}
    assert [(source["layer"], source["total"]) for source in report["sources"]] == [
        (2, 178), (8, 178), (14, 178), (20, 356),
    ]  # fmt: skip
    assert report["tokens"] == 2**20
    assert report["sequence"]["global"] == 933_232_640
    assert report["sequence"]["total"] == sum(row["bytes"] for row in report["sequence"]["rows"])
    assert [round(row["contexts"], 1) for row in report["capacity"]] == [92.0, 69.0, 46.0]
    assert report["comparison"] is None


def test_json_with_comparison(capsys):
    report = as_json(capsys, "--compare")
    found = {system["key"]: system for system in report["comparison"]["systems"]}
    assert set(found) == set(systems())
    assert found["deepseek-v4-flash"]["bytes_per_token"] == 3514.25
    assert round(found["deepseek-llm-67b"]["factor"], 1) == 437.2
    assert [one["bytes"] for one in report["comparison"]["candidates"]] == [864, 1440, 1152, 1152]
    assert len(report["comparison"]["engines"]) == 7


def test_both_forms_of_the_file_give_the_same_object(capsys):
    nested = as_json(capsys, str(resources.files("ds41").joinpath("data/flash_config.json")))
    flat = as_json(capsys, str(FLAT_FILE))
    assert flat.pop("config") == str(FLAT_FILE)
    nested.pop("config")
    assert flat == nested


@pytest.mark.parametrize(
    ("text", "tokens"), [("0", 0), ("1", 1), ("64K", 65_536), ("1m", 2**20), ("1_000", 1000), ("1,000", 1000)]
)
def test_context_lengths(capsys, text, tokens):
    report = as_json(capsys, "--tokens", text)
    assert report["tokens"] == tokens
    assert report["sequence"]["global"] == 356 * (3 * (tokens // 2) + tokens)
    assert report["capacity"] == [] if tokens == 0 else len(report["capacity"]) == 3


def test_draft_windows(capsys):
    plain, draft = as_json(capsys), as_json(capsys, "--draft")
    assert draft["sequence"]["window"] - plain["sequence"]["window"] == 202_752


def test_a_plan_of_windows_only_is_reported(tmp_path):
    report = ledger_report(with_plan([0, 0], []), "windows", 100, compare=True)
    jsonschema.validate(report, SCHEMA)
    assert report["sources"] == report["capacity"] == report["comparison"]["candidates"] == []
    assert {system["factor"] for system in report["comparison"]["systems"]} == {None}
    print_ledger(report, Console(file=io.StringIO()))


def rendered(report: dict, width: int | None) -> str:
    """The tables as a terminal of ``width`` columns shows them; in a pipe if None."""
    out = io.StringIO()
    console = Console(file=out) if width is None else Console(file=out, width=width, force_terminal=True)
    print_ledger(report, console)
    return Text.from_ansi(out.getvalue()).plain


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200, None])
def test_numbers_and_names_are_whole_at_any_width(width):
    report = ledger_report(ModelConfig.flash(), "flash", 2**20, compare=True)
    text = rendered(report, width)
    for row in report["sequence"]["rows"]:
        assert f"{row['bytes']:,}" in text
        assert row["name"] in text
    for system in report["comparison"]["systems"]:
        line = next(line for line in text.splitlines() if line.startswith(f"{system['name']} "))
        size = system["bytes_per_token"]
        assert (f"{size:,}" if isinstance(size, int) else f"{size:,.2f}") in line.split()
    assert "…" not in text


def test_wide_tables_say_how(capsys):
    status, out, err = run(capsys, "ledger", "--compare")
    assert (status, err) == (0, "")
    assert "3 × (288 + 68) / 2 + (288 + 68)" in out
    assert "one key of 128 channels" in out
    narrow = rendered(ledger_report(ModelConfig.flash(), "flash", 2**20, compare=True), 60)
    assert "(584 + 68) / 4" in out
    assert "(584 + 68) / 4" not in narrow


def test_numbers_line_up_on_the_right(capsys):
    out = run(capsys, "ledger")[1]
    ends = {len(line.rstrip()) for line in out.splitlines() if line.startswith(("layer ", "all layers"))}
    assert len(ends) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text_config": {"head_dim"', "is not JSON"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[]", "holds a list"),
        (b'{"dim": 5120}', "lacks "),
        (b'{"text_config": {"rope_scaling": {"rope_type": "yarn"}, "head_dim": 512}}', "lacks "),
    ],
)
def test_a_malformed_configuration_is_one_line_and_status_2(capsys, tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    status, out, err = run(capsys, "ledger", str(path))
    assert (status, out) == (2, "")
    assert err.startswith("ds41: ")
    assert err.count("\n") == 1
    assert message in err
    assert str(path) in err


@pytest.mark.parametrize("target", ["absent.json", "."])
def test_a_configuration_that_cannot_be_read(capsys, tmp_path, target):
    status, out, err = run(capsys, "ledger", str(tmp_path / target))
    assert (status, out) == (2, "")
    assert err.startswith("ds41: cannot read configuration")


def test_a_wrong_type_in_the_file_is_named(capsys, tmp_path):
    data = json.loads(FLAT_FILE.read_text(encoding="utf-8")) | {"n_heads": "64"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    status, _, err = run(capsys, "ledger", str(path))
    assert (status, err) == (2, f"ds41: {path}: n_heads is '64'; expected an integer\n")


def test_an_unknown_key_is_one_line_on_stderr(capsys, tmp_path):
    data = json.loads(FLAT_FILE.read_text(encoding="utf-8")) | {"new_idea": 1}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    status, out, err = run(capsys, "ledger", str(path), "--json")
    assert status == 0
    assert json.loads(out)["bytes_per_token"]["total"] == 890
    assert err == f"ds41: {path}: keys without a meaning here, ignored: new_idea\n"


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "", "K", "1e6", "9" * 16, "٣"])
def test_bad_context_lengths(capsys, text):
    status, out, err = run(capsys, "ledger", f"--tokens={text}")
    assert (status, out) == (2, "")
    assert "is not a context length" in err


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["ledger", "a", "b"], ["doctor", "--device", "tpu"]])
def test_usage_errors(capsys, arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("usage: ds41")


def test_help_names_units(capsys):
    status, out, _ = run(capsys, "ledger", "--help")
    assert status == 0
    assert "All sizes are bytes" in out
    assert "2^20" in out


def test_doctor(capsys):
    status, out, err = run(capsys, "doctor")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("ds41 ")
    assert "Python" in lines[1]
    assert "torch" in lines[1]
    assert lines[2].startswith(("backend torch: ", "backend triton: "))
    assert "sparse_attention_packed" in lines[3]


def test_doctor_explains_a_backend_that_cannot_be(capsys, monkeypatch):
    monkeypatch.setenv("DS41_BACKEND", "abacus")
    status, out, err = run(capsys, "doctor")
    assert status == 2
    assert "Python" in out
    assert err.startswith("ds41: DS41_BACKEND asks for backend 'abacus'")


def test_python_m_ds41_and_a_reader_that_leaves():
    command = [sys.executable, "-m", "ds41", "ledger", "--compare", "--json"]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    jsonschema.validate(json.loads(whole.stdout), SCHEMA)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(timeout=120) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line_on_stderr():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ds41", "ledger", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "ds41: cannot write the output: No space left on device\n"
