"""A matrix product whose weight knows the type in which the released checkpoint stores it.

Source: the tensor tables of the released checkpoint; report section 2.4.4 for the rounding of inputs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from ds41.formats import WINDOW_KV

Quantization = Literal["none", "cache", "full"]
"""What a model rounds: nothing, the three caches, or also the inputs of FP8 and FP4 matrices."""
QUANTIZATIONS = ("none", "cache", "full")
"""All values of :data:`Quantization`."""
Storage = Literal["fp8", "fp4", "bf16", "f32"]
"""How a checkpoint stores a weight: FP8 with an E8M0 scale per tile, MXFP4 rows, or plain numbers."""


def check_quantization(quantization: str) -> None:
    """Refuse what is no quantization.

    Raises:
        ValueError: ``quantization`` is not one of :data:`QUANTIZATIONS`.
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization is {quantization!r}; expected one of {', '.join(map(repr, QUANTIZATIONS))}")


def quantize_input(x: torch.Tensor) -> torch.Tensor:
    """Round the input ``x`` [..., C] of a quantised matrix to FP8: groups of 32 channels, a power-of-two scale each.

    The rule is the window's. Where 32 does not divide the channels the last group is short.
    """
    channels = x.shape[-1]
    missing = -channels % WINDOW_KV.block
    if not missing:
        return WINDOW_KV.fake_quantize(x)
    return WINDOW_KV.fake_quantize(nn.functional.pad(x, (0, missing)))[..., :channels]


class Linear(nn.Module):
    """``x W^T`` without bias; weight [out_features, in_features].

    Args:
        storage: the weight's type in a checkpoint. Here it is held dequantised in ``dtype``.
        rounds_input: round the input to FP8 first, as the released code does for its FP8 and FP4 matrices.
        std: standard deviation of a new weight.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        storage: Storage,
        *,
        dtype: torch.dtype,
        rounds_input: bool = False,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.storage = storage
        self.rounds_input = rounds_input
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype).normal_(0, std))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [..., in] -> [..., out] in the weight's type, after :func:`quantize_input` where inputs are rounded."""
        if self.rounds_input:
            x = quantize_input(x)
        return nn.functional.linear(x.to(self.weight.dtype), self.weight)

    def extra_repr(self) -> str:
        rows, columns = self.weight.shape
        return f"{columns} -> {rows}, {self.storage}"
