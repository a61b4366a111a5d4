"""Bytes beside bytes: bars to one scale with their numbers, as a table that is also the picture.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape

from ds41.systems import Precision, generations
from ds41.viz.diagram import Diagram
from ds41.viz.ledger_picture import number


@dataclass(frozen=True)
class Bar:
    """One bar. ``parts`` splits it into (palette name, bytes); empty for a single neutral bar."""

    name: str
    bytes: int | float | Fraction
    note: str = ""
    parts: Sequence[tuple[str, int | float | Fraction]] = ()


def byte_bars(bars: Sequence[Bar], title: str, unit: str = "bytes a token", caption: str = "") -> Diagram:
    """Bars whose lengths are bytes, all to one scale.

    Args:
        bars: from top to bottom; "main" and "index" parts get their blocks.
        title: the message, as a sentence.
        unit: what the numbers count, heading of their column.

    Raises:
        ValueError: there is no bar, a size is not above zero, or parts do not add up to their bar.
    """
    if not bars:
        raise ValueError("bars is empty; expected at least one bar")
    for bar in bars:
        if bar.bytes <= 0:
            raise ValueError(f"bar {bar.name!r} has {bar.bytes} bytes; expected more than zero")
        if bar.parts and sum(size for _, size in bar.parts) != bar.bytes:
            raise ValueError(f"the parts of bar {bar.name!r} are {bar.parts}; expected {bar.bytes} bytes in all")
    longest = max(bar.bytes for bar in bars)
    rows = "".join(_row(bar, longest) for bar in bars)
    body = (
        '<table><thead><tr><th scope="col">to one scale</th>'
        f'<th scope="col" class="ds-number">{escape(unit)}</th></tr></thead><tbody>{rows}</tbody></table>'
    )
    return Diagram(kind="bars", title=title, body=body, caption=caption)


def generation_bars(precision: Precision | None = None) -> Diagram:
    """Figure 1b of the report, recomputed: V1, V3.2, V4-Flash, V4.1-Flash, as served or all at one precision."""
    bars = []
    steps = generations(precision)
    for step in steps:
        system = step.system
        sizes = {
            kind: sum(plane.bytes_per_token for plane in system.planes if plane.component == kind)
            for kind in ("main", "index")
        }
        parts = [(kind, size) for kind, size in sizes.items() if size]
        bars.append(Bar(system.name, system.bytes_per_token, f"{system.precision.upper()}, {system.formula}", parts))
    factor = float(steps[-1].overall)
    return byte_bars(
        bars,
        title=f"From V1 to V4.1-Flash the bytes of a token fell {factor:.0f}-fold",
        caption='<i class="ds-swatch ds-main"></i>main KV &ensp; <i class="ds-swatch ds-index"></i>index keys',
    )


def _row(bar: Bar, longest: int | float | Fraction) -> str:
    parts = "".join(
        f'<i class="ds-{escape(kind)}" style="flex:{float(size / bar.bytes):.4f}"></i>' for kind, size in bar.parts
    )
    width = f"{float(100 * bar.bytes / longest):.4g}%"
    note = f" <small>{escape(bar.note)}</small>" if bar.note else ""
    return (
        f'<tr><th scope="row"><span>{escape(bar.name)}{note}</span>'
        f'<span class="ds-length{"" if parts else " ds-plain"}" style="width:{width}">{parts}</span></th>'
        f'<td class="ds-number"><b>{number(bar.bytes)}</b></td></tr>'
    )
