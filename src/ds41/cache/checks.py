"""Checks of the tensors that a step hands over: shapes and types only, so nothing waits for a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ds41.cache.errors import CacheError


def check_index(name: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    """Refuse an index tensor that is not int64 of ``shape``."""
    if tensor.dtype != torch.int64:
        raise CacheError(f"{name} is {tensor.dtype}; expected torch.int64")
    check_shape(name, tensor, shape)


def check_shape(name: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    if tensor.shape != torch.Size(shape):
        raise CacheError(f"{name} is {list(tensor.shape)}; expected {list(shape)}")


def check_vector(name: str, tensor: torch.Tensor) -> int:
    """The length of a one-dimensional int64 tensor."""
    if tensor.dim() != 1:
        raise CacheError(f"{name} is {list(tensor.shape)}; expected one dimension")
    check_index(name, tensor, tensor.shape)
    return tensor.shape[0]
