"""The check on Colab's versions, without them: the first cell, environments, what counts as a fault, results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import colab_chapter
import colab_check
import colab_environment
import colab_trials
import nbformat
import notebook_form
import origin
import pytest
import record_results
import tiny_book
from colab_environment import Base, ColabError, Layer
from packaging.requirements import Requirement
from project import HERE

RESULTS = HERE.root / "benchmarks" / "results"
LINES = colab_environment.VERSIONS.read_text().splitlines()
PINS = [Requirement(line) for line in LINES if line and not line.startswith("#")]


# The cell that every chapter opens with.


def first_cell(pip: str) -> str:
    """The source with other code in pip's place."""
    source, count = re.subn(r"%pip .*", pip, notebook_form.colab_source(HERE))
    assert count == 1
    return source


@pytest.fixture
def on_colab(monkeypatch):
    """Colab without ds41: ``installed`` is what find_spec sees, ``versions`` what metadata tells."""
    state = types.SimpleNamespace(installed={"torch", "numpy"}, versions={"torch": "2.11.0", "numpy": "2.1.3"})
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in state.installed or None)
    monkeypatch.setattr(metadata, "version", lambda name: state.versions[name])
    monkeypatch.setattr("ds41.environment.prepare", lambda: types.SimpleNamespace(device="cpu", report=lambda: "ready"))
    return state


def test_every_chapter_opens_with_the_same_cell():
    cells = [notebook_form.read(path).cells for path in HERE.chapters]
    firsts = {next(cell.source for cell in chapter if cell.cell_type == "code") for chapter in cells}
    assert firsts == {notebook_form.colab_source(HERE)}


def test_the_first_cell_installs_reports_and_says_what_is_left_out(on_colab, capsys):
    exec(first_cell("state.installed.add('ds41')"), {"state": on_colab})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "ready"
    assert "no GPU" in printed[1]
    assert "T4" in printed[2]
    # Again: pip is not asked.
    exec(first_cell("raise AssertionError('pip was called')"), {})
    assert capsys.readouterr().out.splitlines() == printed


def test_a_pip_that_failed_is_said(on_colab):
    with pytest.raises(RuntimeError, match=rf"pip could not get {HERE.repository_url}.*network"):
        exec(first_cell("pass"), {})


def test_a_loaded_library_that_was_replaced_is_said(on_colab):
    replace = "state.installed.add('ds41'); state.versions['torch'] = '2.15.0'"
    with pytest.raises(AssertionError, match=r"2\.11\.0.*became.*2\.15\.0.*restart"):
        exec(first_cell(replace), {"state": on_colab})


# Environments.


def test_versions_are_exact_and_the_same_wherever_they_stand():
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in PINS), PINS
    pinned = {pin.name: str(pin) for pin in PINS}
    assert {"torch", "triton", "numpy", "ipywidgets", "matplotlib", "ipython", "ipykernel", "pip"} <= set(pinned)
    assert not {"ds41", "papermill", *colab_chapter.ALLOWED} & set(pinned)
    recipe = re.search(r"build/colab-triton (.+)", (HERE.root / "Makefile").read_text())[1]
    assert recipe.split() == [pinned["triton"], pinned["numpy"]]
    assert colab_environment.wanted_python() >= (3, 10)


@pytest.mark.parametrize(
    ("here", "chosen"),
    [([(3, 11), (3, 13), (3, 14)], (3, 13)), ([(3, 11), (3, 12)], (3, 12)), ([(3, 12), (3, 14), (3, 9)], (3, 14))],
)
def test_the_nearest_python_is_taken(monkeypatch, here, chosen):
    names = {Path(f"/nowhere/python{major}.{minor}"): (major, minor) for major, minor in here}
    monkeypatch.setattr(colab_environment, "_interpreters", lambda: [Path("/nowhere/shim"), *names])
    monkeypatch.setattr(colab_environment, "_version", names.get)
    python, version = colab_environment.nearest_python((3, 13))
    assert version == names[python] == chosen


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def layer(tmp_path) -> Layer:
    """A layer above a base with torch, both without an interpreter."""
    install(tmp_path / "base" / "lib" / "python3.13" / "site-packages", "torch", "2.11.0")
    (tmp_path / "layer" / "lib" / "python3.13" / "site-packages").mkdir(parents=True)
    return Layer(tmp_path / "layer", Base(tmp_path / "base", fresh=True))


