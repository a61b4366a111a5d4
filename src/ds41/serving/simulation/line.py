"""Sums of coefficients times features, fitted to what a real engine took.

Source: C. L. Lawson and R. J. Hanson, Solving Least Squares Problems, 1974, for least squares without negatives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# Below these a gradient, a coefficient or the scale of a feature is none.
_FLAT, _ZERO, _LEAST_SCALE = 1e-10, 1e-14, 1e-300


@dataclass(frozen=True)
class Line:
    """A sum of coefficients times features, with the standard deviation of what it was fitted to around it."""

    coefficients: Mapping[str, float]
    spread: float = 0.0

    def at(self, features: object) -> float:
        """The value for an object with those features as attributes; "constant" is 1, and a truth value 0 or 1."""
        found = self.coefficients.get("constant", 0.0)
        for name, coefficient in self.coefficients.items():
            if name != "constant":
                found += coefficient * getattr(features, name)
        return found

    @classmethod
    def fit(cls, names: Sequence[str], samples: Sequence[tuple[object, float]]) -> Line:
        """Least squares with no coefficient below zero, once plainly and once more for errors relative to that fit.

        Errors relative to the times themselves would weigh those less that noise made long, and come out too low.

        Raises:
            ValueError: fewer samples than features, or a time that is not above zero.
        """
        if len(samples) < len(names):
            raise ValueError(f"there are {len(samples)} samples for {len(names)} features; expected no fewer")
        values = np.array([seconds for _, seconds in samples])
        if not (values > 0).all():
            raise ValueError(f"a sample took {values.min()} s; expected more than zero")
        rows = [[1.0 if name == "constant" else float(getattr(one, name)) for name in names] for one, _ in samples]
        matrix, weight = np.array(rows), np.ones(len(rows))
        for _ in range(2):
            weighed = matrix * weight[:, None]
            scale = np.maximum(np.abs(weighed).max(0), _LEAST_SCALE)
            found = _non_negative(weighed / scale, values * weight) / scale
            weight = 1 / np.maximum(matrix @ found, np.median(values) / 4)
        rest = matrix @ found - values
        return cls(dict(zip(names, map(float, found), strict=True)), float(rest.std()))

    def to_dict(self) -> dict:
        """Both fields, for JSON."""
        return {"coefficients": dict(self.coefficients), "spread": self.spread}


def _non_negative(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Least squares without negative coefficients, by the active sets of Lawson and Hanson."""
    count = matrix.shape[1]
    found, chosen = np.zeros(count), np.zeros(count, bool)
    for _ in range(3 * count):
        gradient = matrix.T @ (right - matrix @ found)
        gradient[chosen] = -math.inf
        best = int(gradient.argmax())
        if gradient[best] <= _FLAT:
            break
        chosen[best] = True
        while True:
            trial = np.zeros(count)
            trial[chosen] = np.linalg.lstsq(matrix[:, chosen], right, rcond=None)[0]
            low = chosen & (trial <= 0)
            if not low.any():
                break
            step = (found[low] / np.maximum(found[low] - trial[low], _LEAST_SCALE)).min()
            found = found + step * (trial - found)
            chosen &= found > _ZERO
            found[~chosen] = 0.0
        found = trial
    return found
