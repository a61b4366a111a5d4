"""A schedule as a still picture: its numbers, the strip of layers, and one token's bytes beside the published ones."""

from __future__ import annotations

from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING

from ds41.config import LayerPlan
from ds41.viz.diagram import Diagram, table
from ds41.viz.layer_map import MARKS, MODE_NAMES, halves, legend
from ds41.viz.ledger_picture import Counts, caption, number, readable, significant

if TYPE_CHECKING:
    from ds41.viz.live_schedule import ScheduleLedger

_COLUMNS = 24
_PAGE = 64


def schedule_diagram(plan: ScheduleLedger, given: ScheduleLedger, known: str = "published") -> Diagram:
    """The ledger of ``plan`` beside that of ``given``, which the figure calls ``known``."""
    same = plan == given
    return Diagram(
        kind="plan",
        like="ledger",
        title=_title(plan, given, known),
        body=_readouts(plan) + _strips(plan) + legend(plan.config) + _bars(plan, None if same else given, known),
        caption=_caption(plan),
        table=_groups(plan) + _totals(plan, given, known),
    )


def counts_of(plan: ScheduleLedger) -> Counts:
    """Owners, records and sums of a schedule, in the formats that it chose."""
    owners = tuple(layer for layer in plan.config.layers if layer.owns_kv)
    return Counts(
        owners=owners,
        main=plan.storage.main.nbytes,
        index=plan.storage.index.nbytes,
        entries=sum((Fraction(1, layer.ratio) for layer in owners), Fraction(0)),
        per_token=plan.per_token,
        total=plan.kept,
    )


def _title(plan: ScheduleLedger, given: ScheduleLedger, known: str) -> str:
    size = f"{number(plan.per_token)} bytes a token"
    if plan == given:
        owners = len(counts_of(plan).owners)
        return f"The {known} schedule keeps {size}, in {owners} of {plan.config.num_hidden_layers} layers"
    if plan.per_token == given.per_token:
        return f"This schedule keeps {size}, as many as the {known} one"
    if plan.per_token == 0 or given.per_token == 0:
        return f"This schedule keeps {size}, the {known} one {number(given.per_token)}"
    times = significant(float(plan.per_token / given.per_token))
    return f"This schedule keeps {size}, {times} times the {known} {number(given.per_token)}"


def _readouts(plan: ScheduleLedger) -> str:
    kept, windows, read = (readable(size) for size in (plan.kept, plan.windows, plan.read))
    context = f"{plan.tokens:,} tokens"
    return (
        '<div class="ds-readouts"><dl>'
        f"<div><dt>one token</dt><dd>{number(plan.per_token)} <small>bytes</small></dd></div>"
        f"<div><dt>{context}</dt><dd>{kept[0]} <small>{kept[1]}</small></dd>"
        f'<dd class="ds-fine">exactly {plan.kept:,} bytes</dd></div>'
        f"<div><dt>windows, once a session</dt><dd>{windows[0]} <small>{windows[1]}</small></dd>"
        f'<dd class="ds-fine">a step reads {read[0]} {read[1]} of KV</dd></div></dl></div>'
    )


def _strips(plan: ScheduleLedger) -> str:
    parts = halves(plan.config)
    # More than a phone has room for go on in the next line.
    columns = min(_COLUMNS, max(len(layers) for _, layers in parts))
    strips = ""
    for half, layers in parts:
        runs = [(MODE_NAMES[mode], len(list(run))) for mode, run in groupby(layers, key=lambda layer: layer.mode)]
        said = ", ".join(f"{count} {name}" for name, count in runs)
        cells = "".join(_cell(layer, first=layer is layers[0]) for layer in layers)
        name = f"{half}, layers {layers[0].index}–{layers[-1].index}"
        strips += (
            f'<div class="ds-half"><p class="ds-label">{name}</p>'
            f'<div class="ds-strip" style="--columns:{columns}" role="img" aria-label="{name}: {said}">{cells}</div>'
            "</div>"
        )
    return strips


def _cell(layer: LayerPlan, first: bool) -> str:
    group = " ds-group" if layer.owns_selection and not first else ""
    mark = f'<svg class="ds-mark" viewBox="0 0 16 16" aria-hidden="true">{MARKS[layer.mode]}</svg>'
    return f'<span class="ds-cell{group}">{mark}</span>'


