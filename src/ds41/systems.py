"""Other models' caches, each computed from its configuration: bytes per token and what a decode step reads.

The configurations are data (``data/systems.json``, with the standing of each); a family says which planes follow
from one. Counted is what grows with the context. Windows, recurrent states and page padding are not.

Source: report figure 1b; the V4 report; FlashMLA's README for the FP8 latent; the models' own configurations, with how
sure each is in ``data/systems.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal

from ds41 import ledger, reads
from ds41.config import ModelConfig
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.ledger import Storage
from ds41.records import (
    Plane,
    Record,
    Row,
    Window,
    bf16,
    fp8_index_key,
    mla_fp8_entry,
    sum_formula,
    total,
    v4_entry,
)

Family = Literal["gqa", "mla", "dsa", "csa_hca", "csa2"]
"""Kinds of attention by what they store."""
Status = Literal["published", "cross-checked", "calculated", "from memory"]
"""How sure the configuration of a system is."""
Precision = Literal["bf16", "fp8", "fp4"]
"""What a cache may be kept in, scales as each family has them."""
Cache = tuple[tuple[Plane, ...], Window | None]
"""What a system stores: planes that grow with the sequence, and the window that does not."""
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8", "fp4")
"""All values of :data:`Precision`, widest first."""


@dataclass(frozen=True)
class System:
    """One model's cache at one precision.

    Attributes:
        family: "gqa" keys and values per head; "mla" one latent; "dsa" a latent and an index key; "csa_hca" V4's
            alternation of a ratio with an indexer and a large ratio without; "csa2" V4.1's shared planes.
        window: the sliding windows, None where there are none or they are not described here.
        precision: "bf16" two bytes a channel; "fp8" the family's own FP8 records (V4's index keys are MXFP4 all
            the same); "fp4" this model's formats.
        total_parameters, active_parameters: as the model card states them, None where not needed.
    """

    key: str
    name: str
    family: Family
    precision: Precision
    status: Status
    planes: tuple[Plane, ...]
    config: Mapping[str, object] = field(hash=False, repr=False)
    window: Window | None = None
    note: str = ""
    total_parameters: float | None = None
    active_parameters: float | None = None

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes of global KV for each token, all planes together."""
        return total(self.planes)

    @property
    def formula(self) -> str:
        """Where the bytes per token come from, plane by plane."""
        return sum_formula(self.planes)

    @property
    def window_bytes(self) -> int:
        """Bytes of one full set of sliding windows; 0 where none are described."""
        return self.window.nbytes() if self.window else 0

    def nbytes(self, tokens: int) -> int:
        """Exact bytes of one sequence of ``tokens`` tokens; open groups have written nothing yet."""
        tokens = ledger.check_tokens(tokens)
        return sum(plane.nbytes(tokens) for plane in self.planes)

    def stored_as(self, precision: Precision) -> System:
        """The same model with its cache kept at another precision.

        Raises:
            ValueError: a precision that is none.
        """
        planes, window = _cache(self.family, self.config, precision)
        return replace(self, precision=precision, planes=planes, window=window)

    def bytes_read(self, tokens: int) -> int:
        """Bytes that the decode step at the end of a context of ``tokens`` tokens reads, windows included.

        Dense attention reads everything that it keeps; an indexer reads every key, then the entries it selected.
        """
        tokens = ledger.check_tokens(tokens)
        if self.family == "csa2":
            model = _model_config(self.config)
            return reads.kv_bytes_read(model, tokens, _STORAGES[self.precision](model))
        window = self.window.nbytes(tokens) if self.window else 0
        return sum(plane.bytes_read(tokens) for plane in self.planes) + window

    def row(self) -> Row:
        """The system as a row of a table of bytes per token."""
        source = "published" if self.status == "published" else "derived"
        return Row(self.name, self.bytes_per_token, self.formula, source, self.note)


@cache
def systems() -> Mapping[str, System]:
    """Every comparison system by key, at the precision that it is usually served with.

    Raises:
        ValueError: an entry of the table has a precision that is none.
    """
    text = resources.files("ds41").joinpath("data/systems.json").read_text(encoding="utf-8")
    return MappingProxyType({entry["key"]: _system(entry) for entry in json.loads(text)["systems"]})


def system(key: str, precision: Precision | None = None) -> System:
    """One comparison system.

    Raises:
        KeyError: there is no such system. ValueError: there is no such precision.
    """
    if key not in systems():
        raise KeyError(f"no system {key!r}; there are {', '.join(systems())}")
    found = systems()[key]
    return found if precision is None else found.stored_as(precision)


def from_config(config: ModelConfig, name: str = "this configuration") -> System:
    """A configuration of this model's family as a system, to stand beside the others."""
    holder = {"model_config": config}
    planes, window = _csa2(holder, "fp4")
    return System("this", name, "csa2", "fp4", "calculated", planes, holder, window)


@dataclass(frozen=True)
class Generation:
    """One bar of figure 1b. step: how many times smaller than the bar before; overall: than the first bar."""

    system: System
    step: Fraction
    overall: Fraction


