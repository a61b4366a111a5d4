"""Exercises of chapter 12, the kernels."""

from __future__ import annotations

import math

from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.ledger import Storage
from ds41.reads import decode_reads
from ds41.small_floats import e2m1_values, e4m3_values

# The byte and the scale of exercise 12.4.
CODES, SCALE = 0x9E, 0x2C
# What exercise 12.3 supposes: queries decoded together, heads of one program, multiprocessors of an H200.
QUERIES, HEADS_PER_PROGRAM, MULTIPROCESSORS = 8, 16, 132


@exercise("12.1")
def bytes_of_a_reuse_layer(answer: object) -> str | None:
    """KV bytes that a Reuse layer reads for one token at 128K."""
    config = ModelConfig.flash()
    read = next(read for read in decode_reads(config, 2**17) if read.mode == "reuse")
    if close(answer, read.total, 0):
        return None
    if close(answer, read.main, 0):
        return "The selected main records are right. What does every layer read beside them?"
    if close(answer, read.window, 0):
        return "That is the window. What does the layer follow another layer's choice for?"
    if close(answer, 2 * read.main + read.window, 0) or close(answer, 2 * read.total, 0):
        return "A record is key and value at once, so it is read once."
    return "A window of records in one format, a selection of records in another, and no index keys."


@exercise("12.2")
def first_bad_slot(answer: object) -> str | None:
    """The first slot whose byte offset no longer fits int32, for main records in one buffer."""
    stride = Storage.published(ModelConfig.flash()).main.nbytes
    expected = 2**31 // stride + 1
    if close(answer, expected, 0):
        return None
    if close(answer, expected - 1, 0):
        return "One slot before: its offset still fits. Multiply it out."
    if close(answer, 2**32 // stride + 1, 0) or close(answer, 2**32 // stride, 0):
        return "int32 has a sign."
    return "Which is the largest offset that int32 holds? Divide it by the bytes of a record."


@exercise("12.3")
def splits_that_fill(answer: object) -> str | None:
    """Splits that give every multiprocessor a program."""
    config = ModelConfig.flash()
    programs = QUERIES * (config.num_attention_heads // HEADS_PER_PROGRAM)
    expected = math.ceil(MULTIPROCESSORS / programs)
    if close(answer, expected, 0):
        return None
    if close(answer, MULTIPROCESSORS / programs) or close(answer, expected - 1, 0):
        return "Splits are whole, and none of the multiprocessors may be left without one."
    if close(answer, math.ceil(MULTIPROCESSORS / QUERIES), 0):
        return "One program does not take all heads of a query."
    return "How many programs are there without a split? Every split adds as many again."


@exercise("12.4")
def byte_by_hand(answer: object) -> str | None:
    """The two channels of one byte, under one scale byte."""
    scale, values = e4m3_values()[SCALE], e2m1_values()
    expected = [values[CODES & 15] * scale, values[CODES >> 4] * scale]
    try:
        pair = [float(value) for value in answer]  # type: ignore[union-attr]
    except (TypeError, ValueError):
        pair = []
    if len(pair) != 2:
        return "Give a pair: the even channel, then the odd one."
    if pair == expected:
        return None
    if pair == expected[::-1]:
        return "The even channel lies in the low nibble."
    if pair == [value / scale for value in expected]:
        return "The codes are right. Multiply by the scale."
    if [abs(value) for value in pair] == [abs(value) for value in expected]:
        return "Look at the sign bits."
    return "Scale: four exponent bits with bias 7, three mantissa bits. Codes: a sign bit, two exponent bits, bias 1."


@exercise("12.5")
def combine_partials(answer: object) -> str | None:
    """A function that combines two partial softmaxes (maximum, sum, weighted sum of values)."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for first, second in _PARTS:
        try:
            largest, total, value = (float(part) for part in answer(first, second))
        except (TypeError, ValueError, OverflowError, ArithmeticError):
            return "Return three numbers: the maximum, the sum, the weighted sum of values."
        if any(math.isnan(part) for part in (largest, total, value)):
            return f"combine({first}, {second}) has a NaN in it."
        if largest != max(first[0], second[0]):
            return f"combine({first}, {second}) has the maximum {largest:g}."
        expected = [sum(part[i] * math.exp(part[0] - largest) for part in (first, second)) for i in (1, 2)]
        if close(total, first[1] + second[1], 1e-9) and not close(total, expected[0], 1e-9):
            return "The two sums are relative to different maxima. Bring both to the larger one first."
        if not all(
            abs(got - want) <= 1e-9 * max(1, abs(want)) for got, want in zip((total, value), expected, strict=True)
        ):
            return (
                f"combine({first}, {second}) gives sum {total:g} and value {value:g}: which weights do the parts have?"
            )
    return None


# The third has a part without keys, as a split beyond a short context leaves it; the last is a tie.
_PARTS = (
    ((1.0, 2.0, 3.0), (3.0, 1.5, -1.0)),
    ((700.0, 1.25, 2.0), (-50.0, 4.0, 8.0)),
    ((-1e30, 0.0, 0.0), (2.0, 3.0, 6.0)),
    ((2.0, 3.0, 6.0), (-1e30, 0.0, 0.0)),
    ((0.5, 2.0, 1.0), (0.5, 3.0, -4.0)),
)
