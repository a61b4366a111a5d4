"""Exercises of chapter 09, Engram."""

from __future__ import annotations

import dataclasses
import math
import random

import torch

from ds41.config import ModelConfig
from ds41.engram import DEAD, Hasher, hash_constants, lookups
from ds41.exercises import close, exercise


@exercise("09.1")
def bytes_with_five_grams(answer: object) -> str | None:
    """Bytes that a token would read in both layers if 5-grams were hashed, too."""
    config = ModelConfig.flash()
    more = dataclasses.replace(config, engram_max_ngram_size=config.engram_max_ngram_size + 1)
    expected = sum(read.nbytes for read in lookups(more))
    if close(answer, expected, 0):
        return None
    if close(answer, sum(read.nbytes for read in lookups(config)), 0):
        return "That is the published model, which stops at 4-grams."
    if close(answer, expected / len(config.engram_layer_ids), 0):
        return "That is one Engram layer; there is another."
    if close(answer, expected / lookups(config)[0].row_bytes * config.engram_head_dim, 0):
        return "A row has scales, too: one byte for every 32 channels."
    return "Orders times heads times the bytes of a row, in every Engram layer."


@exercise("09.2")
def largest_vocabulary(answer: object) -> str | None:
    """How many compressed ids the largest published multiplier leaves below 2^63."""
    largest = int(hash_constants(ModelConfig.flash()).multipliers.max())
    expected = (2**63 - 1) // largest + 1
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        if answer == expected:
            return None
        if answer == expected - 1:
            return "That is the largest id. Ids begin at 0, so there is one more."
        if answer == ModelConfig.flash().engram_compressed_vocab_size:
            return "That is the published size, from which the multipliers' bound was made; they were drawn below it."
        if answer == 2**53 // largest + 1:
            return "That is the limit for doubles. Here the hash is int64."
    return "The largest id times the largest of the eight multipliers must stay below 2^63."


@exercise("09.3")
def columns_after_a_cut(answer: object) -> str | None:
    """A function: columns of one layer that change k tokens after a boundary where the history was lost."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for token in (0, 1, 2, 3, 10):
        expected = _columns_changed(token)
        got = answer(token)
        if got != expected or isinstance(got, bool):
            if token > 2:
                return f"For token {token} it gives {got!r}. No window there reaches back beyond the boundary."
            return f"For token {token} it gives {got!r}. Count the n-grams that reach back beyond the boundary."
    return None


@exercise("09.4")
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
            expected = hasher.rows(torch.tensor([window]))[1][0, :: config.engram_n_heads].tolist()
            if _as_list(answer(list(window))) != expected:
                return _hint_for_hash(kind, window, answer, expected)
    return None


@exercise("09.5")
def half_of_the_contexts_share(answer: object) -> str | None:
    """How many distinct n-grams it takes until half of them share their bucket with another one."""
    buckets = int(hash_constants(ModelConfig.flash()).primes[0, 0, 0])
    if close(answer, buckets * math.log(2)):
        return None
    if close(answer, math.sqrt(2 * math.log(2) * buckets), 0.05):
        return "That many make a first collision likely, the birthday question. Here half of all are to share."
    if close(answer, buckets / 2):
        return "Half as many n-grams as buckets: each finds another one in its bucket with probability 1 - exp(-1/2)."
    return "One of r n-grams is alone in its bucket of b if no other falls into it: (1 - 1/b)^(r-1), about exp(-r/b)."


def _columns_changed(token: int) -> int:
    config = ModelConfig.flash()
    orders = [order for order in range(2, config.engram_max_ngram_size + 1) if order - 1 > token]
    return len(orders) * config.engram_n_heads


def _as_list(got: object) -> object:
    if isinstance(got, torch.Tensor):
        return got.flatten().tolist()
    return list(got) if isinstance(got, (list, tuple)) else got


def _hint_for_hash(kind: str, window: list[int], answer, expected: list[int]) -> str:
    if kind == "start":
        return f"Wrong for {window}: what is dead is replaced by the pad token's compressed id."
    if kind == "behind":
        return f"Wrong for {window}: a dead token hides all that lie behind it, too."
    got = _as_list(answer(list(window)))
    if not isinstance(got, list) or len(got) != len(expected):
        return f"Return {len(expected)} rows, one for each order; for {window} it gives {got!r}."
    offsets = hash_constants(ModelConfig.flash()).offsets[0, :: ModelConfig.flash().engram_n_heads].tolist()
    if got == [row - offset for row, offset in zip(expected, offsets, strict=True)]:
        return "These are remainders. A column's rows begin where those of the columns before it end."
    return f"Wrong for {window}. Products of ids and multipliers, xor from the newest back, then the remainder."
