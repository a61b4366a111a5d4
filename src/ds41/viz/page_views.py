"""The parts of the page walk that change from key to key. The script draws each of them in the same words.

``data`` is what :func:`ds41.viz.page_walk.walk_data` gives, ``state`` the query and the key that are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ds41.small_floats import e2m1_values, e4m3_values, e8m0_values
from ds41.viz.bit_explorer import show

# Bytes that the picture takes apart.
_SHOWN_BYTES = 4
_KINDS = {"window": "window row", "main": "main entry", "none": "no entry"}


def cell_class(data: dict, state: dict, number: int) -> str:
    kind = data["walks"][state["query"]]["keys"][number][0]
    now = " ds-now" if number // data["tile"] == state["key"] // data["tile"] else ""
    return f"ds-cell ds-{kind}-key{now}"


def cell_label(data: dict, state: dict, number: int) -> str:
    kind, token, *_ = data["walks"][state["query"]]["keys"][number]
    return f"Tile {number // data['tile']}, {_KINDS[kind]}" + ("" if kind == "none" else f", token {token}")


def index_view(data: dict, state: dict) -> str:
    walk, number = data["walks"][state["query"]], state["key"]
    kind, token, _, place, *_ = walk["keys"][number]
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
    label = f"<small>Row {walk['sequence']} of the page table:</small>"
    strip = f'{label}<span class="ds-entries" aria-hidden="true">{cells}</span>'
    if kind != "main":
        why = "A ring needs no page table." if kind == "window" else "The mask stands for page -1: nothing is loaded."
        return f"{why}{strip}"
    entry = token // data["page"]["ratio"]
    where = f"{entry} // {data['page']['entries']}"
    return f"<code>page_table[{walk['sequence']}, {where}] = {page}</code>{strip}"


def address_view(data: dict, state: dict) -> str:
    walk, page_data = data["walks"][state["query"]], data["page"]
    kind, _, page, place, codes, *_ = walk["keys"][state["key"]]
    if kind == "none":
        return "No address."
    width = data["records"][kind][0]
    if kind == "window":
        return f"<code>{place} × {width} = {codes:,}</code>{_ring(data, walk, place)}"
    sum_of = f"{page} × {page_data['bytes']:,} + {page_data['codes']:,} + {place} × {width}"
    return f"<code>{sum_of} = {codes:,}</code>{_pool(data, walk, page)}{_page(data, place)}"


def _ring(data: dict, walk: dict, place: int) -> str:
    slot = place - walk["sequence"] * data["slots"]
    mark = f'<i class="ds-at" style="left:calc(100% * {slot} / {data["slots"]})"></i>'
    label = f"<small>This sequence’s ring of {data['slots']} slots:</small>"
    return f'{label}<span class="ds-bar ds-slots" aria-hidden="true">{mark}</span>'


def _pool(data: dict, walk: dict, page: int) -> str:
    def boxed(number: int) -> str:
        return " ds-hit-box" if number == page else " ds-own" if number in walk["table"] else ""

    cells = "".join(f'<i class="ds-entry{boxed(number)}">{number}</i>' for number in range(data["pool"]))
    label = "<small>The pool; framed pages are this sequence’s:</small>"
    return f'{label}<span class="ds-entries" aria-hidden="true">{cells}</span>'


def _page(data: dict, place: int) -> str:
    page = data["page"]
    parts = "".join(f'<i class="ds-{kind}" style="flex-grow:{size}"></i>' for size, kind in planes_of(data))
    marks = "".join(
        f'<i class="ds-at" style="left:calc(100% * {page[plane] + place * width} / {page["bytes"]})"></i>'
        for plane, width in zip(("codes", "scales"), data["records"]["main"], strict=True)
    )
    label = f"<small>The page, to scale; marks at codes and scales of row {place}:</small>"
    return f'{label}<span class="ds-bar" aria-hidden="true">{parts}{marks}</span>'


def planes_of(data: dict) -> list[tuple[int, str]]:
    """A page's planes from its first byte to its last: bytes, and what they hold; codes and scales taken together."""
    planes = groupby(data["page"]["planes"], key=lambda plane: (plane[2], plane[1]))
    return [(sum(size for size, *_ in group), kind) for (_, kind), group in planes]


def loads_view(data: dict, state: dict) -> str:
    kind, *_, first, _ = data["walks"][state["query"]]["keys"][state["key"]]
    if kind == "none":
        return "No loads; the lanes of this key hold zeros."
    codes, scale_bytes = (-(-size // data["load"]) for size in data["records"][kind])
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
