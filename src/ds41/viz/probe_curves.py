"""How often the selection misses a needle, by the needle's true rank: measured with intervals, and predicted.

``js/probes.js`` draws the same for every other context, rounding, kind of needle and rank; a test holds the two to the
same HTML. All numbers are whole, in thousandths, so that both count alike.

Source: ds41's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ds41.viz.diagram import Diagram, choices, table

ROUNDED = {"keys": "Keys", "keys and queries": "Keys and queries"}
NEEDLES = {"found": "Found in the context", "planted": "Planted in its pages"}
_SHARES = (0, 250, 500, 750, 1000)
_WORDS = {
    "found": "the entry that has this rank",
    "planted": "a key written into the pages so that it has this rank",
}


def probe_curves(
    reports: Mapping[str, Mapping],
    shown: str | None = None,
    rounded: str = "keys and queries",
    needle: str = "found",
    rank: int | None = None,
) -> Diagram:
    """Miss rates of selection probes, with a chooser and a slider over ranks.

    Args:
        reports: name -> a :class:`ds41.probes.selection_synthetic.SelectionReport` as plain values, such as
            ``ds41 probe selection --json`` prints. shown: the name of the first one drawn; the first if None.
        rounded: what is in FP4, one of :data:`ROUNDED`. needle: one of :data:`NEEDLES`.
        rank: the one whose numbers are given, among those measured; the one nearest to half of top-k if None.

    Raises:
        ValueError: no report, or a value that cannot be.
    """
    if not reports:
        raise ValueError("reports is empty; expected one selection report or more")
    shown = next(iter(reports)) if shown is None else shown
    for name, value, allowed in (("shown", shown, reports), ("rounded", rounded, ROUNDED), ("needle", needle, NEEDLES)):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; expected one of: {', '.join(allowed)}")
    contexts = {name: context_data(report) for name, report in reports.items()}
    context = contexts[shown]
    ranks = [row[0] for row in context["curves"][rounded][needle]]
    if rank is None:
        rank = min(ranks, key=lambda one: abs(one - context["topK"] // 2))
    if rank not in ranks:
        raise ValueError(f"rank is {rank}; expected one of: {', '.join(map(str, ranks))}")
    at = ranks.index(rank)
    return Diagram(
        kind="probes",
        title="The edge of the selection is soft, and as soft as the format predicts",
        body=f'<div class="ds-picture">{picture(context, rounded, needle, at)}</div>{_LEGEND}'
        f"{_controls(reports, shown, rounded, needle, at, len(ranks))}",
        caption=overview(context, rounded, needle, at),
        table=_table(context["curves"][rounded][needle]),
        data={"contexts": contexts, "words": _WORDS, "shares": _SHARES},
    )


def context_data(report: Mapping) -> dict:
    """What is drawn of a report.

    curves: rounded -> needle -> rows of rank, place on the axis, missed, its bounds, predicted (thousandths), and the
    rank's shift at 5, 50 and 95 % of the queries.
    """
    curves: dict[str, dict[str, list[list[int]]]] = {key: {one: [] for one in NEEDLES} for key in ROUNDED}
    ranks = [point["rank"] for point in report["misses"]]
    first, last = min(ranks), max(ranks)

    def place(rank: int) -> int:
        return round(1000 * math.log(rank / first) / math.log(last / first))

    for point in sorted(report["misses"], key=lambda one: one["rank"]):
        missed = point["missed"]
        shares = (missed["mean"], missed["low"], missed["high"], point["predicted"])
        shifts = (point["shift_low"], point["shift_median"], point["shift_high"])
        row = [point["rank"], place(point["rank"]), *(round(1000 * share) for share in shares), *map(round, shifts)]
        curves[point["rounded"]][point["needle"]].append(row)
    top_k = report["top_k"]
    ticks = sorted({first, top_k // 4, top_k, last})
    return {
        "entries": report["entries"],
        "seeds": report["seeds"],
        "topK": top_k,
        "ticks": [[rank, place(rank)] for rank in ticks if first <= rank <= last],
        "curves": curves,
    }


def picture(context: Mapping, rounded: str, needle: str, at: int) -> str:
    """Numbers of the chosen rank, and the chart."""
    rows = context["curves"][rounded][needle]
    rank, _, missed, low, high, predicted, *_ = rows[at]
    cells = (
        ("true rank", f"{rank:,}", f"of {context['entries']:,} entries; the best {context['topK']} are wanted"),
        ("missed", percent(missed), f"{percent(low)} to {percent(high)}, {context['seeds']} queries"),
        ("predicted", percent(predicted), "from the scores and the format"),
    )
    readouts = "".join(
        f'<div><dt>{name}</dt><dd>{value}</dd><dd class="ds-fine">{note}</dd></div>' for name, value, note in cells
    )
    return f"<dl>{readouts}</dl>{_chart(context, rows, at)}"


def _chart(context: Mapping, rows: Sequence[Sequence[int]], at: int) -> str:
    grid = "".join(
        f'<span class="ds-share" style="top:{(1000 - share) / 10:.1f}%">{share // 10} %</span>' for share in _SHARES
    )
    ticks = "".join(
        f'<span class="ds-tick{" ds-edge" if rank == context["topK"] else ""}" style="left:{x / 10:.1f}%">'
        f"{rank:,}</span>"
        for rank, x in context["ticks"]
    )
    line = " ".join(f"{row[1]},{1000 - row[5]}" for row in rows)
    marks = "".join(_mark(row, number == at) for number, row in enumerate(rows))
    return (
        '<p class="ds-label">share of needles that are not selected</p>'
        f'<div class="ds-chart" aria-hidden="true">{grid}{ticks}'
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none">'
        f'<polyline points="{line}"></polyline></svg>{marks}</div>'
        '<p class="ds-label ds-below">true rank of the needle, log scale</p>'
    )


def _mark(row: Sequence[int], chosen: bool) -> str:
    _, x, missed, low, high, *_ = row
    left, kind = f"left:{x / 10:.1f}%", " ds-chosen" if chosen else ""
    return (
        f'<i class="ds-range{kind}" style="{left};top:{(1000 - high) / 10:.1f}%;height:{(high - low) / 10:.1f}%"></i>'
        f'<i class="ds-dot{kind}" style="{left};top:{(1000 - missed) / 10:.1f}%"></i>'
    )


_LEGEND = (
    '<ul class="ds-legend">'
    '<li><i class="ds-key ds-dot"></i>measured, 95 % interval</li>'
    '<li><i class="ds-key ds-line"></i>predicted</li>'
    '<li><i class="ds-key ds-dot ds-chosen"></i>chosen rank</li></ul>'
)


def _controls(reports: Mapping, shown: str, rounded: str, needle: str, at: int, count: int) -> str:
    def options(of: Mapping[str, str]) -> list[tuple[str, str, str]]:
        return [(key, name, "") for key, name in of.items()]

    return (
        '<form class="ds-controls">'
        '<label class="ds-field"><span>True rank of the needle</span>'
        f'<input type="range" name="at" min="0" max="{count - 1}" step="1" value="{at}"></label>'
        + choices("context", "Context", options({name: name for name in reports}), shown)
        + choices("rounded", "Stored in FP4", options(ROUNDED), rounded)
        + choices("needle", "Needle", options(NEEDLES), needle)
        + "</form>"
    )


def overview(context: Mapping, rounded: str, needle: str, at: int) -> str:
    """The chosen rank in words."""
    rank, _, missed, low, high, predicted, *shifts = context["curves"][rounded][needle][at]
    down, middle, up = (signed(shift) for shift in shifts)
    fits = "inside" if low <= predicted <= high else "outside"
    return (
        f"<b>True rank {rank:,}</b>, {_WORDS[needle]}: missed in {percent(missed)} of the queries. The predicted "
        f"{percent(predicted)} lies {fits} the interval. By stored scores its rank is another one: {down}, {middle} "
        f"and {up} places at 5, 50 and 95 % of the queries."
    )


def _table(rows: Sequence[Sequence[int]]) -> str:
    cells = [
        (
            f"{rank:,}",
            percent(missed),
            f"{percent(low)} to {percent(high)}",
            percent(predicted),
            " / ".join(map(signed, shifts)),
        )
        for rank, _, missed, low, high, predicted, *shifts in rows
    ]
    header = ("true rank", "missed", "95 % interval", "predicted", "rank shift, 5 / 50 / 95 %")
    return table(header, cells, numeric=(0, 1, 2, 3, 4))


def percent(thousandths: int) -> str:
    return f"{thousandths // 10}.{thousandths % 10} %"


def signed(places: int) -> str:
    return f"{'−' if places < 0 else '+'}{abs(places):,}"
