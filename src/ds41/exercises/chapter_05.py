"""Exercises of chapter 05, the byte ledger."""

from __future__ import annotations

import math
import reprlib
from dataclasses import replace

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.economics import GIB
from ds41.exercises import close, exercise, no_number, number
from ds41.language import say
from ds41.ledger import Storage


@exercise(
    "05.1",
    level="easy",
    minutes=3,
    hints=(
        "See the section on the component, a ledger that counts entries: a source writes an entry when its group of "
        "tokens closes.",
        "Each of the three encoder sources has an entry for every whole pair of tokens, the decoder's source one for "
        "every token. An entry has the bytes of ledger.entry_bytes(config).",
    ),
)
def bytes_at_an_odd_length(answer: object) -> str | None:
    """Global KV of 1,001 tokens."""
    if remark := no_number(answer):
        return remark
    config = ModelConfig.flash()
    expected = ledger.global_bytes(config, 1001)
    if close(answer, expected, 0):
        return None
    if close(answer, 1001 * ledger.bytes_per_token(config), 0):
        return "That is 1,001 times the average. At an odd length, what are the encoder's sources waiting for?"
    if close(answer, ledger.global_bytes(config, 1000), 0):
        return "That is the number for 1,000 tokens. One of the sources writes an entry for the last token as well."
    if close(answer, ledger.global_bytes(config, 1002) - ledger.entry_bytes(config), 0):
        return "A group that is still open has written nothing."
    if close(answer, expected + ledger.open_group_bytes(config, 1001), 0):
        return "Tokens that wait for their group to close are kept beside the global KV, not in it."
    if close(answer, ledger.sequence_bytes(config, 1001), 0):
        return "That is everything the sequence keeps. The question is about the global KV alone."
    if close(answer, 1001 * ledger.entry_bytes(config), 0):
        return "So much does one source write at one entry a token. There are four sources."
    if any(close(answer, expected / unit) for unit in (1000, 1024)):
        return "Give bytes, to the byte."
    return "Count the closed groups of each source first."


@exercise(
    "05.2",
    level="easy",
    minutes=3,
    hints=(
        "The table under the prediction lists every layer that owns keys, with its tokens per entry.",
        "Only the last row of that table changes. Work out what it becomes, then add up its last column again.",
    ),
)
def decoder_at_ratio_two(answer: object) -> str | None:
    """Bytes per token if every source had ratio 2."""
    if remark := no_number(answer):
        return remark
    config = ModelConfig.flash()
    halved = replace(config, compress_ratios=tuple(min(2, 2 * ratio) for ratio in config.compress_ratios))
    expected = ledger.bytes_per_token(halved)
    if close(answer, expected, 0):
        return None
    published = ledger.bytes_per_token(config)
    if close(answer, published, 0):
        return "That is the published plan. How many entries would each of the four sources write per token?"
    if close(answer, published / 2, 0):
        return "The encoder's sources have ratio 2 already; only the decoder's source changes."
    if close(answer, 2 * expected, 0):
        return "That counts an entry a token for each of the four sources."
    if close(answer, published - ledger.entry_bytes(config), 0):
        return "The decoder's source still writes, only half as often."
    if close(answer, 4 * Storage.published(config).main.nbytes / 2, 0):
        return "Those are the main records. An entry of each of the four sources has an index key, too."
    return "How many entries would each of the four sources then write per token?"


