"""The parts of the inference stack: what each is called, which chapters open it, and where it lies on the map.

Two layouts of one picture: wide, and narrow for phones. Across, places are in percent of the width; down, in pixels,
so that text keeps its size.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Every chapter that a part opens, by its file in the book, with the name that readers hear.
CHAPTERS = {
    "01-why-bytes": "Why bytes",
    "02-ced": "The split",
    "03-csa2": "Shared sparse attention",
    "04-fp4": "FP4 storage",
    "05-ledger": "The byte ledger",
    "06-replay": "Bounded replay",
    "07-hyper-connections": "Hyper-connections",
    "08-moe": "Experts",
    "09-engram": "Engram",
    "10-dspark": "DSpark",
    "11-vision": "Seeing",
    "12-kernels": "Kernels",
    "13-serving": "The serving stack",
    "14-outgrowing": "Outgrowing one GPU",
    "15-training": "Training",
    "16-what-breaks": "What could break",
    "17-errata": "What the article got right",
}


class Place(NamedTuple):
    """Left and right edge in percent, top and height in pixels."""

    left: float
    right: float
    top: int
    height: int


@dataclass(frozen=True)
class Part:
    """One part of the stack.

    chapters: the first is where its name leads. picture: what is drawn in it, beside words: the layers that run there
    ("layers"), a bar of a page ("page") or a ring ("ring"); "frame" for a pool, which lies around parts.
    """

    key: str
    name: str
    chapters: tuple[str, ...]
    wide: Place
    narrow: Place
    picture: str = ""


# Lanes lie behind everything and say where it is.
LANES = (
    ("GPU", Place(0, 100, 74, 390), Place(0, 100, 92, 748)),
    ("Host memory", Place(0, 100, 526, 100), Place(0, 100, 902, 140)),
    ("SSD", Place(0, 100, 672, 80), Place(0, 100, 1090, 100)),
)
HEIGHTS = {"wide": 752, "narrow": 1190}
# In the order in which a reader tabs through them.
PARTS = (
    Part("client", "Client", ("01-why-bytes",), Place(0, 18, 0, 34), Place(0, 26, 0, 34)),
    Part("endpoint", "Endpoint", ("13-serving",), Place(42, 100, 0, 34), Place(54, 100, 0, 34)),
    Part("vision", "Vision pool", ("11-vision",), Place(1, 17, 104, 76), Place(2, 37, 124, 80)),
    Part("mixing", "Hyper-connections", ("07-hyper-connections",), Place(1, 22, 198, 68), Place(45, 90, 102, 66)),
    Part("experts", "Experts", ("08-moe",), Place(1, 22, 270, 58), Place(45, 90, 172, 48)),
    Part("kernels", "Kernels", ("12-kernels",), Place(1, 22, 332, 58), Place(45, 90, 224, 48)),
    Part("gpus", "More GPUs", ("14-outgrowing",), Place(1, 22, 394, 58), Place(45, 90, 276, 48)),
    Part("prefill", "Prefill pool", ("13-serving",), Place(26, 58, 104, 350), Place(0, 41.5, 336, 494), "frame"),
    Part("encoder", "Encoder", ("02-ced", "03-csa2"), Place(27, 57, 134, 78), Place(1, 40.5, 366, 114), "layers"),
    Part("tail", "Decoder tail", ("06-replay", "02-ced"), Place(27, 57, 217, 78), Place(1, 40.5, 485, 114), "layers"),
    Part(
        "keys",
        "HBM pages",
        ("03-csa2", "04-fp4", "05-ledger"),
        Place(27, 57, 304, 78),
        Place(1, 40.5, 608, 132),
        "page",
    ),
    Part("rings", "Window rings", ("06-replay",), Place(27, 57, 387, 60), Place(1, 40.5, 745, 76), "ring"),
    Part("decode", "Decode pool", ("13-serving",), Place(68, 100, 104, 350), Place(58.5, 100, 336, 494), "frame"),
    Part("layers", "All layers", ("03-csa2", "02-ced"), Place(69, 99, 134, 96), Place(59.5, 99, 366, 114), "layers"),
    Part("drafter", "Drafter", ("10-dspark",), Place(69, 99, 235, 60), Place(59.5, 99, 485, 114)),
    Part("read", "HBM pages", ("12-kernels", "05-ledger"), Place(69, 99, 304, 78), Place(59.5, 99, 608, 132), "page"),
    Part("turning", "Window rings", ("06-replay",), Place(69, 99, 387, 60), Place(59.5, 99, 745, 76), "ring"),
    Part("engram", "Engram tables", ("09-engram",), Place(42, 63, 534, 84), Place(24, 57, 910, 108)),
    Part(
        "windows", "Window pool", ("06-replay", "13-serving"), Place(76, 99, 534, 84), Place(66, 99, 910, 108), "ring"
    ),
    Part(
        "store", "Prefix store", ("13-serving", "01-why-bytes"), Place(26, 99, 680, 64), Place(1, 99, 1098, 72), "page"
    ),
)
BY_KEY = {part.key: part for part in PARTS}
# Chapters about the whole, which have no place on the map.
AROUND = ("01-why-bytes", "05-ledger", "15-training", "16-what-breaks", "17-errata")


class Route(NamedTuple):
    """Corners of an arrow, and its label: where its middle is, and which side of that point it stands on."""

    corners: tuple[tuple[float, int], ...]
    x: float
    y: int
    side: str = "middle"


def _layout(name: str) -> dict[str, Route]:
    """The arrows of one layout; both leave and enter at the same sides of the boxes."""
    wide = name == "wide"
    place = {key: getattr(part, name) for key, part in BY_KEY.items()}
    foot = {key: box.top + box.height for key, box in place.items()}
    pool, top, host, disk = foot["prefill"], place["prefill"].top, place["engram"].top, place["store"].top
    # Columns of the edges below the pools: pages up and down, rows of the tables, windows; then the same for decode.
    up, down, rows, windows = (29, 35, 48, 55) if wide else (3, 21, 30, 38)
    rows_too, stored, leave = (70, 73, 94) if wide else (60, 63, 88)
    table, pooled = (59, 81) if wide else (51, 71)
    high, low = pool + 18, pool + 30
    pixels, ids, answer = (9, 50, 90) if wide else (12, 40, 93)
    client, door = place["client"].right, place["endpoint"].left
    between, lane, turn = (client + door) / 2, 56, 76
    across = place["keys"].top + 44
    gap = (place["prefill"].right + place["decode"].left) / 2
    seen = place["vision"].top + 31
    asked = [(door + 6, 34), (door + 6, turn), (ids, turn), (ids, top)]
    vectors = ((place["vision"].right, seen), (place["prefill"].left, seen))
    beside = ((18, foot["vision"]), (18, top))
    return {
        "client-endpoint": Route(((client, 8), (door, 8)), between, 34),
        "endpoint-client": Route(((door, 18), (client, 18)), between, 34),
        "endpoint-vision": Route(
            ((door + 2, 34), (door + 2, lane), (pixels, lane), (pixels, place["vision"].top)),
            pixels,
            lane + 18,
            "start",
        ),
        "endpoint-prefill": Route(((ids, 34), (ids, top)), ids, 56, "start")
        if wide
        else Route(tuple(asked), ids, top - 32, "end"),
        "decode-endpoint": Route(((answer, top), (answer, 34)), answer, 56, "end"),
        "vision-prefill": Route(vectors, 21.5, seen - 20) if wide else Route(beside, 18, top - 82, "start"),
        "prefill-decode": Route(((place["prefill"].right, across), (place["decode"].left, across)), gap, across - 20),
        "engram-prefill": Route(((rows, host), (rows, pool)), rows, host - 26),
        "engram-decode": Route(((table, host), (table, low), (rows_too, low), (rows_too, pool)), table, host - 26),
        "windows-prefill": Route(((pooled, host), (pooled, high), (windows, high), (windows, pool)), pooled, host - 26),
        "decode-windows": Route(((leave, pool), (leave, host)), leave, host - 26),
        "store-prefill": Route(
            ((up, disk), (up, pool)), up, disk - 32 if wide else disk - 64, "end" if wide else "start"
        ),
        "prefill-store": Route(((down, pool), (down, disk)), down, disk - 32, "start"),
        "decode-store": Route(((stored, pool), (stored, disk)), stored, disk - 32, "start" if wide else "end"),
    }


ROUTES = {name: _layout(name) for name in HEIGHTS}
