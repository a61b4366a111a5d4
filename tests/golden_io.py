"""Reference tensors of two tiny models; tests/golden/README.md says where they come from."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open

FOLDER = Path(__file__).parent / "golden"
MODELS = ("tinyA", "tinyC")
MODES = ("fp32", "fp32_cacheq", "fp32_fullq", "bf16_native")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@cache
def load(model: str, mode: str) -> dict[str, torch.Tensor]:
    """Every stored intermediate of one run, in the type it was computed in."""
    return _read(FOLDER / model / f"io_{mode}.safetensors")


@cache
def weights(model: str) -> dict[str, torch.Tensor]:
    """Every weight under its official name, dequantised to float32 by torch's own casts (scales left out)."""
    stored = _read(FOLDER / model / "weights.safetensors")
    return {
        name: _dequantised(tensor, stored.get(name.removesuffix("weight") + "scale"))
        for name, tensor in stored.items()
        if not name.endswith(".scale")
    }


def layer_indices(model: str, mode: str, suffix: str) -> list[int]:
    """The layers for which ``layers.{L}.{suffix}`` is stored."""
    names = [name.split(".") for name in load(model, mode)]
    return sorted(int(part[1]) for part in names if part[0] == "layers" and ".".join(part[2:]) == suffix)


def _read(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _dequantised(weight: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    if scale is None:
        return weight.float()
    factors = torch.exp2(scale.view(torch.uint8).float() - 127)
    if weight.dtype == torch.int8:
        nibbles = weight.view(torch.uint8)
        values = E2M1[torch.stack((nibbles & 15, nibbles >> 4), dim=-1).long()].flatten(-2)
        return values * factors.repeat_interleave(32, -1)
    values = weight.float()
    row_scales = scale.shape[0] == weight.shape[0]
    factors = factors if row_scales else factors.repeat_interleave(32, 0)[: weight.shape[0]]
    return values * factors.repeat_interleave(32, 1)[:, : weight.shape[1]]
