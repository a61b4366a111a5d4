"""What the walk through a decode step says about a layer: what it owns, reads and sends on."""

from __future__ import annotations

from collections.abc import Sequence

from ds41 import ledger
from ds41.config import LayerPlan, ModelConfig
from ds41.reads import LayerRead, scored_entries
from ds41.viz.layer_map import MODE_NAMES


def sends(config: ModelConfig, plan: LayerPlan) -> dict[str, list[int]]:
    """What other layers take from this one, and which layers do."""
    others = [other for other in config.layers if other.index != plan.index]
    takers = {
        "main KV": [o.index for o in others if o.kv_source == plan.index],
        "index keys": [o.index for o in others if o.kv_source == plan.index and o.owns_selection],
        "selection": [o.index for o in others if o.index_source == plan.index],
        "candidate pool": [o.index for o in others if o.candidate_source == plan.index and o.owns_selection],
    }
    return {what: layers for what, layers in takers.items() if layers}


def card(config: ModelConfig, plan: LayerPlan) -> str:
    """One layer in a few sentences, as HTML."""
    owned = {
        "window": "its window",
        "full": "main KV, index keys, a selection and its window",
        "reindex": "a selection and its window",
        "reuse": "its window",
    }[plan.mode]
    text = f"<b>Layer {plan.index}</b>, {plan.half}, {MODE_NAMES[plan.mode]}. Owns {owned}"
    if plan.owns_kv:
        size = ledger.entry_bytes(config) / plan.ratio
        text += f"; writes {size:g} B of global KV a token"
    sent = [f"its {what} to {names(layers)}" for what, layers in sends(config, plan).items()]
    return f"{text}. " + (f"Sends {_listed(sent)}." if sent else "Sends nothing to another layer's attention.")


def reading(read: LayerRead, tokens: int) -> str:
    return f"At {tokens:,} tokens it reads {read.total:,} bytes."


def titles(config: ModelConfig, plan: LayerPlan, read: LayerRead, tokens: int) -> tuple[str, str, str]:
    """Above the three tracks: index keys, main KV, window; each with the bytes that one step reads of it."""
    visible = tokens // plan.ratio if plan.ratio else 0
    owner = "of its own" if plan.owns_kv else f"of layer {plan.kv_source}"
    main = "No main KV" if plan.mode == "window" else f"{min(visible, config.index_topk):,} main KV entries {owner}"
    return (
        _title(*_scoring(config, plan, visible, scored_entries(config, plan, tokens), owner), read.index),
        _title("main", main, read.main),
        _title("ring", f"Its own window, the last {min(tokens, config.sliding_window)} tokens", read.window),
    )


def _scoring(config: ModelConfig, plan: LayerPlan, visible: int, scored: int, owner: str) -> tuple[str, str]:
    if plan.mode == "window":
        return "index", "No index keys"
    if plan.mode == "reuse":
        return "hit", f"No scores: takes the selection of layer {plan.index_source}"
    if scored == 0:
        return "hit", f"No scores: all {visible:,} entries are selected"
    where = ""
    if plan.candidate_source is not None:
        where = ", those in its pool" if scored < visible else "; its pool still holds every block"
    every = "all " if scored == visible else ""
    return "index", f"Scores {every}{scored:,} index keys {owner}{where}"


def _title(kind: str, text: str, nbytes: int) -> str:
    return f'<span><i class="ds-swatch ds-{kind}"></i>{text}</span> <b>{nbytes:,} B</b>'


def names(layers: Sequence[int]) -> str:
    """[3, 4, 5] -> "layers 3–5"; [24, 28] -> "layers 24 and 28"."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if layers[-1] - layers[0] == len(layers) - 1 and len(layers) > 2:
        return f"layers {layers[0]}–{layers[-1]}"
    return f"layers {_listed([str(layer) for layer in layers])}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
