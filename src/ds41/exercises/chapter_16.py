"""Exercises of chapter 16, what could break."""

from __future__ import annotations

import math

from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.probes.estimates import estimate_share
from ds41.probes.needle_rows import readers
from ds41.small_floats import E2M1_MAX, e2m1_values

# Score, edge and deviation of a few entries: inside, at the edge, outside, far away.
SCORES = ((3.0, 2.0, 0.5), (2.0, 2.0, 0.5), (1.5, 2.0, 0.5), (2.5, 2.0, 2.0), (-1.0, 2.0, 0.5), (0.2, -0.3, 0.25))
BOUND = 0.01
KINDS, CONFIDENCE = 5, 0.95


@exercise("16.1")
def reuse_layers_of_the_full_layer(answer: object) -> str | None:
    """How many Reuse layers attend to what the decoder's Full layer selects."""
    config = ModelConfig.flash()
    shared = len(readers(config, config.decoder_start)) - 1
    reuse = sum(plan.half == "decoder" and plan.mode == "reuse" for plan in config.layers)
    if close(answer, shared, 0):
        return None
    if close(answer, shared + 1, 0):
        return "The Full layer itself is among them. It selects for itself, too."
    if close(answer, reuse, 0):
        return "Those are all Reuse layers of the decoder. Who made the selection that each of them reads?"
    if close(answer, reuse - shared, 0):
        return "So many read what a Reindex layer selected."
    return "Look at index_source of the decoder's layers in config.layers."


@exercise("16.2")
def probability_of_a_miss(answer: object) -> str | None:
    """A function of score, edge and deviation to the probability that the entry is missed."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for score, edge, deviation in SCORES:
        got = answer(score, edge, deviation)
        wanted = _below((edge - score) / deviation)
        if close(got, wanted, 0.01):
            continue
        where = f"For score {score:g}, edge {edge:g} and deviation {deviation:g} it gives {got!r}; "
        if close(got, 1 - wanted, 0.01):
            return where + "that is how often the entry is selected."
        if close(got, float(score < edge), 0):
            return where + "without noise that would be so. The score moves before it is compared."
        return where + "how many deviations would it have to fall to lie below the edge?"
    return None


def _below(deviations: float) -> float:
    return (1 + math.erf(deviations / math.sqrt(2))) / 2


@exercise("16.3")
def queries_without_a_miss(answer: object) -> str | None:
    """Queries without a miss after which Wilson's 95 % interval lies below one per cent."""
    needed = next(count for count in range(1, 10_000) if estimate_share(0, count).high < BOUND)
    if close(answer, needed, 0):
        return None
    if close(answer, needed - 1, 0):
        return "With one fewer the interval still reaches it."
    if close(answer, 3 / BOUND, 0.01):
        return "That is the rule of three, which bounds the rate from one side only."
    if close(answer, 1 / BOUND, 0.01):
        return "After so many one would expect one miss. None is still quite likely."
    return "estimate_share(0, n).high is the upper bound after n queries. When does it fall below 0.01?"


@exercise("16.4")
def neighbour_that_silences(answer: object) -> str | None:
    """Block maximum over a channel from which on the channel becomes zero, the scale exact."""
    half_step = e2m1_values()[1] / 2
    if close(answer, E2M1_MAX / half_step):
        return None
    if close(answer, half_step / E2M1_MAX):
        return "That is the channel over its neighbour. Turn it round."
    if close(answer, E2M1_MAX / (2 * half_step)):
        return "A channel at the smallest magnitude is kept as it is. Where do values begin to be nearer to zero?"
    if close(answer, E2M1_MAX):
        return "That is the largest magnitude itself, and 1 is one of the eight."
    return "The largest magnitude is 6, the smallest above zero 0.5. What is rounded to zero?"


@exercise("16.5")
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
        return "So likely it is that none errs."
    if close(answer, 100 * chance):
        return "As a share, not in per cent."
    return "How likely is it that all of them are right?"
