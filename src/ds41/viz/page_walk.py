"""How one program of the attention kernel walks the page table: index, page, address, loads, registers.

The keys, addresses and bytes are those of a small cache that was really filled (:mod:`ds41.viz.page_trace`); the
script draws any key of it in the way that this file draws the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ds41.cache.layout import PageLayout
from ds41.config import ModelConfig
from ds41.ledger import Storage
from ds41.small_floats import e2m1_values, e4m3_values, e8m0_values
from ds41.viz.bit_explorer import show
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.page_trace import KEY_TILE, LENGTHS, LOAD, SPLITS, WALKED, WINDOW, Key, Walk, trace_walks

# Bytes that the picture takes apart.
_SHOWN_BYTES = 4
_KINDS = {"window": "window row", "main": "main entry", "none": "no entry"}


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
        f'<div class="ds-step"><h4>{name}</h4><div data-out="{out}">{view}</div></div>' for out, name, view in steps
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


def cell_class(data: dict, state: dict, number: int) -> str:
    kind = data["walks"][state["query"]]["keys"][number][0]
    now = " ds-now" if number // data["tile"] == state["key"] // data["tile"] else ""
    return f"ds-cell ds-{kind}-key{now}"


def cell_label(data: dict, state: dict, number: int) -> str:
    kind, token, *_ = data["walks"][state["query"]]["keys"][number]
    return f"Tile {number // data['tile']}, {_KINDS[kind]}" + ("" if kind == "none" else f", token {token}")


def _legend() -> str:
    return (
        '<ul class="ds-legend" aria-hidden="true"><li><i class="ds-cell ds-window-key"></i>window row</li>'
        '<li><i class="ds-cell ds-main-key"></i>selected main entry</li>'
        '<li><i class="ds-cell ds-none-key"></i>no entry: masked</li>'
        '<li><i class="ds-cell ds-main-key ds-now"></i>loaded together, as one tile</li></ul>'
    )


def index_view(data: dict, state: dict) -> str:
    walk, number = data["walks"][state["query"]], state["key"]
    kind, token, page, place, *_ = walk["keys"][number]
    if kind == "window":
        return f"<code>choice[{number}] = {place}</code>, the slot of token {token} in the ring"
    column = number - data["windowTiles"] * data["tile"]
    entry = -1 if kind == "none" else token // data["page"]["ratio"]
    end = ", nothing more to select" if kind == "none" else f", an entry of layer {data['layer']}"
    return f"<code>selected[{column}] = {entry}</code>{end}"


def table_view(data: dict, state: dict) -> str:
    walk = data["walks"][state["query"]]
    kind, token, page, *_ = walk["keys"][state["key"]]
    column = token // data["page"]["ratio"] // data["page"]["entries"] if kind == "main" else -1
    cells = "".join(
        f'<i class="ds-entry{" ds-hit-box" if i == column else ""}">{"–" if held < 0 else held}</i>'
        for i, held in enumerate(walk["table"])
    )
    strip = f'<span class="ds-entries" aria-hidden="true">{cells}</span>'
    if kind != "main":
        why = "A ring needs no page table." if kind == "window" else "The mask stands for page -1: nothing is loaded."
        return f"{why}{strip}"
    entry = token // data["page"]["ratio"]
    where = f"{entry} // {data['page']['entries']}"
    return f"<code>page_table[{walk['sequence']}, {where}] = {page}</code>{strip}"


def address_view(data: dict, state: dict) -> str:
    walk, page_data = data["walks"][state["query"]], data["page"]
    kind, token, page, place, codes, *_ = walk["keys"][state["key"]]
    if kind == "none":
        return "No address."
    width = data["records"][kind][0]
    if kind == "window":
        return f"<code>{place} × {width} = {codes:,}</code>{_ring(data, walk, place)}"
    sum_of = f"{page} × {page_data['bytes']:,} + {page_data['codes']:,} + {place} × {width}"
    return f"<code>{sum_of} = {codes:,}</code>{_pool(data, walk, page)}{_page(data, place)}"


def _ring(data: dict, walk: dict, place: int) -> str:
    slot = place - walk["sequence"] * data["slots"]
    mark = f'<i class="ds-at" style="left:{100 * slot / data["slots"]:.2f}%"></i>'
    return f'<span class="ds-bar ds-slots" aria-hidden="true">{mark}</span>'


def _pool(data: dict, walk: dict, page: int) -> str:
    def boxed(number: int) -> str:
        return " ds-hit-box" if number == page else " ds-own" if number in walk["table"] else ""

    cells = "".join(f'<i class="ds-entry{boxed(number)}">{number}</i>' for number in range(data["pool"]))
    return f'<span class="ds-entries ds-pool" aria-hidden="true">{cells}</span>'


def _page(data: dict, place: int) -> str:
    page = data["page"]
    parts = "".join(f'<i class="ds-{kind}" style="flex-grow:{size}"></i>' for size, kind in planes_of(data))
    marks = "".join(
        f'<i class="ds-at" style="left:{100 * (page[plane] + place * width) / page["bytes"]:.2f}%"></i>'
        for plane, width in zip(("codes", "scales"), data["records"]["main"], strict=True)
    )
    return f'<span class="ds-bar" aria-hidden="true">{parts}{marks}</span>'


def planes_of(data: dict) -> list[tuple[int, str]]:
    """A page's planes from its first byte to its last: bytes, and what they hold; codes and scales taken together."""
    planes = groupby(data["page"]["planes"], key=lambda plane: (plane[2], plane[1]))
    return [(sum(size for size, *_ in group), kind) for (_, kind), group in planes]


