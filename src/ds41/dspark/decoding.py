"""One round of speculative decoding: draft, choose how many drafts to verify, verify, take the rest back.

:func:`propose` and :func:`settle` are the two halves around a step of the model, for one sequence or many.

Source: report section 2.4.3; DSpark paper; Leviathan et al. 2023 for acceptance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from ds41.cache import Cache
from ds41.dspark.calibration import Calibration
from ds41.dspark.drafter import Drafter
from ds41.dspark.schedule import Policy, survival
from ds41.dspark.verification import verify
from ds41.model import Model
from ds41.sampling import distribution, draw, require_finite

# How much of what was known of drafts a round leaves, and how many rounds without any go by before the next look.
_KEPT, _LOOK_AGAIN = 0.9, 32


@dataclass
class Draw:
    """How the tokens of one sequence are drawn, drafts and their verification alike; ``random`` is its own."""

    temperature: float
    top_p: float
    random: torch.Generator


@dataclass(frozen=True, eq=False)
class Proposal:
    """Drafts of one sequence.

    ids: k of them. proposed: float64 [k, vocab], what they were drawn from; None at temperature 0, where each is the
    likeliest. confidences: [k], the probability of each that it is accepted if all before it are. drafted: how many
    there were before the policy chose.
    """

    ids: tuple[int, ...]
    proposed: torch.Tensor | None
    confidences: torch.Tensor
    drafted: int

    def first(self, count: int) -> Proposal:
        """The first ``count`` drafts alone."""
        proposed = None if self.proposed is None else self.proposed[:count]
        return Proposal(self.ids[:count], proposed, self.confidences[:count], self.drafted)


def no_drafts() -> Proposal:
    """A proposal of nothing."""
    return Proposal((), None, torch.empty(0), 0)


@dataclass
class DraftCounts:
    """What became of drafts. drafted, verified, accepted: int64 [k], by place in the block. rounds: with drafts.

    A draft is counted as accepted only with all before it, so ``accepted`` falls from place to place.
    """

    size: int
    rounds: int = 0
    drafted: torch.Tensor = field(init=False)
    verified: torch.Tensor = field(init=False)
    accepted: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.drafted, self.verified, self.accepted = (torch.zeros(self.size, dtype=torch.int64) for _ in range(3))

    def add(self, drafted: int, verified: int, accepted: int) -> None:
        """A round of one sequence."""
        self.rounds += 1
        self.drafted[:drafted] += 1
        self.verified[:verified] += 1
        self.accepted[:accepted] += 1

    @property
    def tokens_a_round(self) -> float:
        """Tokens that a round yields: the accepted drafts and the one that follows them."""
        return 1 + float(self.accepted.sum()) / max(1, self.rounds)


@dataclass
class Drafting:
    """How a model's tokens are drafted.

    policy: how many drafts are verified, and whether there should be any. calibration: of the confidences; None takes
    them as they are. counts: grows with every round.

    Raises:
        TypeError: the policy is none.
        ValueError: the calibration has another number of places than the drafter's block.
    """

    drafter: Drafter
    policy: Policy
    calibration: Calibration | None = None
    counts: DraftCounts = field(init=False)
    _survival: torch.Tensor | None = field(init=False, default=None)
    _left_out: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        size = self.drafter.config.dspark_block_size
        if not hasattr(self.policy, "lengths"):
            raise TypeError(f"policy is {self.policy!r}; expected one of ds41.dspark's, such as Always({size})")
        if self.calibration is not None and len(self.calibration.temperatures) != size:
            raise ValueError(
                f"the calibration has {len(self.calibration.temperatures)} temperatures; expected {size}, one for each "
                "place of the drafter's block"
            )
        self.counts = DraftCounts(size)

    def wants(self, requests: int) -> bool:
        """Whether to draft for so many sequences together, by how drafts have done lately.

        Where the policy leaves drafting out it is asked for all the same once in a while: nothing else would tell that
        the text has become easier to guess.
        """
        hopes = torch.ones(self.counts.size, dtype=torch.float64)
        if self.policy.drafts(hopes if self._survival is None else self._survival, requests):
            self._left_out = 0
            return True
        self._left_out += 1
        return self.policy.looks_again and self._left_out % _LOOK_AGAIN == 0

    def propose(
        self, model: Model, cache: Cache, last: Mapping[int, int], draws: Mapping[int, Draw], limits: Mapping[int, int]
    ) -> dict[int, Proposal]:
        """Draft for some sequences and keep as many drafts of each as the policy will have verified.

        Args:
            last: by row of the cache, the token that was drawn last and not yet fed. limits: the most drafts of each
                that may be verified.
        """
        rows = [row for row in last if limits[row] > 0]
        proposals = {row: no_drafts() for row in last}
        if not rows:
            return proposals
        found = propose(self.drafter, model, cache, {row: last[row] for row in rows}, draws, self.calibration)
        confidences = torch.stack([found[row].confidences for row in rows])
        self._remember(survival(confidences).mean(0))
        for row, length in zip(rows, self.policy.lengths(confidences, [limits[row] for row in rows]), strict=True):
            proposals[row] = found[row].first(length)
        return proposals

    def _remember(self, latest: torch.Tensor) -> None:
        self._survival = latest if self._survival is None else torch.lerp(self._survival, latest, 1 - _KEPT)

    def settle(self, proposal: Proposal, logits: torch.Tensor, drawing: Draw) -> list[int]:
        """The tokens that a verified step with ``logits`` [k + 1, vocab] yields; as :func:`settle`, counted."""
        tokens = settle(proposal, logits, drawing)
        if proposal.drafted:
            self.counts.add(proposal.drafted, len(proposal.ids), len(tokens) - 1)
        return tokens


def propose(
    drafter: Drafter,
    model: Model,
    cache: Cache,
    last: Mapping[int, int],
    draws: Mapping[int, Draw],
    calibration: Calibration | None = None,
) -> dict[int, Proposal]:
    """A whole block of drafts for each of some sequences, each drawn as the sequence's own tokens are."""
    rows = list(last)
    kept: list[list[torch.Tensor]] = [[] for _ in rows]

    def pick(logits: torch.Tensor) -> torch.Tensor:
        likeliest = logits.argmax(-1).tolist()
        ids = []
        for place, row in enumerate(rows):
            chosen = draws[row]
            if chosen.temperature == 0:
                ids.append(likeliest[place])
                continue
            probabilities = distribution(logits[place], chosen.temperature, chosen.top_p)
            kept[place].append(probabilities)
            ids.append(draw(probabilities, chosen.random))
        return torch.tensor(ids, device=logits.device)

    found = drafter.draft(model, cache, list(last.values()), rows, pick)
    confidences = found.confidence.to("cpu", torch.float64)
    confidences = torch.sigmoid(confidences) if calibration is None else calibration.probabilities(confidences)
    ids = found.ids.tolist()
    return {
        row: Proposal(
            tuple(ids[place]), torch.stack(kept[place]) if kept[place] else None, confidences[place], len(ids[place])
        )
        for place, row in enumerate(rows)
    }


