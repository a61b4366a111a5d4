"""The serving stack on one map: a request goes from clients through pools, over the tiers that keep its state.

What happens in each step comes from :mod:`ds41.viz.serving_journeys` or from real requests, by way of
:func:`ds41.viz.serving_trace.journey_of`; ``js/serving.js`` only shows one step after another.

Source: report section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import chain, pairwise

from ds41.config import ModelConfig
from ds41.replay import KeptWindows
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.serving_journeys import journeys as predicted
from ds41.viz.serving_trace import BOXES, POOLS, TIERS, Flow, Journey, Kept, Step
from ds41.viz.style import readable_bytes

# Boxes: left and right edge in percent of the width, top and bottom in pixels, so that text keeps its size.
_POOL_TOP, _POOL_FOOT, _TIER_TOP = 160, 204, 366
_PLACES = {
    "clients": (0, 100, 0, 30),
    "endpoint": (0, 100, 80, 110),
    "vision": (0, 26, _POOL_TOP, _POOL_FOOT),
    "prefill": (37, 63, _POOL_TOP, _POOL_FOOT),
    "decode": (74, 100, _POOL_TOP, _POOL_FOOT),
    "engram": (0, 23.5, _TIER_TOP, 446),
    "pages": (25.5, 49, _TIER_TOP, 446),
    "windows": (51, 74.5, _TIER_TOP, 446),
    "store": (76.5, 100, _TIER_TOP, 446),
}
_HEIGHT = 447
# Columns of the edges between rows: the request goes down in the middle, the answer up on the right.
_COLUMNS = {"vision": 13, "prefill": 50, "decode": 87}
_BRIDGE = _POOL_FOOT + 20
# Where an edge leaves its pool, how far down its lane lies, and where it enters its tier. The further it goes, the
# higher its lane: edges of one pool never cross.
_LANES = {
    ("decode", "engram"): (83, 266, 14),
    ("prefill", "engram"): (46, 275, 8),
    ("decode", "pages"): (86, 284, 40),
    ("prefill", "pages"): (49, 293, 34),
    ("decode", "windows"): (89, 302, 66),
    ("prefill", "windows"): (52, 311, 60),
    ("prefill", "store"): (55, 320, 86),
    ("decode", "store"): (92, 320, 92),
}
_HEADS = {"down": "M-4-7 0 0 4-7z", "up": "M-4 7 0 0 4 7z"}
# Names that a phone has room for, where the whole name is too long.
_TERSE = {"pages": "pages", "windows": "window", "store": "store"}
_NOTES = {
    "vision": "patches → vectors",
    "prefill": "prompt → pages",
    "decode": "pages → tokens",
    "engram": "host memory",
    "pages": "GPU memory",
    "windows": "DRAM",
    "store": "SSD",
}


def serving_map(
    config: ModelConfig | None = None,
    tokens: int = 100_000,
    new_tokens: int = 2_000,
    answer_tokens: int = 500,
    picture: tuple[int, int] = (1920, 1080),
    windows: KeptWindows = "all",
    journeys: Sequence[Journey] = (),
) -> Diagram:
    """The map with the journeys that follow from ``config`` (default: the published one), and with given ones.

    Args:
        tokens, new_tokens, answer_tokens, picture, windows: as in :func:`ds41.viz.serving_journeys.journeys`.
        journeys: further ones to choose from, such as those of :func:`ds41.viz.serving_trace.journey_of`.

    Raises:
        ValueError: as in :func:`ds41.viz.serving_journeys.journeys`, or something travels where the map has no edge.
    """
    config = config or ModelConfig.flash()
    shown = (*predicted(config, tokens, new_tokens, answer_tokens, picture, windows), *journeys)
    places = {box: place for box, place in _PLACES.items() if box != "engram" or config.engram_layer_ids}
    return Diagram(
        kind="serving",
        title="A conversation's pages stay for days, its windows for minutes, and any worker can take up its next turn",
        body=_choice(shown) + _picture(shown, places, _at_the_end(shown[0])) + _walk(shown[0]),
        caption=caption(shown[0]),
        table=_table(shown),
        table_title="All journeys as a table",
        data=_data(shown),
    )


def edge_of(flow: Flow) -> str:
    """The name of a directed edge of the map."""
    return f"{flow.source}-{flow.target}"


def _data(shown: Sequence[Journey]) -> dict:
    """What the script needs; the rest of its words it takes from the table. Journeys share many sentences."""
    texts = list(dict.fromkeys(step.text for journey in shown for step in journey.steps))
    places = {text: place for place, text in enumerate(texts)}
    journeys = [
        {
            "overview": one.overview,
            "held": {kept.tier: _held(kept) for kept in one.before},
            "steps": [_state(step) | {"text": places[step.text]} for step in one.steps],
        }
        for one in shown
    ]
    return {"texts": texts, "journeys": journeys}


def _state(step: Step) -> dict:
    state = {"box": step.box, "edges": {edge_of(flow): _label(flow) for flow in step.flows}}
    held = {kept.tier: _held(kept) for kept in step.kept}
    return state | ({"held": held} if held else {}) | ({"fault": True} if step.fault else {})


def _label(flow: Flow) -> list[str]:
    """Two lines beside an edge, and the kind of what travels unless it is neutral."""
    amount = flow.amount if flow.nbytes is None else readable_bytes(flow.nbytes)
    return [amount, flow.each or flow.what, *([] if flow.kind == "neutral" else [flow.kind])]


def _held(kept: Kept | None) -> tuple[str, str]:
    return (readable_bytes(kept.nbytes), kept.stays) if kept and kept.nbytes else ("–", "")


def _at_the_end(journey: Journey) -> dict[str, Kept]:
    return {kept.tier: kept for kept in (*journey.before, *_kept(journey))}


def _kept(journey: Journey) -> list[Kept]:
    return [kept for step in journey.steps for kept in step.kept]


def _facts(step: Step) -> tuple[str, str, str]:
    """What travels in a step, what is computed, what stays."""
    travels = (f"{_exactly(flow)}, {BOXES[flow.source]} → {BOXES[flow.target]}" for flow in step.flows)
    return _joined(travels), step.computed or "–", _joined(map(_stays, step.kept))


def _exactly(flow: Flow) -> str:
    amount = f"{flow.amount} {flow.what}" if flow.nbytes is None else f"{flow.nbytes:,} B of {flow.what}"
    return f"{amount} {flow.each}" if flow.each else amount


def _stays(kept: Kept) -> str:
    return f"{BOXES[kept.tier]}: {f'{kept.nbytes:,} B, {kept.stays}' if kept.nbytes else 'nothing'}"


def _totals(journey: Journey) -> tuple[str, str, str]:
    """The facts of a whole journey: bytes between the boxes, by what they are; tokens; what is left at its end."""
    sums: dict[str, int] = {}
    for flow in (flow for step in journey.steps for flow in step.flows):
        if flow.nbytes is not None and not flow.each:
            sums[flow.what] = sums.get(flow.what, 0) + flow.nbytes
    travels = (f"{nbytes:,} B of {what}" for what, nbytes in sums.items())
    computed = (step.computed for step in journey.steps if step.computed)
    return (
        _joined(travels),
        _joined(computed),
        _joined(_stays(one) for one in {kept.tier: kept for kept in _kept(journey)}.values()),
    )


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(parts) or "–"


def caption(journey: Journey) -> str:
    """The words under the map before the first step."""
    facts = zip(("travels", "computed", "stays"), _totals(journey), strict=True)
    rows = (f"<div><dt>{name}</dt><dd>{escape(text).replace('; ', '<br>')}</dd></div>" for name, text in facts)
    return f"<p>{journey.overview}</p><dl>{''.join(rows)}</dl>"


def _picture(shown: Sequence[Journey], places: dict, held: dict[str, Kept]) -> str:
    edges = [dict.fromkeys((flow.source, flow.target) for step in one.steps for flow in step.flows) for one in shown]
    drawn = "".join(_edge(*edge, used=edge in edges[0]) for edge in dict.fromkeys(chain(*edges)))
    boxes = "".join(_box(box, place, held.get(box)) for box, place in places.items())
    tiers = ", ".join(f"{TIERS[box]} in {_NOTES[box]}" for box in places if box in TIERS)
    label = (
        f"Clients talk to the endpoint, the endpoint to the {', '.join(POOLS.values())}. Below them lie the tiers: "
        f"{tiers}. Arrows show what travels in a step; the words below say the same."
    )
    return f'<svg class="ds-stack" role="img" aria-label="{label}" width="100%" height="{_HEIGHT}">{drawn}{boxes}</svg>'


def _box(box: str, place: tuple[float, float, int, int], held: Kept | None) -> str:
    left, right, top, foot = place
    kind = ' class="ds-pool"' if box in POOLS else ""
    lines = [f'<text class="ds-name" y="{top + 19}">{_name(box)}</text>']
    if box in _NOTES:
        roomy = " ds-roomy" if box in POOLS else ""
        lines.append(f'<text class="ds-note{roomy}" y="{top + 34}">{_NOTES[box]}</text>')
    if box in TIERS:
        nbytes, stays = _held(held)
        lines += [
            f'<text class="ds-held" y="{top + 55}">{nbytes}</text>',
            f'<text class="ds-note ds-stays" y="{top + 71}">{stays}</text>',
        ]
    # Text inside stands around the middle of the box, whatever its width.
    return (
        f'<g data-box="{box}"{kind}><rect x="{left}%" y="{top}.5" width="{right - left}%" height="{foot - top}"/>'
        f'<svg x="{(left + right) / 2:g}%" overflow="visible">{"".join(lines)}</svg></g>'
    )


def _name(box: str) -> str:
    if box not in _TERSE:
        return BOXES[box]
    return f'<tspan class="ds-roomy">{BOXES[box]}</tspan><tspan class="ds-terse">{_TERSE[box]}</tspan>'


def _route(source: str, target: str) -> tuple[list[tuple[float, float]], tuple[float, float, str]]:
    """The corners of an edge from source to target, and where its label stands: place and side."""
    for pool, tier in ((source, target), (target, source)):
        if (pool, tier) in _LANES:
            out, lane, into = _LANES[pool, tier]
            corners = [(out, _POOL_FOOT), (out, lane), (into, lane), (into, _TIER_TOP)]
            return corners if pool == source else corners[::-1], (into, _TIER_TOP - 27, "middle")
    if (source, target) in (("vision", "prefill"), ("prefill", "decode")):
        out, into = _COLUMNS[source] + 6.5, _COLUMNS[target] - 7.5
        corners = [(out, _POOL_FOOT), (out, _BRIDGE), (into, _BRIDGE), (into, _POOL_FOOT)]
        return corners, ((out + into) / 2, _BRIDGE + 13, "middle")
    if "endpoint" not in (source, target) or {source, target} & set(TIERS):
        raise ValueError(f"no edge of the map leads from {source!r} to {target!r}")
    # Answers go up on the right; everything else has the column of its pool.
    upper, lower = sorted((source, target), key=lambda box: _PLACES[box][2])
    column = _COLUMNS.get(lower, _COLUMNS["decode" if target == "clients" else "prefill"])
    corners = [(column, _PLACES[upper][3]), (column, _PLACES[lower][2])]
    middle = sum(y for _, y in corners) / 2
    side = "end" if column > _COLUMNS["prefill"] else "start"
    return corners if upper == source else corners[::-1], (column, middle - 3, side)


def _edge(source: str, target: str, used: bool) -> str:
    corners, (x, y, side) = _route(source, target)
    lines = "".join(f'<line x1="{a}%" y1="{b}" x2="{c}%" y2="{d}"/>' for (a, b), (c, d) in pairwise(corners))
    (_, before), (end, y_end) = corners[-2:]
    head = _HEADS["down" if y_end > before else "up"]
    shift = {"start": 8, "end": -8, "middle": 0}[side]
    place = "" if side == "middle" else f' class="ds-{side}" x="{shift}"'
    label = "".join(f'<text{place} y="{y + 13 * row:g}"></text>' for row in (0, 1))
    # On an edge that ends in a tier the label stands on the line.
    plate = f'<rect x="-28" y="{y - 12:g}" width="56" height="28"/>' if _TIER_TOP in (y_end, corners[0][1]) else ""
    return (
        f'<g data-edge="{source}-{target}"{"" if used else " hidden"}>{lines}'
        f'<svg x="{end}%" y="{y_end}" overflow="visible"><path d="{head}"/></svg>'
        f'<svg x="{x:g}%" overflow="visible">{plate}{label}</svg></g>'
    )


def _choice(shown: Sequence[Journey]) -> str:
    options = [(str(number), journey.name, journey.note) for number, journey in enumerate(shown)]
    return f'<form class="ds-controls ds-which">{choices("journey", "Journey", options, "0")}</form>'


def _walk(journey: Journey) -> str:
    return (
        '<form class="ds-controls ds-steps"><label class="ds-field"><span>Step</span>'
        f'<input type="range" name="step" min="0" max="{len(journey.steps)}" value="0"></label>'
        '<div class="ds-buttons"><button type="button" class="ds-button" data-act="back">Back</button>'
        '<button type="button" class="ds-button" data-act="next">Next</button></div></form>'
    )


def _table(shown: Sequence[Journey]) -> str:
    rows = []
    for journey in shown:
        name = f"{journey.name}, {journey.note}"
        rows.append((name, "all", "the whole journey", *_totals(journey)))
        for number, step in enumerate(journey.steps, start=1):
            rows.append((name, number, f"{BOXES[step.box]} {step.does}", *_facts(step)))
    return table(("journey", "step", "what happens", "travels", "computed", "stays"), rows)
