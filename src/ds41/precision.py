"""Parts of the model that are computed in float32 whatever the rest is computed in.

They are small and sensitive: projecting hyper-connection coefficients in bfloat16 puts them off by a percent. So a
weight that a cast of the whole module reached is refused, and autocast is kept out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def without_autocast(device: torch.device) -> AbstractContextManager:
    """A region on ``device`` in which products keep the types of their operands."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def float32_linear(x: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
    """``x W^T`` in float32; x [..., C] of any float type, weight [O, C] float32. ``name`` names the weight in errors.

    Raises:
        TypeError: the weight is not float32 any more.
    """
    if weight.dtype != torch.float32:
        raise TypeError(
            f"{name} is {weight.dtype}; expected torch.float32: choose the model's type when it is built, "
            "a cast of the whole module also casts what must stay in float32"
        )
    with without_autocast(x.device):
        return nn.functional.linear(x.to(torch.float32), weight)
