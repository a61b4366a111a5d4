"""The boxes and arrows of the map of the stack, as they stand before any script runs.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

from ds41.config import ModelConfig
from ds41.ledger import by_component
from ds41.systems import System
from ds41.viz.layer_map import halves
from ds41.viz.stack_flows import ABSENT, RESTS, WORKS, State, Travel, label
from ds41.viz.stack_links import page
from ds41.viz.stack_parts import CHAPTERS, HEIGHTS, PARTS, ROUTES, Part, Place, Route

AT_REST, NOTHING = (RESTS, RESTS), ("", "", RESTS)
_HEADS = {"down": "M-4-7 0 0 4-7z", "up": "M-4 7 0 0 4 7z", "right": "M-7-4 0 0-7 4z", "left": "M7-4 0 0 7 4z"}
_STATES = {WORKS: "works", RESTS: "rests", ABSENT: "not there"}
_LAYERS = {"full": "layer that owns keys", "reindex": "selects anew", "reuse": "borrows", "window": "window only"}


def place(wide: Place, narrow: Place) -> str:
    """Both places of a box as the variables that the style sheet takes them from."""

    def edges(prefix: str, place: Place) -> str:
        return (
            f"--{prefix}x:{place.left:g}%;--{prefix}y:{place.top}px;"
            f"--{prefix}w:{place.right - place.left:g}%;--{prefix}h:{place.height}px"
        )

    return f"{edges('', wide)};{edges('n', narrow)}"


def box(part: Part, state: State, pictures: Mapping[str, str]) -> str:
    """A part with its links, its picture and its note; a pool has a name only."""
    how, note = state.parts.get(part.key, AT_REST)
    kind, inside = "ds-pool", ""
    if part.picture != "frame":
        kind, inside = "ds-part", f'<p class="ds-note">{note}</p>'
        if part.key in pictures:
            inside = f'<span class="ds-picture" aria-hidden="true">{pictures[part.key]}</span>{inside}'
    return (
        f'<div class="{kind}" data-part="{part.key}" data-state="{how}" style="{place(part.wide, part.narrow)}">'
        f"{_links(part)}{inside}</div>"
    )


def _links(part: Part) -> str:
    """The part's name leads to its chapter, numbers to further ones."""
    first, *others = part.chapters
    ring = '<i class="ds-swatch ds-ring" aria-hidden="true"></i>' if part.picture == "ring" else ""
    links = (
        f'<a href="{page(first)}" title="{_chapter(first)}">{ring}<span class="ds-name">{part.name}</span> '
        f"<small>{first[:2]}</small></a>"
    )
    links += "".join(
        f'<a class="ds-more" href="{page(one)}" title="{_chapter(one)}" aria-label="{one[:2]}, {CHAPTERS[one]}">'
        f"<small>{one[:2]}</small></a>"
        for one in others
    )
    return f'<p class="ds-head">{links}</p>'


def _chapter(chapter: str) -> str:
    return f"Chapter {chapter[:2]}, {CHAPTERS[chapter]}"


def drawn(model: ModelConfig | System) -> dict[str, str]:
    """What is drawn in the parts: the layers that run, which of them own keys; and a token's bytes, main and index."""
    if isinstance(model, System):
        main, index = (
            sum(p.bytes_per_token for p in model.planes if p.component == kind) for kind in ("main", "index")
        )
        sparse, dense = (plane.layers for plane in model.planes if plane.component == "main")
        plain = model.window.layers - sparse - dense
        every = _cells(["window"] * plain + [("full", "dense")[i % 2] for i in range(sparse + dense)])
        strips = {"encoder": every, "tail": "", "layers": every}
    else:
        main, index = (row.bytes for row in by_component(model))
        modes = {half: _cells([plan.mode for plan in plans]) for half, plans in halves(model)}
        strips = {"encoder": modes["encoder"], "tail": modes["decoder"], "layers": "".join(modes.values())}
    bar = "".join(
        f'<i class="ds-{kind}" style="flex:{float(size):g}"></i>' for kind, size in (("main", main), ("index", index))
    )
    layers = {key: f'<span class="ds-cells">{cells}</span>' for key, cells in strips.items()}
    pages = {part.key: f'<span class="ds-bar">{bar}</span>' for part in PARTS if part.picture == "page"}
    return layers | pages


def _cells(modes: Sequence[str]) -> str:
    cells = "".join(f'<i class="ds-{mode}-cell"></i>' for mode in modes)
    return f"<span>{cells}</span>"


def legend() -> str:
    """What frames and cells mean."""
    items = [f'<i class="ds-box" data-state="{how}"></i>{name}' for how, name in _STATES.items()]
    items += [f'<span class="ds-cells">{_cells((mode, mode))}</span>{name}' for mode, name in _LAYERS.items()]
    return f'<ul class="ds-legend">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def arrow_layer(layout: str, state: State) -> str:
    """The arrows of one layout, labelled where something travels."""
    labels = edge_labels(state.travels)
    lines = "".join(_arrow(edge, route, labels.get(edge)) for edge, route in ROUTES[layout].items())
    return (
        f'<svg class="ds-arrows ds-{layout}" aria-hidden="true" width="100%" height="{HEIGHTS[layout]}">{lines}</svg>'
    )


def _arrow(edge: str, route: Route, shown: tuple[str, str, str] | None) -> str:
    lines = "".join(
        f'<line x1="{a:g}%" y1="{b}" x2="{c:g}%" y2="{d}"></line>' for (a, b), (c, d) in pairwise(route.corners)
    )
    (from_x, from_y), (to_x, to_y) = route.corners[-2:]
    ways = ("down" if to_y > from_y else "up") if to_y != from_y else ("right" if to_x > from_x else "left")
    shift = {"start": 8, "end": -8, "middle": 0}[route.side]
    amount, what, kind = shown or ("", "", "rests")
    texts = "".join(
        f'<text class="ds-{route.side}" x="{shift}" y="{route.y + 13 * row}">{line}</text>'
        for row, line in enumerate((amount, what))
    )
    return (
        f'<g data-edge="{edge}" data-kind="{kind}">{lines}<svg x="{to_x:g}%" y="{to_y}" overflow="visible">'
        f'<path d="{_HEADS[ways]}"></path></svg><svg x="{route.x:g}%" overflow="visible">{texts}</svg></g>'
    )


def edge_labels(travels: Sequence[Travel]) -> dict[str, tuple[str, str, str]]:
    """By arrow: two lines and a kind. What shares an arrow stands together in ``travels``."""
    return {edge: label(list(group)) for edge, group in groupby(travels, key=lambda one: one.edge)}
