"""The error that rounding to main KV's format must have, from the number formats alone.

Gaussian channels, eight magnitudes, a scale with E4M3's steps: integrals, and no rounding of any tensor, so that a
measurement can disagree.

Source: OCP's definitions of E2M1 and E4M3.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ds41.formats import MAIN_KV
from ds41.small_floats import E2M1_MAX, E4M3_MAX, e2m1_values

# The largest value of main KV, 2688; its scale's steps and floor below 2^-6.
REACH = E2M1_MAX * E4M3_MAX
"""The largest magnitude that main KV stores, 2688."""
SCALE_STEP = 2.0**-9
"""The distance of E4M3 scales below :data:`SMALLEST_NORMAL_SCALE`."""
SMALLEST_NORMAL_SCALE = 2.0**-6
"""The smallest normal E4M3 number."""
_MAGNITUDES = torch.tensor(e2m1_values()[:8], dtype=torch.float64)


class Rounding(NamedTuple):
    """What rounding does to Gaussian channels. error: relative to their norm. gain: 1 if sizes are kept on average.

    gain is E[x * rounded x] / E[x^2], the factor by which any projection of the row shrinks on average (Bussgang).
    """

    error: float
    gain: float


def predicted_rounding(weight: float = 1.0, ratio: float = 1.0) -> Rounding:
    """FP4 main KV of Gaussian channels of deviation ``weight``; with ``ratio``, of the quiet ones.

    Integrates over the largest of the block's other channels, one of which is ``ratio`` times heavier. A channel
    below that maximum is rounded within the grid which the maximum sets; one above it sets the grid itself.
    """
    edges = torch.logspace(-4, math.log10(8.0 * max(1.0, ratio)), 8001, dtype=torch.float64)
    others = _below(edges) ** (MAIN_KV.block - 2) * _below(edges / ratio)
    a = (edges[1:] + edges[:-1]) / 2
    grid = _MAGNITUDES * (e4m3_scale(a * weight / E2M1_MAX) / weight)[:, None]
    own = grid.gather(1, (a[:, None] - grid).abs().argmin(1, keepdim=True)).squeeze(1)
    is_largest = (others[1:] + others[:-1]) / 2 * _below(edges).diff()
    error, product = (moment @ others.diff() for moment in _moments_below(a, grid))
    return Rounding(float((error + (own - a).square() @ is_largest).sqrt()), float(product + (own * a) @ is_largest))


def predicted_float_rounding(mantissa_bits: int) -> Rounding:
    """Rounding standard normal numbers to floats with this many stored mantissa bits.

    A number between 2^e and 2^(e+1) has steps of ``2^(e - mantissa_bits)``. Within a step it lies evenly, so that the
    squared error is the step's square / 12, and what is kept of the square falls short by the same.
    """
    binades = torch.arange(-30, 5, dtype=torch.float64)
    share = _below(torch.exp2(binades + 1)) - _below(torch.exp2(binades))
    squared = float((torch.exp2(2 * (binades - mantissa_bits)) / 12 * share).sum())
    return Rounding(math.sqrt(squared), 1 - squared)


def predicted_error_of_size(low: float, high: float) -> float:
    """Relative error of FP4 values between ``low`` and ``high`` times their block's maximum, spread evenly.

    The scale is taken as exact; with its rounding, bounds between two magnitudes blur by up to 1/17. The maximum
    itself, which its scale nearly hits, is not among them.
    """
    x = torch.linspace(low, high, 4097, dtype=torch.float64)
    nearest = (x[:, None] - _MAGNITUDES / E2M1_MAX).abs().amin(-1)
    return float((nearest.square().sum() / x.square().sum()).sqrt())


def e4m3_scale(x: torch.Tensor) -> torch.Tensor:
    """Nearest positive E4M3 number to each ``x`` [...] by its definition: three mantissa bits, steps of 2^-9 below
    2^-6, at most 448.
    """
    exponent = torch.floor(torch.log2(x)).clamp(min=-6)
    step = torch.exp2(exponent - 3)
    return (torch.round(x / step) * step).clamp(SCALE_STEP, E4M3_MAX)


def share_of_blocks_below(maximum: float, weight: float) -> float:
    """Predicted share of Gaussian blocks whose largest magnitude is below ``maximum`` under a norm weight."""
    return math.erf(maximum / weight / math.sqrt(2)) ** MAIN_KV.block


def worst_case_weight(channels: int) -> float:
    """Norm weight from which a latent with its whole norm in one channel exceeds 2688."""
    return REACH / math.sqrt(channels)


def relative_error(rounded: torch.Tensor, x: torch.Tensor) -> float:
    """Norm of the difference of ``rounded`` and ``x`` [...] over the norm of ``x``; of nothing but zeros an error of
    zero.
    """
    return float((rounded - x).norm() / x.norm().clamp(min=torch.finfo(torch.float32).tiny))


def _below(x: torch.Tensor) -> torch.Tensor:
    """Probability that a standard normal number's magnitude is below x."""
    return torch.erf(x / math.sqrt(2))


def _moments_below(a: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a standard normal v with |v| < a [N], on a grid [N, 8]: E[(v - rounded v)^2] and E[v * rounded v]."""
    zero, beyond = grid.new_zeros(len(grid), 1), grid.new_full((len(grid), 1), torch.inf)
    bounds = torch.cat((zero, (grid[:, 1:] + grid[:, :-1]) / 2, beyond), 1)
    x = torch.minimum(bounds, a[:, None])
    density = torch.exp(-x.square() / 2) * math.sqrt(2 / math.pi)
    product = -grid * density.diff()
    error = (1 + grid.square()) * _below(x).diff() - (x * density).diff() - 2 * product
    return error.sum(1), product.sum(1)
