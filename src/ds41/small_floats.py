"""The three number types of eight bits and less: E2M1, E4M3 and E8M0, their values and the rounding to them.

Source: OCP Microscaling Formats (MX) v1.0 and OCP 8-bit Floating Point (OFP8) v1.0.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch

Element = Literal["e2m1", "e4m3"]
"""Types of an element: FP4 with 2 exponent bits, FP8 with 4."""
Scale = Literal["e4m3", "e8m0"]
"""Types of a scale byte: E4M3, or E8M0, a power of two."""

E2M1_MAX = 6.0
"""The largest E2M1 number."""
E4M3_MAX = 448.0
"""The largest finite E4M3 number."""


def e2m1_values() -> list[float]:
    """The 16 numbers of E2M1 by code: sign, two exponent bits (bias 1), one mantissa bit."""
    magnitudes = [_small_float(code, exponent_bits=2, mantissa_bits=1, bias=1) for code in range(8)]
    return magnitudes + [-m for m in magnitudes]


def e4m3_values() -> list[float]:
    """The 256 numbers of E4M3 (OCP "fn") by code; the two codes with all bits set are NaN, none is infinite."""
    magnitudes = [_small_float(code, exponent_bits=4, mantissa_bits=3, bias=7) for code in range(127)] + [math.nan]
    return magnitudes + [-m for m in magnitudes]


def e8m0_values() -> list[float]:
    """The 256 numbers of E8M0 by code: powers of two from 2^-127 to 2^127, then NaN."""
    return [2.0 ** (code - 127) for code in range(255)] + [math.nan]


# torch.round would do, but some builds wait milliseconds for a second thread on every small tensor.
_WHOLE = 1.5 * 2.0**23


def round_to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Nearest E4M3 code, uint8, of float32 ``x`` [...], in its shape: ties to even, saturating at 448."""
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    write_e4m3(x.clone(), codes)
    return codes


def write_e4m3(x: torch.Tensor, codes: torch.Tensor) -> None:
    """:func:`round_to_e4m3` of ``x`` [...] into ``codes``, uint8 [...]; ``x`` is overwritten."""
    # Overflow in this cast gave NaN up to torch 2.11 and saturates since; the clamp makes both saturate.
    codes.view(torch.float8_e4m3fn).copy_(x.clamp_(-E4M3_MAX, E4M3_MAX))


def round_to_e2m1(magnitude: torch.Tensor) -> torch.Tensor:
    """Nearest E2M1 code 0..7 of ``magnitude``, float32 [...]: ties to even, saturating at code 7 (as float32).

    The steps are 1/2 up to 2, 1 up to 4, and 2 up to 6. Rounded with one step, a magnitude counts codes too high
    wherever another step holds, so the smallest of the three counts is right. Adding 1.5 * 2^23 rounds to a whole
    number, halves to even: the sum has no bits for less.
    """
    spare = magnitude.new_empty(2, *magnitude.shape)
    return round_to_e2m1_(magnitude.clone(), spare[0], spare[1])


def round_to_e2m1_(magnitude: torch.Tensor, spare: torch.Tensor, spare_too: torch.Tensor) -> torch.Tensor:
    """:func:`round_to_e2m1` of ``magnitude`` [...] in place; ``spare`` and ``spare_too``, of its shape, are
    overwritten.
    """
    by_half = torch.mul(magnitude, 2, out=spare).add_(_WHOLE).sub_(_WHOLE)
    by_one = torch.add(magnitude, _WHOLE, out=spare_too).sub_(_WHOLE - 2)
    by_two = magnitude.mul_(0.5).add_(_WHOLE).sub_(_WHOLE - 4)
    smallest = torch.minimum(by_half, by_one, out=by_half)
    return torch.minimum(smallest, by_two, out=by_two).clamp_(max=7)


@lru_cache(maxsize=16)
def number_table(kind: str, device: torch.device) -> torch.Tensor:
    """The numbers of "e2m1", "e4m3" or "e8m0" by code, float32 [16] or [256]."""
    values = {"e2m1": e2m1_values, "e4m3": e4m3_values, "e8m0": e8m0_values}[kind]()
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).to(device)


def _small_float(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    if exponent == 0:
        return mantissa * 2.0 ** (1 - bias)
    return (1 + mantissa) * 2.0 ** (exponent - bias)
