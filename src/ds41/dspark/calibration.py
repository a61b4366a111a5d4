"""Confidence logits to probabilities that mean what they say: one temperature for each position of a draft.

A scheduler multiplies confidences, so it is their products that have to be right: of all drafts whose product is 0.7,
seven in ten should be accepted together with all before them. Sequential Temperature Scaling goes from the first
position to the last and gives each the temperature whose products are nearest to that, with those before it settled.

Source: the DSpark paper section 3.2; the error is the one of Guo et al. 2017, "On Calibration of Modern Neural
Networks".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

# From 1/8 to 8 in steps of an eighth of an octave.
GRID = tuple(2 ** (step / 8) for step in range(-24, 25))


@dataclass(frozen=True)
class Calibration:
    """temperatures: what the confidence logit of each position is divided by, k of them, above zero; 1 leaves it.

    Raises:
        ValueError: a temperature is not above zero and finite.
    """

    temperatures: tuple[float, ...]

    def __post_init__(self) -> None:
        for place, temperature in enumerate(self.temperatures):
            _check_temperature(f"temperatures[{place}]", temperature)

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Confidences of drafts from their logits [..., j], of the first j <= k positions: float64 [..., j].

        Raises:
            ValueError: more positions than temperatures.
        """
        positions = logits.shape[-1]
        if positions > len(self.temperatures):
            raise ValueError(f"logits have {positions} positions; expected at most {len(self.temperatures)}")
        divisors = torch.tensor(self.temperatures[:positions], dtype=torch.float64, device=logits.device)
        return torch.sigmoid(logits.detach().to(torch.float64) / divisors)

    def to_dict(self) -> dict[str, list[float]]:
        """For JSON."""
        return {"temperatures": list(self.temperatures)}

    @classmethod
    def from_dict(cls, fields: Mapping) -> Calibration:
        """What :meth:`to_dict` gave.

        Raises:
            ValueError: a field is missing or unknown, or a temperature is not above zero.
        """
        if set(fields) != {"temperatures"}:
            raise ValueError(f"a calibration has the fields {sorted(fields)}; expected temperatures")
        return cls(tuple(fields["temperatures"]))


def fit_calibration(
    logits: torch.Tensor, accepted: torch.Tensor, grid: Iterable[float] = GRID, bins: int = 10
) -> Calibration:
    """Sequential Temperature Scaling: per position the temperature whose products have the smallest error.

    Args:
        logits: [N, k], the raw confidence logits of N drafted blocks that no training has seen.
        accepted: bool [N, k], whether draft j and all before it were accepted; so all drafts must have been verified.
        grid: temperatures that are tried, and 1 with them. Of equal errors the one nearest to 1 is taken.
        bins: of the error, as in :func:`expected_calibration_error`.

    Raises:
        ValueError: shapes or values do not fit, there are no blocks, or an accepted draft follows a rejected one.
    """
    _check_blocks(logits, accepted)
    candidates = _nearest_to_one(grid)
    logits = logits.detach().to("cpu", torch.float64)
    before = torch.ones(len(logits), dtype=torch.float64)
    chosen = []
    for column, outcomes in zip(logits.T, accepted.cpu().T, strict=True):
        products = [before * torch.sigmoid(column / temperature) for temperature in candidates]
        errors = [expected_calibration_error(product, outcomes, bins) for product in products]
        best = errors.index(min(errors))
        chosen.append(candidates[best])
        before = products[best]
    return Calibration(tuple(chosen))


@dataclass(frozen=True)
class Bin:
    """Predictions from ``low`` to ``high``: how many, their mean, and the share that came true."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


def reliability(probabilities: torch.Tensor, outcomes: torch.Tensor, bins: int = 10) -> list[Bin]:
    """Predictions against what came true, in bins of equal width; a bin with no prediction has no row.

    Args:
        probabilities: [N], from 0 to 1; 1 is in the last bin.
        outcomes: bool [N], whether each came true.

    Raises:
        ValueError: shapes or values do not fit, or there is nothing to count.
    """
    counts, predicted, observed = _sums(probabilities, outcomes, bins)
    return [
        Bin(place / bins, (place + 1) / bins, int(count), float(said / count), float(found / count))
        for place, (count, said, found) in enumerate(zip(counts, predicted, observed, strict=True))
        if count
    ]


def expected_calibration_error(probabilities: torch.Tensor, outcomes: torch.Tensor, bins: int = 10) -> float:
    """The distance between prediction and share that came true, bin by bin, averaged over all predictions.

    Args:
        probabilities, outcomes, bins: as in :func:`reliability`.

    Raises:
        ValueError: as there.
    """
    _, predicted, observed = _sums(probabilities, outcomes, bins)
    return float((predicted - observed).abs().sum()) / len(probabilities)


def _sums(probabilities: torch.Tensor, outcomes: torch.Tensor, bins: int) -> tuple[torch.Tensor, ...]:
    """Of each bin: the predictions in it, their sum, and how many came true; float64 [bins] each."""
    if bins < 1:
        raise ValueError(f"bins is {bins}; expected 1 or more")
    if probabilities.dim() != 1 or probabilities.shape != outcomes.shape:
        shapes = f"{list(probabilities.shape)} and {list(outcomes.shape)}"
        raise ValueError(f"probabilities and outcomes have shapes {shapes}; expected [N] of both")
    if not len(probabilities):
        raise ValueError("there are no predictions; expected one or more")
    probabilities = probabilities.detach().to("cpu", torch.float64)
    wrong = ~((probabilities >= 0) & (probabilities <= 1))
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ValueError(f"probabilities[{place}] is {float(probabilities[place])}; expected a number from 0 to 1")
    places = (probabilities * bins).to(torch.int64).clamp_(max=bins - 1)
    weights = (torch.ones_like(probabilities), probabilities, outcomes.to("cpu", torch.float64))
    return tuple(torch.bincount(places, weight, minlength=bins) for weight in weights)


def _check_blocks(logits: torch.Tensor, accepted: torch.Tensor) -> None:
    if logits.dim() != 2 or logits.shape != accepted.shape:
        shapes = f"{list(logits.shape)} and {list(accepted.shape)}"
        raise ValueError(f"logits and accepted have shapes {shapes}; expected [blocks, drafts] of both")
    if accepted.dtype != torch.bool:
        raise ValueError(f"accepted is {accepted.dtype}; expected torch.bool")
    if not len(logits):
        raise ValueError("there are no blocks to fit to; expected one or more")
    if not bool(torch.isfinite(logits).all()):
        row, place = (~torch.isfinite(logits)).nonzero()[0].tolist()
        raise ValueError(f"logits[{row}, {place}] is {float(logits[row, place])}; expected a finite number")
    late = accepted[:, 1:] & ~accepted[:, :-1]
    if bool(late.any()):
        row, place = late.nonzero()[0].tolist()
        raise ValueError(f"accepted[{row}, {place + 1}] is true behind a rejected draft; expected prefixes")


def _check_temperature(name: str, temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"{name} is {temperature}; expected a number above zero")


def _nearest_to_one(grid: Iterable[float]) -> list[float]:
    """The temperatures to try, 1 first; of equal errors the first is kept."""
    tried = {1.0, *grid}
    for temperature in tried:
        _check_temperature("a temperature of the grid", temperature)
    return sorted(tried, key=lambda temperature: (abs(math.log(temperature)), temperature))
