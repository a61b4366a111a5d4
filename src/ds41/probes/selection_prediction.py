"""What rounding should do to a selection, from the format's noise and the true scores alone.

A score moves by a sum of many small roundings: take it as normal, with a deviation that follows from the format's
relative error and the query. An entry is then missed with a probability that depends on how far its true score lies
above the edge, in deviations; one deviation spans as many ranks as there are scores in it.

Source: ds41's own.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from ds41.attention.indexer import IndexQuery
from ds41.formats import INDEX_KEY


@lru_cache
def format_error() -> float:
    """Root mean square error of an index key of standard normal channels, relative to its own size."""
    values = torch.randn(4096, 8 * INDEX_KEY.block, generator=torch.Generator().manual_seed(0))
    return float((INDEX_KEY.fake_quantize(values) - values).square().mean().sqrt())


def score_error(asked: IndexQuery, keys: torch.Tensor, rounds_query: bool) -> torch.Tensor:
    """Predicted deviation of stored from true scores, one for each query, float32 [N].

    A head that is active passes the error of the key on, times its query; all active heads see the same error. The
    error of a query is its head's own.

    Args:
        asked: not rounded. keys: float32 [N, K, C], the keys whose scores matter, not rounded.
    """
    active = (torch.bmm(asked.query, keys.transpose(1, 2)) > 0).to(torch.float32) * asked.weight[..., None]
    pull = torch.einsum("nhk,nhc->nkc", active, asked.query)
    variance = (pull.square().sum(-1) * keys.square().mean(-1)).mean(1)
    if rounds_query:
        own = asked.query.square().mean(-1)
        variance = variance + ((active.square() * own[..., None]).sum(1) * keys.square().sum(-1)).mean(1)
    return format_error() * variance.sqrt()


def noisy_edge(scores: torch.Tensor, error: torch.Tensor, count: int) -> torch.Tensor:
    """The score that ``count`` entries are expected to exceed once each has moved: float32 [N].

    Args:
        scores: float32 [N, K], true, the largest ones in falling order, well beyond ``count``. error: [N].
    """
    low, high = scores[:, -1] - 8 * error, scores[:, 0] + 8 * error
    for _ in range(40):
        middle = (low + high) / 2
        above = torch.special.ndtr((scores - middle[:, None]) / error[:, None]).sum(1) > count
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def miss_probability(scores: torch.Tensor, error: torch.Tensor, count: int) -> torch.Tensor:
    """Predicted probability that each entry is not among the ``count`` largest once all have moved: float32 [N, K] for
    ``scores`` [N, K], ``error`` [N].
    """
    edge = noisy_edge(scores, error, count)
    return torch.special.ndtr((edge[:, None] - scores) / error[:, None])


def ranks_in_one_error(scores: torch.Tensor, error: torch.Tensor, count: int) -> torch.Tensor:
    """How many ranks one deviation, ``error`` [N], spans around rank ``count``: float32 [N]; scores as in
    :func:`noisy_edge`.
    """
    near, far = count // 2, count + count // 2
    gap = (scores[:, near] - scores[:, far]) / (far - near)
    return error / gap


def hidden_probability(
    own: torch.Tensor, other: torch.Tensor, own_scores: torch.Tensor, edge: torch.Tensor, block: int
) -> torch.Tensor:
    """Predicted probability that a pool made by another query hides an entry: float32 [N, R].

    Both queries' scores are taken as jointly normal and the entries as independent; so an entry is hidden if its own
    score under the other query lies below the pool's edge, and all of its block's do.

    Args:
        own, other: float32 [N, L], true scores of the query that looks and of the one that made the pool.
        own_scores: float32 [N, R], scores under ``own`` of the entries asked about. edge: [N], the pool's edge.
    """
    z = (own_scores - own.mean(1, keepdim=True)) / own.std(1, keepdim=True)
    correlation = score_correlation(own, other)[:, None]
    spread = (1 - correlation.square()).clamp(min=1e-12).sqrt()
    height = ((edge - other.mean(1)) / other.std(1))[:, None]
    below = torch.special.ndtr((height - correlation * z) / spread)
    neighbour = (other < edge[:, None]).to(torch.float32).mean(1, keepdim=True)
    return below * neighbour ** (block - 1)


def score_correlation(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Correlation over entries of two queries' scores, ``first`` and ``second`` float32 [N, L]: [N]."""
    a, b = first - first.mean(1, keepdim=True), second - second.mean(1, keepdim=True)
    return (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()
