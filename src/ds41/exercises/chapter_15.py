"""Exercises of chapter 15, training."""

from __future__ import annotations

import math

from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.language import say
from ds41.ledger import Storage, bytes_per_token
from ds41.training.recipe import preset_recipe

_STEPS, _STEP = 1000, 755
# First position and length of needles, at even and odd places.
NEEDLES = ((0, 8), (1, 8), (2, 1), (3, 1), (3, 2), (4, 2), (7, 5))


@exercise(
    "15.1",
    level="easy",
    minutes=3,
    hints=(
        'The section "Rows to learn from" says what a guess costs for one byte.',
        "A loss is the negative logarithm of a probability. How likely is it that a guess hits both bytes?",
    ),
)
def cost_of_a_guess(answer: object) -> str | None:
    """Nats of a guessed answer of two bytes."""
    right = 2 * math.log(36)
    if close(answer, right):
        return None
    if close(answer, right / 2):
        return "That is one byte. An answer has two."
    if close(answer, 2 * math.log2(36)) or close(answer, math.log2(36)):
        return "Those are bits."
    if close(answer, 2 * math.log10(36)):
        return "That is the logarithm to base 10. Nats are natural logarithms."
    if close(answer, -right):
        return "A loss is the negative logarithm of the probability, so it is above zero."
    if close(answer, 36**2) or close(answer, 36**-2):
        return "That counts the answers, or says how likely each of them is. A loss is a logarithm."
    if close(answer, math.log(2 * 36)):
        return "Two bytes do not add their characters: each character of one goes with each of the other."
    return "Each byte is one of 26 letters and 10 digits, all as likely."


@exercise(
    "15.2",
    level="medium",
    minutes=6,
    hints=(
        'The section "What can be known before the first step" has the same variant of nano, "no sharing". For the '
        "published model, config.layers says each layer's ratio; ledger.bytes_per_token can leave sharing out.",
        "Count the layers of each ratio; ratio 0 has no global branch. A layer writes an entry for every so many "
        "tokens, and an entry is a main record and an index key.",
    ),
)
def bytes_without_sharing(answer: object) -> str | None:
    """Bytes per token of the published model if every layer owned its keys."""
    config = ModelConfig.flash()
    right = bytes_per_token(config, shared=False)
    storage = Storage.published(config)
    main, entry = storage.main.nbytes, storage.main.nbytes + storage.index.nbytes
    if close(answer, float(right), 1e-6):
        return None
    if close(answer, float(bytes_per_token(config)), 1e-6):
        return "That is with sharing."
    if close(answer, float(bytes_per_token(config, shared=False, compressed=False)), 1e-6):
        return "That also gives up the ratio of 2 in the encoder."
    if close(answer, float(right) + 2 * entry / 2, 1e-6) or close(answer, float(right) + 2 * entry, 1e-6):
        return "Two layers have no global branch, and so no global KV."
    if close(answer, float(right) * main / entry, 1e-6):
        return "Those are the main records. Each of them has an index key beside it."
    if close(answer, sum(layer.ratio > 0 for layer in config.layers) * entry / 2, 1e-6):
        return "The decoder's layers write an entry for every token."
    return "Main KV and index key of one entry have 356 bytes; the encoder's layers write one for every two tokens."


@exercise(
    "15.3",
    level="easy",
    minutes=3,
    hints=(
        "The figure of the recipe shows the factor over a run. Recipe.rate in ds41.training.recipe computes it.",
        "Read off from where to where the cosine falls. Half-way down it, half of that fall is done.",
    ),
)
def rate_half_way_down(answer: object) -> str | None:
    """Factor on the learning rate in the middle of the cosine."""
    right = preset_recipe("nano", _STEPS).rate(_STEP)
    if close(answer, right):
        return None
    if close(answer, 0.5):
        return "The cosine does not fall to zero."
    if close(answer, 1 - right):
        return "That is what the rate has lost. What is left of it?"
    if close(answer, 100 * right):
        return "As a factor, not in per cent."
    return "It falls from the full rate to a tenth of it."


@exercise(
    "15.4",
    level="medium",
    minutes=6,
    hints=(
        'The section "Rows to learn from" says which tokens a ratio-2 source pools into one entry.',
        "Find the entry of the needle's first token and the entry of its last one. Mind that a needle of one token "
        "has a last token, too.",
        "For the second question: write down a needle that begins at an odd position, and draw a line round each pair "
        "of tokens. What stands beside each byte of the value?",
    ),
)
def entries_of_a_needle(answer: object) -> str | None:
    """A function from first position and length to the entries of a ratio-2 source that hold any of the tokens."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for first, tokens in NEEDLES:
        try:
            got = answer(first, tokens)
        except Exception as error:
            return say(
                "It stops with {error}. It is called with two numbers: a first position and a length in tokens.",
                error=repr(error),
            )
        if close(got, len({position // 2 for position in range(first, first + tokens)}), 0):
            continue
        if got is None:
            return "It returns None. Does it end with a return?"
        if isinstance(got, (list, tuple, set, range)):
            return "Give how many entries they are, not which."
        if close(got, -(-tokens // 2), 0):
            return say(
                "For {tokens} tokens from position {first} on it gives {got!r}. Entry j holds tokens 2j and 2j + 1, so "
                "it also matters where the needle begins.",
                tokens=tokens,
                first=first,
                got=got,
            )
        return say(
            "For {tokens} tokens from position {first} on it gives {got!r}. Entry j holds tokens 2j and 2j + 1.",
            tokens=tokens,
            first=first,
            got=got,
        )
    return None