def test_a_layer_tells_what_came_and_what_was_replaced(layer):
    assert (layer.added, layer.replaced) == ({}, {})
    packages = colab_environment.site_packages(layer.folder)
    install(packages, "ds41", "0.1.0")
    assert colab_chapter.installed_faults(layer.added, layer.replaced) == []
    install(packages, "Torch", "2.15.0")
    install(packages, "lxml_html", "1.0")
    assert layer.replaced == {"torch": "2.15.0"}
    assert colab_chapter.installed_faults(layer.added, layer.replaced) == [
        "installed torch 2.15.0 over the one there was",
        "installed lxml-html 1.0, which is not on the list of what it may",
    ]


def test_the_kernel_inherits_nothing_that_colab_lacks(layer, monkeypatch):
    foreign = {"VIRTUAL_ENV", "PYTHONPATH", "TRITON_INTERPRET", "DS41_BACKEND", "GIT_DIR", "JUPYTER_PATH"}
    for name in foreign:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    variables = layer.environment({"https://a.example/b": "file:///c"})
    assert not {"VIRTUAL_ENV", "PYTHONPATH", "TRITON_INTERPRET", "DS41_BACKEND", "GIT_DIR", "JUPYTER_PATH"} & set(
        variables
    )
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["PATH"].startswith(f"{layer.folder / 'bin'}:{layer.base.folder / 'bin'}:")
    assert variables["GIT_CONFIG_COUNT"] == "1"
    assert variables["GIT_CONFIG_KEY_0"] == "url.file:///c.insteadOf"
    assert variables["GIT_CONFIG_VALUE_0"] == "https://a.example/b"


def test_git_finds_the_working_tree_at_the_repositorys_address(layer, tmp_path):
    project = tiny_book.make(tmp_path / "project", {"intro": ["1"]})
    (project.root / ".gitignore").write_text("build/\n")
    (project.root / "build").mkdir()
    (project.root / "build" / "large").write_text("x")
    (project.root / "new.txt").write_text("not committed anywhere")
    before = sorted(path.name for path in project.root.iterdir())
    address = colab_environment.mirror(project, tmp_path / "mirror.git")
    # A second run takes the tree as it is then.
    (project.root / "new.txt").write_text("changed")
    assert colab_environment.mirror(project, tmp_path / "mirror.git") == address
    assert sorted(path.name for path in project.root.iterdir()) == before
    clone = ["git", "clone", "-q", "-b", project.repository_branch, project.repository_url, str(tmp_path / "clone")]
    subprocess.run(clone, check=True, env=layer.environment({project.repository_url: address}))
    assert (tmp_path / "clone" / "new.txt").read_text() == "changed"
    assert not (tmp_path / "clone" / "build").exists()


def test_a_base_that_cannot_be_made_is_an_error_and_not_reused(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(colab_environment, "nearest_python", lambda wanted: (broken, (3, 10)))
    for _ in range(2):
        with pytest.raises(ColabError, match="venv ended with status 3:\nno such thing"):
            colab_environment.base(tmp_path / "base", [])


# Chapters.


def code(cell_id: str, source: str = "", printed: str = "") -> nbformat.NotebookNode:
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
    return nbformat.v4.new_code_cell(source, id=cell_id, outputs=outputs)


def notebook(*cells) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=list(cells), metadata={"kernelspec": notebook_form.KERNELSPEC})


def test_versions_that_changed_are_faults():
    probe = {"installed": {"torch": "2.11.0", "numpy": "2.1.3"}, "loaded": {"numpy": "2.1.3"}}
    after = {"installed": {"torch": "2.15.0", "numpy": "2.1.3"}, "loaded": {"numpy": "2.1.3", "torch": "2.11.0"}}
    assert colab_chapter.version_faults({"probe-before": probe, "probe-after": probe, "probe-end": probe}) == []
    assert colab_chapter.version_faults({"probe-before": probe, "probe-after": after}) == [
        "torch 2.15.0 is installed (probe-after), and it was 2.11.0"
    ]
    assert colab_chapter.version_faults({}) == ["the kernel did not say its versions before the first cell"]


