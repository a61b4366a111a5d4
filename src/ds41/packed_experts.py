"""The routed experts with their weights as a checkpoint stores them: half a byte a weight, read as they lie.

Source: the released checkpoint's expert tensors, E2M1 with one E8M0 scale for every 32 inputs.
"""

from __future__ import annotations

import torch
from torch import nn

from ds41.formats import Packed
from ds41.moe import Experts, MoE, routed_sum
from ds41.ops import choose_backend
from ds41.ops.operators import operators
from ds41.weight_formats import EXPERT_ROWS

_MATRICES = ("w1", "w2", "w3")


class PackedExperts(nn.Module):
    """What :class:`ds41.moe.Experts` computes, from packed weights; for inference.

    On a GPU the grouped kernels decode them in registers. Elsewhere the experts that tokens visit are decoded for the
    step. Buffers, by matrix: ``w1_codes`` uint8 [E, I, hidden / 2], ``w1_scales`` uint8 [E, I, hidden / 32], and so on.

    Raises:
        ValueError: the experts are stored in another format than FP4, or a row has no whole blocks of 32.
    """

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        if experts.storage != "fp4":
            raise ValueError(f"the experts are stored as {experts.storage!r}; expected 'fp4'")
        self.limit, self.rounds_input, self.dtype = experts.limit, experts.rounds_input, experts.w1.dtype
        for name in _MATRICES:
            weight = getattr(experts, name).detach()
            if weight.shape[-1] % EXPERT_ROWS.blocks.block:
                raise ValueError(f"a row of {name} has {weight.shape[-1]} weights; expected whole blocks of 32")
            shapes = EXPERT_ROWS.stored_shapes(tuple(weight.shape))
            codes, scales = (weight.new_empty(shape, dtype=torch.uint8) for shape in shapes)
            # One expert at a time: encoding needs several float32 copies of what it is given.
            for expert, matrix in enumerate(weight):
                codes[expert], scales[expert] = EXPERT_ROWS.encode(matrix)
            self.register_buffer(f"{name}_codes", codes)
            self.register_buffer(f"{name}_scales", scales)

    def forward(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Arguments ``x``, ``indices``, ``weights``, ``shared`` and result of :meth:`ds41.moe.Experts.forward`; no
        gradient.
        """
        if choose_backend(x.device).name == "triton":
            return operators.experts_packed(
                x.to(self.dtype), indices, weights, *self._stored("w1"), *self._stored("w3"), *self._stored("w2"),
                self.limit, self.rounds_input, None if shared is None else shared.to(x.dtype),
            )  # fmt: skip
        visited, renumbered = indices.unique(return_inverse=True)
        matrices = tuple(
            EXPERT_ROWS.decode(Packed(*(part[visited] for part in self._stored(name))), self.dtype)
            for name in _MATRICES
        )
        out = routed_sum(x, renumbered, weights, matrices, self.limit, self.rounds_input)
        return out if shared is None else (out + shared).to(x.dtype)

    def extra_repr(self) -> str:
        experts, intermediate, half = self.w1_codes.shape
        return f"{experts} x {2 * half} -> {intermediate} -> {2 * half}, packed"

    def _stored(self, name: str) -> Packed:
        return Packed(getattr(self, f"{name}_codes"), getattr(self, f"{name}_scales"))


def pack_experts(model: nn.Module) -> nn.Module:
    """Replace the routed experts of every layer of ``model`` by their packed form, one layer at a time; gives it back.

    Weights that came from a checkpoint keep their values; others are rounded to FP4. The model can then neither be
    trained nor saved.
    """
    for module in model.modules():
        if isinstance(module, MoE) and isinstance(module.experts, Experts):
            module.experts = PackedExperts(module.experts)
    return model
