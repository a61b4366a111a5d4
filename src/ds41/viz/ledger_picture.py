"""The ledger as a still picture: what the interactive figure shows before anyone has touched it.

``js/ledger.js`` draws the same for every other plan; a test holds the two to the same HTML.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from html import escape
from itertools import groupby

from ds41 import ledger
from ds41.config import LayerPlan, ModelConfig
from ds41.ledger import Storage
from ds41.records import exact
from ds41.viz.diagram import table

# Up to so many owners each get a label of their own; more are labelled by runs of equal ratio.
_LABELLED = 8


@dataclass(frozen=True)
class Counts:
    """The published plan of one configuration, counted for its longest context."""

    owners: tuple[LayerPlan, ...]
    main: int
    index: int
    entries: Fraction
    per_token: int | float
    total: int

    @classmethod
    def of(cls, config: ModelConfig) -> Counts:
        storage = Storage.published(config)
        return cls(
            owners=tuple(plan for plan in config.layers if plan.owns_kv),
            main=storage.main.nbytes,
            index=storage.index.nbytes,
            entries=ledger.entries_per_token(config),
            per_token=exact(ledger.bytes_per_token(config)),
            total=ledger.global_bytes(config, config.max_position_embeddings),
        )

    @property
    def record(self) -> int:
        return self.main + self.index


def number(value: Fraction | float) -> str:
    """Digits with thousands separators, and decimals only where there are any."""
    return f"{int(value):,}" if value == int(value) else f"{float(value):,.3f}".rstrip("0")


def picture(data: dict, counts: Counts) -> str:
    """Readouts, the page by owner, the comparison to one scale, the windows."""
    return (
        _readouts(data, counts)
        + f'<div class="ds-page-view">{_page(counts)}</div>'
        + f'<div class="ds-scale-view">{_scale(data, counts)}</div>'
        + f'<p class="ds-window">{_window(data, counts)}</p>'
    )


def caption(counts: Counts) -> str:
    """The plan's arithmetic in one line."""
    ratios = sorted({plan.ratio for plan in counts.owners}, reverse=True)
    owners = {ratio: sum(plan.ratio == ratio for plan in counts.owners) for ratio in ratios}
    terms = " + ".join(f"{count} × {'1' if ratio == 1 else f'1/{ratio}'}" for ratio, count in owners.items())
    return (
        f"{terms} = {number(counts.entries)} entries a token, each {counts.main:,} B of main KV and "
        f"{counts.index} B of index key: {number(counts.entries)} × {counts.record:,} = "
        f"<b>{number(counts.per_token)} bytes</b>."
    )


def ledger_table(counts: Counts) -> str:
    """One row for each owner, and their sum."""
    sizes = (counts.main, counts.index, counts.record)
    rows = [
        (f"layer {plan.index}", plan.ratio, *(number(Fraction(size, plan.ratio)) for size in sizes))
        for plan in counts.owners
    ]
    rows.append(("all", "", *(number(size * counts.entries) for size in sizes)))
    header = ("owner", "tokens per entry", "main KV, B", "index keys, B", "B per token")
    return table(header, rows, numeric=(1, 2, 3, 4))


def _readouts(data: dict, counts: Counts) -> str:
    tokens, pool = data["tokens"], data["pool"]
    live = counts.total + data["window"]["bytes"]
    value, unit = readable(counts.total)
    return (
        '<div class="ds-readouts"><dl>'
        f'<div><dt>one token</dt><dd data-out="token">{number(counts.per_token)} <small>bytes</small></dd></div>'
        f'<div><dt data-out="context">{tokens:,} tokens</dt>'
        f'<dd data-out="total">{value} <small>{unit}</small></dd>'
        f'<dd class="ds-fine" data-out="exact">exactly {counts.total:,} bytes</dd></div>'
        f'<div><dt>sessions in {pool // 2**30} GiB</dt><dd data-out="sessions">{pool // counts.total:,}</dd>'
        f'<dd class="ds-fine" data-out="with-window">{pool // live:,} with their windows</dd></div></dl></div>'
    )


