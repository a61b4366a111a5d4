"""Exercises of chapter 06, bounded replay."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import cache

from ds41 import economics, flops, window_cone
from ds41.config import ModelConfig
from ds41.economics import GIB
from ds41.exercises import close, exercise
from ds41.ledger import window_bytes
from ds41.viz.replay_timeline import resume

NARROW_WINDOW = 64
PREFIX_TOKENS = 65_536
HOST_BYTES, POOL_SHARE, LIFETIME_S = 2048 * GIB, 10, 600
# Hits and positions behind them, short hits among them.
FED = ((1, 1), (100, 40), (128, 128), (129, 1), (129, 128), (129, 129), (500, 372), (500, 450), (500, 499), (500, 700))


@exercise("06.1")
def tokens_of_an_exact_replay(answer: object) -> str | None:
    """Tokens to feed again for exact windows of 64 in 40 layers."""
    published = ModelConfig.flash()
    narrow = replace(published, sliding_window=NARROW_WINDOW)
    far = published.max_position_embeddings
    if close(answer, window_cone.exact(narrow, far).tokens, 0):
        return None
    if close(answer, window_cone.exact(published, far).tokens, 0):
        return "That is the number for the published windows."
    if close(answer, published.num_hidden_layers * NARROW_WINDOW, 0):
        return "That is the report's product, a bound. A window contains its own token: how far does each layer add?"
    if close(answer, NARROW_WINDOW, 0):
        return "So many a bounded replay feeds."
    return "Layer 0 needs a window's worth of rows beyond what layer 1 needs, and so on up."


@exercise("06.2")
def rows_after_a_replay(answer: object) -> str | None:
    """A function from hit and position to the window rows that the token sees in the encoder."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for hit, position in FED:
        prompt = max(hit, position) + 1
        shown = resume(ModelConfig.flash(), prompt, hit, short_hits="replay")
        first, end = shown.reach(0, position)
        got = answer(hit, position)
        if close(got, end - first, 0):
            continue
        why = "it sees itself and those before it, back to the first token fed"
        if position - shown.start >= shown.window:
            why = "a window has an oldest row"
        return f"For a hit of {hit} and position {position} it gives {got!r}; {why}."
    return None


@exercise("06.3")
def turn_that_pays_a_quarter(answer: object) -> str | None:
    """New tokens at which a bounded replay costs a quarter of the turn, after 65,536 cached ones."""
    if close(answer, _turn(4), 0.02):
        return None
    if close(answer, 4 * ModelConfig.flash().sliding_window, 0.02):
        return "Counted in tokens. But the turn runs the decoder on its last window, and the replay only the encoder."
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


@exercise("06.4")
def even_split_with_one_checkpoint(answer: object) -> str | None:
    """New tokens a turn at which one window checkpoint is half of V4's store."""
    if close(answer, float(economics.even_split_turn(checkpoints=1))):
        return None
    if close(answer, float(economics.even_split_turn())):
        return "That is the turn for two checkpoints."
    return "The checkpoint has as many bytes as the global KV of how many tokens? V4-Flash's bytes, not V4.1's."


@exercise("06.5")
def turns_that_a_pool_takes(answer: object) -> str | None:
    """Turns a second for a tenth of 2 TiB, windows of layers 0 to 20, ten minutes."""
    config = ModelConfig.flash()
    every = window_bytes(config)
    kept = every * (config.decoder_start + 1) // config.num_hidden_layers
    rate = HOST_BYTES / POOL_SHARE / kept / LIFETIME_S
    if close(answer, rate):
        return None
    if close(answer, rate * kept / every):
        return "That keeps the windows of all layers."
    if close(answer, rate * POOL_SHARE):
        return "That is all of the memory."
    if close(answer, rate * LIFETIME_S):
        return "So many are held at once. Each stays for its lifetime."
    return "Sessions held at once, divided by the seconds that each is held."
