"""Tables for the chapters: numbers right-aligned, readable in both themes, and as text where there is no HTML.

Source: ds41's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from numbers import Number

from ds41.viz.diagram import Diagram
from ds41.viz.diagram import table as html_table

# A number with its unit, such as "−2.9 %", "1.56 GB" or "0 (compute)"; also an empty cell or a dash.
_NUMBER = re.compile(r"[–—]?|[+\-−±≈<>~ ]*\d[\d,.]*(e[+-]?\d+)? ?(%|[A-Za-zµ/×]{1,4})?( \(.*\))?")


@dataclass(frozen=True)
class Table:
    """A titled table. ``numeric`` lists the right-aligned columns."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...]

    def _repr_html_(self) -> str:
        scroll = f'<div class="ds-scroll" role="region" aria-label="{escape(self.title)}" tabindex="0">'
        body = f"{scroll}{html_table(self.header, self.rows, self.numeric)}</div>"
        return Diagram("grid", self.title, body)._repr_html_()

    def __repr__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]

        def text(line: Sequence[str]) -> str:
            cells = (
                c.rjust(w) if i in self.numeric else c.ljust(w)
                for i, (c, w) in enumerate(zip(line, widths, strict=True))
            )
            return "  ".join(cells).rstrip()

        return "\n".join([self.title, *(text(line) for line in lines)])


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose columns are right-aligned where every cell is a number, given as such or as text ("3,514 B").

    Raises:
        ValueError: a row of another length than the header.
    """
    if any(len(row) != len(header) for row in rows):
        lengths = sorted({len(row) for row in rows})
        raise ValueError(f"the header has {len(header)} columns; rows have {lengths}")
    numeric = tuple(i for i in range(len(header)) if rows and all(_is_number(row[i]) for row in rows))
    shown = tuple(tuple(_shown(cell) for cell in row) for row in rows)
    return Table(title, tuple(header), shown, numeric)


def summary_row(chapter: str, claim: str, predicted: str, measured: str, verdict: str) -> Table:
    """The chapter's row of the running summary: what was claimed, predicted and measured, and what came of it."""
    header = ("claim", "predicted", "measured", "verdict")
    # Sentences, although some begin with a digit.
    return Table(f"Chapter {chapter} in one row", header, ((claim, predicted, measured, verdict),), numeric=())


def _is_number(cell: object) -> bool:
    if isinstance(cell, Number):
        return True
    return _NUMBER.fullmatch(str(cell).strip()) is not None


def _shown(cell: object) -> str:
    if isinstance(cell, bool) or not isinstance(cell, Number):
        return str(cell)
    if float(cell).is_integer():
        return f"{int(cell):,}"
    return f"{float(cell):,.6g}"
