"""Sliding-window keys: each layer's own projection, one head, key and value alike.

Source: report sections 2.3 and 3.2.2; released ``_window_kv`` and ``get_window_topk_idxs``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ds41.config import ModelConfig
from ds41.linear import Linear, Quantization
from ds41.norm import RMSNorm
from ds41.rope import rotate_by
from ds41.step import Step


class WindowKV(nn.Module):
    """Hidden states -> rotated window rows, not yet rounded."""

    def __init__(self, config: ModelConfig, quantization: Quantization, dtype: torch.dtype) -> None:
        super().__init__()
        c = config
        self.wkv = Linear(
            c.hidden_size,
            c.head_dim,
            "fp8",
            dtype=dtype,
            rounds_input=quantization == "full",
            std=c.initializer_range,
        )
        self.kv_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """x [N, hidden], turn [N, R/2] -> [N, head_dim]."""
        return rotate_by(self.kv_norm(self.wkv(x)), turn)


def visible_rows(step: Step, window: int, kept: int, starts: Sequence[int]) -> torch.Tensor:
    """Which rows each token's window holds: int64 [N, window], oldest first, -1 where there is none.

    Token t sees positions max(t - window + 1, start) to t, itself among them. The rows are numbered as
    :class:`ds41.attention.memory.Memory` lays them out: ``kept`` older ones of each sequence, then the step's tokens.

    Args:
        kept: rows per sequence from before this step; the last of them stands just before its first token.
        starts: for each sequence the first position that has a row.
    """
    device = step.position.device
    back = torch.arange(window - 1, -1, -1, device=device)
    position = step.position[:, None] - back
    firsts = step.first_position[step.sequence, None]
    offsets = torch.tensor(step.offsets[:-1], device=device)[step.sequence, None]
    since_first = position - firsts
    older = step.sequence[:, None] * kept + kept + since_first
    row = torch.where(since_first < 0, older, len(step.counts) * kept + offsets + since_first)
    first_valid = torch.tensor(starts, device=device)[step.sequence, None]
    return torch.where(position >= first_valid, row, -1)
