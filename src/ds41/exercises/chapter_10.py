"""Exercises of chapter 10, DSpark."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.dspark import ThroughputCurve, admit
from ds41.exercises import close, exercise, number
from ds41.language import say
from ds41.ledger import Storage

_CONDITIONAL = 0.8
_SURVIVAL = (0.9, 0.7, 0.5, 0.3, 0.1)
_PAIRS = (
    ([0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]),
    ([0.25, 0.75], [0.25, 0.75]),
    ([0.0, 1.0], [1.0, 0.0]),
    ([0.2, 0.2, 0.6], [0.6, 0.2, 0.2]),
)


@exercise(
    "10.1",
    level="medium",
    minutes=6,
    hints=(
        'The survival of a draft, in "Knowing when to stop guessing", is a product of such probabilities.',
        "The mean of a count is the sum over the drafts of the probability that each stands. In every round the "
        "target itself adds one token behind the last draft that stands.",
    ),
)
def tokens_of_a_round(answer: object) -> str | None:
    """Mean tokens of a round of five drafts that each stand with probability 0.8 after those before."""
    expected = sum(_CONDITIONAL**place for place in range(6))
    if close(answer, expected):
        return None
    if close(answer, expected - 1):
        return "Those are the drafts. Whatever happens, one more token comes out of a round."
    if close(answer, 1 + 5 * _CONDITIONAL) or close(answer, 5 * _CONDITIONAL):
        return "A draft counts only if all before it stand, and a round has five drafts and no more."
    if close(answer, _CONDITIONAL**5):
        return "That is how often all five stand. Rounds in which fewer stand yield tokens, too."
    if close(answer, (expected - 1) / 5):
        return "That is the share of the drafts that stand. The exercise asks for tokens."
    return "Draft j stands with probability 0.8 to the j. Sum, and add the token that follows."


@exercise(
    "10.2",
    level="easy",
    minutes=4,
    hints=(
        'The first cell of "Prediction: what a draft costs" asks the ledger for the windows with the draft layers and '
        "without.",
        "By hand, a window is as large in a draft layer as in any other: find the bytes of a row, the rows of a "
        "window, and the layers.",
    ),
)
def window_bytes(answer: object) -> str | None:
    """Window bytes of one sequence with its draft layers."""
    config = ModelConfig.flash()
    expected = ledger.window_bytes(config, draft=True)
    rows = (config.num_hidden_layers + config.num_nextn_predict_layers) * config.sliding_window
    if close(answer, expected, 0):
        return None
    if close(answer, ledger.window_bytes(config), 0):
        return "That is the model alone; each draft layer has a window, too."
    if close(answer, expected - ledger.window_bytes(config), 0):
        return "Those are the draft layers alone. The model's layers have windows, too."
    if close(answer, rows * config.head_dim, 0):
        return "FP8 rows have scales: one byte for 32 channels."
    if close(answer, rows * Storage.published(config).main.nbytes, 0):
        return "That is the format of the main records. A window is kept in FP8."
    if close(answer, 2 * expected, 0):
        return "A row is key and value at once, so it is kept once."
    if close(answer, expected / 10**6) or close(answer, expected / 2**20):
        return "The exercise asks for bytes, without a prefix."
    return "Layers, tokens of a window, bytes of a row: 512 channels in FP8 and their scales."


@exercise(
    "10.3",
    level="hard",
    minutes=15,
    hints=(
        'Both formulas stand in "Verification changes nothing": the replacement above the code, the share of drafts '
        "that stand below it.",
        "The share is a sum over all tokens of the smaller of two probabilities. The replacement takes from each token "
        "what the target has above the drafter, scaled so that it sums to one.",
        "Scaling fails if nothing is above. Decide first what the replacement is then: nothing is ever rejected, and "
        "the target is the natural choice.",
    ),
)
def stand_and_replace(answer: object) -> str | None:
    """A function (target, drafter) -> (share that stands, distribution of replacements)."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for target, drafter in _PAIRS:
        try:
            given = answer(list(target), list(drafter))
        except ZeroDivisionError:
            return say(
                "For target {target} and drafter {drafter} it divides by zero. Mind equal distributions.",
                target=target,
                drafter=drafter,
            )
        except Exception as error:
            return say(
                "For target {target} and drafter {drafter} it raises {error}.",
                target=target,
                drafter=drafter,
                error=repr(error),
            )
        try:
            stand, replaced = given
            stand, *replaced = (number(one) for one in (stand, *replaced))
        except (TypeError, ValueError, RuntimeError):
            stand, replaced = None, []
        if None in (stand, *replaced):
            return say(
                "For target {target} and drafter {drafter} it gives no number and list.", target=target, drafter=drafter
            )
        remark = _remark_on_share(target, drafter, stand) or _remark_on_replacement(target, drafter, replaced)
        if remark is not None:
            return remark
    return None


