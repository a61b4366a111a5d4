"""Exercises of chapter 02, the causal encoder-decoder."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction
from functools import cache

from ds41 import flops
from ds41.config import ModelConfig
from ds41.exercises import close, exercise

WIDE_WINDOW = 256
TURN_TOKENS, HISTORY_TOKENS = 500, 200_000
PROMPTS = (1, 127, 128, 129, 1_000, 65_536, 2**20)


@exercise("02.1")
def tokens_of_an_exact_tail(answer: object) -> str | None:
    """Prompt tokens that layer 20 must attend for, for exact logits of the last one, with windows of 256."""
    published = ModelConfig.flash()
    if close(answer, _tail(replace(published, sliding_window=WIDE_WINDOW)), 0):
        return None
    layers = published.num_hidden_layers - published.decoder_start
    if close(answer, _tail(published), 0):
        return "That is the tail of the published windows."
    if close(answer, layers * WIDE_WINDOW, 0):
        return "That is the decoder's layers times the window. Two windows that meet share a token."
    if close(answer, WIDE_WINDOW, 0):
        return "That many give the bounded result, with windows cut short."
    if close(answer, 1 + layers * (WIDE_WINDOW - 1), 0):
        return "One layer too many: the window rows of layer 20 itself are there already, of every token."
    return "The last layer has to run on one token, which sees a window of rows. Walk down from there to layer 20."


def _tail(config: ModelConfig) -> int:
    end = config.max_position_embeddings
    return end - flops.attention_begins(config, end, "exact")[config.decoder_start]


@exercise("02.2")
def token_layers_of_a_bounded_prefill(answer: object) -> str | None:
    """A function from the prompt to the sum over the layers of the tokens that they run on."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    config = ModelConfig.flash()
    for tokens in PROMPTS:
        expected = sum(tokens - begin for begin in flops.attention_begins(config, tokens, "bounded"))
        got = answer(tokens)
        if not close(got, expected, 0):
            why = "nothing is left out" if tokens <= config.sliding_window else "the decoder runs on one window"
            return f"For {tokens:,} tokens it gives {got!r}. The encoder runs on everything; {why}."
    return None


@exercise("02.3")
def ratio_of_a_short_turn(answer: object) -> str | None:
    """Bounded over full for 500 tokens after 200,000."""
    bounded, full = (_spent(TURN_TOKENS, way, HISTORY_TOKENS) for way in ("bounded", "full"))
    if close(answer, bounded / full):
        return None
    if close(answer, full / bounded):
        return "That is full over bounded; turn it round."
    if close(answer, _spent(TURN_TOKENS + HISTORY_TOKENS, "bounded") / _spent(TURN_TOKENS + HISTORY_TOKENS, "full")):
        return "That is the ratio with nothing cached; here only the last tokens are new."
    return "flops.prefill takes the tokens that are there already as cached."


@exercise("02.4")
def ratio_without_end(answer: object) -> str | None:
    """What bounded over full tends to for endless prompts, with every source at ratio 1."""
    published = ModelConfig.flash()
    if close(answer, _limit(replace(published, compress_ratios=tuple(min(1, r) for r in published.compress_ratios)))):
        return None
    if close(answer, _limit(published)):
        return "That is the limit of the published plan, whose encoder sees two tokens in one entry."
    if close(answer, 0.5):
        return "The halves do not scan alike. How many Full layers has each?"
    return "Only index scores grow with the square of the prompt. Which layers scan, and how many entries?"


def _limit(config: ModelConfig) -> float:
    scans = {"encoder": Fraction(0), "decoder": Fraction(0)}
    for plan in config.layers:
        if plan.owns_selection and plan.candidate_source is None:
            scans[plan.half] += Fraction(1, plan.ratio)
    return float(scans["encoder"] / sum(scans.values()))


@exercise("02.5")
def prompt_where_exactness_is_cheap(answer: object) -> str | None:
    """Shortest prompt whose exact tail costs at most a hundredth more than its bounded prefill."""
    prompts = range(ModelConfig.flash().max_position_embeddings)

    def cheap(tokens: int, beside: flops.Decoder = "bounded") -> bool:
        extra = _spent(tokens, "exact") - _spent(tokens, "bounded")
        return 100 * extra <= _spent(tokens, beside)

    # Up to a few windows the exact tail is the cheaper one: it spares the last layers.
    first = 4 * ModelConfig.flash().sliding_window
    if close(answer, bisect_left(prompts, True, lo=first, key=cheap), 0.01):
        return None
    if close(answer, bisect_left(prompts, True, lo=first, key=lambda n: cheap(n, "full")), 0.01):
        return "That is a hundredth of a full prefill; compare with the bounded one."
    return "Take the difference of two calls of flops.prefill, and search for the prompt that makes it a hundredth."


@cache
def _spent(tokens: int, way: flops.Decoder, cached: int = 0) -> int:
    return flops.prefill(ModelConfig.flash(), tokens, way, cached=cached).total
