"""How one program of the attention kernel walks the page table: index, page, address, loads, registers.

The keys, addresses and bytes are those of a small cache that was really filled (:mod:`ds41.viz.page_trace`); the
script draws any key of it in the way that :mod:`ds41.viz.page_views` draws the first.

Source: ds41's own.
"""

from __future__ import annotations

from ds41.cache.layout import PageLayout
from ds41.config import ModelConfig
from ds41.ledger import Storage
from ds41.viz.bit_explorer import show
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.page_trace import KEY_TILE, LENGTHS, LOAD, SPLITS, WALKED, WINDOW, Key, Walk, trace_walks
from ds41.viz.page_views import (
    address_view,
    caption,
    cell_class,
    cell_label,
    index_view,
    loads_view,
    registers_view,
    table_view,
)


def page_walk(config: ModelConfig | None = None, query: int = 0, key: int = 40) -> Diagram:
    """The walk of two queries, for the record sizes and page layout of ``config`` (default: the published one).

    Args:
        query: the one shown first, 0 or 1. key: its key shown first: 0 to 31 are window rows, 32 to 95 selected.

    Raises:
        ValueError: ``config`` keeps no global KV, has a window of fewer than 32 rows, or there is no such query or key.
    """
    config = config or ModelConfig.flash()
    if not config.kv_source_layer_ids:
        raise ValueError("kv_source_layer_ids is empty: this configuration keeps no global KV to read")
    if config.sliding_window < WINDOW:
        raise ValueError(f"sliding_window is {config.sliding_window}; the walk needs {WINDOW} rows or more")
    if not 0 <= query < WALKED:
        raise ValueError(f"query is {query}; expected 0 to {WALKED - 1}")
    data = walk_data(config)
    keys = len(data["walks"][query]["keys"])
    if not 0 <= key < keys:
        raise ValueError(f"key is {key}; expected 0 to {keys - 1}")
    state = {"query": query, "key": key}
    return Diagram(
        kind="pages",
        title="A program walks its keys in tiles: index, page, address, bytes, and then everything stays in registers",
        body=_body(data, state),
        caption=caption(data, state),
        table=_table(data),
        table_title="All tiles as a table",
        data={**data, "first": state},
        modules=("codec", "strips"),
    )


def walk_data(config: ModelConfig) -> dict:
    """What the figure draws from."""
    layer, layout, storage = config.kv_source_layer_ids[-1], PageLayout.of(config), Storage.published(config)
    source, walks = layout.source(layer), trace_walks(config)
    tiles = len(walks[0].tiles)
    return {
        "layer": layer,
        "tile": KEY_TILE,
        "part": tiles // SPLITS,
        "windowTiles": WINDOW // KEY_TILE,
        "load": LOAD,
        "slots": config.sliding_window,
        "pages": 1 + max(page for walk in walks for page in walk.table),
        "pool": sum(layout.pages_for(length) for length in LENGTHS),
        "page": {
            "bytes": layout.nbytes,
            "entries": source.entries,
            "ratio": source.ratio,
            "codes": source.main_codes.offset,
            "scales": source.main_scales.offset,
            "planes": [
                [plane.nbytes, kind, one.layer]
                for one in layout.sources
                for plane, kind in zip(one.planes, ("main", "main", "index", "index"), strict=True)
            ],
        },
        "records": {
            "main": [source.main_codes.row_bytes, source.main_scales.row_bytes],
            "window": [config.head_dim, storage.window.nbytes - config.head_dim],
        },
        "walks": [_walk_data(walk) for walk in walks],
    }


def _walk_data(walk: Walk) -> dict:
    return {
        "sequence": walk.sequence,
        "tokens": LENGTHS[walk.sequence],
        "table": list(walk.table),
        "keys": [_key_data(key) for tile in walk.tiles for key in tile],
        "running": [
            [_rounded(state.largest), _rounded(state.total), *map(_rounded, state.sums)] for state in walk.running
        ],
        "output": [_rounded(value) for value in walk.output],
    }


def _key_data(key: Key) -> list:
    return [key.kind, key.token, key.page, key.place, key.codes, key.scales, [*key.first], [*key.first_scales]]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _body(data: dict, state: dict) -> str:
    steps = (
        ("index", "Which key", index_view(data, state)),
        ("table", "Which page", table_view(data, state)),
        ("address", "Which bytes", address_view(data, state)),
        ("loads", "Loaded", loads_view(data, state)),
        ("registers", "In registers", registers_view(data, state)),
    )
    rows = "".join(
        f'<div class="ds-step"><p class="ds-what">{name}</p><div data-out="{out}">{view}</div></div>'
        for out, name, view in steps
    )
    return f"{_keys(data, state)}{_legend()}{rows}{_controls(data, state)}"


def _keys(data: dict, state: dict) -> str:
    walk, strips = data["walks"][state["query"]], ""
    tiles = len(walk["keys"]) // data["tile"]
    for tile in range(tiles):
        if tile % data["part"] == 0:
            strips += f'<p class="ds-label">Split {tile // data["part"]}: one program</p>'
        first = tile * data["tile"]
        cells = "".join(_cell(data, state, number) for number in range(first, first + data["tile"]))
        strips += f'<div class="ds-strip">{cells}</div>'
    return f'<div class="ds-keys" role="group" aria-label="Keys of the query">{strips}</div>'


def _cell(data: dict, state: dict, number: int) -> str:
    kind, token, *_ = data["walks"][state["query"]]["keys"][number]
    pressed = str(number == state["key"]).lower()
    return (
        f'<button type="button" class="{cell_class(data, state, number)}" data-key="{number}" aria-pressed="{pressed}" '
        f'aria-label="{cell_label(data, state, number)}">{"" if kind == "none" else token}</button>'
    )


def _legend() -> str:
    return (
        '<ul class="ds-legend" aria-hidden="true"><li><i class="ds-cell ds-window-key"></i>window row</li>'
        '<li><i class="ds-cell ds-main-key"></i>selected main entry</li>'
        '<li><i class="ds-cell ds-none-key"></i>no entry: masked</li>'
        '<li><i class="ds-cell ds-main-key ds-now"></i>loaded together, as one tile</li></ul>'
    )


def _controls(data: dict, state: dict) -> str:
    options = [
        (str(i), f"Sequence {walk['sequence']}", f"{walk['tokens']} tokens") for i, walk in enumerate(data["walks"])
    ]
    buttons = "".join(
        f'<button type="button" class="ds-button" data-act="{act}">{name}</button>'
        for act, name in (("back", "Tile back"), ("next", "Next tile"))
    )
    return (
        f'<form class="ds-controls">{choices("query", "Query: the newest token of", options, str(state["query"]))}'
        f'<div class="ds-buttons">{buttons}</div></form>'
    )


def _table(data: dict) -> str:
    rows = []
    for walk in data["walks"]:
        for tile, (largest, total, first, *_) in enumerate(walk["running"]):
            keys = walk["keys"][tile * data["tile"] : (tile + 1) * data["tile"]]
            kinds = [key for key in keys if key[0] != "none"]
            pages = sorted({key[2] for key in keys if key[0] == "main"})
            where = ", ".join(map(str, pages)) if pages else "ring" if kinds else "–"
            numbers = (show(largest, 4), show(total, 4), show(first, 3))
            rows.append((walk["sequence"], tile, tile // data["part"], len(kinds), where, *numbers))
    header = ("sequence", "tile", "split", "keys", "pages", "maximum", "sum", "accumulator 0")
    return table(header, rows, numeric=(0, 1, 2, 3, 5, 6, 7))
