"""Exercises of chapter 17, what the article got right."""

from __future__ import annotations

from fractions import Fraction

from ds41 import ledger
from ds41.candidates import candidates
from ds41.config import ModelConfig
from ds41.errata import agrees
from ds41.errata.pool import selection_cost
from ds41.exercises import close, exercise
from ds41.formats import INDEX_KEY, MAIN_KV

# Printed numbers and values, beside them and just off them.
PAIRS = (
    ("864", Fraction(864)), ("2.9", 2.9213), ("3.0", 2.9213), ("92.0", 92.045), ("92", 91.49), ("0.195", 0.1994),
    ("-38.2", -38.1944), ("1.78", Fraction(16, 9)), ("5,120", 5080), ("4,294,967,296", 2**32), ("890.0", 889.951),
    ("0", 0.4999),
)  # fmt: skip


@exercise("17.1")
def how_far_candidate_b_is_off(answer: object) -> str | None:
    """By how many per cent 1,440 bytes exceed the true sum."""
    candidate = next(one for one in candidates(ModelConfig.flash()) if one.letter == "B")
    if close(answer, candidate.percent_off):
        return None
    if close(answer, candidate.printed_percent) or close(answer, -candidate.printed_percent):
        return "That is how far 890 lies from the candidate: which of the two is the measure?"
    if close(answer, candidate.percent_off / 100) or close(answer, 1 + candidate.percent_off / 100):
        return "In per cent, and only what is too much."
    return "1,440 beside 890: how much too much, as a share of 890?"


@exercise("17.2")
def prints_the_same(answer: object) -> str | None:
    """A function of a printed number and a value to whether the value prints so."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for printed, value in PAIRS:
        if bool(answer(printed, value)) == agrees(printed, value):
            continue
        verb = "prints so" if agrees(printed, value) else "does not"
        return f"{float(value):.10g} beside {printed!r}: it {verb}. Count the printed decimals, and mind the commas."
    return None


@exercise("17.3")
def where_the_pool_halves(answer: object) -> str | None:
    """The context at which the pool halves the scores of the decoder's five selections."""
    config = ModelConfig.flash()
    pool = config.candidate_topk_blocks * config.candidate_block_size
    if close(answer, Fraction(8, 3) * pool, 0.001):
        return None
    if close(answer, pool, 0.001):
        return "Up to there it saves nothing at all."
    if close(answer, 2 * pool, 0.001):
        saving = float(selection_cost(config, 2 * pool).saving)
        return f"There each Reindex layer has half of the work, but layer 20 has all of it: {saving:.2f} times in all."
    return "Five scans of N without the pool; with it one scan of N and four of 16,384. When is that half?"


@exercise("17.4")
def bytes_in_mxfp4(answer: object) -> str | None:
    """Bytes a token if the main KV were MXFP4, as the article calls it."""
    config = ModelConfig.flash()
    entries, key = ledger.entries_per_token(config), INDEX_KEY.bytes_per_row(config.index_head_dim)
    record = INDEX_KEY.bytes_per_row(config.head_dim)
    if close(answer, entries * (record + key), 0):
        return None
    if close(answer, record, 0):
        return "That is one main record. How many entries has a token, and what else has an entry?"
    if close(answer, entries * record, 0):
        return "The index keys are missing."
    if close(answer, entries * (MAIN_KV.bytes_per_row(config.head_dim) + key), 0):
        return "That is the real format, with a scale for 16 channels. MXFP4 has one for 32."
    return "A record of 512 channels: 4 bits each, and a byte for every 32 of them."
