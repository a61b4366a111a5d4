"""``ds41 probe``: what it refuses, what it prints, and one probe run to its end."""

import json
import math
from dataclasses import dataclass

import pytest

from ds41.cli import main
from ds41.probes import suite
from ds41.probes.estimates import Estimate
from ds41.trained import trained_folder


@dataclass(frozen=True)
class Record:
    name: str
    share: Estimate
    parts: tuple[int, ...]
    predicted: float | None = None


@dataclass(frozen=True)
class Report:
    seeds: int
    records: list[Record]


def run(capsys, *arguments):
    try:
        status = main(["probe", *arguments])
    except SystemExit as stopped:
        status = stopped.code
    return status, *capsys.readouterr()


def of(seeds):
    return Report(
        seeds,
        [Record("needle", Estimate(0.5, 0.25, 0.75, seeds), (1, 2)), Record("other", Estimate(1, 1, 1, 1), (), 0.125)],
    )


@pytest.fixture
def small(monkeypatch):
    asked = []

    def probe(model, size, beside):
        asked.append((size, beside is not None))
        return {"first": of(3 if size.seeds is None else size.seeds)}

    monkeypatch.setitem(suite.PROBES, "replay", probe)
    return asked


def test_every_record_is_a_row(capsys, small):
    status, out, err = run(capsys, "replay", "--seeds", "7", "--full")
    assert (status, err) == (0, "")
    assert "first: seeds 7" in out
    assert "0.500 [0.250, 0.750]" in out
    assert "1, 2" in out
    assert "0.125" in out
    assert small == [(suite.Size(seeds=7, full=True), False)]


def test_json_holds_the_reports_and_where_they_were_made(capsys, small):
    status, out, _ = run(capsys, "replay", "--json", "--beside", str(trained_folder()))
    found = json.loads(out)
    assert status == 0
    assert found.keys() == {"environment", "first"}
    assert found["first"]["records"][0]["share"] == {"mean": 0.5, "low": 0.25, "high": 0.75, "samples": 3}
    assert small[0][1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fp4", "--seeds", "0"), "--seeds is 0; expected 1 or more"),
        (("selection", "--entries", "-5"), "--entries is -5"),
        (("fp4", "--rows", "0"), "--rows is 0"),
        (("selection", "--beside", "x"), "the probe selection compares no models"),
        (("fp4", "--model", "/no/such/folder"), "/no/such/folder is not a folder"),
        (("speed",), "invalid choice: 'speed'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_the_fp4_probe_runs_to_its_end(capsys):
    status, out, _ = run(capsys, "fp4", "--seeds", "2", "--rows", "2", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["synthetic"]["seeds"] == 2
    lengths = {row["length"] for row in found["trained"]["formats"]}
    assert len(lengths) == 3
    assert all(math.isfinite(row["loss"]["mean"]) for row in found["trained"]["formats"])
    assert len(found["trained"]["sources"]) == 3
