"""The output projection: groups of heads through a low rank each, then one matrix for all.

Source: report section 2.3; released ``Attention``. No norm and no activation stands between the two matrices.
"""

from __future__ import annotations

import torch
from torch import nn

from ds41.config import ModelConfig
from ds41.linear import Linear, Quantization


class OutputProjection(nn.Module):
    """Head outputs, already rotated back -> hidden states."""

    def __init__(self, config: ModelConfig, quantization: Quantization, dtype: torch.dtype) -> None:
        super().__init__()
        c = config
        self.groups = c.o_groups
        group_width = c.num_attention_heads // c.o_groups * c.head_dim
        # The released code keeps the input of wo_a unrounded, though its weight is FP8.
        self.wo_a = Linear(group_width, c.o_groups * c.o_lora_rank, "fp8", dtype=dtype, std=c.initializer_range)
        self.wo_b = Linear(
            c.o_groups * c.o_lora_rank,
            c.hidden_size,
            "fp8",
            dtype=dtype,
            rounds_input=quantization == "full",
            std=c.initializer_range,
        )

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        """[N, heads, head_dim] -> [N, hidden]; head h belongs to group h // (heads / groups)."""
        grouped = heads.flatten(1).unflatten(1, (self.groups, -1)).transpose(0, 1)
        weight = self.wo_a.weight.unflatten(0, (self.groups, -1))
        ranks = torch.bmm(grouped.to(weight.dtype), weight.transpose(1, 2))
        return self.wo_b(ranks.transpose(0, 1).flatten(1))
