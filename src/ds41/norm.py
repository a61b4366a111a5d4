"""Root-mean-square normalisation, as every norm of the text model uses it.

Source: the released model's ``RMSNorm``; statistics and weight product in float32, one cast at the end.
"""

from __future__ import annotations

import torch
from torch import nn


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-20) -> torch.Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last dimension, in the type of ``x``.

    Args:
        x: [..., C]. weight: [C] or None for a weight of one. eps: the published 1e-20 vanishes in float16, which
            is why the statistic is taken in float32 whatever the input.
    """
    x_float = x.to(torch.float32)
    normed = x_float * torch.rsqrt(x_float.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight.to(torch.float32)
    return normed.to(x.dtype)


class RMSNorm(nn.Module):
    """:func:`rms_norm` with a learned weight, one at the start."""

    def __init__(self, channels: int, eps: float = 1e-20) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """:func:`rms_norm` of ``x`` [..., C] with this weight, in the type of ``x``."""
        return rms_norm(x, self.weight, self.eps)
