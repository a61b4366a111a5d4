"""What every interactive figure keeps to: self-contained, unique, readable, usable by keyboard, in both themes."""

from __future__ import annotations

import html
import re
from importlib import resources

import book_rules
import pytest
import torch

from ds41 import viz
from ds41.dspark import ThroughputCurve
from ds41.formats import MAIN_KV
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.live import measure_format
from ds41.viz.palette import PALETTE

CURVE = ThroughputCurve((1, 32, 192), (0.010, 0.018, 0.082))
DAY = [
    {"session": "a", "state": "prefill", "from_s": 30, "to_s": 40},
    {"session": "a", "state": "decode", "from_s": 40, "to_s": 200},
    {"session": "a", "state": "windows", "from_s": 200, "to_s": 800},
]
HELD = {"decode 0": [(0, 0), (40, 9e7), (200, 0)], "windows": [(0, 0), (200, 2.7e6), (800, 0)]}
MAKERS = {
    "ledger": viz.ledger_explorer,
    "layers": viz.layer_map,
    "walk": viz.decode_walk,
    "bits": viz.bit_explorer,
    "block": viz.block_explorer,
    "engram": viz.engram_explorer,
    "routes": viz.route_explorer,
    "sweeps": viz.sweep_walk,
    "prefill": viz.prefill_map,
    "pages": viz.page_walk,
    "replay": viz.replay_timeline,
    "draft": lambda: viz.draft_block(steps=[[("a", [("b", 0.5)], [("a", 0.75)], "a")] * 5] * 2),
    "schedule": lambda: viz.draft_schedule(CURVE, torch.full((4, 5), 0.8, dtype=torch.float64).cumprod(1)),
    "sizes": viz.image_sizes,
    "serving": viz.serving_map,
    "stack": viz.inference_stack,
    "day": lambda: viz.serving_day(DAY, HELD),
    "bars": viz.generation_bars,
    "report": lambda: measure_format(MAIN_KV, rows=4).diagram(),
}
SCRIPTED = [name for name in MAKERS if name not in ("bars", "report")]
# What each host sets, on <html> and on <body>, in a given theme.
HOSTS = {
    "book": lambda theme: ({"data-theme": theme, "data-mode": theme}, {}),
    "colab": lambda theme: ({"theme": theme}, {}),
    "lab": lambda theme: ({}, {"data-jp-theme-light": "true" if theme == "light" else "false"}),
    "vscode": lambda theme: ({}, {"class": f"vscode-{theme}"}),
    "bare": lambda theme: ({}, {}),
}


@pytest.fixture(scope="module")
def figures():
    return {name: make() for name, make in MAKERS.items()}


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_fetched_and_nothing_of_the_host_is_touched(figures, name):
    text = figures[name]._repr_html_()
    assert not re.search(r"https?://", text)
    for word in (
        "fetch(",
        "XMLHttpRequest",
        "localStorage",
        "sessionStorage",
        "parent.",
        "top.",
        "import(",
        "require(",
    ):
        assert word not in text


def selectors(style: str) -> list[str]:
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    rules = [rule.strip() for rule in re.findall(r"([^{}]+)\{", style)]
    return [one.strip() for rule in rules if rule[0] != "@" for one in re.split(r",(?![^(]*\))", rule)]


@pytest.mark.parametrize("name", MAKERS)
def test_every_style_rule_stays_inside_the_figure(figures, name):
    style = re.search(r"<style>(.*?)</style>", figures[name]._repr_html_(), re.DOTALL).group(1)
    for selector in selectors(style):
        assert re.search(r"\.ds-fig|:has\(figure\.ds-fig\)", selector), selector


def test_a_kind_s_rules_outweigh_those_that_the_next_figure_repeats():
    # Every figure brings the common rules along, so those of the last figure on a page come after all others.
    folder = resources.files("ds41.viz")
    kinds = [file for file in folder.iterdir() if file.name.endswith(".css") and file.name != "diagram.css"]
    assert len(kinds) >= 6
    for file in kinds:
        for selector in selectors(file.read_text(encoding="utf-8")):
            assert selector.startswith(f".ds-fig.ds-{file.name.removesuffix('.css')}"), (file.name, selector)


@pytest.mark.parametrize("name", MAKERS)
def test_ids_depend_on_the_content_alone(figures, name):
    assert MAKERS[name]()._repr_html_() == figures[name]._repr_html_()
    ids = re.findall(r'\bid="([^"]+)"', figures[name]._repr_html_())
    assert len(ids) == len(set(ids))


def test_no_two_figures_share_an_id(figures):
    ids = [figure.id for figure in figures.values()]
    assert len(set(ids)) == len(ids)
    assert viz.bit_explorer(code=1).id != figures["bits"].id


def test_data_cannot_end_the_script():
    hostile = Diagram("bits", "t", "b", data={"name": "</script><b>"})._repr_html_()
    assert hostile.count("</script>") == 2
    assert "\\u003c/script>" in hostile


def test_text_is_escaped():
    figure = Diagram("bars", "1 < 2 & 3", "b")._repr_html_()
    assert "1 &lt; 2 &amp; 3" in figure
    assert table(["<a>"], [["<b>"]]).count("&lt;") == 2
    assert "&lt;" in choices("n", "l", [("v", "<x>", "")], "v")


def test_a_figure_saved_is_a_page(figures, tmp_path):
    path = figures["bars"].save(tmp_path / "deep" / "bars.html")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<title>From V1 to V4.1-Flash" in text


LIVE_AND_STILL = """([html, parts]) => {
  const still = new DOMParser().parseFromString(html, "text/html");
  return parts.map((part) => [document, still].map((page) => page.querySelector(part).innerHTML));
}"""


