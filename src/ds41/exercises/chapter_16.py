"""Exercises of chapter 16, what could break."""

from __future__ import annotations

import math

from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.language import say
from ds41.probes.estimates import estimate_share
from ds41.probes.needle_rows import readers
from ds41.small_floats import E2M1_MAX, e2m1_values

# Score, edge and deviation of a few entries: inside, at the edge, outside, far away.
SCORES = ((3.0, 2.0, 0.5), (2.0, 2.0, 0.5), (1.5, 2.0, 0.5), (2.5, 2.0, 2.0), (-1.0, 2.0, 0.5), (0.2, -0.3, 0.25))
BOUND = 0.01
KINDS, CONFIDENCE = 5, 0.95


@exercise(
    "16.1",
    level="easy",
    minutes=3,
    hints=(
        'The section "First point: selection" counts the points at which the decoder selects, and who reads each.',
        "In config.layers every layer has a mode and an index_source, the layer whose selection it attends to.",
    ),
)
def reuse_layers_of_the_full_layer(answer: object) -> str | None:
    """How many Reuse layers attend to what the decoder's Full layer selects."""
    config = ModelConfig.flash()
    shared = len(readers(config, config.decoder_start)) - 1
    reuse = sum(plan.half == "decoder" and plan.mode == "reuse" for plan in config.layers)
    if close(answer, shared, 0):
        return None
    if isinstance(answer, (list, tuple, set, range)):
        return "Give how many they are, not which."
    if close(answer, shared + 1, 0):
        return "The Full layer itself is among them. It selects for itself, too."
    if close(answer, reuse, 0):
        return "Those are all Reuse layers of the decoder. Who made the selection that each of them reads?"
    if close(answer, reuse - shared, 0):
        return "So many read what a Reindex layer selected."
    if close(answer, len(config.layers) - config.decoder_start, 0):
        return "Those are all layers of the decoder. Which of them select for themselves?"
    return "Look at index_source of the decoder's layers in config.layers."


@exercise(
    "16.2",
    level="medium",
    minutes=7,
    hints=(
        'The prediction of the section "First point: selection" is the formula. Its Φ is the distribution function of '
        "the standard normal distribution.",
        "math.erf is Φ on another scale: it runs from minus one to one, and its argument counts in units of √2 "
        "deviations.",
    ),
)
def probability_of_a_miss(answer: object) -> str | None:
    """A function of score, edge and deviation to the probability that the entry is missed."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for score, edge, deviation in SCORES:
        try:
            got = answer(score, edge, deviation)
        except Exception as error:
            return say(
                "It stops with {error}. It is called with three numbers: score, edge, deviation.", error=repr(error)
            )
        if not close(got, _below((edge - score) / deviation), 0.01):
            return _about_miss(got, score=score, edge=edge, deviation=deviation)
    return None


def _about_miss(got: object, score: float, edge: float, deviation: float) -> str:
    given = {"score": score, "edge": edge, "deviation": deviation, "got": got}
    away = (edge - score) / deviation
    if got is None:
        return "It returns None. Does it end with a return?"
    if close(got, _below(-away), 0.01):
        return say(
            "For score {score:g}, edge {edge:g} and deviation {deviation:g} it gives {got!r}; that is how often the "
            "entry is selected.",
            **given,
        )
    if close(got, float(score < edge), 0):
        return say(
            "For score {score:g}, edge {edge:g} and deviation {deviation:g} it gives {got!r}; without noise that would "
            "be so. The score moves before it is compared.",
            **given,
        )
    if close(got, math.erf(away / math.sqrt(2)), 0.01):
        return say(
            "For score {score:g}, edge {edge:g} and deviation {deviation:g} it gives {got!r}; a probability lies "
            "between 0 and 1, and the error function between -1 and 1.",
            **given,
        )
    if close(got, _below(away * math.sqrt(2)), 0.01):
        return say(
            "For score {score:g}, edge {edge:g} and deviation {deviation:g} it gives {got!r}; the error function "
            "counts in units of √2 deviations.",
            **given,
        )
    if close(got, _density(away), 0.01) or close(got, _density(away) / deviation, 0.01):
        return say(
            "For score {score:g}, edge {edge:g} and deviation {deviation:g} it gives {got!r}; that is the density at "
            "the edge. Missed is all that lies below it.",
            **given,
        )
    return say(
        "For score {score:g}, edge {edge:g} and deviation {deviation:g} it gives {got!r}; how many deviations would it "
        "have to fall to lie below the edge?",
        **given,
    )


def _below(deviations: float) -> float:
    return (1 + math.erf(deviations / math.sqrt(2))) / 2


def _density(deviations: float) -> float:
    return math.exp(-(deviations**2) / 2) / math.sqrt(2 * math.pi)


@exercise(
    "16.3",
    level="medium",
    minutes=6,
    hints=(
        "estimate_share of ds41.probes.estimates takes hits and trials, and gives a mean and the two ends of its "
        "interval.",
        "A hit is a miss of a needle here, so there are none. Let the trials grow until the end that matters has "
        "passed the bound.",
    ),
)
def queries_without_a_miss(answer: object) -> str | None:
    """Queries without a miss after which Wilson's 95 % interval lies below one per cent."""
    needed = next(count for count in range(1, 10_000) if estimate_share(0, count).high < BOUND)
    if close(answer, needed, 0):
        return None
    if close(answer, needed - 1, 0):
        return "With one fewer the interval still reaches it."
    # From one fewer on: where a solved formula lies.
    if close(answer, needed - 0.5, 0.5 / needed):
        return "Queries are whole, and the whole interval has to lie below the bound."
    if close(answer, 3 / BOUND, 0.01):
        return "That is the rule of three, which bounds the rate from one side only."
    if close(answer, 1 / BOUND, 0.01):
        return "After so many one would expect one miss. None is still quite likely."
    if close(answer, 2 * needed, 0.5):
        return "That many are enough. With how few does the interval lie below the bound for the first time?"
    return "estimate_share(0, n).high is the upper bound after n queries. When does it fall below 0.01?"


