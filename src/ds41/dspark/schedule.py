"""How many drafts of each request are worth verifying, given what a step of so many tokens costs.

A verified draft adds its survival, the probability that it and all before it are accepted, to the tokens that a step
yields, and one token to what the step computes. The scheduler takes drafts while tokens per second rise.

Why it stops at the first draft that does not pay: verification leaves the target's distribution as it is only when
the choice to verify draft x_j does not depend on x_j. The confidence of position j+1 does depend on it, for the
drafter has read x_j by then. A scheduler that looked past a draft that does not pay, to one behind it that does, would
admit x_j because of what x_j is. In the greedy order everything that decides on a draft has a larger survival than it:
earlier drafts of the same request, and drafts of other requests.

Source: the DSpark paper sections 3.2 and 5.2; the threshold for a single stream is DeepSpec's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import ClassVar, Protocol

import torch

from ds41.dspark.throughput_curve import ThroughputCurve


def survival(confidences: torch.Tensor) -> torch.Tensor:
    """Probabilities that drafts 1 to j of a request are all accepted: products of confidences [R, k], float64 [R, k].

    Raises:
        ValueError: not two dimensions, or a confidence is NaN or outside 0 to 1.
    """
    if confidences.dim() != 2:
        raise ValueError(f"confidences have shape {list(confidences.shape)}; expected [requests, drafts]")
    confidences = confidences.detach().to("cpu", torch.float64)
    _check_probabilities("confidences", confidences)
    return confidences.cumprod(-1)


def expected_tokens(survival: torch.Tensor, lengths: Sequence[int]) -> float:
    """Tokens that a step is expected to yield: of each request its survivals [R, k] up to its length, and one more."""
    return float(len(lengths) + sum(float(row[:length].sum()) for row, length in zip(survival, lengths, strict=True)))


def throughput(
    survival: torch.Tensor, lengths: Sequence[int], curve: ThroughputCurve, draft_seconds: float = 0.0
) -> float:
    """Expected tokens per second of a step that verifies ``lengths`` drafts of R requests, drafting included."""
    seconds = curve.step_seconds(len(lengths) + sum(lengths)) + draft_seconds
    return expected_tokens(survival, lengths) / seconds


def admit(
    survival: torch.Tensor, curve: ThroughputCurve, draft_seconds: float = 0.0, limits: Sequence[int] | None = None
) -> list[int]:
    """Verification lengths by the paper's greedy rule.

    Drafts are visited from the largest survival to the smallest, of equals the lower request and the lower position
    first, and admitted until the first that does not raise the expected tokens per second. Where seconds bend upwards
    or are a line, no other choice is better; behind a step of a staircase one may be, but to look for it is not
    lossless.

    Args:
        survival: [R, k], falling along each row, as :func:`survival` gives it.
        draft_seconds: what the drafter itself adds to the step.
        limits: the most drafts of each request, R of them; they must not depend on the drafts. None for k.

    Raises:
        ValueError: a survival is NaN, outside 0 to 1 or above the one before it; limits or draft_seconds do not fit.
    """
    survival = _checked_survival(survival)
    most = _checked_limits(limits, survival)
    _check_seconds("draft_seconds", draft_seconds)
    requests = len(survival)
    values = survival.tolist()
    visits = sorted((-values[r][j], r, j) for r in range(requests) for j in range(most[r]))
    lengths = [0] * requests
    if not visits:
        return lengths
    tokens, expected = requests, float(requests)
    best = expected / (curve.step_seconds(tokens) + draft_seconds)
    for falling, request, _ in visits:
        tokens, expected = tokens + 1, expected - falling
        reached = expected / (curve.step_seconds(tokens) + draft_seconds)
        if not reached > best:
            break
        best = reached
        lengths[request] += 1
    return lengths


def drafting_pays(
    curve: ThroughputCurve, draft_seconds: float, survival_so_far: Sequence[float] | torch.Tensor, requests: int
) -> bool:
    """Whether drafting is expected to beat plain decoding, decided before anything is drafted.

    Plain decoding gives ``requests`` tokens a step and pays no drafter. Drafting is rated at its best common length.

    Args:
        survival_so_far: [k], the share of past drafts whose prefix up to position j was accepted.
        requests: that are decoded together, 1 or more.

    Raises:
        ValueError: a value is out of its range.
    """
    if requests < 1:
        raise ValueError(f"requests is {requests}; expected 1 or more")
    _check_seconds("draft_seconds", draft_seconds)
    row = _checked_survival(torch.as_tensor(survival_so_far, dtype=torch.float64)[None])
    rows = row.expand(requests, -1)
    plain = requests * curve.steps_per_second(requests)
    return any(
        throughput(rows, [length] * requests, curve, draft_seconds) > plain for length in range(1, row.shape[1] + 1)
    )


class Policy(Protocol):
    """Chooses how many drafts of each request are verified, and whether any are made.

    looks_again: whether an answer of :meth:`drafts` may change with what is drafted.
    """

    looks_again: ClassVar[bool]

    def drafts(self, survival_so_far: torch.Tensor, requests: int) -> bool:
        """Whether to run the drafter for so many requests; survival_so_far [k] as :func:`drafting_pays` takes it."""

    def lengths(self, confidences: torch.Tensor, limits: Sequence[int] | None = None) -> list[int]:
        """Verification lengths, R of them.

        Args:
            confidences: [R, k], of each draft the probability that it is accepted if all before it are.
            limits: the most drafts of each request; None for k.

        Raises:
            ValueError: a confidence is NaN or outside 0 to 1, or the limits do not fit.
        """


@dataclass(frozen=True)
class Never:
    """Draft nothing: plain decoding."""

    looks_again: ClassVar[bool] = False

    def drafts(self, survival_so_far: torch.Tensor, requests: int) -> bool:
        """False: nothing is ever drafted. Arguments as in :meth:`Policy.drafts`."""
        return False

    def lengths(self, confidences: torch.Tensor, limits: Sequence[int] | None = None) -> list[int]:
        """Zeros, one a request. Arguments as in :meth:`Policy.lengths`.

        Raises:
            ValueError: as there.
        """
        _checked_limits(limits, survival(confidences))
        return [0] * len(confidences)


@dataclass(frozen=True)
class Always:
    """Verify the first ``count`` drafts, or as many as there are.

    Raises:
        ValueError: ``count`` below 0.
    """

    count: int
    looks_again: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if index(self.count) < 0:
            raise ValueError(f"count is {self.count}; expected 0 or more")

    def drafts(self, survival_so_far: torch.Tensor, requests: int) -> bool:
        """Whether ``count`` is above 0. Arguments as in :meth:`Policy.drafts`."""
        return self.count > 0

    def lengths(self, confidences: torch.Tensor, limits: Sequence[int] | None = None) -> list[int]:
        """``count`` for each request, or its limit. Arguments as in :meth:`Policy.lengths`.

        Raises:
            ValueError: as there.
        """
        return [min(self.count, most) for most in _checked_limits(limits, survival(confidences))]


@dataclass(frozen=True)
class Threshold:
    """Verify the drafts before the first whose own confidence is below ``confidence``; 0 takes all.

    DeepSpec's rule for a single stream: it knows nothing of what a step costs or of other requests.

    Raises:
        ValueError: ``confidence`` outside 0 to 1.
    """

    confidence: float
    looks_again: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is {self.confidence}; expected 0 to 1")

    def drafts(self, survival_so_far: torch.Tensor, requests: int) -> bool:
        """True: drafts are made whatever they brought so far. Arguments as in :meth:`Policy.drafts`."""
        return True

    def lengths(self, confidences: torch.Tensor, limits: Sequence[int] | None = None) -> list[int]:
        """Of each request, the drafts before its first unsure one. Arguments as in :meth:`Policy.lengths`.

        Raises:
            ValueError: as there.
        """
        most = _checked_limits(limits, survival(confidences))
        reached = (confidences >= self.confidence).cumprod(-1).sum(-1).tolist()
        return [min(length, limit) for length, limit in zip(reached, most, strict=True)]


@dataclass(frozen=True)
class Optimum:
    """Verify what raises the expected tokens per second of all requests together (:func:`admit`), and draft only where
    that beats plain decoding (:func:`drafting_pays`).

    curve: seconds of a step of the model by its tokens. drafter: seconds of a draft by the requests that are drafted
    for; None for a drafter that takes no time.
    """

    curve: ThroughputCurve
    drafter: ThroughputCurve | None = None
    looks_again: ClassVar[bool] = True

    def draft_seconds(self, requests: int) -> float:
        """Seconds that drafting for so many requests adds to a step."""
        return 0.0 if self.drafter is None else self.drafter.step_seconds(requests)

    def drafts(self, survival_so_far: torch.Tensor, requests: int) -> bool:
        """As :func:`drafting_pays`, by the curve and the drafter's seconds. Arguments as in :meth:`Policy.drafts`."""
        return drafting_pays(self.curve, self.draft_seconds(requests), survival_so_far, requests)

    def lengths(self, confidences: torch.Tensor, limits: Sequence[int] | None = None) -> list[int]:
        """What :func:`admit` chooses for all requests together. Arguments as in :meth:`Policy.lengths`.

        Raises:
            ValueError: as there.
        """
        survived = survival(confidences)
        return admit(survived, self.curve, self.draft_seconds(len(survived)), limits)


