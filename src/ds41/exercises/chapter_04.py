"""Exercises of chapter 04, FP4 storage."""

from __future__ import annotations

import math

import torch

from ds41.comparison_formats import scale_rounded_up
from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.formats import MAIN_KV
from ds41.small_floats import E2M1_MAX, E4M3_MAX, e4m3_values


@exercise("04.1")
def bytes_with_blocks_of_32(answer: object) -> str | None:
    """Bytes of one main record if a scale served 32 channels instead of 16."""
    channels = ModelConfig.flash().head_dim
    expected = channels * MAIN_KV.element_bits / 8 + channels / 32
    if close(answer, expected, 0):
        return None
    if close(answer, MAIN_KV.bytes_per_row(channels), 0):
        return "That is the published record, with a scale for every 16 channels."
    return "Count the nibbles and the scale bytes apart, then add them."


@exercise("04.2")
def largest_norm_weight(answer: object) -> str | None:
    """Largest RMSNorm weight whose bound still fits the format."""
    expected = E2M1_MAX * E4M3_MAX / math.sqrt(ModelConfig.flash().head_dim)
    if close(answer, expected):
        return None
    return "The bound grows with the largest weight; the range is the largest element times the largest scale."


@exercise("04.3")
def byte_of_two_channels(answer: object) -> str | None:
    """The stored byte of an even channel -1.5 and an odd channel 3.0 at scale 1."""
    block = torch.zeros(16)
    block[:3] = torch.tensor([-1.5, 3.0, 6.0])
    expected = int(MAIN_KV.encode(block).codes[0])
    if answer == expected:
        return None
    if answer == ((expected & 15) << 4 | expected >> 4):
        return "The nibbles are swapped: the even channel lies in the low one."
    return "Write both numbers as sign, two exponent bits and one mantissa bit; the exponent's bias is 1."


@exercise("04.4")
def read_e4m3(answer: object) -> str | None:
    """A function from a byte to the E4M3 number, for all 256 bytes."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for byte, expected in enumerate(e4m3_values()):
        got = answer(byte)
        if math.isnan(expected):
            if not (isinstance(got, float) and math.isnan(got)):
                return f"Byte 0x{byte:02X} is NaN; the function gives {got!r}."
        elif got != expected:
            kind = "subnormal: exponent field zero, no hidden one" if byte & 127 < 8 else "normal"
            return f"Byte 0x{byte:02X} ({kind}) reads as {got!r}."
    return None


@exercise("04.5")
def does_rounding_up_help(answer: object) -> str | None:
    """Relative error of main KV with the scale rounded up, over the published rounding: a ratio."""
    torch.manual_seed(0)
    x = torch.randn(2048, ModelConfig.flash().head_dim)
    up = (scale_rounded_up(x) - x).norm()
    published = (MAIN_KV.fake_quantize(x) - x).norm()
    if close(answer, float(up / published), 0.01):
        return None
    return "Divide the error's norm with the scale rounded up by the error's norm with the published rounding."