@exercise(
    "16.4",
    level="easy",
    minutes=4,
    hints=(
        'The prediction of the section "Third point: FP4 at small magnitudes" says what becomes zero. Chapter 4 has '
        "the eight magnitudes.",
        "With an exact scale the largest channel is stored as the largest magnitude. The other one is then rounded to "
        "the nearest magnitude: where does zero become the nearest?",
    ),
)
def neighbour_that_silences(answer: object) -> str | None:
    """Block maximum over a channel from which on the channel becomes zero, the scale exact."""
    half_step = e2m1_values()[1] / 2
    right = E2M1_MAX / half_step
    if close(answer, right):
        return None
    if close(answer, 1 / right) or close(answer, 100 / right):
        return "That is the channel over its neighbour. Turn it round."
    if close(answer, E2M1_MAX / (2 * half_step)):
        return "A channel at the smallest magnitude is kept as it is. Where do values begin to be nearer to zero?"
    if close(answer, E2M1_MAX):
        return "That is the largest magnitude itself, and 1 is one of the eight."
    if close(answer, 2 * right):
        return "Values become zero before that: rounding goes to the nearest, and half of a step is enough."
    return "The largest magnitude is 6, the smallest above zero 0.5. What is rounded to zero?"


@exercise(
    "16.5",
    level="easy",
    minutes=3,
    hints=(
        "Here nothing is widened, unlike in the replay's findings of this chapter: each of the five intervals may err "
        "as often as one alone.",
        "Look at the opposite event. For independent events the probabilities multiply.",
    ),
)
def false_alarms(answer: object) -> str | None:
    """Chance that one or more of five independent 95 % intervals misses the truth."""
    chance = 1 - CONFIDENCE**KINDS
    if close(answer, chance):
        return None
    if close(answer, 1 - CONFIDENCE):
        return "That is one of them."
    if close(answer, KINDS * (1 - CONFIDENCE)):
        return "That is the bound by which the probe widens its intervals. Two may err at once."
    if close(answer, 1 - chance):
        return "That is how likely it is that none errs."
    if close(answer, (1 - CONFIDENCE) ** KINDS):
        return "That is how likely it is that all of them err. One is enough."
    if close(answer, KINDS * (1 - CONFIDENCE) * CONFIDENCE ** (KINDS - 1)):
        return "That is exactly one. At least one is asked."
    if close(answer, 100 * chance):
        return "As a share, not in per cent."
    return "How likely is it that all of them are right?"
