"""The compressor: the latent that a group of tokens leaves in the global KV.

Ratio 2 pools each pair of tokens with a gate of its own for every channel; ratio 1 is a projection and a norm. The
groups are disjoint and know no position.

Source: report section 2.3.1; released ``Compressor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from ds41.config import ModelConfig
from ds41.linear import Linear
from ds41.norm import RMSNorm
from ds41.step import Step

if TYPE_CHECKING:
    from ds41.attention.memory import Memory


class Entries(NamedTuple):
    """Entries that a step closed: ``latent`` [M, head_dim]; ``sequence`` and ``entry`` int64 [M], whose and which they
    are.
    """

    latent: torch.Tensor
    sequence: torch.Tensor
    entry: torch.Tensor


class Compressor(nn.Module):
    """Hidden states of a step -> normalised, unrotated, unrounded latents of the groups that it closes.

    Raises:
        ValueError: a ratio that the family does not have.
    """

    def __init__(self, config: ModelConfig, ratio: int, dtype: torch.dtype) -> None:
        super().__init__()
        c = config
        if ratio not in (1, 2):
            raise ValueError(f"ratio is {ratio}; expected 1 or 2, the ratios that the family has")
        self.ratio = ratio
        # Pooling runs in float32, and so do the matrices before it.
        weight_dtype = torch.float32 if ratio > 1 else dtype
        options = {"dtype": weight_dtype, "std": c.initializer_range}
        self.wkv = Linear(c.hidden_size, c.head_dim, "bf16", **options)
        if ratio > 1:
            self.wgate = Linear(c.hidden_size, c.head_dim, "bf16", **options)
        self.norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x: torch.Tensor, step: Step, memory: Memory, layer: int) -> Entries:
        """x [N, hidden] -> the entries closed in this step; tokens of open groups are left in ``memory``."""
        if self.ratio == 1:
            return Entries(self.norm(self.wkv(x)), step.sequence, step.position)
        value, gate = self.wkv(x), self.wgate(x)
        waiting_value, waiting_gate = memory.open_rows(layer, step, value, gate)
        closing = torch.nonzero(step.position % 2 == 1).squeeze(1)
        sequence, position = step.sequence[closing], step.position[closing]
        # Rows of waiting tokens come first, one a sequence; a pair that began before this step finds its half there.
        sequences = len(step.counts)
        partner = torch.where(position == step.first_position[sequence], sequence, sequences + closing - 1)
        pooled = pool_pair(
            torch.cat((waiting_value, value))[partner],
            torch.cat((waiting_gate, gate))[partner],
            value[closing],
            gate[closing],
        )
        return Entries(self.norm(pooled.to(x.dtype)), sequence, position // 2)


def pool_pair(
    first_value: torch.Tensor, first_gate: torch.Tensor, second_value: torch.Tensor, second_gate: torch.Tensor
) -> torch.Tensor:
    """Softmax over the two tokens' gates, separately for every channel, weighs their values.

    Args:
        first_value, first_gate, second_value, second_gate: float32 [M, C], of each pair's tokens.

    Returns:
        float32 [M, C].
    """
    share = torch.sigmoid(first_gate - second_gate)
    return share * first_value + (1 - share) * second_value