def judged(layer, *cells, gpu=None) -> dict:
    probe = {"installed": {"torch": "2.11.0"}, "loaded": {}, "gpu": gpu}
    probes = [code(name, printed=json.dumps(probe)) for name in ("probe-before", "probe-after", "probe-end")]
    return colab_chapter.judge(notebook(*probes, *cells), layer, {"outcome": "passed", "seconds": 1.0})


def test_a_chapter_says_what_it_leaves_out_without_a_gpu(layer):
    timed = "start = torch.cuda.Event(enable_timing=True)"
    line = "no GPU here: nothing is timed"
    assert judged(layer, code("time", timed, line))["said"] == [("time", line)]
    assert judged(layer, code("time", timed, line))["outcome"] == "passed"
    # What the shared first cell says of every chapter does not count.
    silent = judged(layer, code("colab", "", "no GPU: ..."), code("time", timed))
    assert silent["outcome"] == "failed"
    assert "prints no line on what it leaves out" in silent["faults"][0]
    assert judged(layer, code("time", timed), gpu="Tesla T4")["outcome"] == "passed"
    assert judged(layer, code("other", "1 + 1"))["outcome"] == "passed"


def test_output_unfit_to_print_fails_a_chapter(layer):
    warned = code("step")
    warned.outputs = [nbformat.v4.new_output("stream", name="stderr", text="deprecated")]
    row = judged(layer, warned)
    assert row["outcome"] == "failed"
    assert row["faults"] == ["cell 'step' writes to stderr: 'deprecated'"]


@pytest.fixture
def kernel(layer) -> Layer:
    """The layer with this Python as its kernel."""
    folder = layer.folder / "kernels" / "colab"
    folder.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Colab", "language": "python"}))
    return layer


def test_a_chapter_runs_from_its_first_cell_to_its_end_or_its_fault(kernel, tmp_path):
    parameters = code("parameters", tiny_book.PARAMETERS)
    parameters.metadata.tags = ["parameters"]
    good = notebook(code("colab", "print('ready')"), parameters, code("step", "print(SCALE)\n1 / 0"))
    probed = colab_chapter.with_probes(good, {"SCALE": "small", "DEVICE": "auto"})
    assert [cell.id for cell in probed.cells] == [
        *("probe-before", "colab", "probe-after", "parameters", "step", "probe-end")
    ]
    assert 'SCALE = "full"' in good.cells[1].source
    outcome = colab_chapter.run(probed, kernel, {}, tmp_path, cell_timeout=60)
    assert (outcome["outcome"], outcome["cell"]) == ("failed", "step")
    assert outcome["error"] == "ZeroDivisionError: division by zero"
    assert 0 < outcome["first_cell_s"] < outcome["seconds"]
    printed = {cell.id: colab_chapter.printed(cell) for cell in probed.cells}
    assert (printed["colab"], printed["step"]) == ("ready\n", "small\n")
    assert json.loads(printed["probe-after"])["installed"]["numpy"] == metadata.version("numpy")
    row = colab_chapter.judge(probed, kernel, outcome)
    assert row["outcome"] == "failed"
    assert row["added"] == {}


class FakeRun:
    """Stands in for colab_check.Run: ``execute`` puts text into the cells it is told and gives the outcome."""

    def __init__(self, layer: Layer, outcome: dict, printed: dict[str, str]) -> None:
        self.project, self.sources = HERE, {HERE.repository_url: "file:///mirror"}
        self.empty, self.outcome, self.printed = layer, outcome, printed
        self.seen: list[tuple[list[str], dict]] = []

    def layer(self, name):
        return self.empty

    def chapter(self, name):
        return notebook(*(code(cell_id) for cell_id in ("probe-before", "colab", "probe-after", "step")))

    def execute(self, name, notebook, layer, sources):
        self.seen.append(([cell.id for cell in notebook.cells], sources))
        for cell in notebook.cells:
            cell.outputs = code(cell.id, "", self.printed.get(cell.id, "")).outputs
        return {
            "chapter": name,
            "added": layer.added,
            "replaced": layer.replaced,
            "said": [],
            "faults": [],
        } | self.outcome

    def close(self, layer):
        pass