FIGURE_1B = ("deepseek-llm-67b", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4.1-flash")
"""Keys of the systems in the report's figure 1b, oldest first."""


def generations(precision: Precision | None = None) -> tuple[Generation, ...]:
    """Figure 1b: V1, V3.2, V4-Flash, V4.1-Flash, at their own precisions or all at one.

    The last ``overall`` is the report's 437. It sets a BF16 cache against an FP4 one; ``generations("fp4")``
    gives about 123 for the same two models at equal precision.
    """
    found = [system(key, precision) for key in FIGURE_1B]
    sizes = [entry.bytes_per_token for entry in found]
    return tuple(
        Generation(entry, before / size, sizes[0] / size)
        for entry, before, size in zip(found, sizes[:1] + sizes, sizes, strict=False)
    )


def _system(entry: dict) -> System:
    parameters = entry.get("parameters_billion", {})
    total_billion, active_billion = parameters.get("total"), parameters.get("active")
    planes, window = _cache(entry["family"], entry["config"], entry["precision"])
    return System(
        key=entry["key"],
        name=entry["name"],
        family=entry["family"],
        precision=entry["precision"],
        status=entry["status"],
        planes=planes,
        config=entry["config"],
        window=window,
        note=entry.get("note", ""),
        total_parameters=None if total_billion is None else total_billion * 1e9,
        active_parameters=None if active_billion is None else active_billion * 1e9,
    )


def _cache(family: Family, config: Mapping, precision: Precision) -> Cache:
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    return _FAMILIES[family](config, precision)


def _gqa(config: Mapping, precision: Precision) -> Cache:
    heads, dim = 2 * config["num_key_value_heads"], config["head_dim"]
    record = {
        "bf16": bf16(heads * dim),
        "fp8": Record.plain("E4M3", 8, heads * dim),
        "fp4": Record.packed(MAIN_KV, dim, rows=heads),
    }[precision]
    return (Plane("keys and values", "main", _attention_layers(config), 1, record),), None


def _mla(config: Mapping, precision: Precision) -> Cache:
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    record = {
        "bf16": bf16(rank + rope),
        "fp8": mla_fp8_entry(rank, rope),
        "fp4": Record.packed(MAIN_KV, rank + rope),
    }[precision]
    return (Plane("latent", "main", _attention_layers(config), 1, record),), None


def _dsa(config: Mapping, precision: Precision) -> Cache:
    (every,), _ = _mla(config, precision)
    latent = replace(every, read_limit=config["index_topk"])
    channels = config["index_head_dim"]
    key = {
        "bf16": bf16(channels),
        "fp8": fp8_index_key(channels),
        "fp4": Record.packed(INDEX_KEY, channels),
    }[precision]
    layers = config.get("index_layers", latent.layers)
    # Where every layer has both, they are one term of the formula.
    name = latent.name if layers == latent.layers else "indexer"
    return (latent, Plane(name, "index", layers, 1, key)), None


def _csa_hca(config: Mapping, precision: Precision) -> Cache:
    dim, rope, channels = config["head_dim"], config["qk_rope_head_dim"], config["index_head_dim"]
    entry = {"bf16": bf16(dim), "fp8": v4_entry(dim, rope), "fp4": Record.packed(MAIN_KV, dim)}[precision]
    key = bf16(channels) if precision == "bf16" else Record.packed(INDEX_KEY, channels)
    # This model's formats keep windows in MXFP8; V4 keeps them like its entries.
    recent = Record.packed(WINDOW_KV, dim) if precision == "fp4" else entry
    ratios = list(config["leading_ratios"])
    cycle = config["ratio_cycle"]
    ratios += [cycle[i % len(cycle)] for i in range(config["num_hidden_layers"] - len(ratios))]
    sparse, dense = cycle
    planes = (
        Plane("CSA", "main", ratios.count(sparse), sparse, entry, read_limit=config["index_topk"]),
        Plane("CSA", "index", ratios.count(sparse), sparse, key),
        Plane("HCA", "main", ratios.count(dense), dense, entry),
    )
    return planes, Window(len(ratios), config["sliding_window"], recent)


def _csa2(config: Mapping, precision: Precision) -> Cache:
    model = _model_config(config)
    storage = _STORAGES[precision](model)
    window = Window(model.num_hidden_layers, model.sliding_window, storage.window)
    return ledger.planes(model, storage), window


def _model_config(config: Mapping) -> ModelConfig:
    return config.get("model_config") or ModelConfig.flash()


def _attention_layers(config: Mapping) -> int:
    return config.get("attention_layers", config["num_hidden_layers"])


_STORAGES = {"bf16": Storage.bf16, "fp8": Storage.mxfp8, "fp4": Storage.published}
_FAMILIES: dict[str, Callable[[Mapping, Precision], Cache]] = {
    "gqa": _gqa,
    "mla": _mla,
    "dsa": _dsa,
    "csa_hca": _csa_hca,
    "csa2": _csa2,
}
