"""Explorers in the running kernel: what they measure, and that the result stands there with or without sliders."""

from __future__ import annotations

import sys

import pytest

from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.viz import live


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
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *items: shown.extend(items))
    live.explore_format(INDEX_KEY, deviation=0.5)
    assert isinstance(shown[0], live.FormatReport)
    assert "Index key stores values of deviation 0.5" in shown[0]._repr_html_()
    box = next(item for item in shown if type(item).__name__ == "VBox")
    before = len(shown)
    name, power, _ = box.children
    name.value = "window KV"
    power.value = -1.0
    reports = [item for item in shown[before:] if isinstance(item, live.FormatReport)]
    assert [(report.block_format, report.deviation) for report in reports] == [(WINDOW_KV, 0.5), (WINDOW_KV, 0.05)]


def test_without_ipywidgets_the_result_stands_alone(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *items: shown.extend(items))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    live.explore_format()
    assert len(shown) == 1
    assert "no sliders" in capsys.readouterr().out
