"""Exercises of chapter 05, the byte ledger."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.economics import GIB
from ds41.exercises import close, exercise
from ds41.ledger import Storage


@exercise("05.1")
def bytes_at_an_odd_length(answer: object) -> str | None:
    """Global KV of 1,001 tokens."""
    config = ModelConfig.flash()
    if close(answer, ledger.global_bytes(config, 1001), 0):
        return None
    if close(answer, 1001 * ledger.bytes_per_token(config), 0):
        return "That is 1,001 times the average. At an odd length, what are the encoder's sources waiting for?"
    return "Count the closed groups of each source first."


@exercise("05.2")
def decoder_at_ratio_two(answer: object) -> str | None:
    """Bytes per token if every source had ratio 2."""
    config = ModelConfig.flash()
    halved = replace(config, compress_ratios=tuple(min(2, 2 * ratio) for ratio in config.compress_ratios))
    if close(answer, ledger.bytes_per_token(halved), 0):
        return None
    return "How many entries would each of the four sources then write per token?"


@exercise("05.3")
def everything_a_sequence_keeps(answer: object) -> str | None:
    """A function from the context length to all bytes of one sequence."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    config = ModelConfig.flash()
    for tokens in (128, 129, 1000, 1001, 65536, 2**20 - 1, 2**20):
        expected, got = ledger.sequence_bytes(config, tokens), answer(tokens)
        if not isinstance(got, (int, float, Fraction)):
            return f"At {tokens:,} tokens it gives {got!r}, which is no number of bytes."
        if got != expected:
            return f"At {tokens:,} tokens it gives {got:,}; {'more' if got < expected else 'less'} is kept."
    return None


@exercise("05.4")
def windows_below_one_percent(answer: object) -> str | None:
    """Context at which windows are 1 % of global KV and windows together."""
    config = ModelConfig.flash()
    expected = 99 * float(ledger.window_equivalent_tokens(config))
    if close(answer, expected):
        return None
    return "The global KV must weigh 99 times as much as the windows."


@exercise("05.5")
def contexts_in_mxfp8(answer: object) -> str | None:
    """Contexts of 2^20 tokens in 80 GiB with MXFP8 main records."""
    config = ModelConfig.flash()
    expected = 80 * GIB / ledger.global_bytes(config, 2**20, Storage.mxfp8(config))
    if close(answer, expected):
        return None
    if close(answer, 80 * GIB / ledger.global_bytes(config, 2**20)):
        return "That is the number for the published formats."
    return "Bytes per token first: two and a half entries of the engine's two records."
