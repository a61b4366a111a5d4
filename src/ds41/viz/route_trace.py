"""What a router chooses for a small batch: even tokens, tokens by topic, and those after its bias has learned.

The router has the published number of experts and untrained weights: what it shows is how choices overlap, not which
expert knows what.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from ds41.config import ModelConfig
from ds41.expert_balance import expert_load, update_bias
from ds41.moe import Router
from ds41.norm import rms_norm
from ds41.topic_stream import TopicStream

_TOPICS = 96
# The bias is only shown at rest, so it gets there in larger steps than training takes.
_FIT_TOKENS, _FIT_STEPS, _FIT_SPEED = 768, 120, 0.005


@dataclass(frozen=True)
class RoutedTokens:
    """One batch, token by token: its topic (None where every token is its own), experts best key first, weights."""

    topics: tuple[int | None, ...]
    experts: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]


@lru_cache(maxsize=4)
def route_batches(config: ModelConfig, tokens: int = 64, seed: int = 0) -> dict[str, RoutedTokens]:
    """The choices of one router for three batches: "even", "topics", and "balanced", the same tokens rebalanced."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        router = Router(config)
        stream = TopicStream.zipf(_TOPICS, config.hidden_size, spread=0.5)
        even = rms_norm(torch.randn(tokens, config.hidden_size))
        states, topics = stream.draw(tokens)
        others, _ = stream.draw(_FIT_TOKENS)
    batches = {
        "even": _routed(router, even, [None] * tokens),
        "topics": _routed(router, states, topics.tolist()),
    }
    _fit_bias(router, others)
    batches["balanced"] = _routed(router, states, topics.tolist())
    return batches


@torch.no_grad()
def _routed(router: Router, states: torch.Tensor, topics: list[int | None]) -> RoutedTokens:
    routing = router(states)
    return RoutedTokens(
        tuple(topics),
        tuple(map(tuple, routing.indices.tolist())),
        tuple(map(tuple, routing.weights.tolist())),
    )


@torch.no_grad()
def _fit_bias(router: Router, states: torch.Tensor) -> None:
    scores = router(states).scores
    for _ in range(_FIT_STEPS):
        chosen = torch.topk(scores + router.bias, router.top_k).indices
        update_bias(router.bias, expert_load(chosen, len(router.bias)), _FIT_SPEED)
