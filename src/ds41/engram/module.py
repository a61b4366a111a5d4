"""The Engram layer: one key for each residual stream, one value for all, and a gate that decides how much of it.

Source: the released ``inference/model.py``; report section 2.4.2. The original Engram's convolution is gone.
"""

from __future__ import annotations

import torch
from torch import nn

from ds41.config import ModelConfig
from ds41.engram.table import EngramTable
from ds41.linear import Linear, Quantization, check_quantization
from ds41.ops import choose_backend
from ds41.ops.operators import operators

# Below this the match no longer moves the gate: the square root's slope would grow without bound.
_SMALLEST_MATCH = 1e-6


def engram_gate(streams: torch.Tensor, keys: torch.Tensor, weight: torch.Tensor, eps: float = 1e-20) -> torch.Tensor:
    """How well each stream matches its key, float32 [N, n], between 0 and 1.

    The match is the product of the two, each with its own RMS statistic, over sqrt(d); its square root keeps the
    sign and goes through a sigmoid. The sign is copied, so a match of 0 opens the gate by 0.50025.

    Args:
        streams: [N, n, d]. keys: [N, n, d]. weight: [n, d], the weights of query and key multiplied.
    """
    streams, keys = streams.float(), keys.float()
    product = (streams * keys * weight.float()).sum(-1)
    norms = torch.rsqrt(streams.square().mean(-1) + eps) * torch.rsqrt(keys.square().mean(-1) + eps)
    match = product * norms * streams.shape[-1] ** -0.5
    return torch.sigmoid(torch.copysign(match.abs().clamp(min=_SMALLEST_MATCH).sqrt(), match))


class Engram(nn.Module):
    """One Engram layer. It stands at the entry of its block, before the block's attention and its coefficients.

    Args:
        layer: its block's index, one of ``engram_layer_ids``.

    Raises:
        ValueError: the layer has no Engram, or ``quantization`` is unknown.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        quantization: Quantization = "none",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_quantization(quantization)
        if layer not in config.engram_layer_ids:
            raise ValueError(f"layer {layer} has no Engram; engram_layer_ids is {list(config.engram_layer_ids)}")
        self.layer = layer
        self.streams = config.hc_mult
        self.eps = config.rms_norm_eps
        rows = config.engram_num_embeddings[config.engram_layer_ids.index(layer)]
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        std = config.initializer_range
        self.embed = EngramTable(rows, config.engram_head_dim, dtype=dtype, std=std)
        self.wkv = Linear(
            columns * config.engram_head_dim,
            (self.streams + 1) * config.hidden_size,
            "fp8",
            dtype=dtype,
            rounds_input=quantization == "full",
            std=std,
        )
        self.q_weight = nn.Parameter(torch.ones(self.streams, config.hidden_size, dtype=dtype))
        self.k_weight = nn.Parameter(torch.ones(self.streams, config.hidden_size, dtype=dtype))

    def forward(
        self, streams: torch.Tensor, row_ids: torch.Tensor, image_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add the gated value to every stream.

        Args:
            streams: [N, n, d]. row_ids: int64 [N, columns] from :meth:`ds41.engram.Hasher.rows`.
            image_mask: bool [N], the positions of images, whose streams stay as they are.

        Returns:
            The streams after it, [N, n, d], in their own type; the sum is taken in float32.

        Raises:
            ValueError: shapes do not fit, or a row does not exist.
        """
        expected = (row_ids.shape[0], *self.q_weight.shape)
        if tuple(streams.shape) != expected:
            raise ValueError(f"streams are {list(streams.shape)}; expected {list(expected)}, tokens as in row_ids")
        if not torch.is_grad_enabled() and choose_backend(streams.device).name == "triton":
            projected = self.wkv(self.embed(row_ids))
            return operators.engram_write(streams, projected, self.q_weight, self.k_weight, image_mask, self.eps)
        keys, value = self.keys_and_value(row_ids)
        gate = self.gate(streams, keys, image_mask)
        return (streams.float() + gate[..., None] * value.float()[:, None]).to(streams.dtype)

    def keys_and_value(self, row_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Look the rows up, ``row_ids`` int64 [N, columns], and project them: keys [N, n, d], value [N, d]."""
        projected = self.wkv(self.embed(row_ids)).unflatten(-1, (self.streams + 1, -1))
        return projected[:, :-1], projected[:, -1]

    def gate(self, streams: torch.Tensor, keys: torch.Tensor, image_mask: torch.Tensor | None = None) -> torch.Tensor:
        """:func:`engram_gate` of ``streams`` and ``keys`` with this layer's weights, float32 [N, n]; 0 where
        ``image_mask`` is.
        """
        gate = engram_gate(streams, keys, self.q_weight.float() * self.k_weight.float(), self.eps)
        return gate if image_mask is None else gate.masked_fill(image_mask[:, None], 0.0)

    def extra_repr(self) -> str:
        return f"layer {self.layer}, {self.streams} streams"
