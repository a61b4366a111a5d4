"""The handout's pictures: whose keys each layer reads, a token's bytes by owner, the bytes of three records.

Everything is drawn at one unit a CSS pixel, in marks that a grey print keeps apart: main KV filled, index keys with
battlements, windows hollow, scales white.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from workshop_handout_numbers import number

from ds41.config import LayerPlan, ModelConfig
from ds41.language import say
from ds41.ledger import Storage
from ds41.records import Record
from ds41.viz.layer_map import MARKS, Owner, bytes_per_strip, halves, owners_of

WIDTH = 718
"""Pixels between the margins of the page."""
_CELL = 22
_BAR = 11
_GAP = 4


@dataclass(frozen=True)
class Block:
    """A length of bytes. kind: "main", "index", "window", or "scales" of one of them."""

    kind: str
    owner: str
    width: float

    def draw(self, x: float, y: float) -> str:
        """The block with its upper left corner at (x, y), ``_BAR`` high."""
        if self.kind == "index":
            return f'<path class="index" d="{notched(x, y, self.width)}"/>'
        # A line lies half outside what it goes around.
        if self.kind in ("window", "scales"):
            x, y, width, height = x + 0.75, y + 0.75, self.width - 1.5, _BAR - 1.5
        else:
            width, height = self.width, _BAR
        kind = f"hollow {self.owner}-line" if self.kind in ("window", "scales") else self.kind
        return f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" width="{max(0.1, width):.2f}" height="{height:g}"/>'


def notched(x: float, y: float, width: float) -> str:
    """The outline of an index key's block, a bar with battlements."""
    teeth = max(1, round(width / 7))
    step = width / (2 * teeth)
    edge = "".join(f"v-4h{step:.3f}v4h{step:.3f}" for _ in range(teeth))
    return f"M{x:.2f} {y + _BAR:g}V{y + 4:g}{edge}V{y + _BAR:g}Z"


def svg(label: str, height: float, content: str) -> str:
    """A picture as wide as the page; ``label`` says what it shows."""
    return (
        f'<svg width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(label)}">{content}</svg>'
    )


def owner_bar(config: ModelConfig) -> str:
    """One token's bytes, owner after owner, each split into main KV and index key."""
    owners = owners_of(config)
    pixels = WIDTH / sum(owner.total for owner in owners)
    content, x = "", 0.0
    for owner in owners:
        main, index = owner.main * pixels, owner.index * pixels
        content += Block("main", "main", main - 1).draw(x, 0) + Block("index", "index", index - 2).draw(x + main, 0)
        name = f"{number(owner.total)} B = {number(owner.main)} + {number(owner.index)}"
        content += f'<text x="{x:.2f}" y="{_BAR + 14}">{escape(name)}</text>'
        x += main + index
    sizes = " + ".join(number(owner.total) for owner in owners)
    return svg(say("One token's bytes by owner, to scale: {sizes}", sizes=sizes), _BAR + 18, content)


def layers(config: ModelConfig) -> str:
    """Both halves as strips of layers, and under them what each owner keeps, to one scale."""
    owners, strips = owners_of(config), halves(config)
    columns = max(len(plans) for _, plans in strips)
    pixels = WIDTH / bytes_per_strip(config)
    names = {"encoder": say("encoder"), "decoder": say("decoder")}
    height, content = 15 + _CELL + 3 + _BAR + 20, ""
    for row, (half, plans) in enumerate(strips):
        content += _strip(names[half], plans, owners, WIDTH / columns, pixels, row * height)
    label = say("The layers by what they own and borrow; under each owner the bytes that it keeps of a token")
    return svg(label, height * len(strips), content)