def readable(nbytes: int) -> tuple[str, str]:
    """933,232,640 -> ("933", "MB"): three digits where there are more than three."""
    step, units = 0, ("bytes", "kB", "MB", "GB", "TB")
    while nbytes >= 1000 ** (step + 1) and step < len(units) - 1:
        step += 1
    value = nbytes / 1000**step
    digits = 0 if step == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}", units[step]


def _page(counts: Counts) -> str:
    runs = [[plan] for plan in counts.owners]
    if len(runs) > _LABELLED:
        runs = [list(run) for _, run in groupby(counts.owners, key=lambda plan: plan.ratio)]
    labels = ""
    for run in runs:
        size = Fraction(counts.record, run[0].ratio)
        many = len(run) > 1
        name = f"layers {run[0].index}–{run[-1].index}" if many else f"layer {run[0].index}"
        count = f"{len(run)} × " if many else ""
        labels += f'<span style="flex-grow:{float(size * len(run)):g}">{name}<br><b>{count}{number(size)} B</b></span>'
    parts = "".join(
        f'<i class="ds-{kind}" style="flex-grow:{size}"></i>'
        for kind, size in (("main", counts.main), ("index", counts.index))
    )
    cells = "".join(f'<i style="flex-grow:{counts.record / plan.ratio:g}">{parts}</i>' for plan in counts.owners)
    return (
        '<p class="ds-split"><span><i class="ds-swatch ds-main"></i>main KV '
        f"<b>{number(counts.entries * counts.main)} B</b></span>"
        '<span><i class="ds-swatch ds-index"></i>index keys '
        f"<b>{number(counts.entries * counts.index)} B</b></span></p>"
        f'<div class="ds-owners" aria-hidden="true">{labels}</div><div class="ds-bar" aria-hidden="true">{cells}</div>'
    )


def _scale(data: dict, counts: Counts) -> str:
    """This plan and another model, all lengths to one scale; a wedge ties the page above to its true length."""
    other = next(system for system in data["systems"] if system["key"] == data["compare"])
    tokens = data["tokens"]
    other_total = sum(size * (tokens // ratio) for size, ratio in other["planes"])
    longest = max(counts.per_token, other["perToken"])
    own_width, other_width = (f"{100 * size / longest:.3f}%" for size in (counts.per_token, other["perToken"]))
    times = significant(other["perToken"] / counts.per_token)
    relation = f"{times} times this plan" if other["perToken"] >= counts.per_token else (
        f"1/{significant(counts.per_token / other['perToken'])} of this plan"
    )  # fmt: skip
    return (
        '<svg class="ds-zoom" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="M0 0H100L{own_width[:-1]} 10H0Z"></path></svg><ul>'
        f'<li><span class="ds-length ds-own" style="width:{own_width}">'
        f'<i class="ds-main" style="width:{100 * counts.main / counts.record:.3f}%"></i>'
        '<i class="ds-index" style="flex:1"></i></span>'
        f"<span>This plan</span> <b>{counts.per_token:,.0f} B</b> "
        f"<small>{_sessions(data, counts.total)}</small></li>"
        f'<li><span class="ds-length" style="width:{other_width}"></span>'
        f"<span>{escape(other['name'])}, {other['precision']}</span> <b>{other['perToken']:,.0f} B</b> "
        f"<small>{_sessions(data, other_total)} · {relation}</small></li></ul>"
    )


def significant(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,.6f}".rstrip("0").rstrip(".")


def _sessions(data: dict, nbytes: int) -> str:
    count = data["pool"] // nbytes
    return f"{count:,} session{'' if count == 1 else 's'}"


def _window(data: dict, counts: Counts) -> str:
    window = data["window"]
    tokens = round(window["bytes"] / counts.per_token)
    return (
        '<i class="ds-swatch ds-ring"></i>Once a session, whatever its length: '
        f"{window['layers']} windows of {window['tokens']} tokens, <b>{window['bytes']:,} B</b>. "
        f"Not part of the {number(counts.per_token)}; as much as {tokens:,} tokens of it."
    )
