"""Plots: one style, text for those who do not see them, both themes, a layout for phones."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import render_figures

from ds41 import viz
from ds41.viz.palette import PALETTE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _style():
    plt.switch_backend("agg")
    with plt.rc_context():
        viz.use_style()
        yield
    plt.close("all")


def drawn(**options):
    fig, ax = plt.subplots()
    contexts = [2**12, 2**16, 2**20]
    (line,) = ax.plot(contexts, [890 * n for n in contexts], **viz.marks("main", "predicted"))
    ax.plot(contexts[-1:], [890 * 2**20], **viz.marks("main", "published"))
    viz.context_axis(ax)
    viz.bytes_axis(ax)
    viz.label_line(line, "DeepSeek-V4.1-Flash, as published")
    ax.set_title("A million tokens take less than a gigabyte")
    return viz.show(fig, alt='A line from 3.6 MB at 4K to "933 MB" at 1M.', **options)


def test_the_figure_has_alt_text_and_its_title_on_the_page():
    html = drawn(caption="From the <b>configuration</b>.")._repr_html_()
    assert html.count('role="img" aria-label="A line from 3.6 MB at 4K to &quot;933 MB&quot; at 1M."') == 2
    assert '<p class="ds-title">A million tokens take less than a gigabyte</p>' in html
    assert "<figcaption>From the <b>configuration</b>.</figcaption>" in html
    # It moved: the picture does not say it again.
    assert html.count("A million tokens") == 1


def test_what_cannot_show_html_has_the_picture_or_the_text():
    plot = drawn()
    assert plot._repr_png_().startswith(b"\x89PNG")
    assert repr(plot) == plot.alt


def test_colours_of_the_palette_become_variables():
    html = drawn()._repr_html_()
    picture = html[html.index("<svg") :]
    for name in ("main", "ink", "grid", "page", "neutral"):
        assert PALETTE[name].light not in picture
    assert "var(--ds-main)" in picture
    assert "var(--ds-page)" in picture


def test_the_same_plot_gives_the_same_html_and_no_id_twice():
    first, second = drawn()._repr_html_(), drawn()._repr_html_()
    assert first == second
    ids = re.findall(r'\bid="([^"]+)"', first)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:url\(#|href="#)([^)"]+)', first):
        assert target in ids


def test_no_alt_no_figure():
    fig, _ = plt.subplots()
    with pytest.raises(ValueError, match="alt is empty"):
        viz.show(fig, alt="  ")


def test_the_figure_is_closed():
    drawn()
    assert plt.get_fignums() == []


def test_axes_of_bytes_and_context():
    fig, ax = plt.subplots()
    ax.plot([2**12, 2**20], [1e3, 1e9])
    viz.context_axis(ax)
    viz.bytes_axis(ax, label="KV")
    fig.canvas.draw()
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["4K", "64K", "1M"]
    assert {"1 kB", "1 MB", "1 GB"} <= {tick.get_text() for tick in ax.get_yticklabels()}
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("context, tokens", "KV")
    with pytest.raises(ValueError, match="axis is 'z'"):
        viz.bytes_axis(ax, "z")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (890, "890 B"), (389_120, "389 kB"), (933_232_640, "933 MB"), (1e15, "1 PB")]
)
def test_readable_bytes(value, text):
    assert viz.readable_bytes(value) == text


def test_published_points_are_hollow_and_measured_ones_filled():
    assert viz.marks("index", "published")["markerfacecolor"] == PALETTE["page"].light
    assert "markerfacecolor" not in viz.marks("index", "measured")
    assert viz.marks("index", "predicted")["linestyle"] == "-"
    with pytest.raises(ValueError, match="standing is 'guessed'"):
        viz.marks("index", "guessed")
    with pytest.raises(ValueError, match="colour is 'teal'; expected one of: main"):
        viz.colour("teal")


@pytest.mark.browser
def test_a_phone_gets_its_own_layout_with_readable_text(look):
    html = drawn()._repr_html_()
    for width, shown in ((760, ".ds-wide"), (375, ".ds-narrow")):
        page = look(html, width=width)
        assert page.locator("svg:visible").count() == 1
        assert page.locator(shown).is_visible()
        sizes = page.evaluate(
            "s => [...document.querySelectorAll(s + ' text')].map(t => parseFloat(getComputedStyle(t).fontSize) "
            "* t.ownerSVGElement.getScreenCTM().a)",
            shown,
        )
        assert min(sizes) >= 11, width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_a_plot_follows_the_theme(look):
    colours = "[...document.querySelectorAll('.ds-wide path')].map(p => getComputedStyle(p).stroke)"
    light = look(drawn()._repr_html_(), markers='data-theme="light"').evaluate(colours)
    dark = look(drawn()._repr_html_(), markers='data-theme="dark"').evaluate(colours)
    assert "rgb(11, 98, 166)" in light
    assert "rgb(108, 182, 255)" in dark
    assert not set(light) & set(dark) - {"none"}


# Still pictures


def test_the_readme_s_picture_is_up_to_date():
    assert render_figures.main(["--check"]) == 0, "run python ci/render_figures.py"


def test_the_still_picture_is_to_scale_and_says_what_it_shows():
    picture = ElementTree.fromstring(viz.landing_svg())
    space = "{http://www.w3.org/2000/svg}"
    assert picture.find(f"{space}title").text == "890 bytes keep one token of context"
    assert "720 are main KV and 170 index keys" in picture.find(f"{space}desc").text
    bars = [float(bar.get("width")) for bar in picture.iter(f"{space}rect") if bar.get("class") == "main"]
    assert [width / bars[0] for width in bars] == pytest.approx([1, 1, 1, 2], rel=1e-3)
    assert sum(cell.get("class") == "cell" for cell in picture.iter(f"{space}rect")) == 40


def test_byte_bars_are_to_one_scale():
    figure = viz.generation_bars()
    shares = [float(share) for share in re.findall(r'style="width:([\d.]+)%"', figure.body)]
    assert shares == pytest.approx([100 * size / 389_120 for size in (389_120, 48_068, 3_514.25, 890)], rel=1e-3)
    assert "fell 437-fold" in figure.title
    assert "<b>3,514.25</b>" in figure.body
    assert "fell 123-fold" in viz.generation_bars("fp4").title


def test_bad_bars_are_named():
    with pytest.raises(ValueError, match="bars is empty"):
        viz.byte_bars([], "t")
    with pytest.raises(ValueError, match="bar 'x' has 0 bytes"):
        viz.byte_bars([viz.Bar("x", 0)], "t")
    with pytest.raises(ValueError, match="the parts of bar 'x'"):
        viz.byte_bars([viz.Bar("x", 3, parts=[("main", 1)])], "t")
