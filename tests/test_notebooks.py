"""The book's own notebooks and settings: hygiene, links, one address, one version of Jupyter Book."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import nbformat
import notebook_form
import notebook_rules
import notebook_text
import pytest
from notebook_results import finish
from packaging.requirements import Requirement
from packaging.version import Version
from project import HERE

CHAPTERS = [name for name in HERE.page_names if (HERE.root / f"{name}.ipynb").exists()]
each_chapter = pytest.mark.parametrize("name", CHAPTERS)


def tracked() -> list[Path]:
    """Every file of the project: what git tracks, and what is new and not ignored."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=HERE.root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for name in names if (path := HERE.root / name).is_file()]


def test_table_of_contents_and_folder_agree():
    assert notebook_rules.strays(HERE) == []
    assert CHAPTERS


@each_chapter
def test_hygiene(name):
    assert notebook_rules.source_faults(HERE.root / f"{name}.ipynb", HERE) == []


@each_chapter
def test_a_trip_through_text_changes_nothing(name):
    path = HERE.root / f"{name}.ipynb"
    text = notebook_text.to_text(notebook_form.read(path))
    back = notebook_form.normalise(notebook_text.from_text(text), HERE)
    assert notebook_form.dumps(back) == path.read_text(encoding="utf-8")


def test_the_address_stands_in_one_place():
    """Beside _config.yml it stands in what is derived from there, or held against it: first cells, project urls."""
    address = HERE.repository_url.removeprefix("https://")
    holders = {path for path in tracked() if address.encode() in path.read_bytes()}
    chapters = {HERE.root / f"{name}.ipynb" for name in CHAPTERS}
    assert holders == {HERE.root / "_config.yml", HERE.root / "pyproject.toml", *chapters}
    assert (HERE.root / "_config.yml").read_text(encoding="utf-8").count(address) == 1
    derived = notebook_form.colab_source(HERE).count(address)
    assert derived > 0
    for chapter in chapters:
        assert chapter.read_text(encoding="utf-8").count(address) == derived


def test_the_colab_cell_installs_nothing_that_colab_has():
    """It asks pip for the package alone, and the package asks for no version of what is loaded already."""
    source = notebook_form.colab_source(HERE)
    assert f'repository = "{HERE.repository_url}"' in source
    assert re.findall(r"%pip install .*", source) == [
        f'%pip install -q "ds41 @ git+{{repository}}@{HERE.repository_branch}"'
    ]
    pyproject = (HERE.root / "pyproject.toml").read_text(encoding="utf-8")
    requirements = re.search(r"^dependencies = \[(.*?)\]$", pyproject, re.MULTILINE | re.DOTALL)[1]
    for line in re.findall(r'"([^"]+)"', requirements):
        assert not Requirement(line).specifier, f"{line} may replace what a running Colab has loaded"


def test_the_colab_cell_runs_here_and_explains_itself_elsewhere(monkeypatch, capsys):
    plain = notebook_form.colab_source(HERE).replace("    %pip", "    pass  # %pip")
    exec(compile(plain, "colab", "exec"), {})
    assert capsys.readouterr().out.startswith("Python ")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="make book"):
        exec(compile(plain, "colab", "exec"), {})


def test_jupyter_book_stays_below_2():
    """Case e_jb_pin: version 2 is another program, which ignores _config.yml."""
    lines = (HERE.root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line.startswith("jupyter-book")]
    extra = re.findall(r'"(jupyter-book[^"]*)"', (HERE.root / "pyproject.toml").read_text(encoding="utf-8"))
    assert pins
    assert extra
    for line in pins + extra:
        specifier = Requirement(line).specifier
        assert "2.1.7" not in specifier
        assert Version("1.0.4.post1") in specifier


def test_heading_links_are_set_where_they_work():
    """Case e_anchor_cfg: the `parse` section ignores myst_heading_anchors."""
    assert HERE.config["sphinx"]["config"]["myst_heading_anchors"] == 3
    assert "myst_heading_anchors" not in HERE.config["parse"]


@each_chapter
def test_finishing_keeps_the_cells_of_a_chapter(name):
    notebook = nbformat.read(HERE.root / f"{name}.ipynb", as_version=4)
    ids = [cell.id for cell in notebook.cells]
    assert [cell.id for cell in finish(notebook, {"SCALE": "small"}).cells] == ids
