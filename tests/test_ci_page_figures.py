"""Figures of the built book share a style sheet and a script; what they show and how they answer stays the same."""

from __future__ import annotations

import re

import browser
import page_figures
import pytest
from page_markup import PageError
from page_server import serve
from page_visit import Visit

from ds41 import viz
from ds41.viz.diagram import Diagram

PAGE = (
    '<!doctype html><html lang="en" data-theme="light"><head><title>t</title></head><body><main>{}</main></body></html>'
)


@pytest.fixture
def shared(tmp_path):
    """Two pages, one a folder deep, whose figures are shared."""
    figures = [viz.layer_map(), viz.bit_explorer()]
    table = viz.table("Bytes", ["part", "bytes"], [["main", 720]])
    folder = tmp_path / "html"
    (folder / "_static").mkdir(parents=True)
    pages = {
        folder / "a.html": PAGE.format("".join(figure._repr_html_() for figure in figures)),
        folder / "book" / "b.html": PAGE.format(table._repr_html_() + figures[0]._repr_html_()),
        folder / "plain.html": PAGE.format("<p>nothing to share</p>"),
    }
    page_figures.share(pages, folder)
    (folder / "book").mkdir()
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return folder, pages


def test_nothing_of_style_and_script_stays_in_a_page(shared):
    folder, pages = shared
    for name in ("a.html", "book/b.html"):
        text = pages[folder / name]
        assert "<style>" not in text
        assert re.findall(r"<script>", text) == []
        assert text.count('class="ds-data" data-mount="layers"') == 1
    assert 'href="_static/figures.css?v=' in pages[folder / "a.html"]
    assert 'src="../_static/figures.js?v=' in pages[folder / "book" / "b.html"]
    assert "figures" not in pages[folder / "plain.html"]
    assert pages[folder / "plain.html"] == PAGE.format("<p>nothing to share</p>")


def test_every_rule_stands_once(shared):
    folder, _ = shared
    sheet = (folder / "_static" / "figures.css").read_text(encoding="utf-8")
    assert sheet.count("What all figures share") == 1
    assert ".ds-bits" in sheet
    assert ".ds-layers" in sheet
    assert ".ds-grid" in sheet
    script = (folder / "_static" / "figures.js").read_text(encoding="utf-8")
    assert script.count("'layers': () => {") == 1


def test_two_scripts_of_one_name_are_both_kept():
    texts = page_figures._Shared()
    assert [texts.name("walk", text) for text in ("a", "b", "a")] == ["walk", "walk-2", "walk"]
    assert texts.texts == {"walk": "a", "walk-2": "b"}


def test_a_page_without_figures_brings_no_files(tmp_path):
    pages = {tmp_path / "a.html": PAGE.format("")}
    page_figures.share(pages, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<style>", '<style media="all">'),
        ('class="ds-data"', 'data-of="x" class="ds-data"'),
        ("(() =>", "(function ()"),
    ],
)
def test_a_figure_that_is_written_in_another_way_is_refused(tmp_path, old, new):
    page = PAGE.format(viz.layer_map()._repr_html_().replace(old, new, 1))
    with pytest.raises(PageError, match=r"a\.html has a (figure|script)"):
        page_figures.share({tmp_path / "a.html": page}, tmp_path)


@pytest.mark.browser
def test_shared_figures_answer_and_one_that_fails_stops_no_other(shared, tmp_path):
    folder, _ = shared
    broken = Diagram("layers", "Broken", "<p>no map</p>", data={})._repr_html_()
    text = PAGE.format(broken + viz.bit_explorer()._repr_html_())
    pages = {folder / "c.html": text}
    page_figures.share(pages, folder)
    (folder / "c.html").write_text(pages[folder / "c.html"], encoding="utf-8")
    try:
        browser.find()
    except browser.NoBrowserError as error:
        pytest.fail(str(error)) if browser.required() else pytest.skip(str(error))
    with browser.chromium() as chromium, serve(folder) as site, Visit(chromium, site, "c.html") as visit:
        mounted = visit.page.locator(".ds-fig[data-mounted]").count()
        before = visit.page.locator(".ds-bits").inner_text()
        visit.page.locator(".ds-bits input, .ds-bits button").first.focus()
        visit.page.keyboard.press("ArrowRight")
        visit.page.keyboard.press("Enter")
        after = visit.page.locator(".ds-bits").inner_text()
    assert mounted == 2
    assert after != before
    assert len(visit.faults) == 1
    assert "page error" in visit.faults[0]
