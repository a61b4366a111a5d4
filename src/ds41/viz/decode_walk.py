"""One decode step, layer by layer: what each layer owns, what it reads and from whom, and what it sends on.

The plan and the bytes are those of the configuration. The positions on the tracks come from a decode step that was
really run, by a model with the same plan and small sizes (:mod:`ds41.viz.decode_trace`).

Source: report sections 2.2 and 2.3; numbers of :mod:`ds41.reads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from ds41.config import LayerPlan, ModelConfig
from ds41.ledger import Storage
from ds41.reads import decode_reads
from ds41.viz.decode_trace import LayerTrace, small_plan, trace_decode
from ds41.viz.decode_words import card, reading, sends, titles
from ds41.viz.diagram import Diagram, choices, table
from ds41.viz.layer_map import MODE_NAMES, cells_of, halves, legend
from ds41.viz.style import readable_bytes

CONTEXTS = {4096: "4K", 65536: "64K", 2**20: "1M"}
# An odd number of tokens: the newest is in an open group of two, which no entry stands for yet.
_TRACED_TOKENS = 129
# The share of a strip that a wire's label needs, on a phone too.
_ROOM = 0.45


def decode_walk(config: ModelConfig | None = None, layer: int | None = None, tokens: int = 2**20) -> Diagram:
    """The walk through a decode step of ``config`` (default: the published one), standing at ``layer``.

    Args:
        layer: where it stands at first; None takes the first layer that selects among borrowed keys, or an owner.
        tokens: the context for which bytes are shown at first: 4096, 65536 or 1048576.

    Raises:
        ValueError: ``config`` keeps no global KV or has no such layer, or the context is another one.
    """
    config = config or ModelConfig.flash()
    if not config.kv_source_layer_ids:
        raise ValueError("kv_source_layer_ids is empty: this configuration keeps no global KV to read")
    if layer is None:
        reindexing = (plan.index for plan in config.layers if plan.mode == "reindex")
        layer = next(reindexing, config.kv_source_layer_ids[0])
    if not 0 <= layer < config.num_hidden_layers:
        raise ValueError(f"layer is {layer}; expected 0 to {config.num_hidden_layers - 1}")
    if tokens not in CONTEXTS:
        raise ValueError(f"tokens is {tokens}; expected one of {', '.join(map(str, CONTEXTS))}")
    data = _data(config, layer)
    modes = [plan.mode for plan in config.layers]
    owners, reindexing, following = (modes.count(mode) for mode in ("full", "reindex", "reuse"))
    return Diagram(
        kind="walk",
        like="layers",
        title=f"One decode step: of {len(modes)} layers {owners} own keys, {owners + reindexing} choose among them "
        f"and {following} follow a choice",
        body=_map(config, data, layer) + _reading(config, data, layer, tokens) + _controls(config, layer, tokens),
        caption=f"{data['layers'][layer]['card']} {data['contexts'][tokens]['reading'][layer]}",
        table=_table(config),
        data=data,
        modules=("strips",),
    )


def _data(config: ModelConfig, layer: int) -> dict:
    """What the script puts in place: HTML by layer, by group of layers that read alike, and by context."""
    groups = [list(group) for _, group in groupby(config.layers, key=_alike)]
    group_of = {plan.index: number for number, group in enumerate(groups) for plan in group}
    small = small_plan(config)
    traces = trace_decode(small, _TRACED_TOKENS)
    return {
        "layer": layer,
        "layers": [
            {
                "name": f"layer {plan.index}, {MODE_NAMES[plan.mode]}",
                "half": plan.half,
                "group": group_of[plan.index],
                "linked": _takers(config, plan),
                "wires": _wires(config, plan),
                "card": card(config, plan),
            }
            for plan in config.layers
        ],
        "tracks": [_tracks(small, small.layers[group[0].index], traces) for group in groups],
        "contexts": {tokens: _context(config, groups, tokens) for tokens in CONTEXTS},
    }


def _alike(plan: LayerPlan) -> tuple:
    own = plan.index if plan.owns_selection else None
    return own, plan.half, plan.mode, plan.kv_source, plan.index_source


def _takers(config: ModelConfig, plan: LayerPlan) -> list[int]:
    return sorted({layer for layers in sends(config, plan).values() for layer in layers})


def _context(config: ModelConfig, groups: Sequence[Sequence[LayerPlan]], tokens: int) -> dict:
    reads = decode_reads(config, tokens)
    total = sum(read.total for read in reads)
    ends = [sum(read.total for read in reads[:count]) for count in range(len(reads) + 1)]
    return {
        "titles": [titles(config, group[0], reads[group[0].index], tokens) for group in groups],
        "reading": [reading(read, tokens) for read in reads],
        "segments": [[read.index, read.main, read.window] for read in reads],
        # Shares of the bar where each layer's part begins, as they go into the page.
        "ends": [f"{100 * end / total:.3f}" for end in ends],
        "soFar": [readable_bytes(end) for end in ends],
    }


def _tracks(config: ModelConfig, plan: LayerPlan, traces: Mapping[int, LayerTrace]) -> list[list]:
    """Where along the sequence a layer scores, reads entries, and sees its window: three lists of bars."""
    trace = traces.get(plan.index_source, LayerTrace((), ()))
    scored = trace.scored if plan.owns_selection else ()
    window = range(_TRACED_TOKENS - config.sliding_window, _TRACED_TOKENS)
    return [
        _bars("index", scored, plan.ratio) + _bars("hit", trace.selected, plan.ratio),
        _bars("main", trace.selected, plan.ratio),
        _bars("ring", window, 1),
    ]


def _bars(kind: str, entries: Sequence[int], ratio: int) -> list[tuple[str, str, str]]:
    """A bar for each run of neighbouring entries: its kind, left edge and width in percent of the sequence."""
    runs: list[list[int]] = []
    for entry in entries:
        if runs and entry == runs[-1][1]:
            runs[-1][1] = entry + 1
        else:
            runs.append([entry, entry + 1])
    unit = 100 * ratio / _TRACED_TOKENS
    return [(kind, f"{start * unit:.2f}", f"{(stop - start) * unit:.2f}") for start, stop in runs]


def _map(config: ModelConfig, data: dict, layer: int) -> str:
    columns = max(len(plans) for _, plans in halves(config))
    chosen = data["layers"][layer]
    strips = ""
    for half, plans in halves(config):
        wires = chosen["wires"] if half == chosen["half"] else ""
        lanes = max(data["layers"][plan.index]["wires"].count("<i") for plan in plans)
        strips += (
            f'<div class="ds-half"><p class="ds-label">{half}, layers {plans[0].index}–{plans[-1].index}</p>'
            f'<div class="ds-wires" data-half="{half}" style="--lanes:{lanes}" aria-hidden="true">{wires}</div>'
            f'<div class="ds-strip" style="--columns:{columns}">{cells_of(plans, layer, chosen["linked"])}</div></div>'
        )
    taking = (
        '<ul class="ds-legend"><li><i class="ds-taking"></i>outlined: takes something from the chosen layer</li></ul>'
    )
    return f'<div class="ds-map" role="group" aria-label="Layers">{strips}</div>{legend(config)}{taking}'


def _wires(config: ModelConfig, plan: LayerPlan) -> str:
    """Lines from the layers that this one borrows from. An owner borrows nothing, and a window layer neither."""
    if plan.mode not in ("reindex", "reuse"):
        return ""
    storage, pool = Storage.published(config), plan.candidate_source
    lanes = [("main", plan.kv_source, f"main KV ≤ {config.index_topk:,} × {storage.main.nbytes} B")]
    if plan.mode == "reuse":
        lanes.append(("hit", plan.index_source, f"selection ≤ {config.index_topk:,} entries"))
    elif pool is None:
        lanes.append(("index", plan.kv_source, f"index keys, {storage.index.nbytes} B each"))
    else:
        blocks, size = config.candidate_topk_blocks, config.candidate_block_size
        lanes.append(("index", plan.kv_source, f"index keys ≤ {blocks * size:,} × {storage.index.nbytes} B"))
        lanes.append(("pool", pool, f"pool ≤ {blocks:,} blocks"))
    columns = max(len(plans) for _, plans in halves(config))
    first = next(plans[0].index for half, plans in halves(config) if half == plan.half)
    centre = [(layer - first + 0.5) / columns for layer in range(first, plan.index + 1)]
    return "".join(
        _wire(kind, lane, centre[source - first], centre[-1], text) for lane, (kind, source, text) in enumerate(lanes)
    )


def _wire(kind: str, lane: int, start: float, end: float, text: str) -> str:
    """A bracket from one cell to another, as shares of the strip; its label stands where there is room."""
    # On a phone a label may have to lie over its line, but never beside the strip.
    limit = f"100% - {0.35 * len(text) + 0.7:.1f}rem"
    if 1 - end >= _ROOM:
        side, place = "after", f"left:min({100 * end:.2f}%,{limit})"
    elif start >= end - start:
        side, place = "before", f"right:min({100 * (1 - start):.2f}%,{limit})"
    else:
        side, place = "within", f"left:{50 * (start + end):.2f}%"
    return (
        f'<i class="ds-wire ds-wire-{kind}" style="--lane:{lane};left:{100 * start:.2f}%;'
        f'right:{100 * (1 - end):.2f}%"></i>'
        f'<span class="ds-wire-{kind} ds-{side}" style="--lane:{lane};{place}">{text}</span>'
    )


def _track(bars: Sequence[tuple[str, str, str]]) -> str:
    return "".join(f'<i class="ds-{kind}" style="left:{left}%;width:{width}%"></i>' for kind, left, width in bars)


def _segments(reads: Sequence[Sequence[int]]) -> str:
    def part(kind: str, size: int) -> str:
        return f'<i class="ds-{kind}" style="flex-grow:{size}"></i>'

    return "".join(
        f'<i style="flex-grow:{index + main + window}">'
        f"{part('index', index)}{part('main', main)}{part('window', window)}</i>"
        for index, main, window in reads
    )


def _progress(context: dict, layer: int) -> str:
    start, end = context["ends"][layer : layer + 2]
    return (
        f"<p>Read so far in this step: <b>{context['soFar'][layer + 1]}</b> of {context['soFar'][-1]}</p>"
        f'<i class="ds-here" style="left:{start}%;right:calc(100% - {end}%)"></i>'
        f'<i class="ds-later" style="left:{end}%"></i>'
    )


def _reading(config: ModelConfig, data: dict, layer: int, tokens: int) -> str:
    group, context = data["layers"][layer]["group"], data["contexts"][tokens]
    rows = "".join(
        f'<div class="ds-row"><p>{title}</p><div class="ds-track" aria-hidden="true">{_track(bars)}</div></div>'
        for title, bars in zip(context["titles"][group], data["tracks"][group], strict=True)
    )
    small = small_plan(config)
    pool = (
        f", a pool of {small.candidate_topk_blocks} blocks of {small.candidate_block_size}"
        if config.candidate_source_layer_id >= 0
        else ""
    )
    return (
        f'<div class="ds-reads"><p class="ds-now">Layer <span data-out="layer">{layer}</span> reads</p>{rows}'
        '<p class="ds-ends" aria-hidden="true"><span>first token</span><span>newest token</span></p></div>'
        f'<div class="ds-sum"><div class="ds-bar" aria-hidden="true">{_segments(context["segments"])}</div>'
        f'<div class="ds-progress">{_progress(context, layer)}</div></div>'
        f'<p class="ds-note">Bytes are those of this configuration. The tracks were recorded in a decode step of a '
        f"model with the same plan, random weights and small sizes: {_TRACED_TOKENS} tokens, a window of "
        f"{small.sliding_window}, {small.index_topk} entries selected{pool}.</p>"
    )


def _controls(config: ModelConfig, layer: int, tokens: int) -> str:
    contexts = [(str(count), name, "tokens") for count, name in CONTEXTS.items()]
    buttons = "".join(
        f'<button type="button" class="ds-button" data-act="{act}">{name}</button>'
        for act, name in (("back", "Back"), ("play", "Play"), ("step", "Step"))
    )
    return (
        '<form class="ds-controls"><div class="ds-field"><span>Walk through the layers</span>'
        f'<div class="ds-buttons">{buttons}</div></div>'
        + choices("tokens", "Context", contexts, str(tokens))
        + '<label class="ds-field"><span>Layer</span><input type="range" name="layer" min="0" '
        f'max="{config.num_hidden_layers - 1}" value="{layer}"></label></form>'
    )


def _table(config: ModelConfig) -> str:
    reads = {tokens: decode_reads(config, tokens) for tokens in CONTEXTS}
    rows = []
    for _, group in groupby(config.layers, key=_alike):
        run = list(group)
        plan = run[0]
        sources = (plan.kv_source, plan.index_source, plan.candidate_source if plan.mode == "reindex" else None)
        rows.append(
            (
                str(plan.index) if len(run) == 1 else f"{plan.index}–{run[-1].index}",
                MODE_NAMES[plan.mode],
                *("–" if source is None else "itself" if source == plan.index else str(source) for source in sources),
                *(f"{reads[tokens][plan.index].total:,}" for tokens in CONTEXTS),
            )
        )
    header = (
        "layer",
        "mode",
        "main KV from",
        "selection from",
        "pool from",
        *(f"bytes read at {name}" for name in CONTEXTS.values()),
    )
    return table(header, rows, numeric=(5, 6, 7))
