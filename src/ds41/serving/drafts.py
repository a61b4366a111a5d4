"""Drafts of an engine's answers: proposed after a token, judged in the step that feeds them, taken back if need be."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ds41.dspark import Drafting
from ds41.sampling import sample
from ds41.serving.admission import Tiers
from ds41.serving.turn import Turn


class Drafts:
    """What a step does with drafts; without ``drafting`` every step yields one token."""

    def __init__(self, tiers: Tiers, drafting: Drafting | None) -> None:
        self._tiers, self._drafting = tiers, drafting

    def propose(self, turns: Mapping[int, Turn]) -> None:
        """Draft for turns that have just drawn a token, by row; where that fails they go on without drafts."""
        turns = {row: turn for row, turn in turns.items() if turn.report.undrafted is None and not turn.given}
        if self._drafting is None or not turns or not self._drafting.wants(len(turns)):
            return
        try:
            self._draft(turns)
        except Exception:
            # Whoever fails alone was the reason.
            for row, turn in turns.items():
                try:
                    self._draft({row: turn})
                except Exception as error:
                    turn.report.undrafted = f"{type(error).__name__}: {error}"

    def judge(self, turn: Turn, row: int, logits: torch.Tensor) -> list[int]:
        """The tokens that a step yields for a turn; drafts that do not stand leave the cache."""
        proposal, turn.proposal = turn.proposal, None
        if self._drafting is None or proposal is None:
            # More than one after tokens that another worker gave out: those are drawn again, for the random numbers.
            return [sample(one, turn.sampling.temperature, turn.sampling.top_p, turn.random) for one in logits]
        tokens = self._drafting.settle(proposal, logits, turn.drawing)
        verified, accepted = len(proposal.ids), len(tokens) - 1
        report, cache = turn.report, self._tiers.cache
        report.verified_tokens += verified
        report.accepted_tokens += accepted
        report.computed_tokens -= verified - accepted
        cache.truncate(row, cache.lengths[row] - (verified - accepted))
        return tokens

    def take_back(self, turn: Turn, row: int) -> None:
        """Drafts of a step that was interrupted before they were judged."""
        if self._tiers.cache.lengths[row] > len(turn.ids):
            self._tiers.cache.truncate(row, len(turn.ids))

    def _draft(self, turns: Mapping[int, Turn]) -> None:
        last = {row: turn.ids[-1] for row, turn in turns.items()}
        draws = {row: turn.drawing for row, turn in turns.items()}
        limits = {row: turn.most_tokens - len(turn.ids) - 1 for row, turn in turns.items()}
        found = self._drafting.propose(self._tiers.model, self._tiers.cache, last, draws, limits)
        for row, proposal in found.items():
            turns[row].proposal = proposal
            turns[row].report.drafted_tokens += proposal.drafted
