"""Muon for every matrix of a model at once: matrices of one shape are orthogonalised as one batch.

``torch.optim.Muon`` does the same to one two-dimensional parameter at a time; experts here are stacked, [E, out, in],
and on a CPU hundreds of small products in bfloat16 take longer than the step itself. A test holds both to the same
update.

Source: Jordan et al. (2024); scale of the update by Liu et al. (arXiv 2502.16982, section 2.2); report section 4.2.2,
which trains all matrices but embedding, head and Engram tables with it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

# Coefficients of the quintic iteration, as published: singular values land between 0.7 and 1.2.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_EPS = 1e-7


class Muon(Optimizer):
    """Momentum, orthogonalised, with decoupled weight decay.

    Args:
        params: of two dimensions, or three for a stack of matrices.
        lr: learning rate for an update whose root mean square is 0.2, about that of AdamW, so that both optimisers
            share a scale. momentum: Nesterov's. steps: iterations.

    Raises:
        ValueError: a parameter of another number of dimensions, or a setting outside of its range.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 3e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        steps: int = 5,
    ) -> None:
        for name, value, least in (("lr", lr, 0), ("weight_decay", weight_decay, 0), ("steps", steps, 1)):
            if value < least:
                raise ValueError(f"{name} is {value}; expected {least} or more")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}; expected 0 or more and less than 1")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "steps": steps})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() not in (2, 3):
                    raise ValueError(f"a parameter is {list(parameter.shape)}; expected matrices or stacks of matrices")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(tuple(sorted(parameter.shape[-2:])), []).append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[torch.nn.Parameter], group: dict) -> None:
        wide = [_as_wide(self._direction(parameter, group["momentum"])) for parameter in parameters]
        orthogonal = orthogonalize(torch.cat(wide), group["steps"])
        scale = group["lr"] * 0.2 * max(orthogonal.shape[-2:]) ** 0.5
        for parameter, update in zip(parameters, orthogonal.split([len(part) for part in wide]), strict=True):
            if parameter.shape[-2] > parameter.shape[-1]:
                update = update.transpose(-1, -2)
            update = update.reshape(parameter.shape).to(parameter.dtype)
            if isinstance(parameter, DTensor):
                update = distribute_tensor(update, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)

    def _direction(self, parameter: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        gradient, state = parameter.grad, self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(gradient)
        state["momentum"].mul_(momentum).add_(gradient, alpha=1 - momentum)
        direction = gradient * (1 - momentum) + state["momentum"] * momentum
        # A shard's singular values are not the matrix's.
        return direction.full_tensor() if isinstance(direction, DTensor) else direction


def orthogonalize(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The nearest matrices, roughly, whose singular values are all one: [n, rows, columns], rows <= columns.

    Newton-Schulz iterations in the type of the matrices on a CPU; on a GPU in bfloat16, or in float16 where the GPU
    computes in no bfloat16. Either will do: all numbers lie between -2 and 2.
    """
    a, b, c = _QUINTIC
    x = matrices.to(_working_type(matrices))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(_EPS)
    for _ in range(steps):
        gram = x @ x.transpose(-1, -2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def _working_type(matrices: torch.Tensor) -> torch.dtype:
    if not matrices.is_cuda:
        return matrices.dtype
    return torch.bfloat16 if torch.cuda.get_device_capability(matrices.device) >= (8, 0) else torch.float16


def _as_wide(matrix: torch.Tensor) -> torch.Tensor:
    """[n, rows, columns] with no more rows than columns."""
    matrix = matrix.reshape(-1, *matrix.shape[-2:])
    return matrix.transpose(-1, -2) if matrix.shape[-2] > matrix.shape[-1] else matrix
