"""Drafting as a cluster feels it: more tokens a step for a step that verifies more.

Source: report section 2.4.3; DSpark paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ds41.dspark.schedule import throughput
from ds41.dspark.throughput_curve import ThroughputCurve


@dataclass(frozen=True)
class Drafts:
    """How many drafts of each answer a step verifies, by the number of answers in it.

    survival: [k], the probabilities that drafts 1 to j are all accepted, falling. curve: seconds of a step by its
    tokens. drafter: seconds of a draft by its requests; None for one that takes no time. All answers survive alike,
    so all verify the common length that gives most tokens a second.

    Raises:
        ValueError: a survival that rises or is no probability.
    """

    survival: tuple[float, ...]
    curve: ThroughputCurve
    drafter: ThroughputCurve | None = None

    def __post_init__(self) -> None:
        last = 1.0
        for place, value in enumerate(self.survival):
            if not 0 <= value <= last:
                raise ValueError(f"survival[{place}] is {value}; expected 0 to {last}, no more than the one before")
            last = value

    def length(self, answers: int) -> int:
        """Drafts of each of so many answers that are worth verifying; 0 where plain decoding is faster."""
        rows = torch.tensor([self.survival], dtype=torch.float64).expand(answers, -1)
        plain = answers * self.curve.steps_per_second(answers)
        rates = [plain]
        for length in range(1, len(self.survival) + 1):
            rates.append(throughput(rows, [length] * answers, self.curve, self.draft_seconds(answers)))
        return max(range(len(rates)), key=rates.__getitem__)

    def expected(self, length: int) -> float:
        """Tokens that a step is expected to yield for one answer that verifies ``length`` drafts."""
        return 1 + sum(self.survival[:length])

    def draft_seconds(self, answers: int) -> float:
        """Of the drafter, for one step."""
        return 0.0 if self.drafter is None else self.drafter.step_seconds(answers)


def survival_of(confidences: Sequence[float]) -> tuple[float, ...]:
    """Survivals of drafts whose confidences are these."""
    kept, found = 1.0, []
    for confidence in confidences:
        kept *= confidence
        found.append(kept)
    return tuple(found)
