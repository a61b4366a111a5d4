"""Exercises of chapter 02, the causal encoder-decoder."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

from ds41 import flops
from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.language import say

WIDE_WINDOW = 256
TURN_TOKENS, HISTORY_TOKENS = 500, 200_000
PROMPTS = (1, 127, 128, 129, 1_000, 65_536, 2**20)


@exercise(
    "02.1",
    level="easy",
    minutes=5,
    hints=(
        'The section "How far back does it reach?" counts this for the published windows.',
        "Begin with the last token in the last layer and go down. Each layer above layer 20 looks back over one "
        "window, and two windows that meet share a token.",
    ),
)
def tokens_of_an_exact_tail(answer: object) -> str | None:
    """Prompt tokens that layer 20 must attend for, for exact logits of the last one, with windows of 256."""
    published = ModelConfig.flash()
    wide = replace(published, sliding_window=WIDE_WINDOW)
    expected = _tails(wide)[0]
    if close(answer, expected, 0):
        return None
    layers = published.num_hidden_layers - published.decoder_start
    if close(answer, _tails(published)[0], 0):
        return "That is the tail of the published windows."
    if close(answer, sum(_tails(wide)), 0):
        return "Those are tokens times layers; the exercise asks for the tokens of layer 20 alone."
    if close(answer, expected - 1, 0):
        return "One short: the last token itself counts, too."
    if any(close(answer, count, 0) for count in (layers * WIDE_WINDOW, 1 + layers * WIDE_WINDOW)):
        return "That is the decoder's layers times the window. Two windows that meet share a token."
    if any(close(answer, count, 0) for count in ((layers - 1) * WIDE_WINDOW, 1 + (layers - 1) * WIDE_WINDOW)):
        return "The number of layers is right, but a layer adds less than a window: two that meet share a token."
    if close(answer, WIDE_WINDOW, 0):
        return "That many give the bounded result, with windows cut short."
    if close(answer, 1 + layers * (WIDE_WINDOW - 1), 0):
        return "One layer too many: the window rows of layer 20 itself are there already, of every token."
    return "The last layer has to run on one token, which sees a window of rows. Walk down from there to layer 20."


def _tails(config: ModelConfig) -> list[int]:
    """How many tokens each decoder layer attends for, from the first."""
    end = config.max_position_embeddings
    return [end - begin for begin in flops.attention_begins(config, end, "exact")[config.decoder_start :]]


@exercise(
    "02.2",
    level="easy",
    minutes=5,
    hints=(
        "The opening figure shows a bounded prefill: which layers run on the whole prompt, and which on its end only.",
        "Add up the two halves, each the number of its layers times the tokens that they run on. Mind prompts that are "
        "shorter than a window.",
    ),
)
def token_layers_of_a_bounded_prefill(answer: object) -> str | None:
    """A function from the prompt to the sum over the layers of the tokens that they run on."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    config = ModelConfig.flash()
    for tokens in PROMPTS:
        expected = _token_layers(config, tokens, "bounded")
        try:
            got = answer(tokens)
        except Exception as error:  # Whatever a reader's function raises is no fault of the check.
            return say("For {tokens:,} tokens it raises {error!r}.", tokens=tokens, error=error)
        if got is None:
            return say("For {tokens:,} tokens it gives None: is a return missing?", tokens=tokens)
        if not close(got, expected, 0):
            why = _why_other(config, tokens, got)
            return say("For {tokens:,} tokens it gives {got!r}. {why}", tokens=tokens, got=got, why=why)
    return None


def _why_other(config: ModelConfig, tokens: int, got: object) -> str:
    if tokens <= config.sliding_window:
        return say("The encoder runs on everything, and within one window nothing is left out.")
    if close(got, _token_layers(config, tokens, "exact"), 0):
        return say("That is the exact tail; in a bounded prefill every decoder layer runs on as many tokens.")
    return say("The encoder runs on everything; the decoder runs on one window.")


def _token_layers(config: ModelConfig, tokens: int, way: flops.Decoder) -> int:
    return sum(tokens - begin for begin in flops.attention_begins(config, tokens, way))


@exercise(
    "02.3",
    level="medium",
    minutes=6,
    hints=(
        "The table of an agent's turns comes from two calls of flops.prefill, one for each way, with the history as "
        "cached.",
        "For the estimate let both halves of the model weigh the same: one runs on all new tokens, the other on one "
        "window of them.",
    ),
)
def ratio_of_a_short_turn(answer: object) -> str | None:
    """Bounded over full for 500 tokens after 200,000."""
    bounded, full = (_spent(TURN_TOKENS, way, HISTORY_TOKENS) for way in ("bounded", "full"))
    if close(answer, bounded / full):
        return None
    if close(answer, full / bounded):
        return "That is full over bounded; turn it round."
    if close(answer, 100 * bounded / full):
        return "Right in per cent; give a fraction of one."
    if close(answer, 1 - bounded / full):
        return "That is the part that is saved."
    window = ModelConfig.flash().sliding_window
    if close(answer, (TURN_TOKENS + window) / (2 * TURN_TOKENS)):
        return "That is the estimate, with both halves alike. Now ask flops.prefill."
    if close(answer, window / TURN_TOKENS):
        return "That is the decoder's part; the encoder runs on all new tokens."
    if close(answer, _spent(TURN_TOKENS + HISTORY_TOKENS, "bounded") / _spent(TURN_TOKENS + HISTORY_TOKENS, "full")):
        return "That is the ratio with nothing cached; here only the last tokens are new."
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        return "Give one number, the quotient of the two."
    return "flops.prefill takes the tokens that are there already as cached."


