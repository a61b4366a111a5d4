"""Exercises of chapter 06, bounded replay."""

from __future__ import annotations

import math
import reprlib
from bisect import bisect_left
from dataclasses import replace
from functools import cache

from ds41 import economics, flops, window_cone
from ds41.config import ModelConfig
from ds41.economics import GIB
from ds41.exercises import close, exercise, no_number, number
from ds41.language import say
from ds41.ledger import window_bytes, window_equivalent_tokens
from ds41.viz.replay_timeline import Resumption, resume

NARROW_WINDOW = 64
PREFIX_TOKENS = 65_536
HOST_BYTES, POOL_SHARE, LIFETIME_S = 2048 * GIB, 10, 600
# Hits and positions behind them, short hits among them.
FED = ((1, 1), (100, 40), (128, 128), (129, 1), (129, 128), (129, 129), (500, 372), (500, 450), (500, 499), (500, 700))


@exercise(
    "06.1",
    level="easy",
    minutes=4,
    hints=(
        "See the section on the cone under a window: how many tokens more does a layer need than the layer above it?",
        "A window contains its own token, so two windows that meet share one. Every layer adds the same number of "
        "tokens, the last one, too.",
    ),
)
def tokens_of_an_exact_replay(answer: object) -> str | None:
    """Tokens to feed again for exact windows of 64 in 40 layers."""
    if remark := no_number(answer):
        return remark
    published = ModelConfig.flash()
    narrow = replace(published, sliding_window=NARROW_WINDOW)
    far, layers = published.max_position_embeddings, published.num_hidden_layers
    cone = window_cone.exact(narrow, far)
    if close(answer, cone.tokens, 0):
        return None
    if close(answer, window_cone.exact(published, far).tokens, 0):
        return "That is the number for the published windows."
    if close(answer, layers * NARROW_WINDOW, 0):
        return "That is the report's product, a bound. A window contains its own token: how far does each layer add?"
    if close(answer, NARROW_WINDOW, 0):
        return "So many a bounded replay feeds."
    if close(answer, cone.tokens + 1, 0):
        return "The token after the prefix is new; it is not one that is fed again."
    if close(answer, window_cone.exact(narrow, far, layers - 1).tokens, 0):
        return "One layer is missing: the rows that the new token sees in the last layer have to be made, too."
    if any(close(answer, window_cone.exact(narrow, far, n + published.decoder_start).tokens, 0) for n in (0, 1)):
        return "That makes the encoder's windows exact, and not those of all layers."
    if close(answer, cone.rows, 0):
        return "Those are window rows, summed over the layers. Count each token once."
    return "Layer 0 needs a window's worth of rows beyond what layer 1 needs, and so on up."


