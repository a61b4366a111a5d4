"""The claims as a page shows them: one picture of all verdicts, and tables whose rows lead to the proofs.

Source: ds41's own.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path

from ds41.errata import SECTIONS, VERDICTS, Claim, Verdict, as_printed, of_cell, of_section
from ds41.viz.diagram import Diagram

MARKS: dict[Verdict, str] = {"right": "●", "imprecise": "▲", "wrong": "✖", "not decidable": "◇"}
"""A mark for each verdict, so that nothing hangs on its colour."""
COLOURS: dict[Verdict, str] = {"right": "main", "imprecise": "window", "wrong": "hit", "not decidable": "neutral"}
"""The colour of each verdict, by its name in the palette."""
# All marks as wide as each other, broken anywhere on a narrow page.
_STRIP = "min-width:13rem;font-family:ui-monospace,Menlo,Consolas,monospace;letter-spacing:.15em;overflow-wrap:anywhere"
# Rows of the picture, in the article's order: a section's prose, then its cells.
_CELLS = {"3": (4,), "4": (3, 1), "5": (2,)}


def strips() -> dict[str, tuple[Claim, ...]]:
    """The article from beginning to end, by what a row of the picture is called."""
    rows = {}
    for section in SECTIONS:
        rows["opening" if section == "0" else f"section {section}"] = of_section(section)
        rows.update({f"cell {cell}": of_cell(cell) for cell in _CELLS.get(section, ())})
    return rows


def strip_figure(title: str, targets: Mapping[str, str]) -> Diagram:
    """One mark for each claim, a row for each section and cell, and the tally of the row beside it.

    targets: for the rows that have one, the address on the page that the row's name leads to.
    """
    claims = [claim for row in strips().values() for claim in row]
    rows = [_strip(name, row, targets.get(name)) for name, row in strips().items()] + [
        _strip("all", claims, None, False)
    ]
    head = "".join(
        f'<th scope="col"{number}>{cell}</th>'
        for cell, number in [("where", ""), ("claims, in their order", "")]
        + [(f"{_mark(v)}&nbsp;{v}", ' class="ds-number"') for v in VERDICTS]
    )
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return Diagram("grid", title, _scrolling(title, body))


def _strip(name: str, claims: Sequence[Claim], target: str | None, shown: bool = True) -> str:
    runs = [(verdict, len(list(run))) for verdict, run in groupby(claims, key=lambda claim: claim.verdict)]
    marks = "".join(_mark(verdict, count) for verdict, count in runs) if shown else ""
    counts = Counter(claim.verdict for claim in claims)
    label = f'<a href="{target}">{escape(name)}</a>' if target else escape(name)
    numbers = "".join(f'<td class="ds-number">{counts[verdict]}</td>' for verdict in VERDICTS)
    strip = f'<td style="{_STRIP}"><span aria-hidden="true">{marks}</span></td>'
    return f'<tr><th scope="row" style="white-space:nowrap">{label}</th>{strip}{numbers}</tr>'


def _mark(verdict: Verdict, count: int = 1) -> str:
    return f'<span style="color:var(--ds-{COLOURS[verdict]})">{MARKS[verdict] * count}</span>'


def _scrolling(label: str, table: str) -> str:
    return f'<div class="ds-scroll" role="region" aria-label="{escape(label)}" tabindex="0">{table}</div>'


def value_of(claim: Claim) -> str:
    """The value that the library finds, with its unit; "yes" or "no" for a question, "–" where none was computed."""
    value = claim.value
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if claim.article_value is not None:
        number = as_printed(claim.article_value, value)
    else:
        number = f"{float(value):,.0f}" if abs(value) >= 1000 else f"{float(value):.3g}"
    return f"{number} {claim.unit}".strip()


def section_tables(title: str, *sections: str, cells: Sequence[int] = ()) -> Diagram:
    """The claims of some sections, and the figures that some cells print, each folded under its tally."""
    parts = [_folded(f"{_name(s)}: {SECTIONS[s]}", of_section(s), _prose_row, _PROSE, is_open=True) for s in sections]
    parts += [_folded(f"Cell {c}, line by line", of_cell(c), _figure_row, _FIGURES, is_open=False) for c in cells]
    return Diagram("grid", title, "".join(parts))


def counted(claims: Sequence[Claim]) -> str:
    """A tally in words, such as "9 right, 2 imprecise, 4 wrong"; verdicts that nobody has are left out."""
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


_PROSE = ("the article says", "printed", "here", "verdict", "why, and where")
_FIGURES = ("line", "figure", "printed", "done again", "here", "verdict", "why, and where")


def _name(section: str) -> str:
    return "Opening" if section == "0" else f"Section {section}"


def _folded(
    title: str, claims: Sequence[Claim], row: Callable[[Claim], str], header: Sequence[str], is_open: bool
) -> str:
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(row(claim) for claim in claims)
    return (
        f"<details{' open' if is_open else ''}><summary><b>{escape(title)}</b> · {counted(claims)}</summary>"
        + _scrolling(title, f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        + "</details>"
    )


def _prose_row(claim: Claim) -> str:
    cells = (_printed(claim), escape(value_of(claim)), _verdict(claim), _why(claim))
    return f'<tr><th scope="row">{escape(claim.says)}</th>{_columns(cells)}</tr>'


def _figure_row(claim: Claim) -> str:
    again = claim.redone_value
    redone = "" if again is None else escape(as_printed(claim.article_value, again))
    cells = (
        escape(claim.says),
        _printed(claim),
        redone,
        escape(value_of(claim)),
        _verdict(claim),
        _why(claim, brief=True),
    )
    return f'<tr><th scope="row">{claim.line}</th>{_columns(cells)}</tr>'


def _columns(cells: Sequence[str]) -> str:
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _printed(claim: Claim) -> str:
    return "–" if claim.article_value is None else escape(claim.article_value)


def _verdict(claim: Claim) -> str:
    return f"{_mark(claim.verdict)}&nbsp;{claim.verdict.replace(' ', '&nbsp;')}"


def _why(claim: Claim, brief: bool = False) -> str:
    """The reason, and a link to the proof: named after the heading that it leads to, or in brief after the chapter."""
    heading, slug = _places(claim.chapter).get(claim.anchor, ("", ""))
    number = claim.chapter.split("-")[0]
    target = f"{claim.chapter}.html" + (f"#{slug}" if slug else "")
    label = f"chapter {number}" if brief or not heading else f"{number} {heading}"
    return f'{escape(claim.because)} <a href="{target}">{escape(label)}</a>'.strip()


@cache
def _places(chapter: str) -> dict[str, tuple[str, str]]:
    """For each cell of a chapter the heading that it stands under, and its anchor; empty where no book lies by.

    The anchor is the one that Sphinx makes of a heading's text. A page's title needs none.
    """
    path = Path(__file__).resolve().parents[3] / "book" / f"{chapter}.ipynb"
    if not path.is_file():
        return {}
    found, heading, slug = {}, "", ""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for line in "".join(cell["source"]).splitlines() if cell["cell_type"] == "markdown" else ():
            if match := re.fullmatch(r"(#{1,3}) (.+)", line):
                heading = re.sub(r"[*`$\\]", "", match[2])
                slug = "" if len(match[1]) == 1 else re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
        found[cell["id"]] = heading, slug
    return found
