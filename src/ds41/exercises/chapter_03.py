"""Exercises of chapter 03, who owns a key and who borrows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ds41 import ledger, reads
from ds41.attention import Compressor, SequenceMemory
from ds41.config import ModelConfig
from ds41.exercises import close, exercise
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


@exercise("03.1")
def sources_of_a_layer(answer: object) -> str | None:
    """Whose main KV and whose selection layer 31 reads."""
    plan = ModelConfig.flash().layers[31]
    if not isinstance(answer, Sequence) or isinstance(answer, str) or len(answer) != 2:
        return "Give a pair: the layer that owns the main KV, then the layer that selected."
    given, expected = tuple(answer), (plan.kv_source, plan.index_source)
    if given == expected:
        return None
    if given == expected[::-1]:
        return "Those are the two layers, the other way round."
    if given[0] == given[1]:
        return "Not every layer that selects owns keys: look at both lists."
    return "In each of the two lists of sources, take the largest id that is not above 31."


@exercise("03.2")
def one_source_in_the_encoder(answer: object) -> str | None:
    """Bytes per token with layers 2 and 20 as the only owners."""
    config = ModelConfig.flash()
    sources = (config.kv_source_layer_ids[0], config.kv_source_layer_ids[-1])
    expected = ledger.bytes_per_token(replace(config, kv_source_layer_ids=sources))
    if close(answer, float(expected), 0):
        return None
    if close(answer, float(2 * ledger.entry_bytes(config)), 0):
        return "The encoder's source writes an entry for every second token only."
    if close(answer, float(ledger.bytes_per_token(config)), 0):
        return "That is the published plan."
    return "Two owners are left. How large is an entry, and how often does each of them write one?"


@exercise("03.3")
def positions_of_visible_entries(answer: object) -> str | None:
    """A function (token, ratio) -> rotary positions of all entries that the token may see."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for ratio in (2, 1):
        for token in (0, 1, 2, 3, 8, 9):
            expected, got = _positions(token, ratio), answer(token, ratio)
            if not isinstance(got, Sequence) or isinstance(got, str):
                return f"For token {token} at ratio {ratio} it gives {got!r}; return a list of positions."
            if list(got) != expected:
                return f"For token {token} at ratio {ratio} it gives {list(got)}. {_about(list(got), expected, ratio)}"
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
        return "Has the group of the newest token closed yet?"
    if len(got) < len(expected):
        return "A group that closes with a token is visible to that token."
    if got == [position + ratio - 1 for position in expected]:
        return "Those are the last tokens of the groups; an entry stands elsewhere."
    return "These are not positions of tokens: count tokens, not entries."


@exercise("03.4")
def share_of_the_reindex_layers(answer: object) -> str | None:
    """The Reindex layers' share of all index scores at 2^20 tokens."""
    config = ModelConfig.flash()
    macs = reads.index_macs(config, 2**20)
    pools = {layer: count for layer, count in macs.items() if config.layers[layer].mode == "reindex"}
    first = macs[config.candidate_source_layer_id]
    expected = sum(pools.values()) / sum(macs.values())
    if close(answer, expected):
        return None
    if close(answer, 100 * expected):
        return "Right in per cent; give a fraction of one."
    if close(answer, sum(pools.values()) / (sum(pools.values()) + first)):
        return "The encoder's sources score too, and they score everything."
    if close(answer, expected / len(pools)) or close(answer, max(pools.values()) / (sum(macs.values()))):
        return "That is one of them. How many Reindex layers are there?"
    return (
        "Heads, channels and scored entries give the work of each layer that selects; there are three kinds of those."
    )


@exercise("03.5")
def rule_of_selection(answer: object) -> str | None:
    """A function (scores, count) -> the selected indices."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for scores, count in _ROWS:
        row = torch.tensor([scores], dtype=torch.float32).reshape(1, -1)
        expected = [index for index in top_entries(row, count)[0].tolist() if index >= 0]
        got = answer(list(scores), count)
        if not isinstance(got, Sequence) or isinstance(got, str):
            return f"Of {list(scores)} it gives {got!r}; return a list of indices."
        if list(got) != expected:
            return f"Of {list(scores)} it selects {list(got)} for {count}. {_why(list(got), expected, scores)}"
    return None


def _why(got: list, expected: list[int], scores: Sequence[float]) -> str:
    if any(not isinstance(index, int) or not 0 <= index < len(scores) for index in got):
        return "There are no such entries; leave out what is missing."
    if any(not scores[index] > -_INF for index in got):
        return "Minus infinity marks what may not be selected, and NaN is no score."
    if sorted(got) == expected:
        return "The right ones, but they come out by index."
    if sorted(scores[index] for index in got) == sorted(scores[index] for index in expected):
        return "Equal scores: which of them goes first?"
    return "The largest scores win."
