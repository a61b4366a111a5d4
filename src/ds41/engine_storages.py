"""The ways in which an engine may store a model's cache: which records, and how much of them lies on one GPU.

Source: the engines' code, named with each fact in :mod:`ds41.engine_facts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.engine_logs import EngineLog
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.ledger import Storage
from ds41.records import Plane, Record, Window, bf16, fp8_index_key, total, v4_entry
from ds41.systems import System, from_config

NAMES = {
    "published": "FP4 records, MXFP4 keys",
    "fp4-fp8keys": "FP4 records, FP8 keys",
    "mxfp8": "MXFP8 records, MXFP4 keys",
    "mxfp8-fp8keys": "MXFP8 records, FP8 keys",
    "v4": "V4's FP8 rows, MXFP4 keys",
    "v4-fp8keys": "V4's FP8 rows, FP8 keys",
    "fp8": "FP8",
    "fp8-plain": "FP8 without scales",
    "fp4": "FP4",
    "bf16": "BF16",
}
"""Ways of storing a cache by short name, in words. Index keys are MXFP4 unless the name says otherwise."""

OWN = {"gqa": "bf16", "mla": "bf16", "dsa": "fp8", "csa_hca": "v4", "csa2": "published"}
"""What a model of each family is stored in where nothing is said."""


@dataclass(frozen=True)
class Stored:
    """One way of storing: bytes on one GPU.

    replicated: every GPU of a tensor-parallel group holds all of it. window_bytes: of one request.
    window_row_bytes: of one token in the windows of all layers.
    """

    name: str
    system: System
    planes: tuple[Plane, ...]
    window: Window | None
    replicated: bool

    @property
    def says(self) -> str:
        """What is stored, in words."""
        return NAMES[self.name]

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes of global KV for each token, all planes together."""
        return total(self.planes)

    @property
    def window_bytes(self) -> int:
        """Bytes of one sequence's windows in all layers; 0 without windows."""
        return self.window.nbytes() if self.window else 0

    @property
    def window_row_bytes(self) -> int:
        """Bytes that one token has in the windows of all layers; 0 without windows."""
        return self.window.layers * self.window.record.nbytes if self.window else 0

    def nbytes(self, tokens: int) -> int:
        """Bytes of one request's global cache after ``tokens`` tokens."""
        return sum(plane.nbytes(tokens) for plane in self.planes)


def stored_ways(
    system: System | ModelConfig, tensor_parallel: int = 1, pipeline_parallel: int = 1, drafts: bool = False
) -> tuple[Stored, ...]:
    """Every way of storing this model that an engine has, in bytes on one GPU.

    Args:
        tensor_parallel: GPUs that split the heads. A latent has none to split.
        pipeline_parallel: stages; the one with the most layers counts. V4.1's four sources are not split.
        drafts: count the windows of V4.1's draft layers.

    Raises:
        ValueError: a count is not positive.
    """
    for name, count in (("tensor_parallel", tensor_parallel), ("pipeline_parallel", pipeline_parallel)):
        if count < 1:
            raise ValueError(f"{name} is {count}; expected 1 or more")
    if isinstance(system, ModelConfig):
        system = from_config(system)
    if system.family == "csa2":
        config = system.config.get("model_config") or ModelConfig.flash()
        return tuple(_csa2(system, config, drafts))
    ways = _heads if system.family == "gqa" else _latent if system.family in ("mla", "dsa") else _alternating
    return tuple(
        Stored(name, system, _stage(planes, pipeline_parallel), window, system.family != "gqa")
        for name, (planes, window) in ways(system, tensor_parallel)
    )


def named_in(log: EngineLog, family: str) -> str | None:
    """The storage that a log names, None if it leaves it open."""
    cache, keys, dtype = log.cache_format, log.index_format, (log.kv_cache_dtype or "").lower()
    if family in ("csa2", "csa_hca"):
        if cache == "fp8_ds_mla":
            return "v4-fp8keys" if keys == "FP8" else "v4"
        return None
    if family == "gqa" and dtype:
        return "bf16" if dtype in ("auto", "bfloat16", "float16") else "fp8" if dtype.startswith("fp8") else None
    if family in ("mla", "dsa"):
        return "fp8" if "fp8_ds_mla" in (cache, dtype) else None
    return None


Ways = Iterator[tuple[str, tuple[tuple[Plane, ...], Window | None]]]
"""Names of ways of storing, each with its planes and window."""


def _csa2(system: System, config: ModelConfig, drafts: bool) -> Iterator[Stored]:
    fp4, mxfp8 = Record.packed(MAIN_KV, config.head_dim), Record.packed(WINDOW_KV, config.head_dim)
    v4 = v4_entry(config.head_dim, config.qk_rope_head_dim)
    small, fp8 = Record.packed(INDEX_KEY, config.index_head_dim), fp8_index_key(config.index_head_dim)
    layers = config.num_hidden_layers + (config.num_nextn_predict_layers if drafts else 0)
    for name, main, key, window in (
        ("published", fp4, small, mxfp8),
        ("fp4-fp8keys", fp4, fp8, mxfp8),
        ("mxfp8", mxfp8, small, mxfp8),
        ("mxfp8-fp8keys", mxfp8, fp8, mxfp8),
        ("v4", v4, small, v4),
        ("v4-fp8keys", v4, fp8, v4),
        ("bf16", bf16(config.head_dim), bf16(config.index_head_dim), bf16(config.head_dim)),
    ):
        planes = ledger.planes(config, Storage(name, main, key, window))
        yield Stored(name, system, planes, Window(layers, config.sliding_window, window), True)


def _heads(system: System, tensor_parallel: int) -> Ways:
    config: Mapping = system.config
    heads = max(1, -(-config["num_key_value_heads"] // tensor_parallel))
    share = replace(system, config={**config, "num_key_value_heads": heads})
    for name in ("bf16", "fp8", "fp4"):
        yield name, (share.stored_as(name).planes, None)


def _latent(system: System, tensor_parallel: int) -> Ways:
    latent = system.config["kv_lora_rank"] + system.config["qk_rope_head_dim"]
    plain = Record.plain("E4M3", 8, latent)
    fp8, half = system.stored_as("fp8").planes, system.stored_as("bf16").planes
    keys = {"index": fp8_index_key(system.config["index_head_dim"])} if system.family == "dsa" else {}
    # Engines keep the indexer's keys in FP8 whatever the latent is in.
    yield "fp8", (fp8, None)
    yield "fp8-plain", (_stored(fp8, {"main": plain, **keys}), None)
    yield "bf16", (_stored(half, keys), None)


def _alternating(system: System, tensor_parallel: int) -> Ways:
    keys = {"index": fp8_index_key(system.config["index_head_dim"])}
    for name, precision, records in (
        ("published", "fp4", {}),
        ("v4", "fp8", {}),
        ("v4-fp8keys", "fp8", keys),
        ("bf16", "bf16", {}),
    ):
        stored = system.stored_as(precision)
        yield name, (_stored(stored.planes, records), stored.window)


def _stored(planes: tuple[Plane, ...], records: Mapping[str, Record]) -> tuple[Plane, ...]:
    return tuple(plane.stored_as(records[plane.component]) if plane.component in records else plane for plane in planes)


def _stage(planes: tuple[Plane, ...], stages: int) -> tuple[Plane, ...]:
    return tuple(replace(plane, layers=-(-plane.layers // stages)) for plane in planes)
