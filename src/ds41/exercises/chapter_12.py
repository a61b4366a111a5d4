"""Exercises of chapter 12, the kernels."""

from __future__ import annotations

import math

import numpy as np
import torch

from ds41.config import ModelConfig
from ds41.exercises import close, exercise, number
from ds41.language import say
from ds41.ledger import Storage
from ds41.reads import decode_reads
from ds41.small_floats import e2m1_values, e4m3_values

CONTEXT = 2**17
# The byte and the scale of exercise 12.4.
CODES, SCALE = 0x9E, 0x2C
# What exercise 12.3 supposes: queries decoded together, heads of one program, multiprocessors of an H200.
QUERIES, HEADS_PER_PROGRAM, MULTIPROCESSORS = 8, 16, 132
INT32, UINT32 = 2**31 - 1, 2**32 - 1
# Two parts of exercise 12.5 each: maximum, sum of weights, weighted sum of values. The third pair has a part without
# keys, as a split beyond a short context leaves it; the last is a tie.
PARTS = (
    ((1.0, 2.0, 3.0), (3.0, 1.5, -1.0)),
    ((700.0, 1.25, 2.0), (-50.0, 4.0, 8.0)),
    ((-1e30, 0.0, 0.0), (2.0, 3.0, 6.0)),
    ((2.0, 3.0, 6.0), (-1e30, 0.0, 0.0)),
    ((0.5, 2.0, 1.0), (0.5, 3.0, -4.0)),
)

Part = tuple[float, float, float]


