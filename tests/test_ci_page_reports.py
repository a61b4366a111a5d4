"""Lighthouse's reports as a table and as faults, and the book as one PDF."""

from __future__ import annotations

import browser
import lighthouse
import print_book
import pytest
import tiny_book
from pypdf import PdfReader


def report(performance: float, *, seo: float = 1.0, blocking: float = 30.0, index: float = 1500.0) -> dict:
    scores = {"performance": performance, "accessibility": 1.0, "best-practices": 1.0, "seo": seo}
    audits = {key: {"numericValue": 0.0, "score": 1.0, "title": key} for key in lighthouse.TIMES}
    audits["total-blocking-time"] |= {"numericValue": blocking, "score": performance, "displayValue": f"{blocking} ms"}
    audits["meta-description"] = {"score": seo, "title": "Document has no description"}
    audits["unweighted"] = {"score": 0.0, "title": "costs nothing"}
    audits["total-byte-weight"] = {"numericValue": 150_000.0, "score": 1.0}
    weights = {"performance": ["total-blocking-time"], "seo": ["meta-description"]}
    return {
        "categories": {
            name: {"score": score, "auditRefs": [{"id": key, "weight": 1} for key in weights.get(name, [])]}
            for name, score in scores.items()
        },
        "audits": audits,
        "environment": {"benchmarkIndex": index},
        "configSettings": {"throttling": {"cpuSlowdownMultiplier": 4}},
    }


def test_the_median_run_counts():
    found = lighthouse.summary([report(0.5, blocking=900), report(0.97, blocking=60), report(0.99)])
    assert found["scores"]["performance"] == 97
    assert found["performance of each run"] == [50, 97, 99]
    assert found["times"]["total-blocking-time"] == 60
    assert lighthouse.shortfalls("a", found) == []


def test_a_shortfall_names_what_cost_it():
    found = lighthouse.summary([report(0.8, seo=0.92, blocking=700)])
    found["scores"]["seo"] = 92
    assert found["short"] == {"total-blocking-time": "700 ms"}
    faults = lighthouse.shortfalls("book/a", found)
    assert faults[0] == "book/a: performance is 80, below 95: total-blocking-time (700 ms)"
    assert faults[1].startswith("book/a: seo is 92, below 100")


def test_the_table_has_a_line_a_page():
    found = {"index": lighthouse.summary([report(0.98)]), "book/03-csa2": lighthouse.summary([report(0.96)])}
    head, *lines = lighthouse.table(found).splitlines()
    assert head.split()[:2] == ["page", "performance"]
    assert [line.split()[:2] for line in lines] == [["index", "98"], ["book/03-csa2", "96"]]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(("index", "factor"), [(3000, 4.0), (1500, 4.0), (750, 2.0), (100, 1.0)])
def test_a_slow_machine_is_slowed_down_less(index, factor):
    assert lighthouse.slowdown(index) == factor


def test_a_page_that_is_not_there_is_named(tmp_path, capsys, monkeypatch):
    project = tiny_book.make(tmp_path, {"intro": ["1"]})
    monkeypatch.setattr(browser, "find", lambda: "chromium")
    assert lighthouse.main(["--root", str(project.root)]) == 1
    assert "no book in" in capsys.readouterr().err
    assert print_book.main(["--root", str(project.root)]) == 1
    assert "no book in" in capsys.readouterr().err
    project.html.mkdir(parents=True)
    (project.html / "index.html").write_text("")
    assert print_book.main(["--root", str(project.root), "book/gone"]) == 1
    assert "no page book/gone.html in" in capsys.readouterr().err


@pytest.mark.browser
def test_pages_become_one_pdf_with_bookmarks_and_numbers(tmp_path, capsys):
    try:
        browser.find()
    except browser.NoBrowserError as error:
        pytest.fail(str(error)) if browser.required() else pytest.skip(str(error))
    project = tiny_book.make(tmp_path, {"intro": ["1"], "01-first": ["2"]})
    static = project.html / "_static"
    static.mkdir(parents=True)
    (project.html / "book").mkdir()
    (project.html / "index.html").write_text("")
    (static / "ledger.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 2 1"></svg>')
    page = (
        '<!doctype html><html lang="en"><title>t</title><main><article><h1>{0}</h1><p>words of {0}</p>'
        '<h2>Inside {0}</h2><p style="break-before:page"><a href="01-first.html">on</a></p></article></main></html>'
    )
    for name in ("intro", "01-first"):
        (project.html / "book" / f"{name}.html").write_text(page.format(name))
    assert print_book.main(["--root", str(project.root)]) == 0
    assert "6 pages" in capsys.readouterr().out
    reader = PdfReader(project.build / "ds41.pdf")
    assert reader.metadata.title == project.config["title"]
    chapters = [
        (item.title, reader.get_destination_page_number(item)) for item in reader.outline if not isinstance(item, list)
    ]
    assert chapters == [("intro", 2), ("01-first", 4)]
    assert "intro" in reader.pages[1].extract_text()
    for number in (3, 4, 5, 6):
        assert str(number) in reader.pages[number - 1].extract_text().split()
    links = [note.get_object()["/A"]["/URI"] for note in reader.pages[3]["/Annots"]]
    assert links == ["https://ds41-book.github.io/ds41/book/01-first.html"]
