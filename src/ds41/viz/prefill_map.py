"""Prefill as a grid of layers and tokens: what runs, what is written, and what a half-way stop leaves out.

``js/prefill.js`` draws the same for every other prompt, window and way of running; a test holds the two to the same
HTML.

Source: report sections 2.2 and 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ds41.config import LayerPlan, ModelConfig
from ds41.flops import attention_begins
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.layer_map import MODE_NAMES, halves

WAYS = {
    "full": ("Full", "every token"),
    "bounded": ("Bounded", "the last window"),
    "exact": ("Exact tail", "all that counts"),
    "next": ("Next token", "after the prompt"),
}
WINDOWS = (32, 64, 128, 256)
# Of a longer prompt the last so many tokens are drawn; those before them are like those at the edge.
SHOWN = 8192


@dataclass(frozen=True)
class Row:
    """What one layer does.

    begin: the first prompt token that it attends for; the prompt's end if there is none. entries: global entries
    that it has written in all, 0 if it owns none. clipped: tokens that it runs on see less than their whole window.
    """

    plan: LayerPlan
    begin: int
    entries: int
    clipped: bool


def rows_of(config: ModelConfig, way: str, tokens: int) -> list[Row]:
    """Every layer's row for a prompt of ``tokens`` tokens; "next" is the step after it."""
    begins = (tokens,) * config.num_hidden_layers if way == "next" else attention_begins(config, tokens, way)
    written = tokens + (way == "next")
    rows = []
    for plan, begin in zip(config.layers, begins, strict=True):
        clipped = way == "bounded" and begin > 0 and plan.index > config.decoder_start
        rows.append(Row(plan, begin, written // plan.ratio if plan.owns_kv else 0, clipped))
    return rows


def prefill_map(
    config: ModelConfig | None = None, tokens: int = 1024, way: str = "bounded", window: int | None = None
) -> Diagram:
    """The grid of ``config`` (default: the published one) for a prompt of ``tokens`` tokens.

    Args:
        way: "full", "bounded", "exact" or "next", shown first. window: tokens of a window, one of the configuration's
            own and 32, 64, 128, 256.

    Raises:
        ValueError: an unknown way or window, a prompt that does not fit the configuration, or a configuration whose
            layers are not an encoder and a decoder.
    """
    config = config or ModelConfig.flash()
    windows = sorted({*WINDOWS, config.sliding_window})
    if window is not None:
        config = replace(config, sliding_window=window)
    if way not in WAYS:
        raise ValueError(f"way is {way!r}; expected one of: {', '.join(WAYS)}")
    if config.sliding_window not in windows:
        raise ValueError(f"window is {window}; expected one of: {', '.join(map(str, windows))}")
    if not 1 <= tokens <= config.max_position_embeddings:
        raise ValueError(f"tokens is {tokens}; expected 1 to {config.max_position_embeddings}")
    if len(halves(config)) != 2:
        raise ValueError(f"decoder_start is {config.decoder_start}; these layers are not an encoder and a decoder")
    rows, source = rows_of(config, way, tokens), config.decoder_start
    picture = readouts(rows, way, tokens) + grid(config, rows, way, tokens)
    return Diagram(
        kind="prefill",
        title=f"Above layer {source} nothing is written that grows, so most of a prompt need not go there",
        body=f'<div class="ds-picture">{picture}</div>{_LEGEND}{_controls(config, windows, way, tokens)}'
        f'<p class="ds-chosen-layer" aria-live="polite">{layer_words(rows[source], config, way, tokens)}</p>',
        caption=overview(rows, config, way, tokens),
        table=rows_table(rows, config, way, tokens),
        data={
            "layers": [
                {"half": plan.half, "mode": MODE_NAMES[plan.mode], "ratio": plan.ratio, "owns": plan.owns_kv}
                for plan in config.layers
            ],
            "source": source,
            "limit": config.max_position_embeddings,
            "shown": SHOWN,
        },
    )


def token_layers(rows: Sequence[Row], way: str, tokens: int) -> int:
    """Tokens that each layer runs on, summed over the layers."""
    return len(rows) if way == "next" else sum(tokens - row.begin for row in rows)


def percent(part: int, whole: int) -> str:
    """With one decimal, halves up, as the script rounds."""
    tenths = (2000 * part + whole) // (2 * whole)
    return f"{tenths // 10}.{tenths % 10} %"


def readouts(rows: Sequence[Row], way: str, tokens: int) -> str:
    run, full = token_layers(rows, way, tokens), tokens * len(rows)
    share = "for one token" if way == "next" else f"{percent(run, full)} of a full prefill"
    entries = sum(row.entries for row in rows)
    return (
        f'<dl><div><dt>tokens × layers run</dt><dd>{run:,}</dd><dd class="ds-fine">{share}</dd></div>'
        f'<div><dt>global entries then kept</dt><dd>{entries:,}</dd></div></dl>'
    )  # fmt: skip


def grid(config: ModelConfig, rows: Sequence[Row], way: str, tokens: int) -> str:
    """A strip of rows for each half, and the axis of tokens."""
    shown = min(tokens, SHOWN)
    parts = []
    for half, plans in halves(config):
        cells = "".join(_row(rows[plan.index], config, way, tokens, shown) for plan in plans)
        window = _segment("window", max(0, tokens - config.sliding_window), tokens, shown)
        parts.append(
            f'<p class="ds-label">{half}, layers {plans[0].index}–{plans[-1].index}</p>'
            f'<div class="ds-rows" aria-hidden="true">{cells}<div class="ds-over"><span>{window}</span></div></div>'
        )
    first = "token 0" if shown == tokens else f"… {tokens - shown:,} more like these"
    axis = f"<span>{first}</span><span>token {tokens - 1:,}</span><span>next</span>"
    return f'{"".join(parts)}<p class="ds-axis" aria-hidden="true">{axis}</p>'


def _row(row: Row, config: ModelConfig, way: str, tokens: int, shown: int) -> str:
    prompt = _segment("replay" if row.clipped else "run", row.begin, tokens, shown) if row.begin < tokens else ""
    if row.plan.owns_kv:
        prompt += _segment("main", 0, tokens, shown)
    following = '<i class="ds-run"></i>' if way == "next" else ""
    if following and row.plan.owns_kv and (tokens + 1) % row.plan.ratio == 0:
        following += '<i class="ds-main"></i>'
    name = "ds-row ds-chosen" if row.plan.index == config.decoder_start else "ds-row"
    return f'<div class="{name}" data-layer="{row.plan.index}"><span>{prompt}</span><span>{following}</span></div>'


def _segment(kind: str, begin: int, end: int, shown: int) -> str:
    """A part of the prompt; a length is a share of the tokens that are drawn."""
    left = max(0, begin - (end - shown))
    return f'<i class="ds-{kind}" style="left:calc(100% * {left} / {shown});right:0"></i>'


_LEGEND = (
    '<ul class="ds-legend">'
    '<li><i class="ds-key ds-run"></i>attention and experts run</li>'
    '<li><i class="ds-key ds-replay"></i>run with clipped windows</li>'
    '<li><i class="ds-key ds-main"></i>global entries written</li>'
    '<li><i class="ds-key ds-window"></i>window rows kept</li>'
    '<li><i class="ds-key"></i>nothing done</li></ul>'
)


def _controls(config: ModelConfig, windows: Sequence[int], way: str, tokens: int) -> str:
    ways = [(key, name, note) for key, (name, note) in WAYS.items()]
    sizes = [(str(size), str(size), "") for size in windows]
    limit, last = config.max_position_embeddings, config.num_hidden_layers - 1
    return (
        '<form class="ds-controls">'
        + choices("way", "The decoder runs on", ways, way)
        + '<label class="ds-field"><span>Prompt</span>'
        f'<input type="range" name="slider" min="0" max="1000" step="1" value="{slider_of(tokens, limit)}"></label>'
        '<label class="ds-field"><span>Tokens, exactly</span>'
        f'<input type="number" name="tokens" min="1" max="{limit}" step="1" value="{tokens}"></label>'
        + choices("window", "Tokens of a window", sizes, str(config.sliding_window))
        + '<label class="ds-field"><span>Layer</span>'
        f'<input type="range" name="layer" min="0" max="{last}" value="{config.decoder_start}"></label></form>'
    )


def slider_of(tokens: int, limit: int) -> int:
    """Where a logarithmic slider of 1,000 steps stands."""
    return round(1000 * math.log2(tokens) / math.log2(limit)) if limit > 1 else 0


def overview(rows: Sequence[Row], config: ModelConfig, way: str, tokens: int) -> str:
    """The picture in words."""
    name, source, window = WAYS[way][0], rows[config.decoder_start], config.sliding_window
    run, full = token_layers(rows, way, tokens), tokens * len(rows)
    if way == "next":
        owners = sum(row.plan.owns_kv for row in rows)
        return (
            f"<b>{name}.</b> It runs through all {len(rows)} layers, reads the entries of {owners} of them and the "
            f"windows of all, and needs nothing else of the prompt."
        )
    if run == full:
        why = "" if way == "full" else " The prompt is short enough for that."
        return f"<b>{name}.</b> All {len(rows)} layers run on all {_tokens(tokens)}.{why}"
    cost = f"{run:,} of {full:,}, {percent(run, full)}"
    if way == "bounded":
        return (
            f"<b>{name}.</b> Layer {source.plan.index} writes its entries for all {tokens:,} tokens and goes on with "
            f"the last {window}, as do the layers above it: {cost}. The windows above it begin there, so the result "
            "is an approximation."
        )
    reach = "all" if source.begin == 0 else f"the last {tokens - source.begin:,}"
    return (
        f"<b>{name}.</b> The last token reaches {window - 1} tokens further back with every layer below it, so layer "
        f"{source.plan.index} runs on {reach} of {tokens:,}: {cost}. The result is that of a full prefill."
    )


def layer_words(row: Row, config: ModelConfig, way: str, tokens: int) -> str:
    """One layer's row in words."""
    plan, kept = row.plan, tokens - row.begin
    if way == "next":
        runs = "Runs on the next token."
    elif row.begin == 0:
        runs = f"Runs on all {_tokens(tokens)}."
    elif kept == 1:
        runs = f"Runs on the last of {_tokens(tokens)}."
    else:
        runs = f"Runs on the last {kept:,} of {_tokens(tokens)}."
    writes = "Writes nothing that grows."
    if plan.owns_kv:
        each = "every token" if plan.ratio == 1 else f"every {plan.ratio} tokens"
        writes = (
            f"Writes an entry for {each} all the same."
            if row.begin and way != "next"
            else f"Writes an entry for {each}."
        )
    window = f"Its window holds the last {min(tokens + (way == 'next'), config.sliding_window)}."
    if row.clipped:
        window = f"Its window holds the last {config.sliding_window}, which saw less than they would have."
    return f"<b>Layer {plan.index}</b>, {plan.half}, {MODE_NAMES[plan.mode]}. {runs} {writes} {window}"


def rows_table(rows: Sequence[Row], config: ModelConfig, way: str, tokens: int) -> str:
    """The rows as a table, layers that do the same together."""
    lines = []
    for (half, begin, entries, clipped), group in groupby(rows, lambda r: (r.plan.half, r.begin, r.entries, r.clipped)):
        layers = [row.plan.index for row in group]
        name = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
        runs = "the next" if way == "next" else f"{tokens - begin:,}"
        window = min(tokens + (way == "next"), config.sliding_window)
        lines.append((name, half, runs, f"{entries:,}", f"{window}, clipped" if clipped else f"{window}"))
    return table(("layer", "half", "runs on tokens", "global entries", "window rows"), lines, numeric=(2, 3))


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"
