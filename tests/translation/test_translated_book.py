"""A tiny book built in two languages: its links, its anchors, its numbers, and what is counted as English."""

import json
import re
import shutil

import build_book
import catalogues
import nbformat
import notebook_form
import notebook_results as results
import page_words
import pytest
import tiny_book
import translation
from project import HERE

from ds41.language import load, speaking

# A text of the real catalogues, which speak for figures in every book.
FIGURE = "GPU memory"
MESSAGES = {
    "intro": {
        "A heading": "Eine Überschrift",
        "It takes 1,024.5 bytes; see [the other](01-first.ipynb#more-words).": (
            "Es braucht 1.024,5 Byte; siehe [das andere](01-first.ipynb#more-words)."
        ),
    },
    "01-first": {"More words": "Mehr Wörter"},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = tiny_book.make(tmp_path_factory.mktemp("translated") / "project", {"intro": ["1"], "01-first": ["2"]})
    for folder in ("_static", "_vendor"):
        shutil.copytree(HERE.book / folder, project.book / folder)
    shutil.copy(HERE.book / "references.bib", project.book)
    for name in ("requirements.txt", "CITATION.cff"):
        shutil.copy(HERE.root / name, project.root)
    (project.root / "benchmarks" / "results").mkdir(parents=True)
    texts = {"intro": "## A heading\n\n" + list(MESSAGES["intro"])[1], "01-first": "## More words\n\nLeft in English."}
    for name, text in texts.items():
        write(project, name, text)
    for name, known in MESSAGES.items():
        path = catalogues.prose_folder(project, "de") / f"{name}.po"
        catalogue = catalogues.read(path, "de")
        for message, translated in known.items():
            catalogue.add(message, translated)
        catalogues.write(catalogue, path)
    return project


def write(project, name: str, text: str) -> None:
    """Add text to a chapter and pretend that it was executed and has shown a figure."""
    path = project.chapter(name)
    notebook = notebook_form.read(path)
    notebook.cells.insert(-1, nbformat.v4.new_markdown_cell(text, id="added"))
    notebook_form.write(notebook, path)
    shown = nbformat.v4.new_output("display_data", {"text/html": f"<p>{FIGURE}: 0.5 MB</p><p>{FIGURE}</p>"})
    notebook.cells[-3].outputs = [shown]
    record = {"fingerprint": results.source_fingerprint(path, project), "facts": {}}
    results.publish(notebook, path, project, record)


@pytest.fixture(scope="module")
def pages(project):
    """The built pages by their places; the build's own words under the key ""."""
    assert build_book.main(["--root", str(project.root), "--language", "de"]) == 0
    names = ("book/intro.html", "de/book/intro.html", "de/book/01-first.html")
    return {name: (project.html / name).read_text(encoding="utf-8") for name in names}


def test_prose_and_figures_are_translated(pages):
    page = pages["de/book/intro.html"]
    assert re.search(r"<html[^>]* lang=\"de\"", page)
    assert "Eine Überschrift" in page
    assert "1.024,5 Byte" in page
    assert f"<p>{load('de').find(FIGURE)}</p>" in page
    # A text that no catalogue has stays whole.
    assert f"<p>{FIGURE}: 0.5 MB</p>" in page
    assert "Left in English." in pages["de/book/01-first.html"]
    assert "Eine Überschrift" not in pages["book/intro.html"]


def test_links_lead_to_the_same_sections_in_each_language(pages):
    assert 'href="01-first.html#more-words"' in pages["book/intro.html"]
    assert 'href="01-first.html#mehr-worter"' in pages["de/book/intro.html"]
    assert 'id="mehr-worter"' in pages["de/book/01-first.html"]
    # Addresses of English sections that someone has noted work in the other edition, too.
    assert 'id="more-words"' in pages["de/book/01-first.html"]


@pytest.mark.parametrize(
    ("page", "switch"),
    [
        ("book/intro.html", ("../de/book/intro.html", "de", "Deutsch")),
        ("de/book/intro.html", ("../../book/intro.html", "en", "English")),
    ],
)
def test_each_page_leads_to_itself_in_the_other_language(pages, project, page, switch):
    address, code, name = switch
    link = re.search(r'<a class="[^"]*ds-language" href="([^"]+)" lang="(\w+)".*?</a>', pages[page], re.DOTALL)
    assert link.groups() == (address, code)
    assert name in link[0]
    assert (project.html / page).parent.joinpath(address).resolve().is_file()
    alternates = dict(re.findall(r'<link rel="alternate" hreflang="(\w+)" href="([^"]+)"', pages[page]))
    site = "https://ds41-book.github.io/ds41/"
    assert alternates == {"en": f"{site}book/intro.html", "de": f"{site}de/book/intro.html"}


def test_the_theme_speaks_the_language_of_the_page(pages):
    english, german = pages["book/intro.html"], pages["de/book/intro.html"]
    for words in ("Link to this heading", "Skip to main content", "Toggle primary sidebar", "next page"):
        assert words in english
        assert words not in german
    assert "Zum Inhalt springen" in german


def test_the_theme_s_words_in_the_text_of_the_book_stay():
    page = '<a>Page</a><article class="x"><code>Page</code><td>Light</td></article><b>Page</b>'
    with speaking(load("de")):
        assert page_words.translate(page) == page.replace("<a>Page<", "<a>Auf dieser Seite<").replace(
            "<b>Page<", "<b>Auf dieser Seite<"
        )


def test_a_dead_address_leads_to_the_first_page_of_the_other_language(pages, project):
    for page, address in (("404.html", "/ds41/de/book/intro.html"), ("de/404.html", "/ds41/book/intro.html")):
        text = (project.html / page).read_text(encoding="utf-8")
        assert re.search(r'<a class="[^"]*ds-language" href="([^"]+)"', text)[1] == address


def test_what_is_left_in_english_is_counted(pages, project):
    report = json.loads(translation.report_path(project, "de").read_text(encoding="utf-8"))
    assert "Left in English." in report["book/01-first"]["missing"]
    assert not {"More words", FIGURE} & set(report["book/01-first"]["missing"])
    assert f"{FIGURE}: {{1}} MB" in report["book/intro"]["missing"]
    faults = list(translation.left(project, "de"))
    # No part of this book is called the axes, so the landing page alone must be complete.
    assert any(f"{FIGURE}: {{1}} MB" in fault for fault in faults)
    assert not any("Left in English." in fault for fault in faults)


def test_the_checks_of_pages_know_both_editions(pages, project):
    import book_rules
    import check_book

    assert check_book.built_languages(project) == ["de"]
    found = [path.relative_to(project.html).as_posix() for path in book_rules.book_pages(project.html)]
    assert {"book/intro.html", "de/book/intro.html"} <= set(found)
    assert not {"index.html", "de/index.html", "de/404.html"} & set(found)
    blob = f"/blob/{project.repository_branch}/"
    assert list(book_rules.link_faults(project.html, blob, project.root, "/ds41/")) == []
