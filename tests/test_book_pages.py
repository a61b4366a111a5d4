"""The checks that look at pages in a browser: each finds the fault that it is there to find."""

from __future__ import annotations

import book_rules
import browser
import check_book
import pytest


@pytest.fixture(scope="module")
def chromium():
    try:
        browser.find()
    except browser.NoBrowserError as error:
        pytest.fail(str(error)) if browser.required() else pytest.skip(str(error))
    with browser.chromium() as running:
        yield running


@pytest.fixture
def visit(chromium, tmp_path):
    """Opens a page with this body, 320 px wide, in the light theme."""
    opened = []

    def open_page(body: str, head: str = "", theme: str = "light"):
        (tmp_path / "page.html").write_text(
            f'<!doctype html><html lang="en" data-theme="{theme}"><title>t</title>{head}'
            f"<main><article>{body}</article></main></html>"
        )
        with check_book.serve(tmp_path) as site:
            page = check_book.Visit(chromium, site, "page.html", "light")
            page.resize(320)
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        page.context.close()


pytestmark = pytest.mark.browser


def test_a_page_in_order(visit):
    page = visit('<p>text</p><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" alt="a dot">')
    assert page.faults == []
    for rule in (book_rules.image_faults, book_rules.width_faults, book_rules.math_faults):
        assert list(rule(page.page)) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<img src="http://example.invalid/a.png" alt="a">', "asks another host: http://example.invalid/a.png"),
        ('<img src="gone.png" alt="a">', "request failed with 404: /gone.png"),
        ("<script>console.error('broken')</script>", "console error: broken"),
        ("<script>throw new Error('worse')</script>", "page error: worse"),
    ],
)
def test_what_goes_wrong_while_a_page_loads(visit, body, fault):
    assert fault in visit(body).faults


def test_a_page_that_ignores_the_readers_theme(visit):
    assert visit("<p>x</p>", theme="dark").faults == ["shows the theme 'dark' to a reader who prefers light"]


def test_images_need_alt_text(visit):
    page = visit('<img src="data:," alt=" "><img src="data:,">').page
    assert len(list(book_rules.image_faults(page))) == 2


def test_only_boxes_may_scroll_sideways(visit):
    wide = '<div style="width:900px">wide</div>'
    assert list(book_rules.width_faults(visit(f'<div style="overflow-x:auto">{wide}</div>').page)) == []
    fault = next(book_rules.width_faults(visit(wide).page))
    assert "scrolls sideways" in fault
    assert "div." in fault


def test_formulas_are_drawn_and_mathjax_is_not_idle(visit):
    script = '<script src="data:text/javascript,//mathjax"></script>'
    idle = visit("<p>no formula</p>", head=script).page
    assert list(book_rules.math_faults(idle)) == ["loads MathJax and has no formula"]
    raw = visit(r'<span class="math">\(x\)</span>').page
    assert list(book_rules.math_faults(raw)) == ["0 of 1 formulas are drawn"]


def test_ci_may_not_do_without_a_browser(monkeypatch, capsys):
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    monkeypatch.delenv("CI", raising=False)
    assert check_book.main([]) == 0
    message = capsys.readouterr().err
    assert "SKIPPED: the built book was not checked" in message
    assert "'/nowhere/chromium', which is not a program" in message
    monkeypatch.setenv("CI", "true")
    assert check_book.main([]) == 1
    assert "error: the built book was not checked" in capsys.readouterr().err
