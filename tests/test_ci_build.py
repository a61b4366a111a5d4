"""The book builder: what it refuses, that one book replaces another whole, and what its pages ask for."""

from __future__ import annotations

import base64
import io
import re
import shutil

import book_rules
import build_book
import nbformat
import notebook_form
import notebook_results as results
import page_styles
import pytest
import tiny_book
from fontTools.ttLib import TTFont
from page_meta import Site
from project import HERE


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A tiny book with the real settings, styles and vendored files; its chapters count as executed."""
    project = tiny_book.make(tmp_path_factory.mktemp("build") / "project", {"intro": ["1"], "01-first": ["2"]})
    for folder in ("_static", "_vendor"):
        shutil.copytree(HERE.book / folder, project.book / folder)
    shutil.copy(HERE.book / "references.bib", project.book)
    add_text(project, "intro", "## A heading\n\nSee [the other](01-first.ipynb#with-maths).")
    add_text(project, "01-first", "## With maths\n\nSee [this](intro.ipynb#a-heading).\n\n$$x^2$$")
    return project


def add_text(project, name: str, text: str) -> None:
    """Put a markdown cell in front of the summary and pretend that the chapter was executed."""
    path = project.chapter(name)
    notebook = notebook_form.read(path)
    notebook.cells = [cell for cell in notebook.cells if cell.id != "added"]
    notebook.cells.insert(-1, nbformat.v4.new_markdown_cell(text, id="added"))
    notebook_form.write(notebook, path)
    record = {"fingerprint": results.source_fingerprint(path, project), "facts": {}}
    results.publish(notebook, path, project, record)


def build(project) -> int:
    return build_book.main(["--root", str(project.root)])


def test_a_book_replaces_another_only_if_it_built(project, capsys):
    assert build(project) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert f"the book: {project.html / 'index.html'}" in printed
    intro = (project.html / "book" / "intro.html").read_text(encoding="utf-8")

    # Links into headings of other notebooks lead somewhere (case e_anchor_cfg), and so do Colab's.
    blob = f"/blob/{project.repository_branch}/"
    assert list(book_rules.link_faults(project.html, blob, project.root, "/ds41/")) == []
    assert 'href="01-first.html#with-maths"' in intro
    assert f"colab.research.google.com/github/ds41-book/ds41{blob}book/intro.ipynb" in intro

    # MathJax comes with the book, and only with pages that have formulas; nothing comes from elsewhere.
    first = (project.html / "book" / "01-first.html").read_text(encoding="utf-8")
    assert "mathjax/" not in intro
    assert "window.MathJax" not in intro
    source = re.search(r'<script[^>]* data-mathjax="([^"?]*)', first)[1]
    assert (project.html / "book" / source).resolve().is_file()
    for page in (intro, first):
        fetched = re.findall(r'<(?:script|img)[^>]* src="([^"]+)|<link[^>]*rel="stylesheet"[^>]* href="([^"]+)', page)
        assert fetched
        assert not [address for pair in fetched for address in pair if "//" in address]
        # One style sheet; no script that the page waits for; nothing of the theme's icons.
        assert len([sheet for _, sheet in fetched if sheet]) == 1
        assert re.findall(r"<script(?![^>]*\bdefer\b)[^>]* src=", page) == []
        assert "fontawesome" not in page
    check_icons((project.html / "_static" / "styles" / "site.css").read_text(encoding="utf-8"))
    assert not list(project.html.rglob("*.map"))
    check_what_the_site_says_of_itself(project)

    # A link that leads nowhere is a warning, and a warning keeps the last book in place.
    add_text(project, "intro", "## A heading\n\nSee [nothing](nowhere.ipynb).")
    assert build(project) == 1
    assert "nowhere" in capsys.readouterr().err
    assert (project.html / "book" / "intro.html").read_text(encoding="utf-8") == intro
    assert "nowhere" in (project.reports / "book.log").read_text(encoding="utf-8")


def check_icons(css: str) -> None:
    """Every icon that the style sheet names, in a rule or a variable, is in a font that the sheet brings with it."""
    named = page_styles.icons(css)
    fonts = re.findall(r"url\(data:font/woff;base64,([^)]+)\)", css)
    drawn = {code for font in fonts for code in TTFont(io.BytesIO(base64.b64decode(font))).getBestCmap()}
    assert 0xF0C9 in named  # the button for the contents
    assert named <= drawn
    assert sum(map(len, fonts)) < 30_000


def check_what_the_site_says_of_itself(project) -> None:
    site = "https://ds41-book.github.io/ds41/"
    listed = re.findall(r"<loc>([^<]+)</loc>", (project.html / "sitemap.xml").read_text())
    pages = [f"{name}.html" for name in project.page_names]
    assert set(listed) >= {site + page for page in pages}
    for page in pages:
        text = (project.html / page).read_text(encoding="utf-8")
        assert f'<link rel="canonical" href="{site}{page}" />' in text
        assert len(re.findall(r'<meta name="description" content="[^"]+"', text)) == 1
        card = re.search(r'<meta property="og:image" content="([^"]+)"', text)[1]
        assert (project.html / card.removeprefix(site)).is_file()
        icon = re.search(r'<link rel="icon" href="([^"]+)"', text)[1]
        assert (project.html / page).parent.joinpath(icon).resolve().is_file()
    assert f"Sitemap: {site}sitemap.xml" in (project.html / "robots.txt").read_text()
    door = (project.html / "index.html").read_text(encoding="utf-8")
    assert f"url={pages[0]}" in door
    # The page for dead addresses stands at any depth, so its own addresses begin at the site.
    missing = (project.html / "404.html").read_text(encoding="utf-8")
    addresses = re.findall(r'\s(?:href|src|action)="([^"]*)"', missing)
    assert [one for one in addresses if not one.startswith(("/ds41/", "#", "https://"))] == []
    for one in addresses:
        if one.startswith("/ds41/"):
            assert (project.html / re.sub(r"[?#].*", "", one).removeprefix("/ds41/")).exists(), one
    assert 'name="robots" content="noindex"' in missing


def test_results_that_are_missing_or_old_are_refused(project, capsys):
    path = tiny_book.write_chapter(project, "01-first", ["3"])
    assert build(project) == 1
    message = capsys.readouterr().err
    assert "make notebooks" in message
    assert "01-first: notebook changed" in message
    results.withdraw(path, project)
    assert build(project) == 1
    assert "01-first: no result yet" in capsys.readouterr().err


def test_another_jupyter_book_is_refused(monkeypatch):
    monkeypatch.setattr(build_book.importlib.metadata, "version", lambda name: "2.1.7")
    with pytest.raises(build_book.BuildError, match=r"jupyter-book 2\.1\.7 ignores _config\.yml"):
        build_book.check_jupyter_book()


def test_the_package_names_the_address_where_the_book_is_published():
    text = (HERE.root / "pyproject.toml").read_text(encoding="utf-8")
    urls = dict(re.findall(r'^(Documentation|Repository) = "([^"]+)"$', text, re.MULTILINE))
    assert urls == {
        "Documentation": Site.of(HERE).address,
        "Repository": HERE.repository_url,
    }


def test_publishing_replaces_everything(tmp_path):
    built, target = tmp_path / "built", tmp_path / "html"
    for folder, name in ((target, "old.html"), (built, "new.html")):
        folder.mkdir()
        (folder / name).write_text(name)
    build_book.publish(built, target)
    assert [path.name for path in target.iterdir()] == ["new.html"]
    assert [path.name for path in tmp_path.iterdir()] == ["html"]


def test_dead_links_are_found(tmp_path):
    (tmp_path / "html" / "book").mkdir(parents=True)
    (tmp_path / "here.ipynb").write_text("{}")
    site = "https://example.org/blob/main/"
    links = [
        "a.html",
        "#top",
        "b.html#place",
        "gone.html",
        "#gone",
        "b.html#gone",
        f"{site}here.ipynb",
        f"{site}gone.ipynb",
    ]
    body = "".join(f'<a href="{link}">x</a>' for link in links)
    (tmp_path / "html" / "book" / "a.html").write_text(f'<p id="top">{body}</p>')
    (tmp_path / "html" / "book" / "b.html").write_text('<p id="place"></p>')
    assert list(book_rules.link_faults(tmp_path / "html", "/blob/main/", tmp_path)) == [
        "book/a.html: gone.html leads nowhere",
        "book/a.html: #gone names no place on its page",
        "book/a.html: b.html#gone names no place on its page",
        f"book/a.html: {site}gone.ipynb names no file of the repository",
    ]


def test_links_from_the_root_of_the_published_site(tmp_path):
    (tmp_path / "book").mkdir()
    links = ["/ds41/book/a.html", "/ds41/gone.html", "/book/a.html", "//book/a.html", "book/a.html?q=1"]
    (tmp_path / "404.html").write_text("".join(f'<a href="{link}">x</a>' for link in links))
    # Up and out of the site, although the folder has such a file.
    (tmp_path / "book" / "a.html").write_text('<a href="../../404.html">x</a><a href="../404.html">x</a>')
    faults = list(book_rules.link_faults(tmp_path, "/blob/main/", tmp_path, "/ds41/"))
    assert faults == [
        "404.html: /ds41/gone.html leads nowhere",
        "404.html: /book/a.html leads nowhere",
        "404.html: //book/a.html leads nowhere",
        "book/a.html: ../../404.html leads nowhere",
    ]


def test_pages_that_are_too_heavy_are_found(tmp_path):
    (tmp_path / "light.html").write_text("x" * 500_000)
    assert list(book_rules.size_faults(tmp_path)) == []
    (tmp_path / "heavy.html").write_text("x" * 500_001)
    fault = "heavy.html: has 500,001 bytes; a page has at most 500,000"
    assert list(book_rules.size_faults(tmp_path)) == [fault]
