"""Explorers in the running kernel: what they measure, and that the result stands there with or without sliders.

All tests of explorers drive the controls through names that ipywidgets 7 and 8 share; with ``PYTHONPATH`` at a folder
that holds version 7 they run against that.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import book_rules
import pytest
from live_driver import explored

from ds41 import ModelConfig
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.viz import live
from ds41.viz.live_schedule_picture import schedule_diagram
from ds41.viz.live_widgets import WITHOUT, refusal


def test_errors_of_gaussian_rows():
    # Relative RMS errors as the formats' specification measured them, in percent.
    for block_format, percent in ((MAIN_KV, 9.5), (INDEX_KEY, 11.5), (WINDOW_KV, 2.7)):
        report = live.measure_format(block_format)
        assert 100 * report.relative_error == pytest.approx(percent, abs=0.1)
        assert (report.clipped > 0.4) == (block_format is MAIN_KV)
        assert report.floored == 0


def test_tiny_values_end_at_the_smallest_scale():
    report = live.measure_format(MAIN_KV, deviation=1e-3)
    assert report.floored == 1
    assert report.relative_error > 0.2


def test_a_deviation_of_zero_is_refused():
    with pytest.raises(ValueError, match="deviation is 0"):
        live.measure_format(MAIN_KV, 0)


def test_the_result_is_shown_first_and_sliders_follow(monkeypatch):
    first, controls, button, place = explored(monkeypatch, live.explore_format, INDEX_KEY, deviation=0.5)
    assert isinstance(first, live.FormatReport)
    assert "Index key stores values of deviation 0.5" in first._repr_html_()
    assert "<figure" not in place.value
    controls["format"].value = "window KV"
    assert live.measure_format(WINDOW_KV, 0.5).diagram()._repr_html_() in place.value
    controls["10 to the"].value = -1.0
    assert live.measure_format(WINDOW_KV, 0.05).diagram()._repr_html_() in place.value
    controls["seed"].value = 4
    assert live.measure_format(WINDOW_KV, 0.05, seed=4).diagram()._repr_html_() in place.value
    answers = []
    place.observe(lambda change: answers.append(change["new"]), names="value")
    button.click()
    assert [control.value for control in controls.values()] == ["index key", 0.0, 0]
    assert len(answers) == 1, "three controls went back, the answer was made once"
    assert first._repr_html_() in place.value


def test_a_change_is_read_out(monkeypatch):
    _, controls, _, place = explored(monkeypatch, live.explore_format)
    controls["seed"].value = 1
    said = place.value.split("</p>")[0]
    assert said.startswith('<p role="status"')
    assert said.endswith(live.measure_format(MAIN_KV, 1.0, seed=1).diagram().title)


def test_an_error_is_shown_in_words_and_escaped():
    figure = refusal("No", ValueError("text is '<b>'; expected another"))
    assert "text is &#x27;&lt;b&gt;&#x27;; expected another" in figure._repr_html_()


def test_without_ipywidgets_the_result_stands_alone(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *items: shown.extend(items))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    live.explore_format()
    assert len(shown) == 1
    assert WITHOUT in capsys.readouterr().out


@pytest.fixture(scope="module")
def still_figures():
    """What the explorers show, without a model."""
    published = live.Schedule.of(ModelConfig.flash())
    given = live.plan_schedule(published)
    many = replace(published, encoder_layers=30, encoder_group=1, decoder_owning="every", main="bf16")
    choices = (
        live.LayerChoice(1, "full", 2, 30, (0, 3, 4, 29), None, None, (2, 3)),
        live.LayerChoice(5, "full", 1, 60, (0, 7, 31, 59), (0, 1, 2, 3, 56, 57, 58, 59), 5, ()),
        live.LayerChoice(7, "reindex", 1, 60, (1, 57), (0, 1, 2, 3, 56, 57, 58, 59), 5, (8,)),
    )
    text = "def f(x):\n\treturn <x> & é\n" * 3
    spans = ((0, 0), *((place, place + 1) for place in range(59)))
    likely = ((" ", 0.5), ("<", 0.3), ("é", 0.1))
    figures = [
        schedule_diagram(given, given),
        schedule_diagram(live.plan_schedule(many), given),
        live.SelectionReport(text, spans, 59, 16, choices, likely).diagram(),
        refusal("It cannot be", ValueError("n is 0; expected 1")),
    ]
    return [figure._repr_html_() for figure in figures]


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 760])
def test_nothing_scrolls_sideways(look, still_figures, width):
    page = look("".join(still_figures), width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(book_rules.SIDEWAYS.replace("main article *", "main *")) == {"moved": 0, "wide": []}


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width", "number"), [("light", 760, 1), ("light", 760, 2), ("dark", 375, 2)])
def test_axe_finds_nothing(look, axe_source, still_figures, theme, width, number):
    page = look(still_figures[number], theme=theme, width=width, markers=f'data-theme="{theme}"')
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert list(book_rules.axe_faults(page, axe_source)) == []


@pytest.mark.browser
def test_a_host_that_floats_the_parts_of_lists_changes_nothing(look, still_figures):
    # As JupyterLab does.
    lab = "<style>main dl dt { float: left; width: 20%; } main dl dd { float: left; width: 80%; }</style>"
    places = """() => [...document.querySelectorAll(".ds-plan :is(dt, dd)")].map((part) => {
      const { x, y, width } = part.getBoundingClientRect();
      return [x, y, width].map(Math.round);
    })"""
    plain = look(still_figures[1]).evaluate(places)
    assert len(plain) == 8
    assert look(lab + still_figures[1]).evaluate(places) == plain
