"""Which optimiser trains which parameter: Muon for matrices, AdamW for the rest.

Source: report section 4.2.2. For embedding, head and Engram tables the report has a Sinkhorn-balanced momentum whose
details are not published; AdamW stands in for it here.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from ds41.training.muon import Muon

_ENGRAM_RATE = 5.0
_BETAS = (0.9, 0.95)
# Rows of tables, and weights of one output: what stands in them is no map between two spaces of features.
_NO_MATRICES = ("embed", "head", "proj")


class Rates(Protocol):
    """A recipe's full learning rates, of Muon and of AdamW, and the weight decay of matrices."""

    matrix_rate: float
    other_rate: float
    weight_decay: float


class Optimizers:
    """Both, stepped as one. Each group remembers its own full learning rate, which :meth:`step` scales."""

    def __init__(self, model: nn.Module, recipe: Rates) -> None:
        matrices, tables, rest = [], [], []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if name.endswith("engram.embed.weight"):
                tables.append(parameter)
            elif parameter.dim() > 1 and f".{name}".split(".")[-2] not in _NO_MATRICES:
                matrices.append(parameter)
            else:
                rest.append(parameter)
        muon = Muon(matrices, recipe.matrix_rate, weight_decay=recipe.weight_decay)
        groups = [{"params": rest, "lr": recipe.other_rate}]
        if tables:
            groups.append({"params": tables, "lr": _ENGRAM_RATE * recipe.other_rate})
        self.each = (muon, AdamW(groups, betas=_BETAS, weight_decay=0.0))
        for optimizer in self.each:
            for group in optimizer.param_groups:
                group["full_lr"] = group["lr"]

    def step(self, factor: float) -> None:
        """Update with ``factor`` times the learning rates, and drop the gradients."""
        for optimizer in self.each:
            for group in optimizer.param_groups:
                group["lr"] = factor * group["full_lr"]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def clip_gradients(model: nn.Module, limit: float) -> float:
    """Scale all gradients together to a norm of at most ``limit``; returns their norm before."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
