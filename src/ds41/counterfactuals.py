"""What the same context would weigh if one choice had been made otherwise, and what engines really store.

Every row is computed from a configuration and from records; none of the figures is typed in.

Source: of the engines' records, vLLM pull request 56893 and its ``deepseek_v41`` attention; TensorRT-LLM's
CSA2CacheManager; SGLang's ``v41_fp4`` layout; a published measurement on Ascend A2/A3.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ds41.config import ModelConfig
from ds41.ledger import Storage, bytes_per_token, entries_per_token, planes
from ds41.records import Record, Row, bf16, fp8_index_key, int8_index_key, sum_formula, total
from ds41.systems import system


def counterfactuals(config: ModelConfig) -> tuple[Row, ...]:
    """The design as it is, then with one axis taken away at a time, in bytes per token.

    The last row takes away all of it: every layer keeps a BF16 entry and key for every token.
    """
    v4, mxfp8, plain = Storage.v4(config), Storage.mxfp8(config), Storage.bf16(config)
    v4_plan = system("deepseek-v4-flash", "fp4")
    return (
        _row(config, "as published"),
        _row(config, "no cross-layer sharing", shared=False),
        _row(config, "no compression along the sequence", compressed=False),
        _row(config, "V4's formats", v4),
        _row(config, "main records in MXFP8", mxfp8),
        _row(config, "everything in BF16", plain),
        Row("V4-Flash's layer plan in these formats", v4_plan.bytes_per_token, v4_plan.formula),
        _row(config, "none of the three", plain, shared=False, compressed=False),
    )


@dataclass(frozen=True)
class Lever:
    """One step on the way from V4-Flash to this configuration: bytes per token before and after."""

    name: str
    before: Fraction
    after: Fraction

    @property
    def factor(self) -> Fraction:
        """How many times smaller a token is after the step than before."""
        return self.before / self.after


def levers(config: ModelConfig) -> tuple[tuple[Lever, Lever], tuple[Lever, Lever]]:
    """V4-Flash to V4.1-Flash, split into formats and plan, in both orders.

    The factors hardly depend on the order: the plan (sharing and ratios) gives about 2.15, FP4 about 1.84.
    """
    start = system("deepseek-v4-flash").bytes_per_token
    formats_first = system("deepseek-v4-flash", "fp4").bytes_per_token
    plan_first = bytes_per_token(config, Storage.v4(config))
    end = bytes_per_token(config)
    return (
        (Lever("FP4 records", start, formats_first), Lever("sharing and ratios", formats_first, end)),
        (Lever("sharing and ratios", start, plan_first), Lever("FP4 records", plan_first, end)),
    )


def engines(config: ModelConfig) -> tuple[Row, ...]:
    """What engines store per token today, which is not always 890."""
    published, mxfp8, v4, plain = (
        make(config) for make in (Storage.published, Storage.mxfp8, Storage.v4, Storage.bf16)
    )
    fp8_key = fp8_index_key(config.index_head_dim)
    return (
        _engine(config, "TensorRT-LLM", published.main, published.index, "one record of both"),
        _engine(config, "SGLang on B200 (v41_fp4)", published.main, published.index),
        _engine(config, "vLLM on SM100, default", mxfp8.main, mxfp8.index, "MXFP8 records"),
        _engine(config, "FP8 records and FP8 keys", mxfp8.main, fp8_key),
        _engine(config, "vLLM elsewhere", v4.main, fp8_key, "V4's rows, FP8 keys"),
        _engine(config, "released inference code", plain.main, plain.index, "BF16 buffers, fake quantised"),
        _ascend(config),
    )


def _ascend(config: ModelConfig) -> Row:
    """BF16 entries without the ratio's saving, INT8 keys with it: the measured total splits in just this way."""
    entry, key = bf16(config.head_dim), int8_index_key(config.index_head_dim)
    sources = sum(layer.owns_kv for layer in config.layers)
    size = sources * entry.nbytes + entries_per_token(config) * key.nbytes
    formula = f"{sources} × {entry.nbytes} + {_number(entries_per_token(config))} × {key.nbytes}"
    return Row("Ascend A2/A3", size, formula, "measured", "entries at every token, whatever the ratio")


def _engine(config: ModelConfig, name: str, main: Record, index: Record, note: str = "") -> Row:
    entries = entries_per_token(config)
    formula = f"{_number(entries)} × ({main.nbytes} + {index.nbytes})"
    return Row(name, entries * (main.nbytes + index.nbytes), formula, note=note)


def _row(config: ModelConfig, name: str, storage: Storage | None = None, **choice: bool) -> Row:
    kept = planes(config, storage, **choice)
    return Row(name, total(kept), sum_formula(kept))


def _number(value: Fraction) -> str:
    return f"{float(value):g}"
