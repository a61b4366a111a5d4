"""The page of measured results: every recorded file is on it, and what a GPU will record has its tables."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from dataclasses import asdict
from types import SimpleNamespace

import gpu_check
import gpu_layers
import gpu_measure
import performance_page
import performance_tables
import pytest
import record_results
import tiny_book
import torch
from project import HERE, Project

import kernels

RESULTS = HERE.root / "benchmarks" / "results"
RECORDED = sorted(path.name for path in RESULTS.glob("*.json"))
PAGE = (HERE.root / performance_page.PAGE).read_text(encoding="utf-8")
GPU = "NVIDIA Made-up 1"


@pytest.fixture
def book(tmp_path):
    """A tiny book with the page and without a result."""
    project = tiny_book.make(tmp_path / "book", {"intro": ["1"]})
    (project.root / "_toc.yml").write_text("format: jb-book\nroot: book/intro\nchapters:\n  - file: book/performance\n")
    (project.root / performance_page.PAGE).write_text(PAGE, encoding="utf-8")
    (project.root / "benchmarks" / "results").mkdir(parents=True)
    return Project(project.root)


def put(project: Project, name: str, **content) -> None:
    """A file of results that says where it comes from."""
    record = {"device": GPU, "versions": {"torch": "9.9"}, "command": "python measure.py"} | content
    (project.root / "benchmarks" / "results" / name).write_text(json.dumps(record), encoding="utf-8")


def tables(record: dict, show) -> list:
    return [one for one in show(record) if not isinstance(one, str)]


def record_gpu(project: Project, folder, monkeypatch) -> dict:
    """Have the GPU check write what a GPU would have measured, and keep it among the results of a book."""
    rows = [
        kernels.Row("index_scores_packed", 2_000_000, 3_000_000, 0.0123, 0.81, 0.456, 1e-3),
        kernels.Row("hash_rows", 1_000, 2_000, 0.0007, None, None, 0.0),
    ]
    monkeypatch.setattr(kernels, "measure", lambda *_: rows)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=8e10))
    monkeypatch.setattr(gpu_check, "where", lambda _: origin_of_gpu)
    monkeypatch.setenv("OUT", str(folder))
    origin_of_gpu = {"device": GPU, "capability": "9.0", "driver": "555.1", "cuda": "12.8", "date": "2026-01-02"}
    origin_of_gpu |= {"versions": {"torch": "9.9", "triton": "8.8"}, "command": "python ci/gpu_check.py"}
    options = argparse.Namespace(rehearse=False, skip_tests=True, seconds=60.0, chapters=0.0)
    check = gpu_check.Check(options, time.monotonic() + 60)
    launches = gpu_layers.LayerLaunches(0, "window", "decode", 13, 9, 22, ["a"])
    parts = {
        "tests": check.tests,
        "formats": lambda: [asdict(gpu_measure.FormatRow("decode main KV", "bfloat16", 0, 0.125, 2345.6, 0.92))],
        "kernels": gpu_measure.Measurements(check).kernels,
        "launches": lambda: [asdict(launches)],
        "graph": lambda: asdict(gpu_layers.GraphTimes(0.4, 0.1, True)),
        "chapters": check.chapters,
    }
    for name, part in parts.items():
        check.part(name, part)
    assert check.finish() == 0
    results = project.root / "benchmarks" / "results"
    assert record_results.main(["--reports", str(folder), "--results", str(results)]) == 0
    (path,) = results.glob("gpu_*.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_what_a_gpu_records_is_on_the_page(book, tmp_path, monkeypatch):
    assert "No GPU result has been recorded yet; `python ci/gpu_check.py` writes one, " in (
        performance_page.filled(PAGE, book)
    )
    record = record_gpu(book, tmp_path / "reports", monkeypatch)
    of_kernels, of_formats, of_launches = tables(record, performance_tables.gpu)
    assert of_kernels.title == (
        "Kernels beside their floors: a decode step of 64 sequences of 131,072 tokens, bfloat16"
    )
    assert of_kernels.header[3:6] == ("ms", "of floor", "torch, ms")
    assert [row[3:6] for row in of_kernels.rows] == [("0.0123", "0.81", "0.456"), ("0.0007", "", "")]
    assert of_kernels.numeric == tuple(range(1, len(of_kernels.header)))
    assert of_formats.rows == (("decode main KV", "bfloat16", "0", "0.125", "2,346", "0.92"),)
    assert of_launches.rows == (("window", "decode", "13", "9", "22"),)
    text = performance_page.filled(PAGE, book)
    assert "No GPU result" not in text
    assert '<td class="ds-number">0.81</td>' in text
    assert "as a CUDA graph 0.100 ms, 0.25 of the time; same bits: yes." in text
    assert "Left out (as asked): kernel tests; chapters." in text
    assert "- Versions: capability 9.0, driver 555.1, CUDA 12.8, torch 9.9, triton 8.8" in text


def test_two_devices_stand_apart(book):
    row = {"chapter": "04-fp4", "outcome": "passed", "seconds": 12.34, "cuda_peak_bytes": 3 * 2**20}
    for device in ("One", "Two"):
        put(book, f"chapters_{device}.json", device=device, scale="full", chapters=[row])
    text = performance_page.filled(PAGE, book)
    assert re.findall(r"^### .+", text, re.MULTILINE) == ["### One, torch 9.9", "### Two, torch 9.9"]
    assert 'aria-label="Chapters at scale full (Two, torch 9.9)"' in text
    names = re.findall(r'<figure [^>]*id="([^"]+)"', text)
    assert len(set(names)) == len(names) == 2
    (table,) = performance_tables.chapters({"scale": "full", "chapters": [row, row]})
    assert table.rows[0] == ("04-fp4", "passed", "12.3", "–", "3")
    assert table.rows[-1][2] == "24.7"


@pytest.fixture(scope="module")
def whole() -> str:
    """The page with every file of results."""
    return performance_page.filled(PAGE, HERE)


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_file_is_on_the_page(whole, name):
    record = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    address = f"{HERE.repository_url}/blob/{HERE.repository_branch}/benchmarks/results/{name}"
    assert whole.count(f"]({address})") == 1
    assert f"- Command: `{record['command']}`" in whole
    assert "{{" not in whole


def test_tables_can_be_scrolled_by_name_and_their_numbers_are_those_of_the_files(whole):
    labels = re.findall(r'<div class="ds-scroll" role="region" aria-label="([^"]+)" tabindex="0">', whole)
    assert len(set(labels)) == len(labels) == whole.count("<table")
    assert not re.search(r"<th [^>]*></th>", whole)
    ours, theirs = json.loads((RESULTS / "peers_cpu.json").read_text(encoding="utf-8"))["results"]
    bytes_of = [one["bytes_per_token"] for one in (ours, theirs)]
    cells = (*(f"{value:,.1f}" for value in bytes_of), f"{bytes_of[1] / bytes_of[0]:.2f}")
    row = '<th scope="row">cache, bytes a token</th>' + "".join(f'<td class="ds-number">{cell}</td>' for cell in cells)
    assert row in whole


def test_compiled_kernels_by_generation():
    row = {"registers": 51, "shared_bytes": 32 * 1024, "spill_bytes": 0, "matrix": 0}
    kernels_of = {"a": {"sm_75": row}, "b": {"sm_75": row | {"registers": 102, "matrix": 3}, "sm_100": row}}
    by_generation, registers, shared = performance_tables.compiled({"kernels": kernels_of})
    assert by_generation.rows[0] == ("sm_75", "2", "1", "0", "102", "0.40", "32.0", "0.50")
    assert registers.rows == (("a", "51", "–"), ("b", "102", "51"))
    assert shared.rows[0] == ("a", "32.0", "–")


def test_a_file_that_the_page_does_not_know_stops_the_build(book, tmp_path):
    put(book, "new_cpu.json")
    folder = tmp_path / "stage"
    shutil.copytree(book.book, folder / "book")
    with pytest.raises(performance_page.PerformanceError, match=r"new_cpu\.json is no file that the page of results"):
        performance_page.fill(folder, book)


@pytest.mark.parametrize(
    ("content", "page", "fault"),
    [
        ({"scale": "full", "chapters": []}, "# No tables", r"has no place for chapters_x\.json; .* \{\{ results\.gpu"),
        ({"versions": {}, "chapters": []}, PAGE, r"chapters_x\.json: versions is \{\}"),
        ({"scale": "full"}, PAGE, r"chapters_x\.json is not what its kind shows: KeyError: 'chapters'"),
        ({"scale": "full", "chapters": []}, PAGE + "{{ results.speed }}", "no results are called speed; known are gpu"),
    ],
)
def test_what_cannot_be_shown_is_an_error(book, content, page, fault):
    put(book, "chapters_x.json", **content)
    with pytest.raises(performance_page.PerformanceError, match=fault):
        performance_page.filled(page, book)


def test_without_results_every_kind_says_how_to_get_them(book, tmp_path):
    folder = tmp_path / "stage"
    shutil.copytree(book.book, folder / "book")
    performance_page.fill(folder, book)
    text = (folder / performance_page.PAGE).read_text(encoding="utf-8")
    assert text.count(" has been recorded yet; `python ") == len(performance_page.KINDS)
    assert "{{" not in text