@exercise(
    "02.4",
    level="medium",
    minutes=6,
    hints=(
        'The section "Why not exactly a half" has this limit for the published plan. Only what grows with the square '
        "of the prompt matters.",
        "Weigh each Full layer by the entries that it sees for one token of the prompt. A Reindex layer has no weight, "
        "since its pool does not grow. Which part of the sum belongs to the encoder?",
    ),
)
def ratio_without_end(answer: object) -> str | None:
    """What bounded over full tends to for endless prompts, with every source at ratio 1."""
    published = ModelConfig.flash()
    changed = replace(published, compress_ratios=tuple(min(1, ratio) for ratio in published.compress_ratios))
    expected = _limit(changed)
    if close(answer, expected):
        return None
    if close(answer, _limit(published)):
        return "That is the limit of the published plan, whose encoder sees two tokens in one entry."
    if close(answer, _limit(changed, pools=True)):
        return "Reindex layers score a pool that does not grow; in the limit they count for nothing."
    if close(answer, 1 - expected):
        return "That is the decoder's part; a bounded prefill spares it and keeps the rest."
    if close(answer, 1 / expected):
        return "That is full over bounded; turn it round."
    if close(answer, expected / (1 - expected)):
        return "That is the encoder over the decoder; a full prefill runs both."
    if close(answer, 100 * expected):
        return "Right in per cent; give a fraction of one."
    if close(answer, 0.5):
        return "The halves do not scan alike. How many Full layers has each?"
    return "Only index scores grow with the square of the prompt. Which layers scan, and how many entries?"


def _limit(config: ModelConfig, pools: bool = False) -> float:
    """The encoder's part of all scans; ``pools`` counts Reindex layers as if they scanned."""
    scans = {"encoder": Fraction(0), "decoder": Fraction(0)}
    for plan in config.layers:
        if plan.owns_selection and (pools or plan.candidate_source is None):
            scans[plan.half] += Fraction(1, plan.ratio)
    return float(scans["encoder"] / sum(scans.values()))


@exercise(
    "02.5",
    level="medium",
    minutes=12,
    hints=(
        "flops.prefill can run the decoder in three ways. The cell that prints what exactness costs takes the "
        "difference of two of them.",
        "For long prompts the share only falls, so a test of one prompt can be searched by halves: bisect_left takes "
        "the test as its key, and lo keeps it away from prompts of a few windows.",
    ),
)
def prompt_where_exactness_is_cheap(answer: object) -> str | None:
    """Shortest prompt whose exact tail costs at most a hundredth more than its bounded prefill."""
    if callable(answer):
        return "Give the length of the prompt, not a function of it."
    # In prompts of about one window the exact tail costs less: it spares the last layers.
    first = 4 * ModelConfig.flash().sliding_window
    if close(answer, _search(first, lambda n: 100 * _extra(n) <= _spent(n, "bounded")), 0.01):
        return None
    if close(answer, _search(first, lambda n: 100 * _extra(n) <= _spent(n, "full")), 0.01):
        return "That is a hundredth of a full prefill; compare with the bounded one."
    saved = _search(first, lambda n: 100 * _extra(n) <= _spent(n, "full") - _spent(n, "bounded"))
    if close(answer, saved, 0.005):
        return "That is a hundredth of what stopping half-way saves; compare with the bounded prefill itself."
    if close(answer, _search(first, lambda n: 10 * _extra(n) <= _spent(n, "bounded")), 0.01):
        return "That is where it costs a tenth more; one per cent is a hundredth."
    # Every number from 0 to the first prompt that counts.
    if close(answer, first / 2, 1):
        return "Prompts of a few windows are left aside: begin the search behind them."
    return "Take the difference of two calls of flops.prefill, and search for the prompt that makes it a hundredth."


def _search(first: int, is_cheap: Callable[[int], bool]) -> int:
    """The shortest prompt, from ``first`` on, that is cheap; so are all that are longer."""
    return bisect_left(range(ModelConfig.flash().max_position_embeddings), True, lo=first, key=is_cheap)


def _extra(tokens: int) -> int:
    return _spent(tokens, "exact") - _spent(tokens, "bounded")


@cache
def _spent(tokens: int, way: flops.Decoder, cached: int = 0) -> int:
    return flops.prefill(ModelConfig.flash(), tokens, way, cached=cached).total
