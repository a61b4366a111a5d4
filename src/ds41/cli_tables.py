"""The ledger's report as rich tables, readable at any width and in a pipe.

Numbers and names are never cut or folded. Where a table does not fit, it leaves out its optional columns, the
least needed first; prose wraps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 140
_PROSE_WIDTH = 30


@dataclass(frozen=True)
class Column:
    """optional: 0 stays always; of the others the highest goes first when there is no room."""

    header: str
    right: bool = False
    optional: int = 0
    prose: bool = False


@dataclass
class Sheet:
    """One table before its width is known. total_rows: how many of the last rows are sums, shown bold."""

    title: str
    columns: tuple[Column, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    total_rows: int = 0

    def render(self, console: Console) -> None:
        width = console.width if console.is_terminal else _PIPE_WIDTH
        kept = list(range(len(self.columns)))
        while self._need(kept) > width and any(self.columns[i].optional for i in kept):
            kept.remove(max(kept, key=lambda i: self.columns[i].optional))
        console.print(Text(self.title, style="bold"), soft_wrap=True)
        # Rich fits tables into the console, by cutting cells if it must; so the console grows where they need it.
        before, console.width = console.width, max(width, self._need(kept))
        try:
            console.print(self._table(kept), crop=False)
        finally:
            console.width = before

    def _need(self, kept: list[int]) -> int:
        """Columns of text that the table needs with no cell cut."""
        gaps = 2 * (len(kept) - 1)
        return gaps + sum(_PROSE_WIDTH if self.columns[i].prose else max(map(cell_len, self._cells(i))) for i in kept)

    def _cells(self, i: int) -> list[str]:
        return [self.columns[i].header, *(row[i] for row in self.rows)]

    def _table(self, kept: list[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in (self.columns[i] for i in kept):
            table.add_column(
                column.header,
                justify="right" if column.right else "left",
                no_wrap=not column.prose,
                min_width=_PROSE_WIDTH if column.prose else None,
                overflow="fold",
            )
        for number, row in enumerate(self.rows):
            style = "bold" if number >= len(self.rows) - self.total_rows else ""
            table.add_row(*(row[i] for i in kept), style=style)
        return table


def print_measured(title: str, rows: list[tuple[str, str, str]]) -> None:
    """Print what was measured; rows: of what, the result, and what it was measured on."""
    columns = (Column("measured", prose=True), Column("result"), Column("on", optional=1))
    Sheet(title, columns, rows).render(Console())


def print_ledger(report: dict, console: Console | None = None) -> None:
    """Print a :func:`ds41.report.ledger_report`."""
    console = console or Console(highlight=False)
    sheets = [_sources(report), _sequence(report)]
    if report["capacity"]:
        sheets.append(_capacity(report))
    comparison = report["comparison"]
    if comparison:
        sheets.append(_systems(comparison["systems"]))
        sheets.append(_rows("The same model otherwise, bytes per token", comparison["counterfactuals"]))
        sheets.append(_rows("What engines store today, bytes per token", comparison["engines"]))
        if comparison["candidates"]:
            sheets.append(_candidates(comparison["candidates"]))
    for number, sheet in enumerate(sheets):
        if number:
            console.print()
        sheet.render(console)


def _sources(report: dict) -> Sheet:
    columns = (
        Column("owner"),
        Column("ratio", right=True),
        Column("main KV", right=True),
        Column("index keys", right=True),
        Column("together", right=True),
    )
    sheet = Sheet(f"Global KV, bytes per token ({report['config']})", columns, total_rows=1)
    parts = ("main", "index", "total")
    for source in report["sources"]:
        cells = (_number(source[part]) for part in parts)
        sheet.rows.append((f"layer {source['layer']}", str(source["ratio"]), *cells))
    sums = report["bytes_per_token"]
    sheet.rows.append(("all layers", "", *(_number(sums[part]) for part in parts)))
    return sheet


def _sequence(report: dict) -> Sheet:
    sequence = report["sequence"]
    columns = (
        Column("kept"),
        Column("bytes", right=True),
        Column("", right=True, optional=1),
        Column("how", optional=2),
    )
    sheet = Sheet(f"One sequence of {report['tokens']:,} tokens", columns, total_rows=2)
    for row in sequence["rows"]:
        sheet.rows.append((row["name"], _number(row["bytes"]), _binary(row["bytes"]), row["formula"]))
    for name, size in (("global KV", sequence["global"]), ("everything", sequence["total"])):
        sheet.rows.append((name, _number(size), _binary(size), ""))
    return sheet


def _capacity(report: dict) -> Sheet:
    columns = (Column("pool"), Column("global KV only", right=True), Column("with windows", right=True))
    sheet = Sheet(f"Contexts of {report['tokens']:,} tokens in a pool", columns)
    for row in report["capacity"]:
        counts = (f"{row[name]:,.1f}" for name in ("contexts", "live_contexts"))
        sheet.rows.append((f"{row['pool_bytes'] / 2**30:g} GiB", *counts))
    return sheet


def _systems(systems: list[dict]) -> Sheet:
    columns = (
        Column("system"),
        Column("stored in", optional=2),
        Column("bytes per token", right=True),
        Column("factor", right=True, optional=1),
        Column("standing", optional=3),
        Column("how", optional=4),
    )
    sheet = Sheet("Global KV of other systems", columns)
    for system in systems:
        factor = "" if system["factor"] is None else f"{system['factor']:,.2f}"
        size = _number(system["bytes_per_token"])
        precision = system["precision"].upper()
        sheet.rows.append((system["name"], precision, size, factor, system["status"], system["formula"]))
    return sheet


def _rows(title: str, rows: list[dict]) -> Sheet:
    sheet = Sheet(title, (Column(""), Column("bytes", right=True), Column("how", optional=1)))
    sheet.rows = [(row["name"], _number(row["bytes"]), row["formula"]) for row in rows]
    return sheet


def _candidates(candidates: list[dict]) -> Sheet:
    columns = (
        Column(""),
        Column("bytes", right=True),
        Column("off by", right=True, optional=1),
        Column("how", optional=3),
        Column("why it misses", optional=2, prose=True),
    )
    sheet = Sheet("The source article's candidates", columns)
    for one in candidates:
        off = f"{one['percent_off']:+.1f} %"
        sheet.rows.append((one["letter"], _number(one["bytes"]), off, one["formula"], one["misses"]))
    return sheet


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _binary(size: int | float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.4g} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB"
