"""The interactive ledger: what one token costs under another sharing plan, other ratios, other formats.

Source: report section 2.4.4; :mod:`ds41.ledger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.ledger import Storage
from ds41.records import bf16, exact, fp8_index_key
from ds41.systems import System, systems
from ds41.viz.diagram import Diagram, choices
from ds41.viz.ledger_picture import Counts, caption, ledger_table, picture

POOL_GIB = 80
PUBLISHED = {"sharing": "on", "ratios": "published", "main": "fp4", "index": "mxfp4"}
_MAIN_NAMES = {"fp4": "FP4", "fp8": "FP8", "v4": "as V4", "bf16": "BF16"}
_INDEX_NAMES = {"mxfp4": "MXFP4", "fp8": "FP8", "bf16": "BF16"}
_FAMILIES = {
    "gqa": "keys and values per head",
    "mla": "one latent (MLA)",
    "dsa": "latent and indexer (DSA)",
    "csa_hca": "compressed along the sequence (CSA, HCA)",
    "csa2": "compressed and shared (CSA2)",
}


def ledger_explorer(
    config: ModelConfig | None = None, others: Sequence[System] | None = None, compare: str = "deepseek-v4-flash"
) -> Diagram:
    """The ledger of ``config`` (default: the published one) as a figure that answers.

    Args:
        others: models to set beside it; default: all of :mod:`ds41.systems` but this one.
        compare: key of the one shown first.

    Raises:
        ValueError: ``config`` keeps no global KV, or ``compare`` is not among the others.
    """
    config = config or ModelConfig.flash()
    if others is None:
        others = [system for system in systems().values() if system.family != "csa2"]
    if compare not in {system.key for system in others}:
        raise ValueError(f"compare is {compare!r}; expected one of: {', '.join(system.key for system in others)}")
    if not config.kv_source_layer_ids:
        raise ValueError("kv_source_layer_ids is empty: this configuration keeps no global KV to show")
    data = ledger_data(config, others, compare)
    counts = Counts.of(config)
    return Diagram(
        kind="ledger",
        title=f"As published, a token of context keeps {counts.per_token:,} bytes, in {len(counts.owners)} of "
        f"{config.num_hidden_layers} layers",
        body=picture(data, counts) + _controls(data),
        caption=caption(counts),
        table=ledger_table(counts),
        data=data,
    )


def main_records(config: ModelConfig) -> dict[str, Storage]:
    """The main KV records to choose from, by the storage that has them."""
    return {
        "fp4": Storage.published(config),
        "fp8": Storage.mxfp8(config),
        "v4": Storage.v4(config),
        "bf16": Storage.bf16(config),
    }


def ledger_data(config: ModelConfig, others: Sequence[System], compare: str) -> dict:
    """Everything the figure computes from: layers, bytes per record, the windows, the pool, the other systems."""
    channels = config.index_head_dim
    return {
        "layers": [
            {"layer": plan.index, "ratio": plan.ratio, "owns": plan.owns_kv} for plan in config.layers if plan.ratio
        ],
        "main": {name: storage.main.nbytes for name, storage in main_records(config).items()},
        "index": {
            "mxfp4": Storage.published(config).index.nbytes,
            "fp8": fp8_index_key(channels).nbytes,
            "bf16": bf16(channels).nbytes,
        },
        "window": {
            "layers": config.num_hidden_layers,
            "tokens": config.sliding_window,
            "bytes": ledger.window_bytes(config),
        },
        "published": PUBLISHED,
        "tokens": config.max_position_embeddings,
        "pool": POOL_GIB * 2**30,
        "compare": compare,
        "systems": [
            {
                "key": system.key,
                "name": system.name,
                "precision": system.precision.upper(),
                "family": _FAMILIES[system.family],
                "perToken": exact(system.bytes_per_token),
                "planes": [[plane.layers * plane.record.nbytes, plane.ratio] for plane in system.planes],
            }
            for system in others
        ],
    }


def _controls(data: dict) -> str:
    plan, main, index = data["published"], data["main"], data["index"]
    owning, all_layers = sum(layer["owns"] for layer in data["layers"]), len(data["layers"])
    sharing = [("on", "On", f"{owning} layers own"), ("off", "Off", f"{all_layers} layers own")]
    ratios = [("published", "As published", ""), ("one", "All 1", "")]
    mains = [(key, name, f"{main[key]:,} B") for key, name in _MAIN_NAMES.items()]
    indexes = [(key, name, f"{index[key]:,} B") for key, name in _INDEX_NAMES.items()]
    limit = data["tokens"]
    return (
        '<form class="ds-controls">'
        + choices("sharing", "Cross-layer sharing", sharing, plan["sharing"])
        + choices("ratios", "Tokens per entry", ratios, plan["ratios"])
        + choices("main", "Main KV record", mains, plan["main"])
        + choices("index", "Index key record", indexes, plan["index"])
        + '<label class="ds-field"><span>Context</span>'
        '<input type="range" name="slider" min="12" max="20" step="0.125" value="20">'
        '<span class="ds-ticks" aria-hidden="true"><span>4K</span><span>64K</span><span>1M</span></span></label>'
        '<label class="ds-field"><span>Tokens, exactly</span>'
        f'<input type="number" name="tokens" min="1" max="{limit}" step="1" value="{limit}"></label>'
        f'<label class="ds-field"><span>Compare with</span><select name="compare">{_options(data)}</select></label>'
        '<div class="ds-reset"><button type="reset" class="ds-button">Back to the published plan</button></div>'
        "</form>"
    )


def _options(data: dict) -> str:
    families: dict[str, str] = {}
    for system in data["systems"]:
        chosen = " selected" if system["key"] == data["compare"] else ""
        label = escape(f"{system['name']}, {system['precision']}")
        option = f'<option value="{system["key"]}"{chosen}>{label}</option>'
        families[system["family"]] = families.get(system["family"], "") + option
    return "".join(f'<optgroup label="{escape(name)}">{options}</optgroup>' for name, options in families.items())
