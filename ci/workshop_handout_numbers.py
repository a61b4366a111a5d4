"""The handout's numbers, all of them computed, and how they are written in its language."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from ds41 import flops, ledger, reads, weights
from ds41.config import ModelConfig
from ds41.language import current
from ds41.language.numbers import german
from ds41.ledger import Storage
from ds41.roofline import DEVICES, DecodeStep, decode_step
from ds41.systems import System, system

CONTEXTS = {"4K": 2**12, "64K": 2**16, "1M": 2**20}
"""Lengths of context that are tabled, in tokens."""
COMPARED = (
    "deepseek-llm-67b",
    "llama-70b",
    "qwen3-8b",
    "deepseek-v3",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "deepseek-v4.1-flash",
)
"""Other systems that stand beside this one, by key."""
DEVICE, DEVICES_TOGETHER = "H200", 8
"""Where the least time of a step is reckoned."""


@dataclass(frozen=True)
class Variation:
    """The ledger with one thing changed: entries per token, and bytes of an entry."""

    entries: Fraction
    entry: int

    @property
    def per_token(self) -> Fraction:
        """Bytes per token."""
        return self.entries * self.entry


@dataclass(frozen=True)
class Step:
    """What one decode step at a context of ``tokens`` tokens takes."""

    tokens: int
    flops: int
    kv_bytes: int
    bound: DecodeStep


def number(value: Fraction | float, decimals: int | None = None) -> str:
    """A number as the language writes it; decimals only where there are any, unless their number is given."""
    if decimals is None:
        text = f"{int(value):,}" if value == int(value) else f"{float(value):,.3f}".rstrip("0")
    else:
        text = f"{float(value):,.{decimals}f}"
    return german(text) if current() == "de" else text


def ratio_words(ratio: int) -> str:
    """What a source writes for each token: "1", or "1/2" of an entry."""
    return "1" if ratio == 1 else f"1/{ratio}"


def variations(config: ModelConfig) -> tuple[Variation, ...]:
    """One encoder source more; the decoder's source halved like the encoder's; main KV in the window's format.

    Raises:
        ValueError: the configuration has no source above ratio 1 or none at ratio 1, so these say nothing.
    """
    owners = [plan for plan in config.layers if plan.owns_kv]
    ratios = {plan.ratio for plan in owners}
    if 1 not in ratios or len(ratios) != 2:
        raise ValueError(f"the sources have ratios {sorted(ratios)}; expected 1 and one above it")
    most = max(ratios)
    added = config.decoder_start - 1
    another = replace(
        config,
        kv_source_layer_ids=tuple(sorted({*config.kv_source_layer_ids, added})),
        index_source_layer_ids=tuple(sorted({*config.index_source_layer_ids, added})),
    )
    halved = replace(config, compress_ratios=tuple(most if ratio == 1 else ratio for ratio in config.compress_ratios))
    wide = Storage.mxfp8(config)
    return (
        Variation(ledger.entries_per_token(another), ledger.entry_bytes(another)),
        Variation(ledger.entries_per_token(halved), ledger.entry_bytes(halved)),
        Variation(ledger.entries_per_token(config), wide.main.nbytes + wide.index.nbytes),
    )


def step(config: ModelConfig, tokens: int) -> Step:
    """The step that follows ``tokens`` tokens of context."""
    return Step(
        tokens,
        flops.prefill(config, 1, cached=tokens - 1).total,
        reads.kv_bytes_read(config, tokens),
        decode_step(config, tokens, DEVICES[DEVICE], devices=DEVICES_TOGETHER),
    )


def active_parameters(config: ModelConfig) -> int:
    """Parameters of the backbone that one token's pass multiplies with."""
    return weights.active(config).parameters


def compared() -> tuple[System, ...]:
    """The systems of :data:`COMPARED`, those that keep most first."""
    return tuple(sorted(map(system, COMPARED), key=lambda one: one.bytes_per_token, reverse=True))