def _bars(plan: ScheduleLedger, given: ScheduleLedger | None, known: str) -> str:
    """One token's bytes of both, owner by owner, to one scale."""
    rows = [(f"the {known} schedule" if given is None else "this schedule", plan)]
    rows += [] if given is None else [(f"the {known} one", given)]
    longest = max(float(one.per_token) for _, one in rows) or 1.0
    bars = ""
    for name, one in rows:
        counts = counts_of(one)
        width = 100 * float(one.per_token) / longest
        parts = f'<i class="ds-main" style="flex-grow:{counts.main}"></i>'
        parts += f'<i class="ds-index" style="flex-grow:{counts.index}"></i>'
        cells = "".join(f'<i style="flex-grow:{1 / owner.ratio:g}">{parts}</i>' for owner in counts.owners)
        main, index = (number(size * counts.entries) for size in (counts.main, counts.index))
        bars += (
            f'<li><span class="ds-label">{name}</span><b>{number(one.per_token)} B</b>'
            f"<small>{_owners(counts)}</small>"
            f'<div class="ds-bar" style="width:{width:.3f}%" aria-hidden="true">{cells}</div>'
            f'<p class="ds-split"><span><i class="ds-swatch ds-main"></i>main KV <b>{main} B</b></span>'
            f'<span><i class="ds-swatch ds-index"></i>index keys <b>{index} B</b></span></p></li>'
        )
    return f'<ul class="ds-owned">{bars}</ul>'


def _owners(counts: Counts) -> str:
    """ "3 × 178 + 356": runs of owners that keep the same."""
    terms = []
    for ratio, run in groupby(counts.owners, key=lambda layer: layer.ratio):
        many, size = len(list(run)), number(Fraction(counts.record, ratio))
        terms.append(f"{many} × {size}" if many > 1 else size)
    return " + ".join(terms)


def _caption(plan: ScheduleLedger) -> str:
    config, window = plan.config, plan.storage.window.nbytes
    sums = caption(counts_of(plan)) if plan.per_token else "No layer keeps anything that grows with the context."
    return (
        f"{sums} Windows: {config.num_hidden_layers} layers × {config.sliding_window} tokens × {window:,} B = "
        f"{plan.windows:,} B. At {plan.tokens:,} tokens the index scores of one query take "
        f"{plan.macs / 1e9:,.1f} G multiply-adds."
    )


def _groups(plan: ScheduleLedger) -> str:
    """One row for each layer that selects and those that follow it, and one for the window-only layers."""
    storage = plan.storage

    def alike(layer: LayerPlan) -> tuple:
        return layer.half, layer.index_source

    rows = []
    for _, run in groupby(plan.config.layers, key=alike):
        layers = list(run)
        head = layers[0]
        name = f"{head.index}" if len(layers) == 1 else f"{head.index}–{layers[-1].index}"
        share = Fraction(1, head.ratio) if head.owns_kv else Fraction(0)
        sizes = (number(share * size) for size in (storage.main.nbytes, storage.index.nbytes))
        keys = "–" if head.kv_source is None else "its own" if head.owns_kv else f"layer {head.kv_source}"
        pool = "–" if head.candidate_source is None else f"layer {head.candidate_source}"
        rows.append((name, head.half, MODE_NAMES[head.mode], head.ratio or "–", keys, pool, *sizes))
    header = ("layers", "half", "first is", "tokens per entry", "keys of", "pool of", "main KV, B", "index keys, B")
    return table(header, rows, numeric=(3, 6, 7))


def _totals(plan: ScheduleLedger, given: ScheduleLedger, known: str) -> str:
    names = {"this schedule": plan, f"the {known} one": given} if plan != given else {f"the {known} schedule": plan}
    lines = {
        "bytes a token": lambda one: number(one.per_token),
        f"bytes of a page of {_PAGE} tokens": lambda one: number(one.per_token * _PAGE),
        f"bytes of {plan.tokens:,} tokens": lambda one: f"{one.kept:,}",
        "bytes of the windows": lambda one: f"{one.windows:,}",
        "KV bytes that one step reads": lambda one: f"{one.read:,}",
        "multiply-adds of the index scores": lambda one: f"{one.macs:,}",
    }
    rows = [(name, *(show(one) for one in names.values())) for name, show in lines.items()]
    return table(("in all", *names), rows, numeric=range(1, len(names) + 1))
