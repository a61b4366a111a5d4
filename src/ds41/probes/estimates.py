"""What a probe reports: a mean with its confidence interval over seeds.

Source: Student's t for means (quantile by Cornish and Fisher's expansion); Wilson (1927) for shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean, stdev


@dataclass(frozen=True)
class Estimate:
    """mean, and the bounds of its interval; ``samples`` are independent seeds, not the numbers behind each."""

    mean: float
    low: float
    high: float
    samples: int

    def text(self, digits: int = 3) -> str:
        """For a table: mean and bounds."""
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def estimate_mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean of one number a seed, with Student's interval; of a single one the interval is unbounded.

    Raises:
        ValueError: no value, one that is not finite, or a confidence outside of 0 to 1.
    """
    values = [float(value) for value in values]
    z = _quantile(confidence)
    if not values:
        raise ValueError("there are no values; expected one or more")
    wrong = next((value for value in values if not math.isfinite(value)), None)
    if wrong is not None:
        raise ValueError(f"a value is {wrong}; expected finite numbers")
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    half = _student(z, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def estimate_columns(rows: Sequence[Sequence[float]]) -> list[Estimate]:
    """:func:`estimate_mean` of each column of ``rows``, one row a seed.

    Raises:
        ValueError: rows of unequal length, or a value that is not finite.
    """
    return [estimate_mean(column) for column in zip(*rows, strict=True)]


def estimate_share(hits: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Share of independent trials that hit, with Wilson's interval, which keeps its width at 0 and 1.

    Raises:
        ValueError: no trials, or hits outside of 0 to ``trials``.
    """
    z = _quantile(confidence)
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits of {trials} trials; expected 1 or more trials and 0 to that many hits")
    share = hits / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half), trials)


def plain_values(record: object) -> dict:
    """A dataclass as JSON takes it: bounds that are not finite become None."""
    return _finite(asdict(record))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; expected a number between 0 and 1")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _student(z: float, freedom: int) -> float:
    """Student's quantile from the normal one; exact for 1 and 2 degrees of freedom, 0.3 % off at most above."""
    probability = NormalDist().cdf(z)
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        alpha = 4 * probability * (1 - probability)
        return 2 * (probability - 0.5) * math.sqrt(2 / alpha)
    f = freedom
    terms = (
        (z**3 + z) / (4 * f),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3),
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * f**4),
    )
    return z + sum(terms)