def test_without_a_network_the_first_cell_has_to_say_so(layer):
    failed = {"outcome": "failed", "cell": "colab", "error": "RuntimeError: pip could not get it: no network?"}
    run = FakeRun(layer, failed, {})
    assert colab_trials.no_network(run)["outcome"] == "passed"
    [(cells, sources)] = run.seen
    assert cells == ["probe-before", "colab"]
    assert "nowhere" in sources[HERE.repository_url]
    for other in ({"error": "ModuleNotFoundError: No module named 'ds41'"}, {"outcome": "passed"}, {"cell": "step"}):
        row = colab_trials.no_network(FakeRun(layer, failed | other, {}))
        assert row["outcome"] == "failed"
        assert "did not say that pip reached nothing" in row["faults"][0]


def test_a_second_run_of_the_first_cell_only_reports(layer):
    said = {"colab": "Installing\nready\n", "colab-again": "ready\n"}
    run = FakeRun(layer, {"outcome": "passed"}, said)
    assert colab_trials.twice(run)["outcome"] == "passed"
    assert run.seen[0][0] == ["probe-before", "colab", "colab-again", "probe-after", "step"]
    row = colab_trials.twice(FakeRun(layer, {"outcome": "passed"}, said | {"colab-again": "Installing again\n"}))
    assert (row["outcome"], "Installing again" in row["faults"][0]) == ("failed", True)


def test_the_table_shows_what_was_installed():
    row = {"chapter": "intro", "outcome": "passed", "seconds": 40.04, "first_cell_s": 12.0}
    lines = colab_check.table([row | {"added": {"simpy": "4", "ds41": "0.1"}}, row | {"added": {}}]).splitlines()
    assert lines[1].split(maxsplit=4) == ["intro", "passed", "40.0", "12.0", "ds41 0.1, simpy 4"]
    assert lines[2].endswith("nothing")


# Results.


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_says_where_it_comes_from(path):
    assert origin.faults(json.loads(path.read_text())) == []


def test_every_result_is_in_the_list():
    listed = set(re.findall(r"^\| `(\w+\.\w+)`", (RESULTS / "README.md").read_text(), re.MULTILINE))
    kinds = {"gpu_DEVICE_WHERE.json", "chapters_DEVICE_WHERE.json"}
    measured = {path.name for path in RESULTS.iterdir() if not path.name.startswith(("README", "chapters_"))}
    assert listed - kinds == {name for name in measured if not re.fullmatch(r"gpu_.+\.json", name)}
    assert kinds <= listed


def test_an_origin_is_whole(monkeypatch):
    record = origin.origin("cpu", [str(HERE.root / "ci" / "x.py"), "--name", "two words"])
    assert origin.faults(record) == []
    assert record["command"] == "python ci/x.py --name 'two words'"
    assert record["versions"]["torch"] == metadata.version("torch")
    assert [fault.partition(" ")[0] for fault in origin.faults({"device": " ", "versions": {"python": "3"}})] == [
        *("device", "command", "versions")
    ]


def report(**other) -> dict:
    known = {"device": "Tesla T4", "versions": {"torch": "2.11.0"}, "command": "python ci/gpu_check.py"}
    return known | other


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"device": "CPU: a rehearsal"}, "it is a rehearsal"),
        ({"device": "cpu"}, "it was not made on a GPU"),
        ({"problems": ["graph: other bits"]}, "it names a problem: graph: other bits"),
        ({"chapters": [{"chapter": "04-fp4", "outcome": "failed"}]}, "04-fp4 failed"),
        ({"command": ""}, "command is ''; expected a sentence"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, capsys, other, why):
    (tmp_path / "gpu.json").write_text(json.dumps(report(**other)))
    assert record_results.main(["--reports", str(tmp_path), "--results", str(tmp_path)]) == 1
    assert why in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.json"]


def test_results_are_named_after_their_device(tmp_path):
    passed = [{"chapter": "04-fp4", "outcome": "passed"}]
    (tmp_path / "gpu.json").write_text(json.dumps(report(chapters={"status": 0}, problems=[])))
    (tmp_path / "notebooks.json").write_text(json.dumps(report(chapters=passed, device="NVIDIA L4")))
    results = tmp_path / "results"
    results.mkdir()
    assert record_results.main(["--reports", str(tmp_path), "--results", str(results), "--where", "colab"]) == 0
    assert sorted(path.name for path in results.iterdir()) == [
        "chapters_nvidia-l4_colab.json",
        "gpu_tesla-t4_colab.json",
    ]
    assert record_results.main(["--reports", str(results), "--results", str(results)]) == 1
