"""How a [rows, channels] tensor of quantisation blocks is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

# 4096 channels for 128 threads: 16 packed bytes, or four 16-byte pieces of bf16, for each thread.
TILE_ELEMENTS = 4096
MAX_TILE_CHANNELS = 512
NUM_WARPS = 4

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Tiling:
    """A tile spans ROWS rows and CHANNELS channels, both powers of two; channels beyond the row are masked."""

    rows: int
    channels: int
    grid: tuple[int, int]

    @classmethod
    def of(cls, rows: int, channels: int) -> Tiling:
        width = min(triton.next_power_of_2(channels), MAX_TILE_CHANNELS)
        height = TILE_ELEMENTS // width
        return cls(height, width, (triton.cdiv(rows, height), triton.cdiv(channels, width)))


def element_bits(element: str) -> int:
    """Stored bits of one element."""
    bits = {"e2m1": 4, "e4m3": 8}.get(element)
    if bits is None:
        raise ValueError(f"element is {element!r}; expected 'e2m1' or 'e4m3'")
    return bits


def check_format(element: str, scale: str, block: int) -> None:
    """Refuse a format that the kernels do not know."""
    element_bits(element)
    if scale not in ("e4m3", "e8m0"):
        raise ValueError(f"scale is {scale!r}; expected 'e4m3' or 'e8m0'")
    if (element, scale) == ("e4m3", "e4m3"):
        raise ValueError("elements e4m3 come with scale 'e8m0', not with 'e4m3'")
    if block not in (16, 32):
        raise ValueError(f"block is {block}; expected 16 or 32")


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """[..., C] -> [rows, C]: a view wherever one row stride describes all leading dimensions, otherwise a copy.

    Rows with gaps between them, and a last dimension of any stride, are views: kernels take both strides.
    """
    return tensor.reshape(-1, tensor.shape[-1])
