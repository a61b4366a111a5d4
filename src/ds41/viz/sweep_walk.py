"""The sites of two layers in a row, and what each sweep over the streams can do with and without the shift.

Source: report section 2.4.1; :mod:`ds41.mhc_traffic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ds41.config import ModelConfig
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.sweeps import MODES, Mode, Site, Step, sites_of, steps, values, words

NAMES = {"shifted": "Shifted, one pass", "unshifted": "Un-shifted, two passes"}
_LAYERS = 2
# In widths of a site: room for the fixed weights before the first, and for the final norm after the last.
_BEFORE, _AFTER = 0.55, 0.66
# Within a site: where its streams are tapped, its coefficients stand, go up, and its output goes up.
_TAP, _PREDICTOR, _COEFFICIENTS, _OUTPUT = 0.18, 0.42, 0.78, 0.88
# Where Engram adds, before the site's taps.
_ENGRAM = 0.04
# Heights in pixels.
_STREAMS, _PREDICT, _LANE, _SUBLAYER, _HEIGHT = (44, 59), (102, 126), 160, (196, 226), 258
_HEADS = {"down": "M-4-7 0 0 4-7z", "up": "M-4 7 0 0 4 7z", "left": "M15-4 8 0 15 4z", "right": "M-15-4-8 0-15 4z"}
_MARKS = {
    "fn": '<rect x="1" y="3" width="14" height="10" fill="none" stroke="currentColor" stroke-width="1.5"/>',
    "collapse": '<circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="1.5"/>',
    "write": '<rect x="5" y="1" width="6" height="14" fill="none" stroke="currentColor" stroke-width="1.5"/>',
    "engram": '<path d="M8 1 15 8 8 15 1 8z" fill="currentColor"/>',
}


def sweep_walk(config: ModelConfig | None = None) -> Diagram:
    """The first two layers of ``config`` (default: the published one), from the embedding to a final norm."""
    config = config or ModelConfig.flash()
    sites = sites_of(config, _LAYERS)
    n = config.hc_mult
    runs = {mode: steps(sites, mode) for mode in MODES}
    data = {mode: _mode_data(config, sites, mode, runs[mode]) for mode in MODES}
    return Diagram(
        kind="sweeps",
        title="The shift turns two sweeps over the streams into one: weights from the site before are there in time",
        body=_picture(sites, n) + _count(data["shifted"]["total"]) + _legend(sites) + _controls(data["shifted"]),
        caption=data["shifted"]["overview"],
        table=_table(runs, sites, n),
        table_title="All sweeps as a table",
        data=data,
    )


def _mode_data(config: ModelConfig, sites: Sequence[Site], mode: Mode, run: Sequence[Step]) -> dict:
    n = config.hc_mult
    sweeps, moved, entries = 0, 0, []
    for step in run:
        sweeps += not step.engram
        moved += step.reads(n) + step.writes(n)
        entries.append(
            {
                "place": step.boundary,
                "name": _place(sites, step.boundary),
                "lit": parts(step, sites, mode),
                "text": words(step, sites, mode, n),
                "count": _counted(sweeps, moved, config.hidden_size),
            }
        )
    overview = {
        "shifted": "Every site predicts <b>pre</b> for the <b>next</b> site. When a sweep begins, the weights that "
        "collapse the streams are known, so one kernel does all of it while it reads the streams once.",
        "unshifted": "Every site predicts <b>pre</b> for <b>itself</b>, from all channels of the very streams that "
        "pre then collapses. The streams are read once to know it and once more to use it.",
    }
    return {"overview": overview[mode], "total": _counted(sweeps, moved, config.hidden_size), "steps": entries}


def parts(step: Step, sites: Sequence[Site], mode: Mode) -> list[str]:
    """The parts of the picture that a step is about."""
    b = step.boundary
    if step.engram:
        return [f"engram-{b}"]
    before_engram = step.updates and b < len(sites) and sites[b].engram
    lit = [f"streams-{b}-before" if before_engram else f"streams-{b}"]
    if step.updates:
        lit.append(f"write-{b - 1}")
    if step.predicts:
        lit.append(f"predict-{b}")
    if step.collapses:
        lit += [f"collapse-{b}", f"pre-{b - 1}" if mode == "shifted" else f"own-{b}"]
    return lit


def _place(sites: Sequence[Site], boundary: int) -> str:
    if boundary == len(sites):
        return "final norm"
    site = sites[boundary]
    return f"site {boundary}, {site.sublayer} of layer {site.layer}"


def _counted(sweeps: int, moved: int, hidden_size: int) -> str:
    return (
        f"Sweeps over the streams: <b>{sweeps}</b>. Read and written for a token: <b>{values(moved)}</b> values, "
        f"d = {hidden_size:,}."
    )


@dataclass(frozen=True)
class _Canvas:
    """Turns places, counted in widths of a site, into percentages; heights are pixels, so that text keeps its size."""

    sites: int

    def x(self, place: float) -> str:
        return f"{100 * (_BEFORE + place) / (_BEFORE + self.sites + _AFTER):.2f}%"

    def width(self, places: float) -> str:
        return f"{100 * places / (_BEFORE + self.sites + _AFTER):.2f}%"

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> str:
        return f'<line x1="{self.x(start[0])}" y1="{start[1]:g}" x2="{self.x(end[0])}" y2="{end[1]:g}"/>'

    def path(self, *points: tuple[float, float], head: str = "") -> str:
        lines = "".join(self.line(*pair) for pair in pairwise(points))
        return lines + (self.shape(points[-1], f'<path d="{_HEADS[head]}"/>') if head else "")

    def shape(self, at: tuple[float, float], content: str) -> str:
        return f'<svg x="{self.x(at[0])}" y="{at[1]:g}" overflow="visible">{content}</svg>'

    def box(self, left: float, right: float, top: float, bottom: float, text: str = "") -> str:
        shape = f'x="{self.x(left)}" y="{top:g}" width="{self.width(right - left)}" height="{bottom - top:g}"'
        label = self.text(((left + right) / 2, (top + bottom) / 2 + 4), text) if text else ""
        return f"<rect {shape}/>{label}"

    def text(self, at: tuple[float, float], text: str, kind: str = "") -> str:
        style = f' class="{kind}"' if kind else ""
        return f'<text x="{self.x(at[0])}" y="{at[1]:g}"{style}>{text}</text>'


def _picture(sites: Sequence[Site], n: int) -> str:
    canvas = _Canvas(len(sites))
    fixed = canvas.text((-_BEFORE, _LANE - 8), "1 0 0 0" if n == 4 else "fixed", "ds-start")
    fixed += canvas.path((-_BEFORE, _LANE), (_TAP, _LANE), head="right")
    groups = [*_stream_groups(canvas, sites, n), _group("pre--1", fixed, "shifted")]
    for number, site in enumerate(sites):
        groups += _site_groups(canvas, number, site)
    groups += _end_groups(canvas, len(sites))
    for number, site in enumerate(sites):
        if site.engram:
            diamond = canvas.shape((number + _ENGRAM, 51.5), '<path d="M0-13 6 0 0 13-6 0z"/>')
            label = canvas.text((number + _ENGRAM, 31), "Engram")
            groups.append(_group(f"engram-{number}", diamond + label))
    names = "".join(canvas.text((number + 0.5, 13), f"site {number}", "ds-name") for number in range(len(sites)))
    for layer in sorted({site.layer for site in sites}):
        own = [number for number, site in enumerate(sites) if site.layer == layer]
        names += canvas.line((own[0] + 0.06, _SUBLAYER[1] + 9), (own[-1] + 0.98, _SUBLAYER[1] + 9))
        names += canvas.text(((own[0] + own[-1] + 1.04) / 2, _HEIGHT - 8), f"layer {layer}", "ds-name")
    label = (
        f"{n} streams run from left to right through {len(sites)} sites. At each site they are tapped for the "
        "coefficients and for the sublayer, whose output is written back. Arrows named pre lead from a site's "
        "coefficients to the place where streams are collapsed: at the next site, or, un-shifted, at the same one."
    )
    return (
        f'<svg class="ds-sites" role="img" aria-label="{label}" width="100%" height="{_HEIGHT}">'
        f'<g class="ds-names">{names}</g>{"".join(groups)}</svg>'
    )


def _group(part: str, content: str, mode: Mode | None = None) -> str:
    """``mode``: the part is there in this mode only; the picture starts shifted."""
    only = "" if mode is None else f' data-only="{mode}"' + (" hidden" if mode == "unshifted" else "")
    return f'<g data-part="{part}"{only}>{content}</g>'


def _stream_groups(canvas: _Canvas, sites: Sequence[Site], n: int) -> list[str]:
    """The streams between one write-back and the next, in two pieces where Engram adds to them."""
    ends = [-_BEFORE, *(number + (_COEFFICIENTS + _OUTPUT) / 2 for number in range(len(sites))), len(sites) + _AFTER]
    pieces = []
    for b, (start, end) in enumerate(pairwise(ends)):
        if b < len(sites) and sites[b].engram:
            pieces.append((f"streams-{b}-before", start, b + _ENGRAM))
            start = b + _ENGRAM
        pieces.append((f"streams-{b}", start, end))
    top, bottom = _STREAMS
    heights = [top + (bottom - top) * i / max(n - 1, 1) for i in range(n)]
    return [_group(part, "".join(canvas.line((a, y), (z, y)) for y in heights)) for part, a, z in pieces]


def _site_groups(canvas: _Canvas, number: int, site: Site) -> list[str]:
    tap, predictor, output = number + _TAP, number + _PREDICTOR, number + _OUTPUT
    coefficients = number + _COEFFICIENTS
    foot, top = _STREAMS[-1] + 7, _PREDICT[0]
    middle = sum(_PREDICT) / 2
    turn = (predictor, _PREDICT[1]), (predictor, _LANE)
    following = number + 1 + _TAP
    predict = canvas.path((predictor, _STREAMS[-1]), (predictor, top), head="down")
    predict += canvas.box(predictor - 0.17, predictor + 0.17, *_PREDICT, text="fn")
    write = canvas.path((predictor + 0.17, middle), (coefficients, middle), (coefficients, foot), head="up")
    write += canvas.path((output, _SUBLAYER[0]), (output, foot), head="up")
    write += "".join(
        canvas.text((coefficients - 0.02, y), name, "ds-roomy ds-end") for y, name in ((81, "post"), (95, "comb"))
    )
    write += canvas.box(coefficients - 0.05, output + 0.05, _STREAMS[0] - 7, foot)
    pre_label = canvas.text((predictor + 0.04, _LANE - 8), "pre", "ds-roomy ds-start")
    return [
        _group(f"predict-{number}", predict),
        _group(f"write-{number}", write),
        _group(f"pre-{number}", canvas.path(*turn, (following, _LANE), head="right") + pre_label, "shifted"),
        _group(f"own-{number}", canvas.path(*turn, (tap, _LANE), head="left") + pre_label, "unshifted"),
        _group(f"collapse-{number}", _collapse(canvas, tap, number + 0.06, number + 0.98, site.sublayer)),
    ]


def _end_groups(canvas: _Canvas, number: int) -> list[str]:
    """The final norm; un-shifted it needs a predictor of its own."""
    tap, predictor = number + _TAP, number + _PREDICTOR
    own = canvas.path((predictor, _PREDICT[1]), (predictor, _LANE), (tap, _LANE), head="left")
    predict = canvas.path((predictor, _STREAMS[-1]), (predictor, _PREDICT[0]), head="down")
    predict += canvas.box(predictor - 0.16, predictor + 0.16, *_PREDICT, text="fn")
    return [
        _group(f"predict-{number}", predict, "unshifted"),
        _group(f"own-{number}", own, "unshifted"),
        _group(f"collapse-{number}", _collapse(canvas, tap, number + 0.06, number + 0.64, "norm")),
    ]


def _collapse(canvas: _Canvas, tap: float, left: float, right: float, name: str) -> str:
    circle = canvas.shape((tap, _LANE), '<circle r="8"/>')
    return (
        canvas.path((tap, _STREAMS[-1]), (tap, _LANE - 8), head="down")
        + canvas.path((tap, _LANE + 8), (tap, _SUBLAYER[0]), head="down")
        + circle
        + canvas.box(left, right, *_SUBLAYER, text=name)
    )


def _count(total: str) -> str:
    return f'<p class="ds-count">{total}</p>'


def _legend(sites: Sequence[Site]) -> str:
    meanings = {
        "fn": "predicts pre, post and comb",
        "collapse": "streams collapsed with pre",
        "write": "output written back with post, streams mixed with comb",
    }
    if any(site.engram for site in sites):
        meanings["engram"] = "Engram adds to all streams"
    items = "".join(
        f'<li><svg class="ds-mark ds-mark-{name}" viewBox="0 0 16 16" aria-hidden="true">{_MARKS[name]}</svg>'
        f"<span>{text}</span></li>"
        for name, text in meanings.items()
    )
    return f'<ul class="ds-legend">{items}</ul>'


def _controls(shifted: dict) -> str:
    options = [(mode, NAMES[mode], "") for mode in MODES]
    return (
        '<form class="ds-controls">'
        + choices("mode", "Collapse weights", options, "shifted")
        + '<label class="ds-field"><span>Step</span>'
        f'<input type="range" name="step" min="0" max="{len(shifted["steps"])}" value="0"></label>'
        '<div class="ds-buttons"><button type="button" class="ds-button" data-act="back">Back</button>'
        '<button type="button" class="ds-button" data-act="next">Next</button></div></form>'
    )


def _table(runs: dict[Mode, Sequence[Step]], sites: Sequence[Site], n: int) -> str:
    rows = []
    for mode, run in runs.items():
        for step in run:
            does = ", ".join(
                name
                for name, done in (
                    ("Engram adds", step.engram),
                    ("update", step.updates),
                    ("coefficients", step.predicts),
                    ("collapse", step.collapses),
                )
                if done
            )
            counts = (values(step.reads(n)) or "–", values(step.writes(n)) or "–")
            rows.append((NAMES[mode], _place(sites, step.boundary), does, *counts))
    return table(("weights", "before", "the sweep does", "reads", "writes"), rows, numeric=(3, 4))
