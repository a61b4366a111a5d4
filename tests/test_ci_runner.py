"""The runner on small chapters: what passes, what fails and how, what is published, what is reused."""

from __future__ import annotations

import json

import nbformat
import notebook_results as results
import psutil
import pytest
import run_notebooks
import tiny_book

FLOOD = "import sys, time\nfor n in range(101):\n    print(f'\\r{n}%', end='', flush=True)"


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Makes a tiny book, whose package the kernels see before the installed one."""

    def make(chapters, **options):
        project = tiny_book.make(tmp_path / "project", chapters, **options)
        monkeypatch.setenv("PYTHONPATH", str(project.root / "src"))
        return project

    return make


def run(project, *arguments: str) -> tuple[int, dict]:
    """The runner's exit status, and the rows of its report by chapter."""
    status = run_notebooks.main(["--root", str(project.root), "--device", "cpu", *arguments])
    report = project.reports / "notebooks.json"
    rows = json.loads(report.read_text())["chapters"] if report.exists() else []
    return status, {row["chapter"]: row for row in rows}


def published(project, name: str):
    return nbformat.read(project.executed / f"{name}.ipynb", as_version=4)


def text_of(project, name: str) -> str:
    """All that the published chapter's last code cell printed."""
    code = [cell for cell in published(project, name).cells if cell.cell_type == "code"]
    return "".join(output.text for output in code[-1].outputs)


def test_good_and_bad_chapters_in_one_run(book, capsys):
    project = book(
        {
            "good": ["import os\nprint(SCALE, DEVICE, os.environ['TRITON_INTERPRET'], os.listdir())", "1 + 1"],
            "raises": ["print('before')", "def inner():\n    raise ValueError('no such page')\ninner()"],
            "floods": [FLOOD],
            "warns": ["import sys\nprint('careful', file=sys.stderr)"],
            "dies": ["import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"],
        }
    )
    status, rows = run(project)
    printed = capsys.readouterr().out

    assert status == 1
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "good": "passed", "raises": "failed", "floods": "failed", "warns": "failed", "dies": "failed",
    }  # fmt: skip
    # What failed left nothing that could be taken for its result.
    assert sorted(path.name for path in project.executed.iterdir()) == ["good.ipynb", "good.json"]
    assert rows["good"]["seconds"] > 0
    assert rows["good"]["peak_rss_bytes"] > 20 * 2**20
    assert rows["good"]["device"] == "cpu"

    assert rows["raises"]["cell"] == "step-2"
    assert rows["raises"]["error"] == "ValueError: no such page"
    assert "raises: FAILED in cell step-2: ValueError: no such page" in printed
    assert "inner()" in printed
    assert "102 fragments" in rows["floods"]["traceback"][0]
    assert "writes to stderr: 'careful'" in rows["warns"]["traceback"][0]
    assert "kernel died" in rows["dies"]["error"]

    notebook = published(project, "good")
    by_id = {cell.id: cell for cell in notebook.cells}
    assert by_id["step-1"].outputs[0].text == "small cpu 1 []\n"
    # The page says which values its numbers come from, and nothing of papermill is left.
    assert by_id["parameters"].source.splitlines() == [
        'SCALE = "small"  # how much to compute',
        'DEVICE = "cpu"  # where',
    ]
    assert "papermill" not in json.dumps(notebook)
    assert not any("injected-parameters" in cell.metadata.get("tags", []) for cell in notebook.cells)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == [1, 2, 3, 4]


def test_a_result_is_reused_only_while_nothing_changed(book):
    project = book({"chapter": ["import ds41\nprint(ds41.VALUE)"]})
    assert run(project)[1]["chapter"]["outcome"] == "passed"
    first = (project.executed / "chapter.ipynb").read_bytes()
    assert run(project)[1]["chapter"]["outcome"] == "reused"
    assert run(project, "--force")[1]["chapter"]["outcome"] == "passed"
    assert (project.executed / "chapter.ipynb").read_bytes() == first

    (project.root / "src" / "ds41" / "__init__.py").write_text('VALUE = "new"\n')
    assert run(project)[1]["chapter"]["outcome"] == "passed"
    assert text_of(project, "chapter") == "new\n"

    # A chapter that fails takes its old result with it.
    tiny_book.write_chapter(project, "chapter", ["1 / 0"])
    assert run(project)[0] == 1
    assert list(project.executed.iterdir()) == []


def test_each_part_of_the_fingerprint_counts(book, monkeypatch):
    project = book({"chapter": ["1"]})
    chapter = project.chapter("chapter")

    def changes(wanted) -> list[str]:
        return results.differences({"fingerprint": before}, wanted)

    def fingerprint(parameters=None, device="cpu"):
        return results.fingerprint(chapter, project, parameters or {"SCALE": "small"}, device)

    before = fingerprint()
    assert changes(fingerprint()) == []
    assert changes(fingerprint(parameters={"SCALE": "full"})) == ["parameters changed"]
    assert changes(fingerprint(device="Tesla T4")) == ["device changed"]
    monkeypatch.setattr(results, "installed", lambda: ("torch==0.0",))
    assert changes(fingerprint()) == ["environment changed"]
    (project.root / "kernels" / "new.py").write_text("")
    (project.root / "src" / "ds41" / "__pycache__").mkdir()
    (project.root / "src" / "ds41" / "__pycache__" / "x.pyc").write_text("")
    assert changes(fingerprint()) == ["library changed", "environment changed"]
    tiny_book.write_chapter(project, "chapter", ["2"])
    assert "notebook changed" in changes(fingerprint())
    assert results.differences(None, before) == ["no result yet"]


