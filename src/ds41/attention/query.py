"""The query path: down to a normalised latent, up to all heads, rotated.

No norm follows the second matrix: V4's per-head norm is gone.

Source: report section 2.3; released ``Attention``.
"""

from __future__ import annotations

import torch
from torch import nn

from ds41.config import ModelConfig
from ds41.linear import Linear, Quantization
from ds41.norm import RMSNorm
from ds41.rope import rotate_by


class QueryPath(nn.Module):
    """Hidden states -> queries of all heads, and the latent that the indexer's queries start from."""

    def __init__(self, config: ModelConfig, quantization: Quantization, dtype: torch.dtype) -> None:
        super().__init__()
        c = config
        self.heads, self.channels = c.num_attention_heads, c.head_dim
        options = {"dtype": dtype, "rounds_input": quantization == "full", "std": c.initializer_range}
        self.wq_a = Linear(c.hidden_size, c.q_lora_rank, "fp8", **options)
        self.q_norm = RMSNorm(c.q_lora_rank, c.rms_norm_eps)
        self.wq_b = Linear(c.q_lora_rank, self.heads * self.channels, "fp8", **options)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [N, hidden], turn [N, R/2] -> latent [N, q_lora_rank], queries [N, heads, head_dim]."""
        latent = self.q_norm(self.wq_a(x))
        heads = self.wq_b(latent).unflatten(-1, (self.heads, self.channels))
        return latent, rotate_by(heads, turn[:, None])
