"""Bounded replay: windows that were thrown away are made again from the last tokens of the prefix, roughly.

After a prefix hit the global entries are there and the windows are not. Feeding the last ``sliding_window`` tokens
again writes windows for what follows; each of those tokens sees window keys from the first of them on, and global
entries as ever. Nothing that is shared is written. Exact windows would need the tokens that every layer's window
follows from, layer under layer.

Source: report section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ds41.cache import Cache
from ds41.config import ModelConfig
from ds41.decoder_tail import exact_tail_rows
from ds41.model import Model

__all__ = [
    "KeptWindows",
    "ReplayPlan",
    "ShortHits",
    "begin_replay",
    "exact_replay_tokens",
    "exact_tail_rows",
    "feed_again",
    "plan_replay",
    "snapshot_layers",
]

ShortHits = Literal["recompute", "replay"]
"""What is done with a hit shorter than a window: compute it all again, or replay it as any other."""
KeptWindows = Literal["prefill", "all"]
"""Whose windows are kept between turns: those of layers that a prefill runs on every token, or all."""


@dataclass(frozen=True)
class ReplayPlan:
    """Which tokens are fed again after a hit of ``hit`` tokens: those from ``start`` on.

    adopts: whether the pages of the hit are used; if not, everything is computed from position 0, pages included.
    """

    hit: int
    start: int
    adopts: bool

    @property
    def replayed(self) -> int:
        """Tokens that are fed again although their entries are there."""
        return self.hit - self.start if self.adopts else 0


def plan_replay(hit: int, window: int, short_hits: ShortHits = "recompute", tokens: int | None = None) -> ReplayPlan:
    """What a prefix hit without windows is worth.

    Args:
        hit: tokens whose global entries were found. window: the model's ``sliding_window``.
        short_hits: a hit of at most ``tokens`` tokens is fed again from its beginning, so its pages save storage and
            no work. "recompute" (as vLLM does) leaves the pages aside: the result is that of a cold run, bit by bit.
            "replay" (as SGLang and tokenspeed do) keeps the pages shared and lets the tokens write windows only; at
            such a length it sees every key that a cold run sees.
        tokens: how many to feed again; one window if None. :func:`exact_replay_tokens` gives exact windows.

    Raises:
        ValueError: a number is negative, the window not positive, or the policy unknown.
    """
    if short_hits not in get_args(ShortHits):
        raise ValueError(f"short_hits is {short_hits!r}; expected one of {get_args(ShortHits)}")
    tokens = window if tokens is None else tokens
    for name, value, least in (("hit", hit, 0), ("window", window, 1), ("tokens", tokens, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}; expected {least} or more")
    adopts = hit > tokens if short_hits == "recompute" else hit > 0
    return ReplayPlan(hit, max(0, hit - tokens), adopts)


def exact_replay_tokens(config: ModelConfig) -> int:
    """Tokens to feed again for windows as they were: ``num_hidden_layers * sliding_window``, 5,120 as published.

    Each layer's window rows follow from a window of the layer below, so every layer reaches back
    ``sliding_window - 1`` tokens more; the paper counts the round number.
    """
    return config.num_hidden_layers * config.sliding_window


def begin_replay(
    model: Model,
    cache: Cache,
    row: int,
    ids: Sequence[int] | torch.Tensor,
    pages: Sequence[int],
    plan: ReplayPlan,
    image_mask: torch.Tensor | None = None,
) -> None:
    """Start sequence ``row`` from the pages of a hit; ``model.prefill(ids[plan.start:], cache)`` goes on.

    Args:
        ids: [T], token ids of the sequence from position 0, at least ``plan.hit`` of them.
        pages: page numbers of ``cache.pool`` that hold the hit's entries, the last perhaps in part; they stay shared.
        image_mask: bool [T], which of ``ids`` belong to images.

    Raises:
        ValueError: fewer ids than the hit has tokens, or a plan that feeds none of the tokens of an open group.
            CacheError: as :meth:`ds41.cache.Cache.adopt`.
    """
    if len(ids) < plan.hit:
        raise ValueError(f"there are {len(ids)} ids for a hit of {plan.hit} tokens")
    if not plan.adopts:
        cache.reset(row)
        return
    waiting = max((plan.hit % layer.ratio for layer in model.config.layers if layer.owns_kv), default=0)
    if plan.replayed < waiting:
        raise ValueError(
            f"a hit of {plan.hit} tokens leaves a group open, whose first {waiting} must be fed again or come from a "
            f"snapshot; the plan feeds {plan.replayed}"
        )
    cache.adopt(row, pages, plan.hit)
    feed_again(model, cache, row, ids, plan.start, image_mask)


def feed_again(
    model: Model,
    cache: Cache,
    row: int,
    ids: Sequence[int] | torch.Tensor,
    start: int,
    image_mask: torch.Tensor | None = None,
) -> None:
    """Rewind a sequence to ``start``, with the Engram history that its tokens have there.

    Args:
        row: of the cache. ids, image_mask: [T], the tokens of the sequence and which belong to images, from its first
            on.

    Raises:
        CacheError: ``start`` is beyond what the sequence holds.
    """
    cache.rewind(row, start)
    if model.hasher is None:
        return
    back = min(start, model.config.engram_max_ngram_size - 1)
    near = slice(start - back, start)
    recent = torch.as_tensor(ids[near], dtype=torch.int64, device=model.device)
    images = None if image_mask is None else image_mask[near].to(model.device)
    position = torch.arange(start - back, start, device=model.device)
    cache.write_history(torch.full_like(position, row), position, model.hasher.compress(recent, images))


def snapshot_layers(config: ModelConfig, windows: KeptWindows, draft_layers: int = 0) -> Iterable[int]:
    """Whose windows are worth keeping between turns; ``draft_layers`` are numbered after the model's own.

    "prefill": the layers that a prefill runs on every token, the encoder's and the last source's. A sequence goes on
    exactly with them where at least a window of new tokens comes: the layers above begin anew there anyway. The
    paper keeps no window of the decoder. "all": a sequence goes on as if it had never stopped, after any number of
    tokens.

    Raises:
        ValueError: neither.
    """
    if windows not in get_args(KeptWindows):
        raise ValueError(f"windows is {windows!r}; expected one of {get_args(KeptWindows)}")
    if windows == "all":
        return range(config.num_hidden_layers + draft_layers)
    return range(min(config.decoder_start + 1, config.num_hidden_layers))
