"""What the builder takes out of pages: bytes that say nothing, rules that cannot apply, scripts that keep waiting."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import page_head
import page_slim
import page_styles
import pytest
from page_markup import PageError

from ds41 import viz

PYGMENTS = """
html[data-theme="light"] .highlight { background: #fff; color: #111 }
html[data-theme="light"] .highlight .n { color: #111 } /* Name */
html[data-theme="light"] .highlight .k { color: #700 } /* Keyword */
html[data-theme="light"] .highlight .ne { color: #111 } /* Name.Exception */
html[data-theme="light"] .highlight .gs { color: #111; font-weight: bold }
html[data-theme="dark"] .highlight { background: #222; color: #eee }
html[data-theme="dark"] .highlight .n { color: #eee } /* Name */
html[data-theme="dark"] .highlight .k { color: #f99 } /* Keyword */
html[data-theme="dark"] .highlight .ne { color: #f99 } /* Name.Exception */
html[data-theme="dark"] .highlight .gs { color: #eee; font-weight: bold }
"""


def figure():
    with plt.rc_context():
        viz.use_style()
        fig, ax = plt.subplots()
        ax.plot([1, 2, 3], [0.123456, 1e-9, 12345.678], "o-")
        ax.text(1, 1, "5 < 6 & 7")
        return viz.show(fig, alt="a line of three points, “quoted” & more")._repr_html_()


def numbers(svg: str, name: str) -> list[float]:
    return [
        float(n) for value in re.findall(rf'\b{name}="([^"]*)"', svg) for n in re.findall(r"-?\d+(?:\.\d+)?", value)
    ]


def test_plots_shrink_and_draw_the_same():
    before = figure()
    after = page_slim.slim_plots(before)
    assert len(after) < 0.75 * len(before)
    for name in ("d", "x", "y"):
        old, new = numbers(before, name), numbers(after, name)
        assert len(new) == len(old)
        assert new == pytest.approx(old, abs=0.0051)
    words = re.compile(r"<text[^>]*>([^<]*)</text>")
    assert words.findall(after) == words.findall(before)
    assert "5 &lt; 6 &amp; 7" in after
    assert 'aria-label="a line of three points, “quoted” &amp; more"' in after
    # Each reference has its one target.
    ids = re.findall(r'\bid="([^"]+)"', after)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', after)) <= set(ids)


def test_two_plots_of_a_page_keep_their_ids_apart():
    fig, ax = plt.subplots()
    ax.plot([3, 1], "s")
    after = page_slim.slim_plots(figure() + viz.show(fig, alt="another")._repr_html_())
    ids = re.findall(r'\bid="([^"]+)"', after)
    assert len(ids) == len(set(ids))


def test_code_that_looks_like_plain_text_has_no_spans():
    plain = page_slim.plain_classes(PYGMENTS)
    assert plain == {"n"}
    code = (
        '<div class="highlight"><pre><span></span><span class="k">if</span> <span class="n">a&lt;b</span></pre></div>'
    )
    outside = '<p><span class="n">name</span></p>'
    assert page_slim.slim_code(code + outside, plain) == (
        '<div class="highlight"><pre><span class="k">if</span> a&lt;b</pre></div>' + outside
    )


@pytest.mark.parametrize("css", ["", ".highlight .n { color: #111 }", PYGMENTS.replace("color: #eee }", "}")])
def test_a_style_sheet_that_names_no_plain_colour_is_refused(css):
    with pytest.raises(PageError, match=r"pygments\.css does not give plain text a colour"):
        page_slim.plain_classes(css)


@pytest.mark.parametrize(
    ("css", "kept"),
    [
        (".used { color: red }", ".used{color: red}"),
        (".used, .unused > a { color: red }", ".used{color: red}"),
        (".unused .used { color: red }", ""),
        ("a:not(.unused), .used:is(.unused, p) { top: 0 }", "a:not(.unused),.used:is(.unused, p){top: 0}"),
        ('[class*="unused"] { top: 0 }', '[class*="unused"]{top: 0}'),
        ("@media print { .unused { top: 0 } }", ""),
        ("@media print { .used { top: 0 } .unused { top: 0 } }", "@media print{.used{top: 0}}"),
        ("@keyframes turn { from { top: 0 } to { top: 1px } }", "@keyframes turn{from{top: 0}to{top: 1px}}"),
        ('.used::before { content: "}/* .unused" } /* gone */', '.used::before{content: "}/* .unused"}'),
        ('.used { background: url("data:image/svg+xml;a{b}") }', '.used{background: url("data:image/svg+xml;a{b}")}'),
        (r".sm\:unused { top: 0 }", r".sm\:unused{top: 0}"),
        ('@charset "UTF-8"; p { top: 0 }', '@charset "UTF-8";\np{top: 0}'),
    ],
)
def test_rules_that_cannot_apply_are_dropped(css, kept):
    assert page_styles.purge(css, {"used"}) == kept


@pytest.mark.parametrize("css", ["p { top: 0", "p { top: 0 } }", "p"])
def test_a_broken_style_sheet_is_refused(css):
    with pytest.raises(PageError):
        page_styles.purge(css, set())


def test_style_sheets_become_one(tmp_path):
    (tmp_path / "_static" / "styles").mkdir(parents=True)
    (tmp_path / "_static" / "base.css").write_text("/*! a licence */ .a { background: url(a.png) } .gone { top: 0 }")
    (tmp_path / "_static" / "styles" / "theme.css").write_text('@import "../base.css";\n.b { top: 0 }')
    (tmp_path / "_static" / "last.css").write_text(".late { top: 0 } .never { top: 0 }")
    script = tmp_path / "_static" / "x.js"
    script.write_text('element.classList.add("late")')
    sheet = '<link rel="stylesheet" href="{0}_static/%s" />'
    links = sheet % "styles/theme.css?v=1" + sheet % "last.css"
    paper = '<link rel="stylesheet" media="print" href="paper.css" />'
    pages = {
        tmp_path / "a.html": f'<head>{links.format("")}{paper}</head><p class="a b">text</p>',
        tmp_path / "deep" / "b.html": f"<head>{links.format('../')}</head>",
    }
    page_styles.bundle(pages, tmp_path, [script])
    sheet = (tmp_path / "_static" / "styles" / "site.css").read_text()
    assert sheet.splitlines()[:2] == ['@charset "UTF-8";', "/*! a licence */"]
    assert [line for line in sheet.splitlines()[2:] if line] == [
        ".a{background: url(../a.png)}",
        ".b{top: 0}",
        ".late{top: 0}",
    ]
    assert pages[tmp_path / "a.html"].count("stylesheet") == 2
    assert paper in pages[tmp_path / "a.html"]
    assert 'href="../_static/styles/site.css?v=' in pages[tmp_path / "deep" / "b.html"]


def test_pages_that_disagree_on_the_order_of_sheets_are_refused(tmp_path):
    one, two = ('<link rel="stylesheet" href="a.css" />', '<link rel="stylesheet" href="b.css" />')
    pages = {tmp_path / "a.html": one + two, tmp_path / "b.html": two + one}
    with pytest.raises(PageError, match=r"b\.html loads b\.css, a\.css; another page loads a\.css, b\.css"):
        page_styles.bundle(pages, tmp_path, [])


# The parts of a page that the theme, Sphinx and its extensions write and the builder changes.
PARTS = {
    "script that names the theme": '<script data-cfasync="false">dataset.theme = "a";</script>',
    "script with Sphinx's options": '<script src="../_static/documentation_options.js?v=1"></script>',
    "script that draws icons": (
        '<!-- So that users can add custom icons -->\n<script src="../_static/scripts/fontawesome.js"></script>'
    ),
    "preloads of scripts": '<link rel="preload" as="script" href="../_static/scripts/bootstrap.js" />',
    "selector of what folds": "<script>var togglebuttonSelector = '.toggle';</script>" * 2,
    "MathJax for its formulas": '<script defer="defer" src="../vendor/mathjax/tex.js?v=2"></script>',
    "ds41.js to load its formulas": '<script src="../_static/ds41.js?v=3"></script>',
    "viewport": '<meta name="viewport" content="a" /><meta name="viewport" content="b" />',
    "labelled search button": '<button class="btn search-button-field x" title="Search" aria-label="a">Ctrl</button>',
    "sidebar": '<div id="pst-primary-sidebar" class="bd-sidebar-primary"></div>',
}
REST = (
    '<script src="../_static/doctools.js"></script><i class="fa-solid fa-bars"></i><i class="other"></i>'
    '<span class="math notranslate">x</span>'
)
OPTIONS = "const DOCUMENTATION_OPTIONS = {\n  SHOW_SEARCH_SUMMARY: true\n};"


def test_an_icon_that_no_font_has_is_refused(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "a.css").write_text(r'p::before { content: "\f0c9" }')
    pages = {tmp_path / "a.html": '<link rel="stylesheet" href="_static/a.css" />'}
    with pytest.raises(PageError, match=r"no icon font has U\+F0C9"):
        page_styles.bundle(pages, tmp_path, [])


def test_a_page_without_a_style_sheet_is_refused(tmp_path):
    pages = {tmp_path / "a.html": '<link rel="stylesheet" href="a.css" />', tmp_path / "b.html": ""}
    with pytest.raises(PageError, match=r"b\.html loads none"):
        page_styles.bundle(pages, tmp_path, [])


def test_no_script_of_the_head_blocks():
    mended = page_head.mend_head("\n".join(PARTS.values()) + REST, OPTIONS)
    assert 'const DOCUMENTATION_OPTIONS = { SHOW_SEARCH_SUMMARY: location.protocol !== "file:" };' in mended
    assert re.findall(r"<script(?! defer)[^>]* src=", mended) == []
    assert "mathjax/tex.js" not in "".join(re.findall(r'src="[^"]*"', mended))
    assert '<script defer data-mathjax="../vendor/mathjax/tex.js?v=2" src="../_static/ds41.js?v=3">' in mended
    assert mended.count("viewport") == 1
    assert '<i class="fa-solid fa-bars" aria-hidden="true">' in mended
    assert '<i class="other">' in mended
    assert "prefers-color-scheme" in mended
    assert '<button class="btn search-button-field x" title="Search">' in mended
    assert '<div id="pst-primary-sidebar" role="complementary" aria-label="Contents of the book"' in mended
    for gone in ("fontawesome", "preload", "data-cfasync"):
        assert gone not in mended
    assert mended.count("togglebuttonSelector") == 1


@pytest.mark.parametrize("part", PARTS)
def test_a_page_of_another_theme_is_refused(part):
    page = "\n".join(text for name, text in PARTS.items() if name != part) + REST
    with pytest.raises(PageError, match=f"has no {part}"):
        page_head.mend_head(page, OPTIONS)


def test_a_page_without_formulas_loads_no_mathjax():
    page = "\n".join(PARTS.values()) + REST.replace('class="math ', 'class="')
    assert "mathjax" not in page_head.mend_head(page, OPTIONS)


def test_links_out_of_the_book_say_where_they_lead_on_paper():
    def printed(href: str, words: str, kind: str = "") -> str:
        page = page_head.print_addresses(f'<a class="{kind}reference external" href="{href}">{words}</a>')
        return "".join(re.findall(r'data-print="([^"]*)"', page))

    assert printed("https://www.example.org/a?b=1&amp;c=2", "<em>here</em>") == "example.org/a?b=1&amp;c=2"
    assert printed("https://github.com/a/b", "a/b", kind="github ") == "github.com/a/b"
    assert printed("https://arxiv.org/abs/1", "arXiv:1") == ""
    assert printed("https://example.org/", "example.org") == ""
    assert printed("https://example.org/" + "a" * 100, "here") == f"example.org/{'a' * 47}…"


def test_a_script_of_another_theme_is_refused(tmp_path):
    (tmp_path / "_static" / "scripts").mkdir(parents=True)
    (tmp_path / "_static" / "scripts" / "pydata-sphinx-theme.js").write_text("nothing known")
    with pytest.raises(PageError, match=r"pydata-sphinx-theme\.js does not measure"):
        page_head.calm_theme(tmp_path)
