"""Mixture of experts: the router, its routed experts, the shared expert.

Source: report sections 2.1.1 and 4.2.1; the released model's ``Gate``, ``Expert`` and ``MoE``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from ds41.config import ConfigError, ModelConfig
from ds41.expert_balance import expert_load
from ds41.linear import Linear, Quantization, Storage, check_quantization, quantize_input
from ds41.ops import choose_backend
from ds41.ops.operators import operators
from ds41.precision import float32_linear

# Keeps the sum of the chosen scores from being zero; a constant of its own, not the norms' epsilon.
_RENORM_EPS = 1e-20


class Routing(NamedTuple):
    """The router's choice for N tokens: k of E experts each.

    indices: int64 [N, k], by descending biased score. weights: float32 [N, k], unbiased.
    scores: float32 [N, E], unbiased; what the balance loss reads.
    """

    indices: torch.Tensor
    weights: torch.Tensor
    scores: torch.Tensor


class Router(nn.Module):
    """Scores every expert with sqrt(softplus(x W^T)) and takes the top k of score + bias, in float32.

    The bias only chooses. It has one vector for text (``bias``) and one for image positions (``bias_vl``), which the
    balancing rule moves and no gradient does. Equal keys go to the lower expert.

    Parameters, all float32: ``weight`` [E, hidden], ``bias`` [E], ``bias_vl`` [E].

    Raises:
        ConfigError: a ``scoring_func`` other than the published one.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.scoring_func != "sqrtsoftplus":
            raise ConfigError(f"scoring_func is {config.scoring_func!r}; expected 'sqrtsoftplus', the published one")
        self.top_k = config.num_experts_per_tok
        self.renormalizes = config.norm_topk_prob and self.top_k > 1
        self.scaling_factor = config.routed_scaling_factor
        experts = config.n_routed_experts
        weight = torch.empty(experts, config.hidden_size, dtype=torch.float32)
        self.weight = nn.Parameter(weight.normal_(0, config.initializer_range))
        self.bias = nn.Parameter(torch.zeros(experts, dtype=torch.float32), requires_grad=False)
        self.bias_vl = nn.Parameter(torch.zeros(experts, dtype=torch.float32), requires_grad=False)

    def forward(self, x: torch.Tensor, image_mask: torch.Tensor | None = None) -> Routing:
        """x [N, hidden]; image_mask bool [N], true at every position of an image span, or None for text alone.

        Raises:
            ValueError: ``image_mask`` is of another type or shape.
        """
        self._check_mask(x, image_mask)
        return self.route(self._logits(x), image_mask)

    def route(self, logits: torch.Tensor, image_mask: torch.Tensor | None = None) -> Routing:
        """The choice by the experts' logits, float32 [N, E]; ``image_mask`` as in :meth:`forward`."""
        scores, bias = sqrt_softplus(logits), self.bias
        if image_mask is not None:
            bias = torch.where(image_mask[:, None], self.bias_vl, self.bias)
        # A stable sort, since topk leaves open which of several equal keys it takes.
        order = torch.sort(scores.detach() + bias, dim=-1, descending=True, stable=True).indices
        indices = order[:, : self.top_k]
        weights = scores.gather(-1, indices)
        if self.renormalizes:
            weights = weights / (weights.sum(-1, keepdim=True) + _RENORM_EPS)
        return Routing(indices, weights * self.scaling_factor, scores)

    def choose(self, x: torch.Tensor, image_mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices and weights, arguments as in :meth:`forward`; without a gradient, by one kernel where kernels run.

        Raises:
            ValueError: ``image_mask`` is of another type or shape.
        """
        if torch.is_grad_enabled() or choose_backend(x.device).name != "triton":
            return self(x, image_mask)[:2]
        self._check_mask(x, image_mask)
        bias_vl = None if image_mask is None else self.bias_vl
        choice = (self.top_k, self.renormalizes, self.scaling_factor)
        return operators.route_tokens(self._logits(x), self.bias, bias_vl, image_mask, *choice)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return float32_linear(x, self.weight, "the router's weight")

    @staticmethod
    def _check_mask(x: torch.Tensor, image_mask: torch.Tensor | None) -> None:
        if image_mask is not None and (image_mask.dtype != torch.bool or image_mask.shape != x.shape[:1]):
            raise ValueError(
                f"image_mask is {image_mask.dtype} {list(image_mask.shape)}; expected torch.bool [{len(x)}]"
            )

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} -> top {self.top_k} of {self.weight.shape[0]}"


class Experts(nn.Module):
    """The routed experts of one layer, stacked: ``w1`` (gate) and ``w3`` (up) [E, I, hidden], ``w2`` [E, hidden, I].

    ``storage`` is the weights' type in a checkpoint, "fp4" or "fp8". With quantization "full" the inputs of all three
    products are rounded to FP8, that of ``w2`` after the routing weight.

    Raises:
        ConfigError: ``expert_dtype`` is neither, or ``swiglu_limit`` is no limit.
        ValueError: ``quantization`` is unknown.
    """

    def __init__(
        self, config: ModelConfig, quantization: Quantization = "none", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        check_quantization(quantization)
        if config.expert_dtype not in ("fp4", "fp8"):
            raise ConfigError(f"expert_dtype is {config.expert_dtype!r}; expected 'fp4' or 'fp8'")
        self.storage: Storage = config.expert_dtype
        self.rounds_input = quantization == "full"
        self.limit = _checked_limit(config)
        up = (config.n_routed_experts, config.moe_intermediate_size, config.hidden_size)
        down = (up[0], up[2], up[1])
        std = config.initializer_range
        self.w1 = nn.Parameter(torch.empty(up, dtype=dtype).normal_(0, std))
        self.w2 = nn.Parameter(torch.empty(down, dtype=dtype).normal_(0, std))
        self.w3 = nn.Parameter(torch.empty(up, dtype=dtype).normal_(0, std))

    def forward(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Weighted sum of each token's experts.

        Args:
            x: [N, hidden]. indices: int64 [N, k]. weights: float32 [N, k]. shared: [N, hidden], added last.

        Returns:
            [N, hidden], summed in float32; float32, or with ``shared`` in the type of ``x``.
        """
        out = routed_sum(x, indices, weights, (self.w1, self.w2, self.w3), self.limit, self.rounds_input)
        return out if shared is None else (out + shared).to(x.dtype)

    def extra_repr(self) -> str:
        experts, intermediate, hidden = self.w1.shape
        return f"{experts} x {hidden} -> {intermediate} -> {hidden}, {self.storage}"


class Expert(nn.Module):
    """One expert that every token visits, weight 1, stored in FP8: w2 (silu(w1 x) * w3 x).

    Raises:
        ConfigError: the configuration has no positive ``swiglu_limit``.
        ValueError: ``quantization`` is unknown.
    """

    def __init__(
        self,
        config: ModelConfig,
        intermediate: int,
        quantization: Quantization = "none",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check_quantization(quantization)
        hidden, std, rounds = config.hidden_size, config.initializer_range, quantization == "full"
        self.limit = _checked_limit(config)
        self.w1 = Linear(hidden, intermediate, "fp8", dtype=dtype, rounds_input=rounds, std=std)
        self.w2 = Linear(intermediate, hidden, "fp8", dtype=dtype, rounds_input=rounds, std=std)
        self.w3 = Linear(hidden, intermediate, "fp8", dtype=dtype, rounds_input=rounds, std=std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [N, hidden] -> [N, hidden] in the weights' type."""
        gate, up = self.w1(x), self.w3(x)
        if not torch.is_grad_enabled() and choose_backend(x.device).name == "triton":
            return self.w2(operators.swiglu_rows(gate, up, self.limit))
        return self.w2(swiglu(gate, up, self.limit).to(self.w2.weight.dtype))


class MoE(nn.Module):
    """The FFN of every layer: the router's top k experts and the shared expert.

    Several shared experts (the release has one) are one expert of their width together. The draft layers are this
    with the drafter's expert counts in ``config``, and always without an image mask.
    """

    def __init__(
        self, config: ModelConfig, quantization: Quantization = "none", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config, quantization, dtype)
        self.shared_experts: Expert | None = None
        if config.n_shared_experts:
            width = config.n_shared_experts * config.moe_intermediate_size
            self.shared_experts = Expert(config, width, quantization, dtype)

    def forward(self, x: torch.Tensor, image_mask: torch.Tensor | None = None) -> torch.Tensor:
        """x [N, hidden], image_mask bool [N] or None -> [N, hidden] in the type of ``x``, cast once from float32."""
        shared = None if self.shared_experts is None else self.shared_experts(x)
        return self.experts(x, *self.gate.choose(x, image_mask), shared).to(x.dtype)


def sqrt_softplus(x: torch.Tensor) -> torch.Tensor:
    """``sqrt(log(1 + e^x))`` of ``x`` [...], with gradient 0 and not NaN where the softplus has vanished (below about
    -104).
    """
    softplus = nn.functional.softplus(x)
    vanished = softplus == 0
    return softplus.masked_fill(vanished, 1).sqrt().masked_fill(vanished, 0)


def swiglu(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """``silu(gate) * up`` of two [..., I], in float32; the gate is clamped from above only, the up branch on both
    sides.
    """
    gate = gate.to(torch.float32).clamp(max=limit)
    return nn.functional.silu(gate) * up.to(torch.float32).clamp(-limit, limit)


def routed_sum(
    x: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    matrices: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    limit: float,
    rounds_input: bool,
) -> torch.Tensor:
    """Weighted sum of each token's experts, float32 [N, hidden], summed in float32.

    Args:
        x: [N, hidden]. indices: int64 [N, k]. weights: float32 [N, k]. limit: of :func:`swiglu`.
        matrices: w1 [E, I, hidden], w2 [E, hidden, I], w3 [E, I, hidden]. rounds_input: round their inputs to FP8.
    """
    w1, w2, w3 = matrices
    # Each (token, choice) is a row; rows of one expert stand together, so an expert is one product.
    chosen = indices.flatten()
    order = torch.argsort(chosen, stable=True)
    counts = expert_load(indices, len(w1)).tolist()

    x = x.to(w1.dtype)
    rows = (quantize_input(x) if rounds_input else x).index_select(0, order // indices.shape[1])
    hidden = swiglu(grouped_product(rows, w1, counts), grouped_product(rows, w3, counts), limit)
    hidden = (hidden * weights.flatten().index_select(0, order)[:, None]).to(w2.dtype)
    rows = grouped_product(quantize_input(hidden) if rounds_input else hidden, w2, counts)

    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return rows.index_select(0, place).view(*indices.shape, x.shape[1]).sum(1, dtype=torch.float32)


def grouped_product(rows: torch.Tensor, weight: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """``rows W_e^T`` with rows [R, C] grouped by expert and weight [E, O, C]; ``counts[e]`` rows for expert e.

    Reads only the experts that have rows, where they lie.
    """
    # unbind where a gradient is wanted: that of each index would be as large as all experts together.
    experts = weight.unbind() if torch.is_grad_enabled() and weight.requires_grad else weight
    chosen = [expert for expert, count in enumerate(counts) if count]
    groups = rows.split([counts[expert] for expert in chosen])
    products = [nn.functional.linear(group, experts[expert]) for expert, group in zip(chosen, groups, strict=True)]
    return torch.cat(products) if products else rows.new_zeros(0, weight.shape[1])


def _checked_limit(config: ModelConfig) -> float:
    if config.swiglu_limit <= 0:
        raise ConfigError(f"swiglu_limit is {config.swiglu_limit}; expected a positive number")
    return config.swiglu_limit
