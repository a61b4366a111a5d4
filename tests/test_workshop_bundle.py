"""The workshop's kit: what goes in, what is refused, that equal parts give an equal archive; and how it is tried."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
import workshop_bundle as bundle
import workshop_guide
import workshop_offline as offline
import workshop_start
import workshop_try
import workshop_wheels
from project import HERE
from test_workshop_notebooks import EXERCISE, add_exercise, execute
from tiny_book import make
from workshop_plan import WorkshopError
from workshop_room import Room, TryError
from workshop_start import Kit

ARTICLE = (
    '<article class="bd-article"><section><h1>Workshops<a class="headerlink" href="#workshops">#</a></h1>'
    '<p><a href="04-first.html#x">four</a> <a href="https://example.org/">out</a> <img src="../_static/a.svg" alt="a">'
    "</p></section></article>"
)


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A tiny book, executed and built, with stand-ins for what other programs make."""
    project = make(tmp_path / "book", {"intro": ["1"], "04-first": ["2"]})
    add_exercise(project, EXERCISE)
    execute(project)
    (project.html / "book").mkdir(parents=True)
    (project.html / "index.html").write_text("<title>ds41</title>")
    (project.html / "book" / "workshop.html").write_text(f"<html><body>{ARTICLE}</body></html>")
    (project.root / "LICENSE").write_text("MIT")
    (project.root / "pyproject.toml").write_text('[project]\nname = "ds41"\nversion = "9.8"\n')
    (project.root / "requirements.txt").write_text('# why\ntorch==2.13.0\nsphinx==7.4.7\ntriton==1; platform == "x"\n')
    (project.root / "ci").mkdir()
    (project.root / "ci" / "workshop_requirements.txt").write_text("jupyterlab==4\n")
    bundle.model(project).mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (bundle.model(project) / name).write_text("{}")
    execute(project)
    monkeypatch.setattr(bundle, "run_maker", make_part)
    monkeypatch.setattr(workshop_wheels, "build", build_wheel)
    monkeypatch.setattr(workshop_guide, "print_page", lambda html: html.with_suffix(".pdf").write_bytes(b"%PDF"))
    return project


def make_part(name: str, language: str, project) -> None:
    made = {"slides": f"slides/{language}/index.html", "handout": f"handout/ledger-{language}.pdf"}[name]
    path = project.build / "workshop" / made
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)


def build_wheel(project, target: Path) -> Path:
    target.mkdir(parents=True)
    wheel = target / "ds41-9.8-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    return wheel


def run(project) -> int:
    return bundle.main(["--root", str(project.root)])


def test_the_kit_holds_every_part_and_says_so(book, capsys):
    assert run(book) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    archive = book.build / "ds41-workshop-9.8.zip"
    assert f"de: left out, {book.build / 'de' / 'executed'} is missing" in printed
    assert printed.endswith(f"MB: {archive}\n")
    names = zipfile.ZipFile(archive).namelist()
    assert names == sorted(names)
    assert [name.removeprefix("ds41-workshop/") for name in names] == [
        *("LICENSE", "MANIFEST.txt", "START.html", "book/book/workshop.html", "book/index.html"),
        *("guide-en.html", "guide-en.pdf", "handout/ledger-en.pdf"),
        *("model/nano/config.json", "model/nano/model.safetensors", "model/nano/tokenizer.json"),
        *("notebooks/en/exercises/04-first.ipynb", "notebooks/en/solved/04-first.ipynb", "requirements.txt"),
        *("slides/en/index.html", "wheel/ds41-9.8-py3-none-any.whl"),
    ]
    assert re.search(r"^all +16 +0\.0\d$", printed, re.MULTILINE)
    assert re.search(r"^notebooks/en/solved/ +1 +0\.0\d$", printed, re.MULTILINE)


def test_equal_parts_give_equal_bytes(book):
    archive = book.build / "ds41-workshop-9.8.zip"
    assert run(book) == 0
    first = archive.read_bytes()
    assert run(book) == 0
    assert archive.read_bytes() == first
    assert {entry.date_time for entry in zipfile.ZipFile(archive).infolist()} == {bundle.DATE}


