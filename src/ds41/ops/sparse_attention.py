"""Attention of each query over a few keys of its own: one softmax with a sink, keys and values being the same rows.

Source: report section 2.3; released ``sparse_attn``.
"""

from __future__ import annotations

import torch


def sparse_attention(query: torch.Tensor, keys: torch.Tensor, usable: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """``sum exp(a_k) k / (sum exp(a_k) + exp(sink))`` with ``a_k = query . k / sqrt(C)``, in float32.

    Args:
        query: [N, heads, C]. keys: float32 [N, K, C], each row key and value. usable: bool [N, K]. sink: float32
            [heads], a logit that takes probability and gives nothing.

    Returns:
        [N, heads, C] in the type of ``query``; zeros for a query without a usable key.
    """
    logits = torch.bmm(query.to(torch.float32), keys.transpose(1, 2)) * query.shape[-1] ** -0.5
    logits = logits.masked_fill(~usable[:, None], -torch.inf)
    sink = sink[:, None].expand(logits.shape[0], -1, 1)
    # A finite maximum keeps a row without keys, or with an infinite sink, at zero instead of NaN.
    largest = torch.maximum(logits.amax(-1, keepdim=True), sink).clamp(-1e30, 1e30).detach()
    weights = torch.exp(logits - largest)
    total = weights.sum(-1, keepdim=True) + torch.exp(sink - largest)
    shares = weights / total.clamp(min=torch.finfo(torch.float32).tiny)
    return torch.bmm(shares, keys).to(query.dtype)
