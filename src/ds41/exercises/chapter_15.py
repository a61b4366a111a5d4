"""Exercises of chapter 15, training."""

from __future__ import annotations

import math

from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.ledger import bytes_per_token
from ds41.training.recipe import preset_recipe

_STEPS, _STEP = 1000, 755
# First position and length of needles, at even and odd places.
NEEDLES = ((0, 8), (1, 8), (2, 1), (3, 1), (3, 2), (4, 2), (7, 5))


@exercise("15.1")
def cost_of_a_guess(answer: object) -> str | None:
    """Nats of a guessed answer of two bytes."""
    if close(answer, 2 * math.log(36)):
        return None
    if close(answer, math.log(36)):
        return "That is one byte. An answer has two."
    if close(answer, 2 * math.log2(36)):
        return "Those are bits."
    return "Each byte is one of 26 letters and 10 digits, all as likely."


@exercise("15.2")
def bytes_without_sharing(answer: object) -> str | None:
    """Bytes per token of the published model if every layer owned its keys."""
    config = ModelConfig.flash()
    if close(answer, float(bytes_per_token(config, shared=False)), 1e-6):
        return None
    if close(answer, float(bytes_per_token(config)), 1e-6):
        return "That is with sharing."
    if close(answer, float(bytes_per_token(config, shared=False, compressed=False)), 1e-6):
        return "That also gives up the ratio of 2 in the encoder."
    return "Main KV and index key of one entry have 356 bytes; the encoder's layers write one for every two tokens."


@exercise("15.3")
def rate_half_way_down(answer: object) -> str | None:
    """Factor on the learning rate in the middle of the cosine."""
    if close(answer, preset_recipe("nano", _STEPS).rate(_STEP)):
        return None
    if close(answer, 0.5):
        return "The cosine does not fall to zero."
    return "It falls from the full rate to a tenth of it."


@exercise("15.4")
def entries_of_a_needle(answer: object) -> str | None:
    """A function from first position and length to the entries of a ratio-2 source that hold any of the tokens."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for first, tokens in NEEDLES:
        expected = len({position // 2 for position in range(first, first + tokens)})
        if not close(answer(first, tokens), expected, 0):
            return (
                f"For {tokens} tokens from position {first} on it gives {answer(first, tokens)!r}. Entry j holds "
                "tokens 2j and 2j + 1."
            )
    return None