def settle(proposal: Proposal, logits: torch.Tensor, chosen: Draw) -> list[int]:
    """The tokens that follow a sequence after its drafts were fed: those that stand, and one that is no draft.

    Args:
        logits: float32 [k + 1, vocab], of the token before the drafts and of each draft.

    Raises:
        FloatingPointError: a logit is NaN, or the largest infinite.
    """
    count = len(proposal.ids)
    if chosen.temperature == 0:
        # The same as by distributions, without sorting a vocabulary for each draft.
        require_finite(logits)
        likeliest = logits.argmax(-1).tolist()
        stands = next((place for place in range(count) if likeliest[place] != proposal.ids[place]), count)
        return [*proposal.ids[:stands], likeliest[stands]]
    target = distribution(logits, chosen.temperature, chosen.top_p)
    proposed = target[:0] if proposal.proposed is None else proposal.proposed
    verified = verify(target, proposal.ids, proposed, chosen.random)
    return [*proposal.ids[: verified.accepted], verified.token]


def speculate(
    model: Model, drafting: Drafting, cache: Cache, first: int, chosen: Draw, most: int
) -> Iterator[list[int]]:
    """Continue one sequence after the token ``first``, which was drawn and not yet fed; round by round.

    Args:
        cache: of :meth:`ds41.dspark.Drafter.new_cache`, one sequence. most: how many tokens may follow ``first``.

    Yields:
        The tokens of each round, one or more; the cache then holds all of them but the last.
    """
    token = first
    while most > 0:
        proposal = no_drafts()
        if drafting.wants(1):
            proposal = drafting.propose(model, cache, {0: token}, {0: chosen}, {0: most - 1})[0]
        logits = model.decode(torch.tensor([token, *proposal.ids]), cache)[0]
        tokens = drafting.settle(proposal, logits, chosen)
        cache.truncate(0, cache.lengths[0] - (len(proposal.ids) - (len(tokens) - 1)))
        most -= len(tokens)
        token = tokens[-1]
        yield tokens
