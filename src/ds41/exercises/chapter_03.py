"""Exercises of chapter 03, who owns a key and who borrows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ds41 import ledger, reads
from ds41.attention import Compressor, SequenceMemory
from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.language import say
from ds41.ops.selection import top_entries
from ds41.step import Step

_INF = math.inf
# Rows that a wrong rule of selection gets wrong, with how many entries to select.
_ROWS = (
    ((0.5, 2.0, 1.0, 3.0), 2),
    ((1.0, 1.0, 1.0, 1.0), 2),
    ((0.0, 4.0, 0.0, 4.0, 0.0, -1.0), 3),
    ((1.0, -_INF, -_INF, -2.0), 3),
    ((-1.0, -3.0), 5),
    ((1.0, math.nan, 2.0, math.nan), 3),
    ((), 2),
)


@exercise(
    "03.1",
    level="easy",
    minutes=3,
    hints=(
        "The section on prediction says how a layer finds its two sources, in kv_source_layer_ids and in "
        "index_source_layer_ids.",
        "A layer never looks up: what stands above it has not run yet. The two lists need not give the same layer.",
    ),
)
def sources_of_a_layer(answer: object) -> str | None:
    """Whose main KV and whose selection layer 31 reads."""
    plan = ModelConfig.flash().layers[31]
    given, expected = _listed(answer), [plan.kv_source, plan.index_source]
    if given is None or len(given) != 2 or not all(isinstance(one, (int, float)) for one in given):
        return "Give a pair: the layer that owns the main KV, then the layer that selected."
    if given == expected:
        return None
    if given == expected[::-1]:
        return "Those are the two layers, the other way round."
    if given[0] == given[1]:
        return "Not every layer that selects owns keys: look at both lists."
    if max(given) > plan.index:
        return "A layer reads from layers below it, or from itself."
    return "In each of the two lists of sources, take the largest id that is not above 31."


@exercise(
    "03.2",
    level="easy",
    minutes=5,
    hints=(
        "The section on another cadence has bytes per token as a sum over owners.",
        "A layer that only chooses among another's keys writes none. ledger.entry_bytes(config) is the size of an "
        "entry, and config.compress_ratios says for how many tokens each owner writes one.",
    ),
)
def one_source_in_the_encoder(answer: object) -> str | None:
    """Bytes per token with layers 2 and 20 as the only owners."""
    config = ModelConfig.flash()
    first, *choosers, last = config.kv_source_layer_ids
    expected = ledger.bytes_per_token(replace(config, kv_source_layer_ids=(first, last)))
    entry, key = ledger.entry_bytes(config), ledger.Storage.published(config).index.nbytes
    if close(answer, float(expected), 0):
        return None
    if close(answer, float(2 * entry), 0):
        return "The encoder's source writes an entry for every second token only."
    if close(answer, float(entry), 0):
        return "That is what layer 20 writes by itself; it writes for every token, and layer 2 writes, too."
    if close(answer, float(expected - entry), 0):
        return "That is layer 2 alone; the decoder has its owner still."
    if close(answer, float(expected + len(choosers) * key / config.compress_ratios[first]), 0):
        return "A layer that chooses among another's keys keeps none of its own."
    if close(answer, float(ledger.bytes_per_token(config)), 0):
        return "That is the published plan."
    return "Two owners are left. How large is an entry, and how often does each of them write one?"


@exercise(
    "03.3",
    level="easy",
    minutes=5,
    hints=(
        "The section on the compressor has two rules for this: which entries a token sees, and where an entry stands.",
        "With token t there are t + 1 tokens. Count the groups that they fill, then give the place of each group's "
        "first token.",
    ),
)
def positions_of_visible_entries(answer: object) -> str | None:
    """A function (token, ratio) -> rotary positions of all entries that the token may see."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for ratio in (2, 1):
        for token in (0, 1, 2, 3, 8, 9):
            expected = _positions(token, ratio)
            try:
                got = answer(token, ratio)
            except Exception as error:  # Whatever a reader's function raises is no fault of the check.
                return say(
                    "For token {token} at ratio {ratio} it raises {error!r}; it is called with a position and a ratio.",
                    token=token,
                    ratio=ratio,
                    error=error,
                )
            given = _listed(got)
            if given is None:
                return say(
                    "For token {token} at ratio {ratio} it gives {got!r}; return a list of positions.",
                    token=token,
                    ratio=ratio,
                    got=got,
                )
            if given != expected:
                why = _about(given, expected, ratio)
                return say(
                    "For token {token} at ratio {ratio} it gives {got}. {why}",
                    token=token,
                    ratio=ratio,
                    got=given,
                    why=why,
                )
    return None


def _positions(token: int, ratio: int) -> list[int]:
    """What the compressor has closed when ``token`` attends, and where those entries are rotated."""
    config = ModelConfig.nano()
    layer = next(plan.index for plan in config.layers if plan.owns_kv and plan.ratio == ratio)
    step = Step.of([token + 1], [0])
    with torch.no_grad():
        hidden = torch.zeros(token + 1, config.hidden_size)
        memory = SequenceMemory(config, step, rounds=False)
        entries = Compressor(config, ratio, torch.float32)(hidden, step, memory, layer).entry
    return (entries * ratio).tolist()


