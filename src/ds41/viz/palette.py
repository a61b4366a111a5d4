"""What each colour means, once: every plot, diagram and page takes its colours from here.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Theme = Literal["light", "dark"]


@dataclass(frozen=True)
class Colour:
    """One meaning with its two values, and the mark that says the same without colour."""

    meaning: str
    mark: str
    light: str
    dark: str

    def on(self, theme: Theme) -> str:
        return self.light if theme == "light" else self.dark


PALETTE = {
    "main": Colour("main KV (global, compressed, FP4)", "filled block", "#0b62a6", "#6cb6ff"),
    "index": Colour("index keys (global, MXFP4)", "notched block", "#7a3fa0", "#c79bf2"),
    "window": Colour("window KV (FP8, dies young)", "ring", "#a65a00", "#f0a94a"),
    "memory": Colour("Engram and other memory", "label", "#0a7a55", "#4fd1a5"),
    "hit": Colour("selected, hit, replayed: the one highlight", "hatched block", "#c0341d", "#ff8a70"),
    "neutral": Colour("compute, weights, everything neutral", "label", "#57606a", "#9aa4af"),
    "ink": Colour("text and axes", "label", "#1b1f24", "#e6e8eb"),
    "grid": Colour("grid and hairlines, never the only carrier of a fact", "hairline", "#d8dde3", "#343a41"),
    "page": Colour("the page behind everything", "background", "#ffffff", "#121212"),
}
"""Colours by meaning, each with the form that carries the same meaning without colour."""


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", 0 to 1 (WCAG 2.2)."""
    if len(colour) != 7 or colour[0] != "#":
        raise ValueError(f"colour is {colour!r}; expected #rrggbb")
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def css_variables(theme: Theme) -> str:
    """The palette as CSS declarations: ``--ds-main:#0b62a6;...``"""
    return "".join(f"--ds-{name}:{colour.on(theme)};" for name, colour in PALETTE.items())