@exercise(
    "10.4",
    level="medium",
    minutes=8,
    hints=(
        'The rule is that of admit, in "How many to verify". A ThroughputCurve is made of token counts and seconds.',
        "By hand, write down expected tokens over milliseconds for no draft, one draft, and so on, with the drafter's "
        "time in each. A draft adds one token to the step and its survival to the expected tokens.",
    ),
)
def drafts_verified(answer: object) -> str | None:
    """Drafts that the greedy rule admits for one request on a line of seconds."""
    expected = _admitted(_SURVIVAL)
    if close(answer, expected, 0):
        return None
    if isinstance(answer, (list, tuple)):
        return "Give a number. For a list of requests admit gives a list; here there is one request."
    if close(answer, 5, 0):
        return "The fifth adds a tenth of a token and costs a millisecond. What is a millisecond worth by then?"
    if close(answer, _admitted(tuple(accumulate(_SURVIVAL, mul))), 0):
        return "A survival is a product already: the probability that a draft and all before it stand."
    if close(answer, 1 + sum(_SURVIVAL[:expected])):
        return "Those are the tokens that are expected to come out. How many drafts go in?"
    return "Admit a draft while expected tokens over time rise: 1 / 25, then 1.9 / 26, and so on."


def _remark_on_share(target: list[float], drafter: list[float], stand: float) -> str | None:
    expected = sum(map(min, target, drafter))
    # Written so that NaN is not within the tolerance.
    if abs(stand - expected) <= 1e-6:
        return None
    if abs(stand - (1 - expected)) <= 1e-6:
        return say(
            "For target {target} and drafter {drafter} it gives the share of drafts that are replaced, {stand:.4g}.",
            target=target,
            drafter=drafter,
            stand=stand,
        )
    return say(
        "For target {target} and drafter {drafter} it says that {stand:.4g} of the drafts stand. "
        "Draft x comes up q(x) of the time.",
        target=target,
        drafter=drafter,
        stand=stand,
    )


def _remark_on_replacement(target: list[float], drafter: list[float], replaced: list[float]) -> str | None:
    left = [max(one - other, 0) for one, other in zip(target, drafter, strict=True)]
    wanted = [one / sum(left) for one in left] if sum(left) > 1e-8 else target
    if _alike(replaced, wanted):
        return None
    if target == drafter:
        return say(
            "For target {target} and an equal drafter nothing is left over. Give the target itself then.", target=target
        )
    if len(replaced) != len(wanted):
        return say(
            "For target {target} and drafter {drafter} there are {count} replacements; every token has one.",
            target=target,
            drafter=drafter,
            count=len(replaced),
        )
    if not abs(sum(replaced) - 1) <= 1e-6:
        return say(
            "For target {target} and drafter {drafter} the replacements sum to {total:.4g}.",
            target=target,
            drafter=drafter,
            total=sum(replaced),
        )
    if _alike(replaced, [max(other - one, 0) / sum(left) for one, other in zip(target, drafter, strict=True)]):
        return "The replacement is drawn from what the drafter has more of. It is the other way round."
    return say(
        "For target {target} and drafter {drafter} the share is right; "
        "replace from what the target has more of than the drafter.",
        target=target,
        drafter=drafter,
    )


def _alike(found: list[float], wanted: list[float]) -> bool:
    return len(found) == len(wanted) and all(abs(a - b) <= 1e-6 for a, b in zip(found, wanted, strict=True))


def _admitted(survival: tuple[float, ...]) -> int:
    """Drafts of the one request that the library's rule admits."""
    import torch

    curve = ThroughputCurve((1, 6), (0.021, 0.026))
    return admit(torch.tensor([survival], dtype=torch.float64), curve, 0.004)[0]