def _about(got: list, expected: list[int], ratio: int) -> str:
    if len(got) > len(expected):
        return say("Has the group of the newest token closed yet?")
    if len(got) < len(expected):
        return say("A group that closes with a token is visible to that token.")
    if got == expected[::-1]:
        return say("The right ones, but the oldest comes first.")
    if got == [position + ratio - 1 for position in expected] and ratio > 1:
        return say("Those are the last tokens of the groups; an entry stands elsewhere.")
    return say("These are not positions of tokens: count tokens, not entries.")


@exercise(
    "03.4",
    level="medium",
    minutes=8,
    hints=(
        "The section on what choosing costs has a table of it, rounded. reads.index_macs gives the work of each layer "
        "that selects.",
        "Every score takes the same work, so counting entries is enough: those of the three encoder sources, those of "
        "layer 20, and four pools. All of them together are the whole.",
    ),
)
def share_of_the_reindex_layers(answer: object) -> str | None:
    """The Reindex layers' share of all index scores at 2^20 tokens."""
    config = ModelConfig.flash()
    macs = reads.index_macs(config, 2**20)
    pools = {layer: count for layer, count in macs.items() if config.layers[layer].mode == "reindex"}
    whole, pooled, first = sum(macs.values()), sum(pools.values()), macs[config.candidate_source_layer_id]
    expected = pooled / whole
    if close(answer, expected):
        return None
    if close(answer, 100 * expected):
        return "Right in per cent; give a fraction of one."
    if close(answer, pooled / (pooled + first)):
        return "The encoder's sources score too, and they score everything."
    if close(answer, pooled / (whole - first)):
        return "Layer 20 scores too, and it scores everything."
    if close(answer, pooled / (pooled + (len(macs) - len(pools)) * first)):
        return "The encoder's sources see two tokens in one entry."
    if close(answer, pooled / (whole - pooled)):
        return "That is over the work of the others; the whole includes the Reindex layers themselves."
    if close(answer, 1 - expected):
        return "That is the share of the Full layers."
    if close(answer, expected / len(pools)):
        return "That is one of them. How many Reindex layers are there?"
    if close(answer, pooled):
        return "Those are their multiply-adds; which part of all is that?"
    return (
        "Heads, channels and scored entries give the work of each layer that selects; there are three kinds of those."
    )


@exercise(
    "03.5",
    level="hard",
    minutes=12,
    hints=(
        "The section on scores states the rule. The last line that it prints shows ties, minus infinity and NaN.",
        "First leave out what may not be selected. Every comparison with NaN is false, which helps.",
        "Then sort twice: by score and index, to choose; by index alone, to hand out. Python sorts pairs by their "
        "first part, and by the second where the first are equal.",
    ),
)
def rule_of_selection(answer: object) -> str | None:
    """A function (scores, count) -> the selected indices."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for scores, count in _ROWS:
        row = torch.tensor([scores], dtype=torch.float32).reshape(1, -1)
        expected = [index for index in top_entries(row, count)[0].tolist() if index >= 0]
        try:
            got = answer(list(scores), count)
        except Exception as error:  # Whatever a reader's function raises is no fault of the check.
            return say(
                "Of {scores} it raises {error!r}; it is called with a list of scores and a count.",
                scores=list(scores),
                error=error,
            )
        given = _listed(got)
        if given is None:
            return say("Of {scores} it gives {got!r}; return a list of indices.", scores=list(scores), got=got)
        if given != expected:
            why = _why(given, expected, scores, count)
            return say(
                "Of {scores} it selects {got} for {count}. {why}", scores=list(scores), got=given, count=count, why=why
            )
    return None


def _why(got: list, expected: list[int], scores: Sequence[float], count: int) -> str:
    if any(not isinstance(index, int) for index in got):
        return say("Return indices, which are whole numbers, not scores.")
    if any(not 0 <= index < len(scores) for index in got):
        return say("There are no such entries; leave out what is missing.")
    if any(not scores[index] > -_INF for index in got):
        return say("Minus infinity marks what may not be selected, and NaN is no score.")
    if len(set(got)) < len(got):
        return say("No entry is selected twice.")
    if len(got) > count:
        return say("Those are too many.")
    if sorted(got) == expected:
        return say("The right ones, but they come out by index.")
    if sorted(scores[index] for index in got) == sorted(scores[index] for index in expected):
        return say("Equal scores: which of them goes first?")
    if len(got) < len(expected):
        return say("Those are too few: whatever is finite may be selected, negative scores and zeros too.")
    return say("The largest scores win.")


def _listed(found: object) -> list | None:
    """What a sequence or an array lists, in Python's own numbers; None if it is neither, or has no values."""
    try:
        if isinstance(found, (np.ndarray, torch.Tensor)):
            found = found.tolist()
        if not isinstance(found, Sequence) or isinstance(found, (str, bytes)):
            return None
        return [one.tolist() if isinstance(one, (np.ndarray, np.generic, torch.Tensor)) else one for one in found]
    except RuntimeError:  # A tensor on the meta device, or a sparse one.
        return None
