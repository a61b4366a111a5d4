"""Exercises of chapter 04, FP4 storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ds41.comparison_formats import scale_rounded_up
from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.formats import INDEX_KEY, MAIN_KV
from ds41.language import say
from ds41.small_floats import E2M1_MAX, E4M3_MAX, e4m3_values

WIDE_BLOCK = 32


@exercise(
    "04.1",
    level="easy",
    minutes=3,
    hints=(
        "The table of three records says what the main record consists of: its channels, its elements and its scales.",
        "Ask how many channels share a byte of elements, and how many share a scale, which is a whole byte.",
    ),
)
def bytes_with_blocks_of_32(answer: object) -> str | None:
    """Bytes of one main record if a scale served 32 channels instead of 16."""
    config = ModelConfig.flash()
    channels = config.head_dim
    nibbles, scales = channels * MAIN_KV.element_bits // 8, channels // WIDE_BLOCK
    expected = nibbles + scales
    if close(answer, expected, 0):
        return None
    if close(answer, MAIN_KV.bytes_per_row(channels), 0):
        return "That is the published record, with a scale for every 16 channels."
    if close(answer, 8 * expected, 0):
        return "Those are bits; eight make a byte."
    if close(answer, 8 * expected / channels, 0):
        return "Those are bits per channel; the record has many channels."
    if close(answer, channels + scales, 0):
        return "An element has four bits, so two channels share a byte."
    if close(answer, nibbles + scales / 2, 0):
        return "A scale is a whole byte, not four bits."
    if close(answer, expected + INDEX_KEY.bytes_per_row(config.index_head_dim), 0):
        return "That is an entry; its index key is a record of its own."
    return "Count the nibbles and the scale bytes apart, then add them."


@exercise(
    "04.2",
    level="easy",
    minutes=5,
    hints=(
        "The section on prediction has both sides: how large a channel can become, and how far the format reaches.",
        "The norm's weights multiply the bound. At which weight does it come up to the reach?",
    ),
)
def largest_norm_weight(answer: object) -> str | None:
    """Largest RMSNorm weight whose bound still fits the format."""
    channels, reach = ModelConfig.flash().head_dim, E2M1_MAX * E4M3_MAX
    expected = reach / math.sqrt(channels)
    if close(answer, expected):
        return None
    if close(answer, reach):
        return "That is the reach of the format; a channel can be the weight times the root of the channels."
    if close(answer, 1 / expected):
        return "That is the bound over the reach; turn it round."
    if close(answer, E4M3_MAX / math.sqrt(channels)):
        return "That is the largest scale alone; an element multiplies it."
    if close(answer, E2M1_MAX / math.sqrt(channels)):
        return "That is the largest element alone; a scale multiplies it."
    if close(answer, reach / channels):
        return "The norm grows with the square root of the number of channels."
    if close(answer, reach / 10):
        return "That compares with the largest value seen in training; the norm bound asks for the worst latent."
    return "The bound grows with the largest weight; the range is the largest element times the largest scale."


@exercise(
    "04.3",
    level="medium",
    minutes=6,
    hints=(
        "The section on three number types has the bits of a code to flip; the rules of the encoder say which channel "
        "takes which nibble.",
        "Both numbers are one and a half times a power of two, so both have the mantissa bit. The exponent field is "
        "that power plus the bias.",
    ),
)
def byte_of_two_channels(answer: object) -> str | None:
    """The stored byte of an even channel -1.5 and an odd channel 3.0 at scale 1."""
    block = torch.zeros(16)
    block[:3] = torch.tensor([-1.5, 3.0, 6.0])
    expected = int(MAIN_KV.encode(block).codes[0])
    low, high = expected & 15, expected >> 4
    if close(answer, expected, 0):
        return None
    if isinstance(answer, (str, bytes)):
        return "Give the byte as a number, without quotation marks: 0x and 0b introduce hexadecimal and binary digits."
    if isinstance(answer, Sequence):
        return "Give one number: both nibbles make one byte."
    if close(answer, low << 4 | high, 0):
        return "The nibbles are swapped: the even channel lies in the low one."
    if close(answer, int(f"{expected:b}"), 0):
        return "The digits are right, but Python reads them as decimal ones: put 0b before them."
    if close(answer, high << 4 | low & 7, 0):
        return "Channel 0 is negative; its sign is the highest bit of its nibble."
    if close(answer, low, 0) or close(answer, high, 0):
        return "That is the nibble of one channel; the byte holds two."
    return "Write both numbers as sign, two exponent bits and one mantissa bit; the exponent's bias is 1."


@exercise(
    "04.4",
    level="hard",
    minutes=12,
    hints=(
        "The section on three number types says what an exponent field of zero means, and which numbers E4M3 "
        "begins with.",
        "Take the byte apart by shifts and masks: a sign bit, four bits of exponent with a bias of 7, three bits of "
        "mantissa, which count eighths.",
        "There are three cases: all seven bits below the sign are set; the exponent field is zero and has the power "
        "that field one has; and all the rest. The sign comes in at the end.",
    ),
)
def read_e4m3(answer: object) -> str | None:
    """A function from a byte to the E4M3 number, for all 256 bytes."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for byte, expected in enumerate(e4m3_values()):
        try:
            got = answer(byte)
        except Exception as error:  # Whatever a reader's function raises is no fault of the check.
            return say("For byte 0x{byte:02X} it raises {error!r}.", byte=byte, error=error)
        if got is None:
            return say("For byte 0x{byte:02X} it gives None: is a return missing?", byte=byte)
        if math.isnan(expected):
            if not _is(math.isnan, got):
                return say("Byte 0x{byte:02X} is NaN; the function gives {got!r}.", byte=byte, got=got)
        elif not close(got, expected, 0):
            why = _about(byte, got, expected)
            return say("Byte 0x{byte:02X} reads as {got!r}. {why}", byte=byte, got=got, why=why)
    return None


