"""Exercises of chapter 10, DSpark."""

from __future__ import annotations

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.dspark import ThroughputCurve, admit
from ds41.exercises import close, exercise

_CONDITIONAL = 0.8
_SURVIVAL = (0.9, 0.7, 0.5, 0.3, 0.1)
_PAIRS = (
    ([0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]),
    ([0.25, 0.75], [0.25, 0.75]),
    ([0.0, 1.0], [1.0, 0.0]),
    ([0.2, 0.2, 0.6], [0.6, 0.2, 0.2]),
)


@exercise("10.1")
def tokens_of_a_round(answer: object) -> str | None:
    """Mean tokens of a round of five drafts that each stand with probability 0.8 after those before."""
    expected = sum(_CONDITIONAL**place for place in range(6))
    if close(answer, expected):
        return None
    if close(answer, expected - 1):
        return "Those are the drafts. Whatever happens, one more token comes out of a round."
    if close(answer, 1 + 5 * _CONDITIONAL) or close(answer, 5 * _CONDITIONAL):
        return "A draft counts only if all before it stand."
    return "Draft j stands with probability 0.8 to the j. Sum, and add the token that follows."


@exercise("10.2")
def window_bytes(answer: object) -> str | None:
    """Window bytes of one sequence with its draft layers."""
    config = ModelConfig.flash()
    if close(answer, ledger.window_bytes(config, draft=True), 0):
        return None
    if close(answer, ledger.window_bytes(config), 0):
        return "That is the model alone; each draft layer has a window, too."
    if close(answer, 43 * 128 * 512, 0):
        return "FP8 rows have scales: one byte for 32 channels."
    return "Layers, tokens of a window, bytes of a row: 512 channels in FP8 and their scales."


@exercise("10.3")
def stand_and_replace(answer: object) -> str | None:
    """A function (target, drafter) -> (share that stands, distribution of replacements)."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for target, drafter in _PAIRS:
        try:
            stand, replaced = answer(list(target), list(drafter))
            replaced = [float(one) for one in replaced]
            stand = float(stand)
        except (TypeError, ValueError, ZeroDivisionError):
            return f"For target {target} and drafter {drafter} it gives no number and list; mind equal distributions."
        where = f"For target {target} and drafter {drafter}"
        expected = sum(map(min, target, drafter))
        if abs(stand - expected) > 1e-6:
            return f"{where} it says that {stand:.4g} of the drafts stand. Draft x comes up q(x) of the time."
        left = [max(one - other, 0) for one, other in zip(target, drafter, strict=True)]
        wanted = [one / sum(left) for one in left] if sum(left) > 1e-8 else target
        if len(replaced) != len(wanted) or max(abs(a - b) for a, b in zip(replaced, wanted, strict=True)) > 1e-6:
            if abs(sum(replaced) - 1) > 1e-6:
                return f"{where} the replacements sum to {sum(replaced):.4g}."
            return f"{where} the share is right; replace from what the target has more of than the drafter."
    return None


@exercise("10.4")
def drafts_verified(answer: object) -> str | None:
    """Drafts that the greedy rule admits for one request on a line of seconds."""
    import torch

    curve = ThroughputCurve((1, 6), (0.021, 0.026))
    expected = admit(torch.tensor([_SURVIVAL], dtype=torch.float64), curve, 0.004)[0]
    if close(answer, expected, 0):
        return None
    if close(answer, 5, 0):
        return "The fifth adds a tenth of a token and costs a millisecond. What is a millisecond worth by then?"
    return "Admit a draft while expected tokens over time rise: 1 / 25, then 1.9 / 26, and so on."
