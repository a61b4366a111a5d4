"""The map of the layers: who owns keys, who borrows them, and the bytes that an owner keeps for each token.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ds41.config import LayerPlan, ModelConfig
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.viz.diagram import Diagram, table

MODE_NAMES = {"window": "window only", "full": "Full", "reindex": "Reindex", "reuse": "Reuse"}
MODE_MEANINGS = {
    "full": "owns main KV, index keys and a selection",
    "reindex": "selects anew over borrowed keys",
    "reuse": "borrows all three",
    "window": "sees only the last tokens",
}
# Ring, half ring, dot; a layer with a window alone shows the bracket that windows have everywhere.
MARKS = {
    "full": '<circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2.5"/>',
    "reindex": '<path d="M2.5 10a5.5 5.5 0 0 1 11 0" fill="none" stroke="currentColor" stroke-width="2.5"/>',
    "reuse": '<circle cx="8" cy="8" r="2.75" fill="currentColor"/>',
    "window": '<path d="M3 11V6.5h10V11" fill="none" stroke="currentColor" stroke-width="1.5"/>',
}


@dataclass(frozen=True)
class Owner:
    """A layer that keeps global KV: its readers, and its bytes per token."""

    layer: int
    last_reader: int
    main: float
    index: float

    @property
    def total(self) -> float:
        return self.main + self.index


def owners_of(config: ModelConfig) -> list[Owner]:
    """The owners in order, with main KV and index key bytes of one token (averaged over a group).

    Raises:
        ValueError: the configuration keeps no global KV.
    """
    if not config.kv_source_layer_ids:
        raise ValueError("kv_source_layer_ids is empty: this configuration keeps no global KV to show")
    main = MAIN_KV.bytes_per_row(config.head_dim)
    index = INDEX_KEY.bytes_per_row(config.index_head_dim)
    return [
        Owner(
            layer=plan.index,
            last_reader=max(other.index for other in config.layers if other.kv_source == plan.index),
            main=main / plan.ratio,
            index=index / plan.ratio,
        )
        for plan in config.layers
        if plan.owns_kv
    ]


def halves(config: ModelConfig) -> list[tuple[str, list[LayerPlan]]]:
    """Encoder and decoder with their layers; a half without layers is left out."""
    return [(name, list(plans)) for name, plans in groupby(config.layers, key=lambda plan: plan.half)]


def bytes_per_strip(config: ModelConfig) -> float:
    """The scale of the map: bytes that a bar as long as one strip would stand for.

    The tightest owner's bar just fits under its own readers, so no bar runs into the next.
    """
    columns = max(len(plans) for _, plans in halves(config))
    return max(o.total * columns / (o.last_reader - o.layer + 1) for o in owners_of(config)) * 1.06


def layer_map(config: ModelConfig | None = None, title: str | None = None) -> Diagram:
    """The strip of layers of ``config`` (default: the published one); choosing a layer shows what it reads."""
    config = config or ModelConfig.flash()
    owners = owners_of(config)
    total = sum(owner.total for owner in owners)
    borrowers = sum(plan.kv_source is not None and not plan.owns_kv for plan in config.layers)
    return Diagram(
        kind="layers",
        title=title
        or f"{len(owners)} of {config.num_hidden_layers} layers keep what grows with the context, "
        f"{borrowers} borrow it",
        body=_body(config, owners),
        caption=f"{' + '.join(f'{owner.total:g}' for owner in owners)} = <b>{total:g} bytes a token</b>, bars to one "
        "scale. Windows come on top and do not grow.",
        table=_table(config),
        data={"layers": [_detail(config, plan) for plan in config.layers]},
        modules=("strips",),
    )


def _body(config: ModelConfig, owners: list[Owner]) -> str:
    columns = max(len(plans) for _, plans in halves(config))
    scale = bytes_per_strip(config)
    strips = "".join(_strip(name, plans, owners, columns, scale) for name, plans in halves(config))
    # The cells are narrow on a phone; the slider is as wide as the figure.
    slider = (
        '<form class="ds-controls"><label class="ds-field"><span>Layer</span>'
        f'<input type="range" name="layer" min="0" max="{config.num_hidden_layers - 1}" value="0"></label></form>'
    )
    cells = f'<div class="ds-map" role="group" aria-label="Layers">{strips}</div>'
    return f"{cells}{legend(config)}{slider}"


def legend(config: ModelConfig) -> str:
    """What the marks of the cells mean, as far as ``config`` has them."""
    modes = [mode for mode in MODE_MEANINGS if any(plan.mode == mode for plan in config.layers)]
    items = "".join(
        f"<li>{_mark(mode)}<span><b>{MODE_NAMES[mode]}</b> {MODE_MEANINGS[mode]}</span></li>" for mode in modes
    )
    return f'<ul class="ds-legend">{items}</ul>'


def _strip(half: str, plans: list[LayerPlan], owners: list[Owner], columns: int, scale: float) -> str:
    first = plans[0].index
    bars = ""
    for owner in owners:
        if not first <= owner.layer <= plans[-1].index:
            continue
        start, span = owner.layer - first + 1, owner.last_reader - owner.layer + 1
        # The bar is to scale against the strip; inside its cell of the grid that is a larger share.
        width = 100 * owner.total / scale * columns / span
        group = " ds-group" if start > 1 else ""
        bars += (
            f'<div class="ds-owned{group}" data-owner="{owner.layer}" style="grid-column:{start}/span {span}">'
            f'<span class="ds-length" style="width:{width:.2f}%"><i class="ds-main" style="flex:{owner.main:g}"></i>'
            f'<i class="ds-index" style="flex:{owner.index:g}"></i></span>'
            f"<span><b>{owner.total:g} B</b> <small>layer {owner.layer}</small></span></div>"
        )
    return (
        f'<div class="ds-half"><p class="ds-label">{half}, layers {first}–{plans[-1].index}</p>'
        f'<div class="ds-strip" style="--columns:{columns}">{cells_of(plans)}</div>'
        f'<div class="ds-strip ds-owns" style="--columns:{columns}" aria-hidden="true">{bars}</div></div>'
    )


def cells_of(plans: list[LayerPlan], pressed: int | None = None, linked: Sequence[int] = ()) -> str:
    """The cells of one half, in order; ``pressed`` is the chosen layer, ``linked`` are those it has to do with."""
    cells = ""
    for plan in plans:
        group = " ds-group" if plan is not plans[0] and plan.owns_selection else ""
        lit = " ds-linked" if plan.index in linked else ""
        cells += (
            f'<button type="button" class="ds-cell{group}{lit}" data-layer="{plan.index}" '
            f'aria-pressed="{str(plan.index == pressed).lower()}" '
            f'aria-label="Layer {plan.index}, {MODE_NAMES[plan.mode]}">{_mark(plan.mode)}</button>'
        )
    return cells


def _mark(mode: str) -> str:
    return f'<svg class="ds-mark" viewBox="0 0 16 16" aria-hidden="true">{MARKS[mode]}</svg>'


def _detail(config: ModelConfig, plan: LayerPlan) -> dict:
    """What the figure says about one layer, and which cells it lights up."""
    linked: list[int] = []
    if plan.mode == "window":
        text = f"Sees the last {config.sliding_window} tokens and nothing else."
    elif plan.mode == "full":
        owner = next(owner for owner in owners_of(config) if owner.layer == plan.index)
        linked = [p.index for p in config.layers if p.kv_source == plan.index and p.index != plan.index]
        every = "every token" if plan.ratio == 1 else f"{plan.ratio} tokens"
        text = (
            f"Keeps <b>{owner.total:g} B a token</b>: {owner.main:g} of main KV and {owner.index:g} of index keys, "
            f"one entry for {every}. {_read_by(linked)}"
        )
    elif plan.mode == "reindex":
        linked = [plan.kv_source]
        pool = "" if plan.candidate_source is None else f", among the candidates of layer {plan.candidate_source}"
        text = (
            f"Selects {config.index_topk} entries itself{pool}, over the main KV and index keys of layer "
            f"{plan.kv_source}. Keeps nothing that grows."
        )
    else:
        text = (
            f"Reads the main KV of layer {plan.kv_source} where layer {plan.index_source} has selected. "
            "Keeps nothing that grows."
        )
        linked = sorted({plan.kv_source, plan.index_source})
    name = f"<b>Layer {plan.index}</b>, {plan.half}, {MODE_NAMES[plan.mode]}."
    window = f"Its window keeps {config.sliding_window} entries of {WINDOW_KV.bytes_per_row(config.head_dim)} B."
    return {"mode": MODE_NAMES[plan.mode], "text": f"{name} {text} {window}", "linked": linked}


def _read_by(readers: list[int]) -> str:
    if not readers:
        return "No other layer reads it."
    if len(readers) == 1:
        return f"Layer {readers[0]} reads it too."
    return f"Layers {readers[0]}–{readers[-1]} read it too."


def _table(config: ModelConfig) -> str:
    owned = {owner.layer: owner.total for owner in owners_of(config)}

    def alike(plan: LayerPlan) -> tuple:
        own = plan.index if plan.owns_selection else None
        return own, plan.half, plan.mode, plan.ratio, plan.kv_source, plan.index_source

    rows = []
    for _, group in groupby(config.layers, key=alike):
        run = list(group)
        plan = run[0]
        name = f"{plan.index}" if len(run) == 1 else f"{plan.index}–{run[-1].index}"
        rows.append(
            (
                name,
                MODE_NAMES[plan.mode],
                plan.ratio or "–",
                _source(plan.kv_source, plan.index),
                _source(plan.index_source, plan.index),
                f"{owned.get(plan.index, 0):g}",
            )
        )
    header = ("layer", "mode", "tokens per entry", "main KV of", "selection of", "B per token")
    return table(header, rows, numeric=(2, 5))


def _source(source: int | None, layer: int) -> str:
    if source is None:
        return "–"
    return "its own" if source == layer else f"layer {source}"
