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
from ds41.language import say

# Printed numbers and values, beside them and just off them.
PAIRS = (
    ("864", Fraction(864)), ("2.9", 2.9213), ("3.0", 2.9213), ("92.0", 92.045), ("92", 91.49), ("0.195", 0.1994),
    ("-38.2", -38.1944), ("1.78", Fraction(16, 9)), ("5,120", 5080), ("4,294,967,296", 2**32), ("890.0", 889.951),
    ("0", 0.4999),
)  # fmt: skip


@exercise(
    "17.1",
    level="easy",
    minutes=3,
    hints=(
        'The section "Section 4, and cells 3 and 1" says of what the percentages of cell 1 are a share.',
        "Take the true sum as the measure: how many bytes are too many, and what share of it are they?",
    ),
)
def how_far_candidate_b_is_off(answer: object) -> str | None:
    """By how many per cent 1,440 bytes exceed the true sum."""
    candidate = next(one for one in candidates(ModelConfig.flash()) if one.letter == "B")
    if close(answer, candidate.percent_off):
        return None
    if close(answer, candidate.printed_percent) or close(answer, -candidate.printed_percent):
        return "That is how far 890 lies from the candidate: which of the two is the measure?"
    if any(close(answer, size) for size in (candidate.percent_off / 100, 1 + candidate.percent_off / 100)):
        return "In per cent, and only what is too much."
    if close(answer, 100 + candidate.percent_off):
        return "That is the candidate in per cent of the true sum. By how many does it miss?"
    if close(answer, -candidate.percent_off):
        return "The candidate is too large, so the sign is plus."
    return "1,440 beside 890: how much too much, as a share of 890?"


@exercise(
    "17.2",
    level="medium",
    minutes=8,
    hints=(
        'The first code cell of the section "The count" prints the library\'s own rule, errata.agrees.',
        "Count the digits behind the printed point, round the value to as many, and compare two numbers, not two "
        "texts. Commas stand between thousands only, and a value may be a Fraction.",
    ),
)
def prints_the_same(answer: object) -> str | None:
    """A function of a printed number and a value to whether the value prints so."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for printed, value in PAIRS:
        try:
            got = answer(printed, value)
            same = bool(got)
        except Exception as error:
            return say(
                "For {printed!r} and {value!r} it stops with {error}. It is called with a string and a number of any "
                "kind; float(value) is a plain one.",
                printed=printed,
                value=value,
                error=repr(error),
            )
        if got is None or isinstance(got, (str, float)):
            return say("It gives {got!r}. A yes or no is asked: True or False.", got=got)
        if same == agrees(printed, value):
            continue
        if same:
            return say(
                "{value:.10g} beside {printed!r}: it does not. Count the printed decimals, and mind the commas.",
                value=float(value),
                printed=printed,
            )
        return say(
            "{value:.10g} beside {printed!r}: it prints so. Count the printed decimals, and mind the commas.",
            value=float(value),
            printed=printed,
        )
    return None


@exercise(
    "17.3",
    level="medium",
    minutes=8,
    hints=(
        'The section "The fifth cell" has the formula. In the decoder every token has an entry of its own, so N '
        "counts tokens, too.",
        "Beyond the size of the pool, four of the five scans no longer grow. Set the scores with the pool to half of "
        "those without, and solve for the context.",
    ),
)
def where_the_pool_halves(answer: object) -> str | None:
    """The context at which the pool halves the scores of the decoder's five selections."""
    config = ModelConfig.flash()
    pool = config.candidate_topk_blocks * config.candidate_block_size
    if close(answer, Fraction(8, 3) * pool, 0.001):
        return None
    if close(answer, pool, 0.001):
        return "Up to there it saves nothing at all."
    if close(answer, 2 * pool, 0.001):
        return say(
            "There each Reindex layer has half of the work, but layer 20 has all of it: {saving:.2f} times in all.",
            saving=float(selection_cost(config, 2 * pool).saving),
        )
    if close(answer, Fraction(8, 5) * pool, 0.001):
        return "That leaves out layer 20, which goes on scanning everything."
    if close(answer, Fraction(10, 3) * pool, 0.001):
        return "Layer 20 scores everything and makes the pool; four layers score in it."
    return "Five scans of N without the pool; with it one scan of N and four of 16,384. When is that half?"


@exercise(
    "17.4",
    level="easy",
    minutes=4,
    hints=(
        "Exercise 04.1 counts such a record. The index keys are MXFP4 already, and ledger.entries_per_token says how "
        "many entries a token has.",
        "Add up one entry first, a main record with its scales and an index key; then multiply by the entries of a "
        "token.",
    ),
)
def bytes_in_mxfp4(answer: object) -> str | None:
    """Bytes a token if the main KV were MXFP4, as the article calls it."""
    config = ModelConfig.flash()
    entries, key = ledger.entries_per_token(config), INDEX_KEY.bytes_per_row(config.index_head_dim)
    record = INDEX_KEY.bytes_per_row(config.head_dim)
    if close(answer, entries * (record + key), 0):
        return None
    if close(answer, record, 0):
        return "That is one main record. How many entries has a token, and what else has an entry?"
    if close(answer, record + key, 0):
        return "That is one entry. How many entries has a token?"
    if close(answer, entries * record, 0):
        return "The index keys are missing."
    if close(answer, entries * (MAIN_KV.bytes_per_row(config.head_dim) + key), 0):
        return "That is the real format, with a scale for 16 channels. MXFP4 has one for 32."
    if close(answer, entries * (config.head_dim // 2 + key), 0):
        return "Those are the elements. The scales are stored, too."
    if close(answer, len(config.kv_source_layer_ids) * (record + key), 0):
        return "Not every source writes an entry for each token."
    return "A record of 512 channels: 4 bits each, and a byte for every 32 of them."
