"""Exercises of chapter 09, Engram."""

from __future__ import annotations

import dataclasses
import math
import operator
import random

import numpy as np
import torch

from ds41.config import ModelConfig
from ds41.engram import DEAD, Hasher, hash_constants, lookups
from ds41.exercises import close, exercise
from ds41.language import say

HIGHEST = 2**63 - 1


@exercise(
    "09.1",
    level="easy",
    minutes=4,
    hints=(
        'The table in "Prediction: the bill, from the configuration" says what one token reads now, and from what.',
        "A further order brings a group of heads of its own to each Engram layer. The bytes of a row stay as they are.",
    ),
)
def bytes_with_five_grams(answer: object) -> str | None:
    """Bytes that a token would read in both layers if 5-grams were hashed, too."""
    config = ModelConfig.flash()
    more = dataclasses.replace(config, engram_max_ngram_size=config.engram_max_ngram_size + 1)
    expected, published = (sum(read.nbytes for read in lookups(one)) for one in (more, config))
    rows, added = sum(read.rows for read in lookups(more)), expected - published
    if close(answer, expected, 0):
        return None
    if close(answer, published, 0):
        return "That is the published model, which stops at 4-grams."
    if close(answer, expected / len(config.engram_layer_ids), 0):
        return "That is one Engram layer; there is another."
    if close(answer, rows * config.engram_head_dim, 0):
        return "A row has scales, too: one byte for every 32 channels."
    if close(answer, added, 0):
        return "That is what the 5-grams add. The shorter n-grams are still read."
    if close(answer, expected + added, 0):
        return "One order too many: a single token is no n-gram here. The orders begin at 2."
    if close(answer, rows, 0):
        return "That counts rows. How many bytes has a row?"
    if close(answer, expected / 1000) or close(answer, expected / 1024):
        return "The exercise asks for bytes, without a prefix."
    return "Orders times heads times the bytes of a row, in every Engram layer."