@exercise(
    "12.1",
    level="easy",
    minutes=3,
    hints=(
        'The first table of "Prediction: a decode step as bytes moved" has a line for the Reuse layers.',
        "Add up what such a layer reads of its window and of main KV. Whether it reads index keys, too, depends on who "
        "makes the selection.",
    ),
)
def bytes_of_a_reuse_layer(answer: object) -> str | None:
    """KV bytes that a Reuse layer reads for one token at 128K."""
    config = ModelConfig.flash()
    reads = [read for read in decode_reads(config, CONTEXT) if read.mode == "reuse"]
    read, storage = reads[0], Storage.published(config)
    if close(answer, read.total, 0):
        return None
    if close(answer, read.main, 0):
        return "The selected main records are right. What does every layer read beside them?"
    if close(answer, read.window, 0):
        return "That is the window. What does the layer follow another layer's choice for?"
    if close(answer, 2 * read.main + read.window, 0) or close(answer, 2 * read.total, 0):
        return "A record is key and value at once, so it is read once."
    if close(answer, len(reads) * read.total, 0):
        return "That is what all Reuse layers read together. The exercise asks for one."
    if any(close(answer, read.window + CONTEXT // ratio * storage.main.nbytes, 0) for ratio in (1, 2)):
        return "That reads every main record of the context. A selection has a fixed number of them."
    if any(close(answer, read.total + CONTEXT // ratio * storage.index.nbytes, 0) for ratio in (1, 2)):
        return "Index keys are read where a selection is made. This layer takes over another one's."
    if close(answer, read.total / 1000) or close(answer, read.total / 1024):
        return "The exercise asks for bytes, without a prefix."
    return "A window of records in one format, a selection of records in another, and no index keys."


@exercise(
    "12.2",
    level="easy",
    minutes=4,
    hints=(
        'The wrap is shown in "An offset that outgrows its type". A slot\'s byte offset is the slot times the bytes of '
        "a main record, storage.main.nbytes.",
        "The last slot that works is the largest offset over the bytes of a record, rounded down. The exercise asks "
        "for the one behind it.",
    ),
)
def first_bad_slot(answer: object) -> str | None:
    """The first slot whose byte offset no longer fits int32, for main records in one buffer."""
    config = ModelConfig.flash()
    storage = Storage.published(config)
    stride = storage.main.nbytes
    expected = INT32 // stride + 1
    if close(answer, expected, 0):
        return None
    if close(answer, expected - 1, 0):
        return "One slot before: its offset still fits. Multiply it out."
    if close(answer, UINT32 // stride + 1, 0) or close(answer, UINT32 // stride, 0):
        return "int32 has a sign."
    if close(answer, INT32 / stride, 1e-9):
        return "A slot is a whole number. Which is the first beyond that?"
    if _is_slot(answer, config.head_dim // 2):
        return "Those are the codes alone. A record has scales, too."
    if _is_slot(answer, storage.window.nbytes):
        return "That is the stride of window rows. Main records are smaller."
    if close(answer, INT32 + 1, 0) or close(answer, INT32, 0):
        return "The largest offset is in bytes. The exercise asks for a slot."
    return "Which is the largest offset that int32 holds? Divide it by the bytes of a record."


@exercise(
    "12.3",
    level="medium",
    minutes=6,
    hints=(
        'Splits are the last point of the list in "Step 3: pages, window, splits": with more of them more programs '
        "share the keys of one query.",
        "First count the programs without any split, over all sequences and all groups of heads. Splits multiply that "
        "number; find how many it takes to reach the multiprocessors.",
    ),
)
def splits_that_fill(answer: object) -> str | None:
    """Splits that give every multiprocessor a program."""
    config = ModelConfig.flash()
    groups = config.num_attention_heads // HEADS_PER_PROGRAM
    programs = QUERIES * groups
    expected = math.ceil(MULTIPROCESSORS / programs)
    if close(answer, expected, 0):
        return None
    if close(answer, MULTIPROCESSORS / programs) or close(answer, expected - 1, 0):
        return "Splits are whole, and none of the multiprocessors may be left without one."
    if close(answer, math.ceil(MULTIPROCESSORS / QUERIES), 0):
        return "One program does not take all heads of a query."
    if close(answer, math.ceil(MULTIPROCESSORS / groups), 0):
        return "That is for one sequence. Each of them brings programs of its own."
    if close(answer, math.ceil(MULTIPROCESSORS / (QUERIES * config.num_attention_heads)), 0):
        return "A head has no program of its own: one program takes several."
    if close(answer, expected * programs, 0):
        return "Those are the programs. How many splits of the keys make them?"
    return "How many programs are there without a split? Every split adds as many again."


@exercise(
    "12.4",
    level="medium",
    minutes=10,
    hints=(
        'See "The dequantisation kernel, line by line": which half of a byte is which channel, and what the bits of a '
        "code mean. The scale is the main KV's, in E4M3 as in chapter 4.",
        "Write both bytes as bits and part them into sign, exponent and mantissa. Exponent bits that are all zero mean "
        "a number without a hidden one. A channel is its code times the scale.",
    ),
)
def byte_by_hand(answer: object) -> str | None:
    """The two channels of one byte, under one scale byte."""
    scale, values = e4m3_values()[SCALE], e2m1_values()
    even, odd = values[CODES & 15], values[CODES >> 4]
    pair = _numbers(answer)
    if pair is None or len(pair) != 2:
        return "Give a pair: the even channel, then the odd one."
    if pair == [even * scale, odd * scale]:
        return None
    if pair == [odd * scale, even * scale]:
        return "The even channel lies in the low nibble."
    if pair == [even, odd]:
        return "The codes are right. Multiply by the scale."
    if pair == [even * SCALE, odd * SCALE]:
        return "The scale byte is a number in E4M3, not an integer."
    if pair == [even * 2.0 ** (SCALE - 127), odd * 2.0 ** (SCALE - 127)]:
        return "That reads the scale as E8M0, as index keys have it. The scales of main KV are E4M3."
    if [abs(value) for value in pair] == [abs(even * scale), abs(odd * scale)]:
        return "Look at the sign bits."
    # With the hidden one that a normal number has, the subnormal one half would be 1.5 / 2.
    if pair == [even * scale, 1.5 * odd * scale]:
        return "The even channel is right. The odd one's exponent bits are zero: it is subnormal, without a hidden one."
    return "Scale: four exponent bits with bias 7, three mantissa bits. Codes: a sign bit, two exponent bits, bias 1."


@exercise(
    "12.5",
    level="hard",
    minutes=15,
    hints=(
        'The function fold in "Step 1: online softmax over plain rows" takes a tile into running numbers in this way; '
        "look at what fade does.",
        "The larger maximum is that of all keys. The sum and the value of a part count from its own maximum, so one "
        "factor brings both of them to the new one.",
        "A part without keys needs no case of its own: see what that factor becomes for it.",
    ),
)
def combine_partials(answer: object) -> str | None:
    """A function that combines two partial softmaxes (maximum, sum, weighted sum of values)."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for first, second in PARTS:
        try:
            given = answer(first, second)
        except OverflowError:
            return say(
                "combine({first}, {second}) overflows. No weight is above 1 if it counts from the larger maximum.",
                first=first,
                second=second,
            )
        except Exception as error:
            return say("combine({first}, {second}) raises {error}.", first=first, second=second, error=repr(error))
        try:
            largest, total, value = (number(part) for part in given)
        except (TypeError, ValueError, RuntimeError):
            largest = total = value = None
        if largest is None or total is None or value is None:
            return "Return three numbers: the maximum, the sum, the weighted sum of values."
        remark = _remark_on_parts(first, second, largest, total, value)
        if remark is not None:
            return remark
    return None


def _remark_on_parts(first: Part, second: Part, largest: float, total: float, value: float) -> str | None:
    if any(math.isnan(part) for part in (largest, total, value)):
        return say("combine({first}, {second}) has a NaN in it.", first=first, second=second)
    if largest != max(first[0], second[0]):
        return say(
            "combine({first}, {second}) has the maximum {largest:g}.", first=first, second=second, largest=largest
        )
    expected = [sum(part[i] * math.exp(part[0] - largest) for part in (first, second)) for i in (1, 2)]
    if _near(total, expected[0]) and _near(value, expected[1]):
        return None
    if close(total, first[1] + second[1], 1e-9) and not _near(total, expected[0]):
        return "The two sums are relative to different maxima. Bring both to the larger one first."
    if total > first[1] + second[1]:
        return "Some weight is above 1. The part with the smaller maximum fades; it does not grow."
    if _near(total, expected[0]) and _near(value * total, expected[1]):
        return "The value is divided by the sum already. It stays a sum, so that it can be combined again."
    return say(
        "combine({first}, {second}) gives sum {total:g} and value {value:g}: which weights do the parts have?",
        first=first,
        second=second,
        total=total,
        value=value,
    )


def _near(found: float, wanted: float) -> bool:
    return abs(found - wanted) <= 1e-9 * max(1, abs(wanted))


def _is_slot(answer: object, stride: int) -> bool:
    """Whether this is the last good slot or the first bad one for such a stride."""
    return close(answer, INT32 // stride, 0) or close(answer, INT32 // stride + 1, 0)


def _numbers(answer: object) -> list[float] | None:
    """The members of a list, tuple or array as floats; None if it is nothing of that kind or they are no numbers."""
    try:
        if isinstance(answer, (torch.Tensor, np.ndarray)):
            answer = answer.tolist()
    except RuntimeError:  # A tensor on the meta device, or a sparse one.
        return None
    numbers = [number(one) for one in answer] if isinstance(answer, (list, tuple)) else [None]
    return None if None in numbers else numbers