def _check_probabilities(name: str, values: torch.Tensor) -> None:
    wrong = ~((values >= 0) & (values <= 1))
    if bool(wrong.any()):
        row, place = wrong.nonzero()[0].tolist()
        raise ValueError(f"{name}[{row}, {place}] is {float(values[row, place])}; expected a probability from 0 to 1")


def _checked_survival(survival: torch.Tensor) -> torch.Tensor:
    if survival.dim() != 2:
        raise ValueError(f"survival has shape {list(survival.shape)}; expected [requests, drafts]")
    survival = survival.detach().to("cpu", torch.float64)
    _check_probabilities("survival", survival)
    rising = survival[:, 1:] > survival[:, :-1]
    if bool(rising.any()):
        row, place = rising.nonzero()[0].tolist()
        before, after = survival[row, place : place + 2].tolist()
        raise ValueError(f"survival[{row}] rises from {before} to {after} at draft {place + 1}; expected it to fall")
    return survival


def _checked_limits(limits: Sequence[int] | None, survival: torch.Tensor) -> list[int]:
    """How many drafts of each request may be verified, of those that there are."""
    requests, drafts = survival.shape
    if limits is None:
        return [drafts] * requests
    if len(limits) != requests:
        raise ValueError(f"{len(limits)} limits for {requests} requests; expected one for each")
    for request, most in enumerate(limits):
        if most < 0:
            raise ValueError(f"limits[{request}] is {most}; expected 0 or more")
    return [min(most, drafts) for most in limits]


def _check_seconds(name: str, seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is {seconds}; expected 0 or more seconds")