@exercise(
    "09.2",
    level="medium",
    minutes=6,
    hints=(
        'The bound is that of "Exactly 63 bits". constants.multipliers has the multipliers of both layers.',
        "One multiplier decides for all of them. Find the largest id whose product with it still fits, in whole "
        "numbers, and then count the ids up to that one.",
    ),
)
def largest_vocabulary(answer: object) -> str | None:
    """How many compressed ids the largest published multiplier leaves below 2^63."""
    config = ModelConfig.flash()
    multipliers = hash_constants(config).multipliers
    largest = int(multipliers.max())
    expected = HIGHEST // largest + 1
    if close(answer, expected, 0):
        return None
    if close(answer, expected - 1, 0):
        return "That is the largest id. Ids begin at 0, so there is one more."
    if close(answer, HIGHEST / largest, 1e-9) or close(answer, HIGHEST / largest + 1, 1e-9):
        return "Ids are whole numbers: round the largest one down before you count."
    if close(answer, config.engram_compressed_vocab_size, 0):
        return "That is the published size, from which the multipliers' bound was made; they were drawn below it."
    if close(answer, 2**53 // largest + 1, 0):
        return "That is the limit for doubles. Here the hash is int64."
    if close(answer, (2**64 - 1) // largest + 1, 0) or close(answer, (2**64 - 1) // largest, 0):
        return "That is the limit without a sign. The products stay below 2^63."
    first_layer = HIGHEST // int(multipliers[0].max())
    if close(answer, first_layer + 1, 0) or close(answer, first_layer, 0):
        return "That holds for the first Engram layer. The second has four multipliers of its own."
    return "The largest id times the largest of the eight multipliers must stay below 2^63."


@exercise(
    "09.3",
    level="medium",
    minutes=8,
    hints=(
        'Look at the measurement in "Chunks, and what a lost history costs": it cuts a text at every place, and '
        "prints what changes behind the cut.",
        "An n-gram reaches n - 1 tokens back. Count the orders that reach over the boundary from place p; every "
        "order has as many columns as it has heads.",
    ),
)
def columns_after_a_cut(answer: object) -> str | None:
    """A function: columns of one layer that change k tokens after a boundary where the history was lost."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    config = ModelConfig.flash()
    for token in (0, 1, 2, 3, 10):
        expected = _columns_changed(token)
        try:
            got = answer(token)
        except Exception as error:
            return say("For token {token} it raises {error}.", token=token, error=repr(error))
        if close(got, expected, 0):
            continue
        if got is None:
            return "It gives None. A function needs a return to give a value."
        if expected and close(got, expected / config.engram_n_heads, 0):
            return say(
                "For token {token} it gives {got!r}, which counts orders. Each of them has several heads.",
                token=token,
                got=got,
            )
        if expected and close(got, len(config.engram_layer_ids) * expected, 0):
            return say("For token {token} it gives {got!r}, which is for both layers.", token=token, got=got)
        if not expected:
            return say(
                "For token {token} it gives {got!r}. No window there reaches back beyond the boundary.",
                token=token,
                got=got,
            )
        return say(
            "For token {token} it gives {got!r}. Count the n-grams that reach back beyond the boundary.",
            token=token,
            got=got,
        )
    return None


@exercise(
    "09.4",
    level="hard",
    minutes=15,
    hints=(
        'The cell in "Step 3: products, xor, remainders" does it for one window and all heads. What a dead place '
        'does is said in "Step 2: the window".',
        "Begin with the window: walk from the newest place back, and from the first dead place on take the pad "
        "token's compressed id.",
        "Then keep one running exclusive or of the products. After each product but the first it is the hash of one "
        "more order: its row is the remainder by the prime of this order's head 0, counted from that column's offset.",
    ),
)
def hash_by_hand(answer: object) -> str | None:
    """A function from a window of four compressed ids to the rows of head 0 of each order, in layer 1."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    config = ModelConfig.flash()
    hasher = Hasher(config, torch.arange(config.vocab_size) % config.engram_compressed_vocab_size)
    generator = random.Random(9)
    ids = [[generator.randrange(config.engram_compressed_vocab_size) for _ in range(4)] for _ in range(20)]
    start = [[5, DEAD, DEAD, DEAD], [5, 7, DEAD, DEAD]]
    behind = [[5, DEAD, 11, 13]]
    for kind, windows in (("whole", ids), ("start", start), ("behind", behind)):
        for window in windows:
            try:
                got = answer(list(window))
            except Exception as error:
                return say("For {window} it raises {error}.", window=window, error=repr(error))
            columns = _columns(hasher, window)
            if _whole_numbers(got) != columns[:: config.engram_n_heads]:
                return _remark_on_rows(hasher, kind, window, got, columns)
    return None


@exercise(
    "09.5",
    level="easy",
    minutes=5,
    hints=(
        'The formula is in "Collisions: the birthday estimate", for r different n-grams and b buckets.',
        "Set that share to one half, take the form with the exponential, and solve for r.",
    ),
)
def half_of_the_contexts_share(answer: object) -> str | None:
    """How many distinct n-grams it takes until half of them share their bucket with another one."""
    buckets = int(hash_constants(ModelConfig.flash()).primes[0, 0, 0])
    if close(answer, buckets * math.log(2)):
        return None
    if close(answer, math.sqrt(2 * math.log(2) * buckets), 0.05):
        return "That many make a first collision likely, the birthday question. Here half of all are to share."
    if close(answer, buckets / 2):
        return "Half as many n-grams as buckets: each finds another one in its bucket with probability 1 - exp(-1/2)."
    if close(answer, math.log(2)):
        return "That is the load, n-grams over buckets. How many n-grams are that?"
    if close(answer, buckets * math.log10(2)):
        return "The exponential is undone by the natural logarithm, not by that to base 10."
    return "One of r n-grams is alone in its bucket of b if no other falls into it: (1 - 1/b)^(r-1), about exp(-r/b)."


def _columns_changed(token: int) -> int:
    config = ModelConfig.flash()
    orders = [order for order in range(2, config.engram_max_ngram_size + 1) if order - 1 > token]
    return len(orders) * config.engram_n_heads


def _columns(hasher: Hasher, window: list[int]) -> list[int]:
    """The rows of all columns of layer 1."""
    return hasher.rows(torch.tensor([window]))[1][0].tolist()


def _whole_numbers(got: object) -> list[int] | None:
    """The members of a list, tuple or array as ints; None for anything else."""
    try:
        if isinstance(got, (torch.Tensor, np.ndarray)):
            got = got.flatten().tolist()
        if not isinstance(got, (list, tuple)):
            return None
        return [operator.index(one) for one in got]
    except (TypeError, ValueError, RuntimeError):
        return None


def _remark_on_rows(hasher: Hasher, kind: str, window: list[int], got: object, columns: list[int]) -> str:
    config = ModelConfig.flash()
    heads = config.engram_n_heads
    expected, rows = columns[::heads], _whole_numbers(got)
    if got is None:
        return "It gives None. A function needs a return to give a value."
    if rows is None or len(rows) != len(expected):
        return say(
            "Return {count} rows, one for each order; for {window} it gives {got!r}.",
            count=len(expected),
            window=window,
            got=got,
        )
    if kind == "start":
        return say("Wrong for {window}: what is dead is replaced by the pad token's compressed id.", window=window)
    if kind == "behind":
        return say("Wrong for {window}: a dead token hides all that lie behind it, too.", window=window)
    offsets = hash_constants(config).offsets[0, ::heads].tolist()
    if rows == [row - offset for row, offset in zip(expected, offsets, strict=True)]:
        return "These are remainders. A column's rows begin where those of the columns before it end."
    if rows == columns[: len(expected)]:
        return "These are the first heads of the 2-gram. Take head 0 of each order."
    if rows == _columns(hasher, window[::-1])[::heads]:
        return "The window begins with the newest token; these rows take it from its other end."
    return say(
        "Wrong for {window}. Products of ids and multipliers, xor from the newest back, then the remainder.",
        window=window,
    )
