"""What a drafter is worth on held-out text: drafts accepted by place, how far its confidences can be trusted.

Source: DSpark paper for accepted lengths; the evaluation is ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from ds41.dspark import (
    Calibration,
    Drafter,
    Draw,
    expected_calibration_error,
    fit_calibration,
    propose,
    settle,
)
from ds41.model import Model
from ds41.probes.estimates import Estimate, estimate_mean, estimate_share
from ds41.sampling import sample
from ds41.training.corpus import Corpus
from ds41.training.stream import make_batch
from ds41.training.tasks import Kind


@dataclass(frozen=True, eq=False)
class Rounds:
    """Rounds in which whole blocks were verified. logits: [N, k], of the confidences. accepted: int64 [N], drafts."""

    logits: torch.Tensor
    accepted: torch.Tensor

    @property
    def prefixes(self) -> torch.Tensor:
        """Whether drafts 1 to j were all accepted, bool [N, k]."""
        return self.accepted[:, None] > torch.arange(self.logits.shape[1])

    def by_place(self) -> list[Estimate]:
        """Share of rounds in which the drafts up to a place were all accepted."""
        return [estimate_share(int(place.sum()), len(place)) for place in self.prefixes.unbind(1)]

    def conditional(self) -> list[float]:
        """Share of drafts accepted among those before which all were; NaN where there was none."""
        counts = [len(self.accepted), *self.prefixes.sum(0).tolist()]
        return [after / before if before else float("nan") for before, after in pairwise(counts)]

    def tokens(self) -> Estimate:
        """Tokens of a round, the one that is no draft included."""
        return estimate_mean((self.accepted + 1).tolist())

    def errors(self, calibration: Calibration | None = None) -> list[float]:
        """Expected calibration error of the survival up to each place."""
        if calibration is None:
            calibration = Calibration((1.0,) * self.logits.shape[1])
        survived = calibration.probabilities(self.logits).cumprod(-1)
        pairs = zip(survived.unbind(1), self.prefixes.unbind(1), strict=True)
        return [expected_calibration_error(probability, outcome) for probability, outcome in pairs]


def prompts(corpus: Corpus, kind: Kind, count: int, length: int, seed: str = "drafted") -> Iterator[list[int]]:
    """Held-out prompts of one kind."""
    for number in range(count):
        yield make_batch(corpus, {kind: 1.0}, 1, length, f"{seed} {kind} {length}", number).ids[0].tolist()


@torch.no_grad()
def draft_rounds(
    model: Model,
    drafter: Drafter,
    corpus: Corpus,
    count: int,
    kind: Kind = "source",
    temperature: float = 1.0,
    length: int = 256,
    new_tokens: int = 64,
    seed: str = "drafted",
) -> Rounds:
    """Continue held-out prompts, verifying every block whole.

    Args:
        count: prompts of ``length`` tokens, each continued by about ``new_tokens``.

    Raises:
        ValueError: ``count`` below 1.
    """
    if count < 1:
        raise ValueError(f"count is {count}; expected 1 or more prompts")
    size = model.config.dspark_block_size
    logits, accepted = [], []
    for number, prompt in enumerate(prompts(corpus, kind, count, length, seed)):
        chosen = Draw(temperature, 1.0, torch.Generator().manual_seed(number))
        cache = drafter.new_cache(model, length + new_tokens + size + 1)
        token = sample(model.prefill([prompt], cache)[0], temperature, 1.0, chosen.random)
        while cache.lengths[0] < length + new_tokens:
            proposal = propose(drafter, model, cache, {0: token}, {0: chosen})[0]
            told = model.decode(torch.tensor([token, *proposal.ids]), cache)[0]
            tokens = settle(proposal, told, chosen)
            cache.truncate(0, cache.lengths[0] - (size - (len(tokens) - 1)))
            logits.append(torch.logit(proposal.confidences, eps=1e-9))
            accepted.append(len(tokens) - 1)
            token = tokens[-1]
    return Rounds(torch.stack(logits), torch.tensor(accepted))


def calibrate(fitted: Rounds) -> Calibration:
    """Temperatures of the confidences by sequential temperature scaling."""
    return fit_calibration(fitted.logits, fitted.prefixes)