def loads_view(data: dict, state: dict) -> str:
    kind, *_, first, scales = data["walks"][state["query"]]["keys"][state["key"]]
    if kind == "none":
        return "No loads; the lanes of this key hold zeros."
    codes, scale_bytes = (size // data["load"] for size in data["records"][kind])
    boxes = "".join(f'<i class="ds-load{" ds-hit-box" if i == 0 else ""}"></i>' for i in range(codes))
    boxes += '<i class="ds-load ds-scale"></i>' * scale_bytes
    text = f"{codes} × {data['load']} bytes of codes, {scale_bytes} × {data['load']} of scales. The first load:"
    return f'<span class="ds-loads" aria-hidden="true">{boxes}</span>{text} <code class="ds-hex">{_hex(first)}</code>'


def _hex(values: Sequence[int]) -> str:
    return " ".join(f"{value:02X}" for value in values)


def registers_view(data: dict, state: dict) -> str:
    walk, tile = data["walks"][state["query"]], state["key"] // data["tile"]
    return decoded_view(walk["keys"][state["key"]]) + _running(walk["running"][tile], tile)


def decoded_view(key: Sequence) -> str:
    """The first bytes of a key taken apart: code bits, numbers, and the numbers times their scale."""
    kind, *_, first, scales = key
    if kind == "none":
        return "<p>No key: its weight is 0.</p>"
    elements, scale = (e2m1_values(), e4m3_values()) if kind == "main" else (e4m3_values(), e8m0_values())
    factor = scale[scales[0]]
    cells = ""
    for byte in first[:_SHOWN_BYTES]:
        codes = (byte & 15, byte >> 4) if kind == "main" else (byte,)
        bits = " ".join(f"{code:0{4 if kind == 'main' else 8}b}" for code in codes)
        values = ", ".join(show(elements[code] * factor, 3) for code in codes)
        cells += f"<li><code>{bits}</code><b>{values}</b></li>"
    name = "E4M3" if kind == "main" else "E8M0"
    head = f"<p>Scale byte <code>{scales[0]:02X}</code> ({name}) is {show(factor, 4)}; codes and values:</p>"
    return f'{head}<ul class="ds-decoded">{cells}</ul>'


def _running(running: Sequence[float], tile: int) -> str:
    largest, total, *sums = running
    values = ", ".join(show(value, 3) for value in sums)
    return (
        f"<p>After tile {tile}, head 0: maximum <b>{show(largest, 4)}</b>, sum <b>{show(total, 4)}</b>, "
        f"accumulator <b>{values}, …</b></p>"
    )


def caption(data: dict, state: dict) -> str:
    """The sentence for a key and its tile."""
    walk, number = data["walks"][state["query"]], state["key"]
    kind, token, page, *_ = walk["keys"][number]
    tile = number // data["tile"]
    split, last = tile // data["part"], tile % data["part"] == data["part"] - 1
    keys = [key for key in walk["keys"][tile * data["tile"] : (tile + 1) * data["tile"]] if key[0] != "none"]
    pages = sorted({key[2] for key in keys if key[0] == "main"})
    if not keys:
        what = "none of its places holds an entry, so the tile changes nothing"
    elif pages:
        held = "an entry" if len(keys) == 1 else f"{len(keys)} entries"
        listed = f"page {pages[0]}" if len(pages) == 1 else f"pages {', '.join(map(str, pages))}"
        what = f"{held} from {listed}"
    else:
        what = f"{len(keys)} rows of the ring"
    text = f"<b>Tile {tile}, split {split}</b>: {what}. "
    if last and split == len(walk["running"]) // data["part"] - 1:
        values = ", ".join(show(value, 3) for value in walk["output"])
        return text + f"The last program is done too; the combine adds the sink and writes <b>{values}, …</b>"
    if last:
        return text + "The program is done: maximum, sum and accumulator go to memory, for the combine."
    return text + "Nothing is written to memory yet."


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