@exercise(
    "05.3",
    level="medium",
    minutes=10,
    hints=(
        "The table of all that one sequence keeps, under what the 890 leave out, names every part and says how its "
        "bytes come about.",
        "With full windows two of the parts are constant. The open groups depend only on whether N is odd, the global "
        "KV on N itself.",
        "A token that waits keeps two fp32 rows of head_dim channels, value and gate, in each source of ratio 2. The "
        "Engram history keeps 64-bit ids.",
    ),
)
def everything_a_sequence_keeps(answer: object) -> str | None:
    """A function from the context length to all bytes of one sequence."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    config = ModelConfig.flash()
    for tokens in (128, 129, 1000, 1001, 65536, 2**20 - 1, 2**20):
        try:
            given = answer(tokens)
        except Exception as error:
            return say("At {tokens:,} tokens it raises an error: {error!r}", tokens=tokens, error=error)
        got = number(given)
        if got is None or not math.isfinite(got):
            return say(
                "At {tokens:,} tokens it gives {got}, which is no number of bytes.",
                tokens=tokens,
                got=reprlib.repr(given),
            )
        if got != ledger.sequence_bytes(config, tokens):
            why = _about_parts(config, tokens, got)
            return say("At {tokens:,} tokens it gives {got:,.15g}; {why}", tokens=tokens, got=got, why=why)
    return None


def _about_parts(config: ModelConfig, tokens: int, got: float) -> str:
    """Which part of a sequence's bytes is wrong."""
    off = got - ledger.sequence_bytes(config, tokens)
    windows, history = ledger.window_bytes(config), ledger.engram_history_bytes(config)
    owners = sum(layer.owns_kv for layer in config.layers)
    waiting, most = ledger.open_group_bytes(config, tokens), ledger.open_group_bytes(config)
    if off == -windows:
        return say("more is kept: the windows are missing.")
    if off + windows in [windows * some / config.num_hidden_layers for some in (owners, config.decoder_start)]:
        return say("more is kept: every layer has a window, also those that own no keys.")
    if off == -history:
        return say("more is kept: the Engram history is missing.")
    if waiting and off == -waiting:
        return say("more is kept: at an odd length tokens wait for their partners.")
    if waiting and off == -waiting / 2:
        return say("more is kept: a waiting token has two rows, value and gate, at four bytes a value.")
    if not waiting and off == most:
        return say("less is kept: at an even length no token waits.")
    average = tokens * ledger.bytes_per_token(config) - ledger.global_bytes(config, tokens)
    if average and off == average:
        return say("less is kept: 890 is an average over two tokens, and an open group has written no entry.")
    if off < 0:
        return say("more is kept.")
    return say("less is kept.")


@exercise(
    "05.4",
    level="easy",
    minutes=5,
    hints=(
        "See the figure under what the 890 leave out: the windows are constant, the global KV grows with the tokens.",
        "If the windows are one part in a hundred of the sum, how many parts are the global KV? Turn those bytes into "
        "tokens with ledger.bytes_per_token(config).",
    ),
)
def windows_below_one_percent(answer: object) -> str | None:
    """Context at which windows are 1 % of global KV and windows together."""
    if remark := no_number(answer):
        return remark
    config = ModelConfig.flash()
    equal = float(ledger.window_equivalent_tokens(config))
    if close(answer, 99 * equal):
        return None
    if close(answer, 100 * equal):
        return "There the windows are 1 % of the global KV alone. The share is to be of both together."
    if close(answer, equal):
        return "At that length the global KV weighs as much as the windows, no more."
    if close(answer, 99 * ledger.window_bytes(config)):
        return "Those are bytes of global KV. How many tokens have so many?"
    if close(answer, 99 * equal / 1000):
        return "Give tokens, not thousands of them."
    return "The global KV must weigh 99 times as much as the windows."


@exercise(
    "05.5",
    level="easy",
    minutes=5,
    hints=(
        "The plan and the entries per token stay; only the record changes. ledger.Storage.mxfp8(config) "
        "describes this engine's records.",
        "Work out the bytes of one entry with both of its records, then those of one token, then those of one context. "
        "A GiB is a power of two.",
    ),
)
def contexts_in_mxfp8(answer: object) -> str | None:
    """Contexts of 2^20 tokens in 80 GiB with MXFP8 main records; the whole ones are right, too."""
    if remark := no_number(answer):
        return remark
    config, tokens = ModelConfig.flash(), 2**20
    stored = Storage.mxfp8(config)
    size = ledger.global_bytes(config, tokens, stored)
    expected = 80 * GIB / size
    if close(answer, expected) or close(answer, math.floor(expected), 0):
        return None
    if close(answer, 80 * GIB / ledger.global_bytes(config, tokens)):
        return "That is the number for the published formats."
    if close(answer, 80e9 / size):
        return "That is a pool of 80 GB. A GiB is 2^30 bytes."
    if close(answer, expected * tokens / 1e6):
        return "That is for contexts of a million tokens. These have 2^20."
    if close(answer, expected * (stored.main.nbytes + stored.index.nbytes) / stored.main.nbytes):
        return "The index keys are missing: every entry has one beside its main record."
    if close(answer, expected * ledger.entries_per_token(config) / 4):
        return "The encoder's sources write an entry for every two tokens, not for each."
    if close(answer, expected * tokens):
        return "So many tokens fit. How many contexts are they?"
    return "Bytes per token first: two and a half entries of the engine's two records."