def test_a_torn_result_is_not_reused(book):
    project = book({"chapter": ["1"]})
    chapter = project.chapter("chapter")
    results.publish(nbformat.v4.new_notebook(), chapter, project, {"fingerprint": {}, "facts": {}})
    assert results.read_record(chapter, project) is not None
    (project.executed / "chapter.ipynb").write_text("{}")
    assert results.read_record(chapter, project) is None


def test_unknown_parameters_are_refused(book, capsys):
    project = book({"chapter": ["print(SCALE)"]})
    assert run(project, "-p", "SCAEL=small")[0] == 2
    message = capsys.readouterr().err
    assert 'chapter.ipynb has no parameter SCAEL; it has SCALE (default "full"), DEVICE (default "auto")' in message
    assert not project.executed.exists()
    assert run(project, "nowhere")[0] == 2
    assert "no chapter named 'nowhere'" in capsys.readouterr().err


def test_a_chapter_without_a_parameters_cell_is_refused(book, capsys):
    """Case e_papermill_tag: papermill would set N first and the cell would set it back."""
    project = book({"chapter": ["N = 4096", "print('N', N)"]})
    path = project.chapter("chapter")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id != "parameters"]
    nbformat.write(notebook, path)
    assert run(project, "-p", "N=8")[0] == 2
    assert "fail: notebook has no cell tagged 'parameters'" in capsys.readouterr().err


def test_parameters_are_read_as_python(book):
    project = book(
        {"chapter": ["print(ROWS + 1, NAME)"]},
        parameters=f"{tiny_book.PARAMETERS}\nROWS: int = 1  # r\nNAME = 'x'  # n",
    )
    assert run(project, "-p", "ROWS=4096", "-p", "NAME=a page", "-p", "SCALE=full")[0] == 0
    assert text_of(project, "chapter") == "4097 a page\n"
    shown = {cell.id: cell.source for cell in published(project, "chapter").cells}["parameters"].splitlines()
    assert shown == [
        'SCALE = "full"  # how much to compute',
        'DEVICE = "cpu"  # where',
        "ROWS: int = 4096  # r",
        'NAME = "a page"  # n',
    ]


def test_a_foreign_kernel_name_does_not_pass(book):
    """Case e_kernel_name: papermill would run it and leave the name for the next tool to trip over."""
    project = book({"chapter": ["1"]})
    path = project.chapter("chapter")
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.kernelspec.name = "conda-env-foo-py"
    nbformat.write(notebook, path)
    status, rows = run(project)
    assert status == 1
    assert "kernelspec" in rows["chapter"]["traceback"][0]


def test_a_run_on_a_gpu_is_full_and_measures_its_memory(book, monkeypatch):
    torch = "SimpleNamespace(cuda=SimpleNamespace(max_memory_allocated=lambda: 3 * 2**20))"
    pretend = f"import os, sys\nfrom types import SimpleNamespace\nsys.modules['torch'] = {torch}"
    project = book({"chapter": [pretend, "print(SCALE, DEVICE, 'TRITON_INTERPRET' in os.environ)"]})
    monkeypatch.setattr(run_notebooks, "resolve_device", lambda wanted: ("cuda", "A GPU"))
    monkeypatch.setattr(run_notebooks, "origin", lambda device, command: {"driver": "580"})
    status, rows = run(project)
    assert status == 0
    report = json.loads((project.reports / "notebooks.json").read_text())
    assert (report["device"], report["driver"]) == ("A GPU", "580")
    assert rows["chapter"]["device"] == "A GPU"
    assert rows["chapter"]["cuda_peak_bytes"] == 3 * 2**20
    assert text_of(project, "chapter") == "full cuda False\n"


@pytest.mark.parametrize(
    ("limit", "message"),
    [(("--timeout", "9"), "9 s allowed for a notebook"), (("--cell-timeout", "2"), "2 s allowed for a cell")],
    ids=["notebook", "cell"],
)
def test_time_limits_end_the_kernel(book, tmp_path, limit, message):
    pid_file = tmp_path / "pid"
    sleep = f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    project = book({"slow": [sleep]})
    status, rows = run(project, *limit)
    assert status == 1
    assert rows["slow"]["outcome"] == "timed out"
    assert message in rows["slow"]["error"]
    assert rows["slow"]["cell"] == "step-1"
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert rows["slow"]["seconds"] < 60


def test_joining_does_not_depend_on_how_a_stream_was_cut():
    def stream(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    def finished(outputs):
        cell = nbformat.v4.new_code_cell("", id="a", outputs=outputs)
        notebook = nbformat.v4.new_notebook(cells=[cell])
        return results.finish(notebook, {}).cells[0].outputs

    assert finished([stream("a"), stream("b"), stream("c")]) == finished([stream("abc")])
    assert [o.name for o in finished([stream("a"), stream("b", "stderr"), stream("c")])] == [
        "stdout",
        "stderr",
        "stdout",
    ]


@pytest.mark.parametrize(
    ("source", "values", "expected"),
    [
        ("N = 1  # n", {"N": 22}, "N = 22  # n"),
        ('S = "é"  # é', {"S": "ü"}, 'S = "ü"  # é'),
        ("A = 1; B = 2", {"A": 10, "B": 20}, "A = 10; B = 20"),
        ("A = 1  # kept", {"B": 3}, "A = 1  # kept"),
    ],
)
def test_values_stand_in_the_parameters_cell(source, values, expected):
    assert results.with_values(source, values) == expected