def test_another_language_joins_once_its_chapters_are_executed(book):
    execute(book, "de")
    assert run(book) == 1, "its guide is missing"
    (book.html / "de" / "book").mkdir(parents=True)
    (book.html / "de" / "book" / "workshop.html").write_text(ARTICLE)
    languages = ["en", "de"]
    bundle.check(book, languages)
    assert 'href="book/de/book/04-first.html#x"' in workshop_guide.page(book, "de")


def test_what_is_missing_is_named_with_its_command_all_at_once(book, capsys):
    (book.html / "index.html").unlink()
    (book.html / "book" / "workshop.html").unlink()
    (book.root / "LICENSE").unlink()
    (book.executed / "04-first.json").unlink()
    assert run(book) == 1
    error = capsys.readouterr().err
    assert f"{book.html} has no book: run `make book`" in error
    assert "workshop.html is missing: run `make book`" in error
    assert "LICENSE is missing" in error
    assert "04-first, language 'en': no result yet: run `make notebooks`" in error
    assert not (book.build / "ds41-workshop-9.8.zip").exists()


def test_a_part_that_cannot_be_made_stops_the_kit(book, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setattr(workshop_wheels, "build", build_wheel)
    monkeypatch.setitem(bundle.MAKERS, "slides", "no_such_program.py")
    assert run(book) == 1
    assert "error: slides of language 'en' could not be made: " in capsys.readouterr().err


def test_the_guide_is_the_built_page_with_links_into_the_book(book):
    page = workshop_guide.page(book, "en")
    assert "<title>Workshops</title>" in page
    assert 'href="book/book/04-first.html#x"' in page
    assert 'src="book/book/../_static/a.svg"' in page
    assert 'href="https://example.org/"' in page
    assert "headerlink" not in page
    (book.html / "book" / "workshop.html").write_text("<main><h1>Workshops</h1></main>")
    with pytest.raises(WorkshopError, match="the theme has changed"):
        workshop_guide.page(book, "en")


def test_requirements_leave_out_what_builds_the_book(book):
    pins = [line for line in workshop_wheels.requirements(book).splitlines() if not line.startswith("#")]
    assert pins == ["torch==2.13.0", 'triton==1; platform == "x"', "jupyterlab==4"]
    real = workshop_wheels.requirements(HERE)
    assert "\ntorch==" in real
    assert "\njupyterlab==" in real
    assert "sphinx" not in real
    names = {re.split("[=;]", line)[0] for line in (HERE.root / "requirements.txt").read_text().splitlines()}
    assert names >= workshop_wheels.BUILDERS, "nothing is left out that is not there"


def test_the_first_page_has_the_commands_and_every_place_that_it_names(book):
    assert run(book) == 0
    kit = book.build / "workshop" / bundle.FOLDER
    page = (kit / "START.html").read_text(encoding="utf-8")
    command = "python -m pip install -r requirements.txt wheel/ds41-9.8-py3-none-any.whl"
    assert f"{command}\nds41 doctor --workshop\njupyter lab notebooks/en/exercises</code>" in page
    places = re.findall(r'href="([^"]+)"', page)
    assert sorted(place for place in places if not (kit / place).exists()) == ["handout/ledger-en.html"]
    assert 'lang="de"' not in page
    kit = Kit("A & B", "9.8", "ds41.whl", ("en",), True)
    assert workshop_start.commands(kit, "en")[0] == (
        "python -m pip install --no-index --find-links wheels -r requirements.txt wheel/ds41.whl"
    )
    assert "<title>A &amp; B: workshop 9.8</title>" in workshop_start.page(kit)


def test_an_unpacked_kit_is_held_against_its_manifest(book, tmp_path):
    assert run(book) == 0
    archive = book.build / "ds41-workshop-9.8.zip"
    kit, count = workshop_try.unpack(archive, tmp_path / "good")
    assert (kit.name, count) == ("ds41-workshop", 16)
    lines = (kit / "MANIFEST.txt").read_text().splitlines()
    assert f"{hashlib.sha256(b'wheel').hexdigest()}            5 wheel/ds41-9.8-py3-none-any.whl" in lines
    folder = book.build / "workshop" / bundle.FOLDER
    (folder / "LICENSE").write_text("BSD")
    bundle.pack(folder, tmp_path / "other.zip")
    with pytest.raises(TryError, match="LICENSE is not what the manifest says"):
        workshop_try.unpack(tmp_path / "other.zip", tmp_path / "other")
    (folder / "extra.txt").write_text("")
    bundle.pack(folder, tmp_path / "more.zip")
    with pytest.raises(TryError, match=r"manifest and files differ in extra\.txt"):
        workshop_try.unpack(tmp_path / "more.zip", tmp_path / "more")


def test_checks_are_judged_by_the_registry():
    wanted = ["04.1", "04.2"]
    assert list(workshop_try.mark_faults({"✓": [], "·": wanted}, "exercises", wanted)) == []
    assert list(workshop_try.mark_faults({"✓": ["04.1"], "·": ["04.2"]}, "exercises", wanted)) == [
        "solved without an answer: 04.1",
        "open are 04.2; the chapter has 04.1, 04.2",
    ]
    assert list(workshop_try.mark_faults({"✓": wanted, "·": wanted}, "solved", wanted)) == []
    assert list(workshop_try.mark_faults({"✓": [], "·": wanted}, "solved", wanted)) == [
        "solved are none; the chapter has 04.1, 04.2"
    ]


def test_a_notebook_runs_in_the_participants_environment_and_a_failing_cell_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DS41_LANGUAGE", "xx")
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/")
    room = Room(tmp_path, "en")
    assert not {"DS41_LANGUAGE", "PIP_INDEX_URL"} & set(room.environment)
    assert Room(make_folder(tmp_path / "de"), "de").environment["DS41_LANGUAGE"] == "de"
    room.python = Path(sys.executable)
    source = "import os\nraise ValueError(os.environ['HOME'])"
    cells = [nbformat.v4.new_code_cell("1", id="right"), nbformat.v4.new_code_cell(source, id="wrong")]
    with pytest.raises(TryError, match=re.escape(f"bad, cell wrong: ValueError: {tmp_path / 'home'}")):
        room.execute(nbformat.v4.new_notebook(cells=cells), "bad")
    with pytest.raises(TryError, match=r"trying failed with exit code 3:\n  sorry"):
        room.run([sys.executable, "-c", "print('sorry'); raise SystemExit(3)"], "trying")


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_namespace_without_a_network_has_loopback_and_nothing_else():
    code = (
        f"import sys; sys.path.insert(0, {str(HERE.root / 'ci')!r})\n"
        "import socket, workshop_offline as offline\n"
        "offline.raise_loopback(); offline.check()\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname(), timeout=5)\n"
        "print('only loopback')"
    )
    try:
        command = offline.command(["-c", code])
    except offline.OfflineError as error:
        pytest.skip(str(error))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "only loopback\n", done.stderr


def test_a_network_that_is_still_there_is_a_fault(monkeypatch):
    monkeypatch.setattr(offline.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth7")])
    monkeypatch.setattr(offline, "_is_up", lambda name: True)
    with pytest.raises(offline.OfflineError, match="interface eth7 is up"):
        offline.check()
    monkeypatch.setattr(offline.socket, "if_nameindex", lambda: [(1, "lo")])
    monkeypatch.setattr(offline, "_ELSEWHERE", ("127.0.0.1", 9))
    with pytest.raises(offline.OfflineError, match=r"it has a route to 127\.0\.0\.1"):
        offline.check()
    monkeypatch.setattr(offline.shutil, "which", lambda name: None)
    with pytest.raises(offline.OfflineError, match="no unshare on the PATH"):
        offline.command(["-c", "1"])


def test_the_wheel_is_built_without_a_network_from_a_copy(tmp_path):
    project = make(tmp_path / "book", {"intro": ["1"]})
    (project.root / "LICENSE").write_text("MIT")
    (project.root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "ds41"\nversion = "9.8"\n'
        '[tool.setuptools]\npackages = ["ds41"]\npackage-dir = {"" = "src"}\n'
    )
    wheel = workshop_wheels.build(project, tmp_path / "wheel")
    assert wheel.name == "ds41-9.8-py3-none-any.whl"
    assert "ds41/environment.py" in zipfile.ZipFile(wheel).namelist()
    assert not list(project.root.glob("**/*.egg-info"))
    assert not project.build.exists()


def test_what_pip_says_last_is_in_the_error(monkeypatch):
    done = subprocess.CompletedProcess([], 1, "collecting\n", "no such package\n")
    monkeypatch.setattr(workshop_wheels.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(WorkshopError, match=r"it failed: pip wheel \.\n  collecting\n  no such package$"):
        workshop_wheels.run_pip(["wheel", "."], "it")
