"""The palette keeps the contrasts that the visual language promises, and stands nowhere else."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from ds41.viz.palette import PALETTE, contrast, css_variables, luminance

# Contrast on the page, light and dark, as the visual language states them.
STATED = {
    "main": (6.3, 8.7),
    "index": (6.9, 8.4),
    "window": (5.1, 9.3),
    "memory": (5.3, 9.8),
    "hit": (5.6, 8.1),
    "neutral": (6.4, 7.4),
}


def test_contrast_agrees_with_known_pairs():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#777777", "#777777") == 1
    assert luminance("#ff0000") == pytest.approx(0.2126)


@pytest.mark.parametrize("name", STATED)
def test_stated_contrasts(name):
    colour, page = PALETTE[name], PALETTE["page"]
    measured = contrast(colour.light, page.light), contrast(colour.dark, page.dark)
    assert measured == pytest.approx(STATED[name], abs=0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", [name for name in PALETTE if name not in ("grid", "page")])
def test_whatever_carries_a_meaning_is_readable_as_text(name, theme):
    assert contrast(PALETTE[name].on(theme), PALETTE["page"].on(theme)) >= 4.5


@pytest.mark.parametrize("wrong", ["0b62a6", "#0b6", "", "#0b62a6ff"])
def test_a_malformed_colour_is_named(wrong):
    with pytest.raises(ValueError, match="expected #rrggbb"):
        luminance(wrong)


def test_css_variables_hold_every_colour():
    assert css_variables("dark").count("--ds-") == len(PALETTE)
    assert "--ds-page:#121212;" in css_variables("dark")
    assert "--ds-main:#0b62a6;" in css_variables("light")


def test_no_other_file_names_a_colour_of_its_own():
    folder = resources.files("ds41.viz")
    files = [*folder.iterdir(), *folder.joinpath("js").iterdir()]
    for file in files:
        if file.name.endswith((".css", ".js", ".mplstyle")):
            text = file.read_text(encoding="utf-8")
            # Black in a mask means "show", not a colour.
            assert set(re.findall(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b", text)) <= {"#000"}, file.name