@pytest.mark.browser
@pytest.mark.parametrize("name", SCRIPTED)
def test_the_still_picture_is_the_script_s_first_one(figures, look, name):
    html_text = figures[name]._repr_html_()
    parts = [".ds-body", "figcaption", "table"]
    shown = look(html_text).evaluate(LIVE_AND_STILL, [html_text, parts])
    for part, (live, still) in zip(parts, shown, strict=True):
        if (name, part) == ("layers", "figcaption"):
            live = live.removesuffix(" Choose a layer to see what it keeps and what it reads.")
        assert normalised(live) == normalised(still), part


def normalised(text: str) -> str:
    """HTML without what only a mounted figure has: order of focus, a slider's words, where links lead."""
    return re.sub(r' (tabindex|aria-valuetext|href|target|rel)="[^"]*"', "", text)


SHOWN_COLOURS = """() => {
  const look = (query, property) => getComputedStyle(document.querySelector(query))[property];
  return {
    page: look("figure", "backgroundColor"), ink: look("figure", "color"), window: look(".ds-ring", "borderTopColor"),
    main: look(".ds-bar .ds-main", "backgroundColor"), index: look(".ds-bar .ds-index", "backgroundColor"),
  };
}"""
SET_MARKERS = """([html, body]) => {
  for (const [element, markers] of [[document.documentElement, html], [document.body, body]]) {
    for (const name of element.getAttributeNames()) if (name !== "lang") element.removeAttribute(name);
    for (const [name, value] of Object.entries(markers)) element.setAttribute(name, value);
  }
}"""


@pytest.mark.browser
@pytest.mark.parametrize("system", ["light", "dark"])
def test_colours_follow_the_host_and_only_then_the_system(figures, look, system):
    page = look(figures["ledger"]._repr_html_(), theme=system)
    for host, markers in HOSTS.items():
        for theme in ("light", "dark"):
            page.evaluate(SET_MARKERS, markers(theme))
            meant = system if host == "bare" else theme
            seen = page.evaluate(SHOWN_COLOURS)
            assert seen == {name: rgb(PALETTE[name].on(meant)) for name in seen}, (host, theme)


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 375, 760])
def test_nothing_scrolls_sideways(figures, look, width):
    page = look("".join(figure._repr_html_() for figure in figures.values()), width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(book_rules.SIDEWAYS.replace("main article *", "main *")) == {"moved": 0, "wide": []}


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 760), ("dark", 375)])
def test_axe_finds_nothing(figures, look, axe_source, theme, width):
    page = look(
        "".join(figure._repr_html_() for figure in figures.values()),
        theme=theme,
        width=width,
        markers=f'data-theme="{theme}"',
    )
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert list(book_rules.axe_faults(page, axe_source)) == []


@pytest.mark.browser
@pytest.mark.parametrize("name", SCRIPTED)
def test_runs_in_a_frame_that_may_only_run_scripts(figures, look, name):
    # As in Colab: another origin, no storage, no access to the page around it.
    frame = html.escape(figures[name]._repr_html_())
    page = look(f'<iframe sandbox="allow-scripts" title="output" width="700" height="900" srcdoc="{frame}"></iframe>')
    inner = page.frame_locator("iframe")
    inner.locator("figure[data-mounted]").wait_for()
    before = inner.locator("figcaption").inner_text()
    if name in ("layers", "walk", "routes"):
        inner.locator(".ds-cell").nth(5).click()
    elif name == "bits":
        inner.locator(".ds-bit").first.click()
    elif name == "block":
        inner.locator(".ds-channel").nth(5).click()
    elif name == "engram":
        inner.locator(".ds-token").nth(5).click()
    elif name == "day":
        inner.locator("input[name=moment]").press("End")
    elif name in ("sweeps", "pages", "serving", "stack"):
        inner.locator("[data-act=next]").click()
    elif name == "prefill":
        inner.locator("input[name=way][value=full]").check()
    elif name == "replay":
        inner.locator("input[name=windows][value=all]").check()
    elif name == "draft":
        inner.locator("input[name=mode][value=causal]").check()
    elif name == "schedule":
        inner.locator("input[name=together][value='1']").check()
    elif name == "sizes":
        inner.locator("[data-width]").first.click()
    else:
        inner.locator("input[name=main][value=bf16]").check()
    assert inner.locator("figcaption").inner_text() != before


@pytest.mark.browser
def test_the_same_figure_twice_on_a_page_answers_twice(figures, look):
    page = look(figures["ledger"]._repr_html_() * 2)
    assert page.locator("figure[data-mounted]").count() == 2
    first, second = page.locator("figure").nth(0), page.locator("figure").nth(1)
    second.locator("input[name=sharing][value=off]").check()
    assert "10,324" in second.locator("[data-out=token]").inner_text()
    assert "890" in first.locator("[data-out=token]").inner_text()
    assert first.locator("input[name=sharing][value=on]").is_checked()


@pytest.mark.browser
def test_controls_wait_for_the_script(figures, look):
    page = look(figures["ledger"]._repr_html_(), script=False)
    assert page.locator(".ds-bar").is_visible()
    assert not page.locator("form").is_visible()
    assert look(figures["ledger"]._repr_html_()).locator("form").is_visible()


@pytest.mark.browser
def test_focus_can_be_seen(figures, look):
    page = look(figures["bits"]._repr_html_())
    for _ in range(3):
        page.keyboard.press("Tab")
    width, style = page.evaluate("(s => [s.outlineWidth, s.outlineStyle])(getComputedStyle(document.activeElement))")
    assert (width, style) == ("2px", "solid")