@exercise(
    "06.2",
    level="medium",
    minutes=10,
    hints=(
        "The picture that opens the chapter shows it: let short hits be replayed, and choose the token whose windows "
        "are drawn.",
        "Two things bound what a token sees: the first token that is fed, and the oldest row of a window that ends "
        "with the token itself. The later of the two counts.",
        "A replay begins one window before the hit, or at token 0 where the hit is shorter. Count from the bound to "
        "the token, both included.",
    ),
)
def rows_after_a_replay(answer: object) -> str | None:
    """A function from hit and position to the window rows that the token sees in the encoder."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for hit, position in FED:
        prompt = max(hit, position) + 1
        shown = resume(ModelConfig.flash(), prompt, hit, short_hits="replay")
        first, end = shown.reach(0, position)
        try:
            got = answer(hit, position)
        except Exception as error:
            return say(
                "For a hit of {hit} and position {position} it raises an error: {error!r}",
                hit=hit,
                position=position,
                error=error,
            )
        value = number(got)
        if value == end - first:
            continue
        why = (
            say("that is no number.")
            if value is None or not math.isfinite(value)
            else _about_rows(shown, position, value)
        )
        return say(
            "For a hit of {hit} and position {position} it gives {got}; {why}",
            hit=hit,
            position=position,
            got=reprlib.repr(got),
            why=why,
        )
    return None


def _about_rows(shown: Resumption, position: int, got: float) -> str:
    """Why a token of a prompt behind a hit does not see so many rows."""
    if position - shown.start >= shown.window:
        return say("a window has an oldest row.")
    if got > position + 1:
        return say("before token 0 there is nothing: it sees itself and those before it, back to the first token fed.")
    return say("it sees itself and those before it, back to the first token fed.")


@exercise(
    "06.3",
    level="medium",
    minutes=8,
    hints=(
        "The section on the price of a replay defines a function that computes both sides of this comparison.",
        "The longer the turn, the smaller the share of the replay. Try one length after the other, from one window on, "
        "until the replay is a quarter or less.",
    ),
)
def turn_that_pays_a_quarter(answer: object) -> str | None:
    """New tokens at which a bounded replay costs a quarter of the turn, after 65,536 cached ones."""
    if remark := no_number(answer):
        return remark
    if close(answer, _turn(4), 0.02):
        return None
    if close(answer, 4 * ModelConfig.flash().sliding_window, 0.02):
        return "Counted in tokens. But the turn runs the decoder on its last window, and the replay only the encoder."
    if close(answer, _turn(3), 0.02):
        return "There the replay is a quarter of turn and replay together. Compare it with the turn's own operations."
    if close(answer, 0.25):
        return "That is the share. How many new tokens has the turn?"
    return "turn_costs(new) gives the turn's own operations first and what a replay adds second."


@cache
def _turn(parts: int) -> int:
    """The shortest turn, of a window or more, of which a replay is at most one part in ``parts``."""
    config = ModelConfig.flash()
    window = config.sliding_window

    def is_cheap(new: int) -> bool:
        own = flops.prefill(config, new, "bounded", cached=PREFIX_TOKENS, logits=0).total
        fed = flops.prefill(config, new + window, "bounded", cached=PREFIX_TOKENS - window, logits=0).total
        return parts * (fed - own) <= own

    return bisect_left(range(PREFIX_TOKENS), True, lo=window, key=is_cheap)


@exercise(
    "06.4",
    level="easy",
    minutes=5,
    hints=(
        "The section on the eighth has the share of the windows as a formula. It counts two checkpoints a turn; here "
        "there is one.",
        'Set the share to one half and solve for the new tokens. system("deepseek-v4-flash") knows V4\'s window_bytes '
        "and bytes_per_token.",
    ),
)
def even_split_with_one_checkpoint(answer: object) -> str | None:
    """New tokens a turn at which one window checkpoint is half of V4's store."""
    if remark := no_number(answer):
        return remark
    expected = float(economics.even_split_turn(checkpoints=1))
    if close(answer, expected):
        return None
    if close(answer, float(economics.even_split_turn())):
        return "That is the turn for two checkpoints."
    if close(answer, float(window_equivalent_tokens(ModelConfig.flash()))):
        return "That is V4.1's window over V4.1's bytes per token. The store in question holds V4-Flash's bytes."
    if close(answer, expected / 2):
        return "Half of the store: then the windows have as many bytes as the global KV of the turn."
    return "The checkpoint has as many bytes as the global KV of how many tokens? V4-Flash's bytes, not V4.1's."


@exercise(
    "06.5",
    level="medium",
    minutes=6,
    hints=(
        "See the section on tiers: one row of its table is about these layers, and the cell on the pool asks the same "
        "question for all layers.",
        "Work out what one session keeps: layers times the rows of a window times the bytes of a row. See how many "
        "sessions fit. As many as leave in a second may come in.",
    ),
)
def turns_that_a_pool_takes(answer: object) -> str | None:
    """Turns a second for a tenth of 2 TiB, windows of layers 0 to 20, ten minutes."""
    if remark := no_number(answer):
        return remark
    config = ModelConfig.flash()
    every = window_bytes(config)
    layers = config.decoder_start + 1
    kept = every * layers // config.num_hidden_layers
    rate = HOST_BYTES / POOL_SHARE / kept / LIFETIME_S
    if close(answer, rate):
        return None
    if close(answer, rate * kept / every):
        return "That keeps the windows of all layers."
    if close(answer, rate * POOL_SHARE):
        return "That is all of the memory."
    if close(answer, rate * LIFETIME_S):
        return "So many are held at once. Each stays for its lifetime."
    if close(answer, rate * layers / (layers - 1)):
        return "Layers 0 to 20, both included: one layer is missing."
    if close(answer, rate * layers):
        return "That keeps the window of one layer only."
    if close(answer, rate * 60):
        return "So many a minute. The question is for a second."
    if close(answer, rate * 2e12 / HOST_BYTES):
        return "That is 2 TB of memory. A TiB is 2^40 bytes."
    return "Sessions held at once, divided by the seconds that each is held."