def legend(config: ModelConfig) -> str:
    """What the marks in the cells mean, as far as the configuration has them."""
    meanings = {
        "full": (say("Full"), say("owns main KV, index keys and a selection")),
        "reindex": (say("Reindex"), say("selects anew over borrowed keys")),
        "reuse": (say("Reuse"), say("borrows all three")),
        "window": (say("window only"), say("sees the last {tokens} tokens", tokens=config.sliding_window)),
    }
    there = {plan.mode for plan in config.layers}
    items = "".join(
        f'<li><svg width="14" height="14" viewBox="0 0 16 16" aria-hidden="true">{MARKS[mode]}</svg> '
        f"<b>{escape(name)}</b> {escape(meaning)}</li>"
        for mode, (name, meaning) in meanings.items()
        if mode in there
    )
    for kind, name in (("main", say("main KV")), ("index", say("index keys"))):
        swatch = Block(kind, kind, 28).draw(0, 0)
        items += f'<li><svg width="28" height="{_BAR}" aria-hidden="true">{swatch}</svg> {escape(name)}</li>'
    return f'<ul class="legend">{items}</ul>'


def records(config: ModelConfig) -> str:
    """The bytes of a main record, an index key and a window row, to one scale."""
    storage = Storage.published(config)
    rows = (
        ("main", say("main record"), storage.main),
        ("index", say("index key"), storage.index),
        ("window", say("window row"), storage.window),
    )
    pixels = WIDTH / max(record.nbytes for _, _, record in rows)
    height, content = 15 + _BAR + 5, ""
    for place, (kind, name, record) in enumerate(rows):
        content += _record(kind, name, record, pixels, place * height)
    sizes = ", ".join(f"{name} {record.nbytes} B" for _, name, record in rows)
    return svg(say("Three records to one scale: {sizes}", sizes=sizes), height * len(rows), content)


def _record(kind: str, name: str, record: Record, pixels: float, y: float) -> str:
    elements, scales = record.parts
    words = say(
        "{bytes} B = {elements} B: {channels} channels of {bits} bits ({kind}) + {scales} B: a scale ({scale}) "
        "for every {block}",
        bytes=record.nbytes,
        elements=number(elements.nbytes),
        channels=elements.count,
        bits=elements.bits,
        kind=elements.kind,
        scales=number(scales.nbytes),
        scale=scales.kind.removesuffix(" scale"),
        block=elements.count // scales.count,
    )
    wide, narrow = float(elements.nbytes) * pixels, float(scales.nbytes) * pixels
    return (
        f'<text y="{y + 11:g}"><tspan class="bold">{escape(name)}</tspan> {escape(words)}</text>'
        + Block(kind, kind, wide).draw(0, y + 15)
        + Block("scales", kind, narrow).draw(wide, y + 15)
    )


def _strip(half: str, plans: list[LayerPlan], owners: list[Owner], width: float, pixels: float, top: float) -> str:
    first, last = plans[0].index, plans[-1].index
    name = say("{half}, layers {first} to {last}", half=half, first=first, last=last)
    content = f'<text y="{top + 11:g}">{escape(name)}</text>'
    y = top + 15
    for column, plan in enumerate(plans):
        gap = _GAP if plan.owns_selection and column else 0
        x = column * width + gap
        # Whole pixels inside, so that neighbours share a line.
        content += (
            f'<rect class="hollow neutral-line" x="{x + 0.5:.2f}" y="{y + 0.5:g}" width="{width - gap - 1:.2f}" '
            f'height="{_CELL - 1}"/><text x="{x + 2.5:.2f}" y="{y + 15:g}" class="soft">{plan.index}</text>'
            f'<svg x="{column * width + width - 15:.2f}" y="{y + 4.5:g}" width="13" height="13" viewBox="0 0 16 16">'
            f"{MARKS[plan.mode]}</svg>"
        )
    y += _CELL + 3
    for owner in owners:
        if first <= owner.layer <= last:
            x = (owner.layer - first) * width + (_GAP if owner.layer > first else 0)
            main, index = owner.main * pixels, owner.index * pixels
            words = say("{bytes} B a token", bytes=number(owner.total))
            content += Block("main", "main", main).draw(x, y) + Block("index", "index", index).draw(x + main, y)
            content += f'<text x="{x:.2f}" y="{y + _BAR + 13:g}">{escape(words)}</text>'
    return content
