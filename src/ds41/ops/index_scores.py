"""The indexer's score: how much a query wants each entry.

``score = sum over heads of weight * max(0, query . key)``, in float32.

Source: report section 2.3.2.
"""

from __future__ import annotations

import torch

# Scores of all heads exist for one tile at a time: 16 MB of float32.
_TILE = 2**22


def index_scores(query: torch.Tensor, weight: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Scores of every query against the same keys: float32 [N, L], differentiable.

    Args:
        query: float32 [N, heads, C]. weight: float32 [N, heads]. keys: float32 [L, C].
    """
    rows, heads, _ = query.shape
    tile = max(1, _TILE // (heads * max(1, keys.shape[0])))
    scores = [query.new_empty(0, keys.shape[0])]
    for start in range(0, rows, tile):
        part = slice(start, min(start + tile, rows))
        products = torch.matmul(query[part].flatten(0, 1), keys.T).unflatten(0, (-1, heads)).relu_()
        scores.append(torch.bmm(weight[part, None], products).squeeze(1))
    return torch.cat(scores)


def index_scores_of_pool(query: torch.Tensor, weight: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Scores of each query against keys of its own: [N, K].

    Args:
        query: float32 [N, heads, C]. weight: float32 [N, heads]. keys: float32 [N, K, C].
    """
    products = torch.bmm(query, keys.transpose(1, 2)).relu_()
    return torch.bmm(weight[:, None], products).squeeze(1)
