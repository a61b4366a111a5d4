"""The checks that look at pages in a browser: each finds the fault that it is there to find."""

from __future__ import annotations

import contextlib

import book_rules
import browser
import check_book
import page_meta
import page_places
import pytest
from page_server import serve
from page_visit import Visit


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
        with serve(tmp_path) as site:
            page = Visit(chromium, site, "page.html")
            page.resize(320)
            page.page.wait_for_load_state("networkidle")
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


def test_formulas_are_drawn_and_mathjax_is_not_idle(visit, monkeypatch):
    monkeypatch.setattr(book_rules, "MATH_MS", 100)
    script = '<script src="data:text/javascript,//mathjax"></script>'
    idle = visit("<p>no formula</p>", head=script).page
    assert list(book_rules.math_faults(idle)) == ["loads MathJax and has no formula"]
    raw = visit(r'<span class="math">\(x\)</span><mjx-container>another</mjx-container>').page
    assert list(book_rules.math_faults(raw)) == ["0 of 1 formulas are drawn"]


# What the page would do for a reader: draw the formula, find a word, answer in a figure.
OFFLINE = """<!doctype html><html lang="en" data-theme="light"><title>t</title><body><main><article>
<span class="math">x</span><figure class="ds-fig"><script class="ds-data" data-mount="a">1</script></figure>
<div id="search-results"></div></article></main>
<script data-mathjax="m.js">
addEventListener("beforeprint", () => {
  document.querySelector(".math").append(document.createElement("mjx-container"));
  document.documentElement.dataset.math = "drawn";
  dispatchEvent(new Event("ds41:math"));
});
document.querySelector(".ds-fig").dataset.mounted = "";
if (location.search === "?q=token")
  document.getElementById("search-results").innerHTML = '<li><a href="a.html">a</a></li>';
</script></body></html>"""


def test_the_book_is_read_from_a_folder_without_a_network(chromium, tmp_path):
    (tmp_path / "page.html").write_text(OFFLINE)
    (tmp_path / "search.html").write_text(OFFLINE.replace(' data-mathjax="m.js"', ""))
    (tmp_path / "index.html").write_text(page_meta.door(page_meta.Site("https://a.b/", "t", "page.html"), ""))
    assert list(page_places.offline_faults(chromium, tmp_path)) == []
    broken = OFFLINE.replace('.dataset.mounted = ""', ".id").replace("</main>", '<img src="gone.png" alt="a"></main>')
    (tmp_path / "page.html").write_text(broken)
    faults = list(page_places.offline_faults(chromium, tmp_path))
    assert "page.html: 1 figures do not answer" in faults
    assert any("gone.png" in fault for fault in faults)
    (tmp_path / "page.html").write_text(broken.replace("data-mount", "data-other"))
    with pytest.raises(FileNotFoundError, match=r"no page in .* has both formulas"):
        page_places.offline_page(tmp_path)


def test_a_dead_address_shows_the_way_back(chromium, tmp_path):
    (tmp_path / "404.html").write_text(
        '<html lang="en" data-theme="light"><main><h1>gone</h1><a href="/ds41/a.html">back</a></main>'
    )
    (tmp_path / "a.html").write_text('<html lang="en"><main><article><h1>here</h1></article></main>')
    with serve(tmp_path, "/ds41/") as site:
        assert list(page_places.missing_faults(chromium, site)) == []
        (tmp_path / "404.html").write_text('<html lang="en" data-theme="light"><main><h1>gone</h1></main>')
        assert list(page_places.missing_faults(chromium, site)) == ["no link leads to a page of the book"]


def test_the_tab_key_passes_the_contents_and_is_seen(chromium, tmp_path):
    page = (
        '<html lang="en" data-theme="light"><a href="#main-content">past</a><nav><a href="#">contents</a></nav>'
        '<main id="main-content" tabindex="-1"><a href="#a">text</a><button class="b">press</button></main></html>'
    )
    (tmp_path / "a.html").write_text(page)
    hidden = page.replace("<main", "<style>button { outline: none !important }</style><main")
    (tmp_path / "hidden.html").write_text(hidden)
    (tmp_path / "lost.html").write_text(page.replace('href="#main-content"', 'href="#"'))
    with serve(tmp_path) as site:
        assert list(page_places.keyboard_faults(chromium, site, "a.html")) == []
        faults = list(page_places.keyboard_faults(chromium, site, "hidden.html"))
        assert faults == ["nothing shows that button.b has the focus"]
        assert list(page_places.keyboard_faults(chromium, site, "lost.html")) == [
            "the first stop of the Tab key is no link past the contents"
        ]


def test_a_place_that_cannot_be_looked_at_keeps_no_other_from_it(chromium, monkeypatch, capsys):
    from playwright.sync_api import Error

    def broken(chromium):
        yield "one fault"
        raise Error("it crashed")

    monkeypatch.setattr(browser, "chromium", lambda: contextlib.nullcontext(chromium))
    report = check_book.look({"a": broken, "b": lambda chromium: []})
    assert report == {"a": ["one fault", "cannot be looked at: it crashed"], "b": []}
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == ["a: 2 faults", "b: in order"]


def test_pages_are_shared_out_by_size(tmp_path):
    sizes = {"a.html": 50, "b.html": 30, "c.html": 25, "d.html": 1}
    for name, size in sizes.items():
        (tmp_path / name).write_text("x" * size)
    assert check_book.shares(tmp_path, list(sizes), 2) == [["a.html", "d.html"], ["b.html", "c.html"]]
    assert check_book.shares(tmp_path, ["a.html"], 2) == [["a.html"]]


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