def _about(byte: int, got: object, expected: float) -> str:
    if expected and close(got, -expected, 0):
        return say("The highest bit is the sign.")
    if byte & 127 < 8:
        return say("It is subnormal: exponent field zero, no hidden one, and the power that field one has.")
    if _is(math.isnan, got) or _is(math.isinf, got):
        return say("Only the two bytes with all seven lower bits set are NaN, and none is infinite.")
    if any(close(got, expected * 2.0**power, 0) for power in range(-8, 9)):
        return say("It is wrong by a power of two: what is the exponent's bias?")
    return say("It is normal: a hidden one, and the mantissa field in eighths, times a power of two.")


def _is(kind: Callable[[float], bool], value: object) -> bool:
    """Whether ``value`` is a number and of that kind."""
    try:
        return kind(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


@exercise(
    "04.5",
    level="medium",
    minutes=10,
    hints=(
        "The chapter has relative_error(quantise, x) already, in the section on what the argument does not certify. "
        "MAIN_KV.fake_quantize is one way to quantise.",
        "Rows are torch.randn with config.head_dim channels; a few hundred are enough. Divide the error of one way by "
        "that of the other.",
        "Why? A block that clips loses a little of its largest channel. What does a larger scale do to all of them?",
    ),
)
def does_rounding_up_help(answer: object) -> str | None:
    """Relative error of main KV with the scale rounded up, over the published rounding: a ratio."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2048, ModelConfig.flash().head_dim, generator=generator)
    up, published = (float((way(x) - x).norm() / x.norm()) for way in (scale_rounded_up, MAIN_KV.fake_quantize))
    ratio = up / published
    if close(answer, ratio, 0.01):
        return None
    if close(answer, 1 / ratio, 0.01):
        return "Turn it round. Divide the error's norm with the scale rounded up by that with the published rounding."
    if close(answer, up, 0.02) or close(answer, published, 0.02):
        return "That is the error of one of the two ways; give their ratio."
    if close(answer, ratio**2, 0.01):
        return "That is the ratio of the squares: take the root, as a norm does."
    if close(answer, 100 * ratio, 0.01):
        return "Right in per cent; give the ratio itself."
    if any(close(answer, change, 0.2) for change in (ratio - 1, 100 * (ratio - 1))):
        return "That is by how much the error changes; give the ratio of the two."
    return "Divide the error's norm with the scale rounded up by the error's norm with the published rounding."
