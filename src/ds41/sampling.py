"""One token from logits: temperature, nucleus, and the distribution that they leave.

Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", for the nucleus.
"""

from __future__ import annotations

import math

import torch


def check_sampling(temperature: float, top_p: float, seed: int | None = None) -> None:
    """Refuse what nothing can be drawn with.

    Raises:
        ValueError: a temperature below 0 or infinite, ``top_p`` outside (0, 1], or a seed that is none.
    """
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature is {temperature}; expected 0 or a positive number")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; expected a number above 0 and up to 1")
    if seed is not None and not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; expected 0 to 2^64 - 1")


def sample(logits: torch.Tensor, temperature: float, top_p: float, random: torch.Generator) -> int:
    """Draw one id from logits [vocab], in float64 on the CPU, with one random number; at temperature 0 with none.

    Raises:
        ValueError: temperature or top_p is out of range. FloatingPointError: a logit is NaN, or the largest infinite.
    """
    check_sampling(temperature, top_p)
    probabilities = _softmax(logits.detach().to("cpu", torch.float64), temperature)
    if temperature == 0:
        return int(probabilities.argmax())
    return _drawn(*nucleus(probabilities, top_p), random)


def distribution(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """What :func:`sample` draws from: the probability of each id.

    Args:
        logits: [..., vocab].

    Returns:
        float64 [..., vocab] on the CPU. Ids outside the nucleus have 0, the others sum to 1; at temperature 0 the
        largest logit, the lowest id among equals, has all.

    Raises:
        ValueError, FloatingPointError: as in :func:`sample`.
    """
    check_sampling(temperature, top_p)
    flat = logits.detach().to("cpu", torch.float64).reshape(-1, logits.shape[-1])
    kept = torch.zeros_like(flat)
    for row, numbers in zip(kept, flat, strict=True):
        probabilities = _softmax(numbers, temperature)
        ids, mass = nucleus(probabilities, top_p)
        row[ids] = probabilities[ids] / mass[-1]
    return kept.view(logits.shape)


def draw(probabilities: torch.Tensor, random: torch.Generator) -> int:
    """Draw one id with one random number, never an id whose probability is zero.

    Like :func:`sample` it goes through the ids from the likeliest to the least likely. So the same random number gives
    the same id from ``sample(logits, ...)`` and from ``draw(distribution(logits, ...))``, but for rounding.

    Args:
        probabilities: float64 [vocab]; they need not sum to 1.

    Raises:
        FloatingPointError: a probability is negative or NaN, or their sum is zero or infinite.
    """
    probabilities = probabilities.detach().to("cpu", torch.float64)
    smallest, total = float(probabilities.min()), float(probabilities.sum())
    if not (smallest >= 0 and 0 < total < math.inf):
        raise FloatingPointError(
            f"the probabilities sum to {total}, the smallest is {smallest}; no token can be drawn from them"
        )
    return _drawn(*nucleus(probabilities, math.inf), random)


def require_finite(logits: torch.Tensor) -> None:
    """Refuse ``logits`` [..., vocab] from which nothing can be drawn.

    Raises:
        FloatingPointError: one is NaN, or the largest is infinite.
    """
    largest = logits.max()
    if not torch.isfinite(largest):
        raise FloatingPointError(f"the largest logit is {largest.item()}; no token can be drawn from such logits")


def nucleus(probabilities: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest set of ids whose probabilities sum to ``top_p`` or more, likeliest first, the lower of equals first.

    Args:
        probabilities: float64 [vocab].

    Returns:
        ids int64 [n], and the running sum of their probabilities [n].
    """
    ordered, ids = torch.sort(probabilities, descending=True, stable=True)
    mass = ordered.cumsum(0)
    # Sums of rounded numbers may never reach 1; then every token that has a probability is in.
    count = int((mass < top_p).sum()) + 1
    count = min(count, int((ordered > 0).sum()))
    return ids[:count], mass[:count]


def _softmax(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Probabilities of float64 logits [vocab]; at temperature 0 all of it on the first of the largest."""
    require_finite(logits)
    largest = logits.max()
    if temperature == 0:
        first = torch.nonzero(logits == largest)[0]
        return torch.zeros_like(logits).index_fill_(0, first, 1.0)
    return torch.softmax((logits - largest) / temperature, dim=-1)


def _drawn(ids: torch.Tensor, mass: torch.Tensor, random: torch.Generator) -> int:
    mark = torch.rand((), generator=random, dtype=torch.float64) * mass[-1]
    # The first id whose mass exceeds the mark; rounding may put the mark at the very end.
    place = int(torch.searchsorted(mass, mark, right=True))
    return int(ids[min(place, len(ids) - 1)])
