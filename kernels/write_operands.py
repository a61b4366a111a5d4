"""Where a cache write's rows go and how they are rotated before: what that must be, and the launch it belongs to."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from .launch import Launch
from .tiles import FLOAT_TYPES, NUM_WARPS, TILE_ELEMENTS, check_format, element_bits

# A row is normalised in one piece, which registers have to hold.
MAX_CHANNELS = TILE_ELEMENTS

FLOAT_NAMES = ", ".join(map(str, FLOAT_TYPES))


class Destination(NamedTuple):
    """Rotation and places of M rows.

    turn_cos, turn_sin: float32 [M, R/2]. codes, scales: uint8 [pages, entries, bytes of a row], the bytes of a row
    neighbours. page, place: int64 [M]; page None: page 0.
    """

    turn_cos: torch.Tensor
    turn_sin: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    page: torch.Tensor | None
    place: torch.Tensor

    @classmethod
    def empty(
        cls, rows: int, channels: int, rotated: int, pages: int, entries: int, page_bytes: int, element: str, block: int
    ) -> Destination:
        """One on the meta device, with the strides of a pool: for compile cases.

        One page stands for a ring, addressed by place alone; more for a pool, whose planes are views of whole pages.
        """
        meta = {"device": "meta"}
        cos = torch.empty(rows, rotated // 2, **meta)
        planes = (
            torch.empty(pages * page_bytes, dtype=torch.uint8, **meta).as_strided(
                (pages, entries, width), (page_bytes, width, 1)
            )
            for width in (channels * element_bits(element) // 8, channels // block)
        )
        address = torch.empty(rows, dtype=torch.int64, **meta)
        return cls(cos, cos, *planes, None if pages == 1 else address, address)

    def launch(
        self,
        kernel: Any,
        sources: dict[str, Any],
        rows: int,
        channels: int,
        *,
        eps: float,
        element: str,
        scale: str,
        block: int,
        amax_floor: float,
        tile: int = TILE_ELEMENTS,
    ) -> Launch:
        """A launch of ``kernel`` whose arguments are ``sources`` and these tensors, ``tile`` elements a program."""
        width = triton.next_power_of_2(channels)
        height = max(1, tile // width)
        own = {
            "cos_ptr": self.turn_cos,
            "sin_ptr": self.turn_sin,
            "codes_ptr": self.codes,
            "scales_ptr": self.scales,
            "page_ptr": self.page,
            "place_ptr": self.place,
            "rows": rows,
            "pages": self.codes.shape[0],
            "entries": self.codes.shape[1],
            "cos_row_stride": self.turn_cos.stride(0),
            "cos_pair_stride": self.turn_cos.stride(1),
            "sin_row_stride": self.turn_sin.stride(0),
            "sin_pair_stride": self.turn_sin.stride(1),
            "codes_page_stride": self.codes.stride(0),
            "codes_entry_stride": self.codes.stride(1),
            "scales_page_stride": self.scales.stride(0),
            "scales_entry_stride": self.scales.stride(1),
        }
        return Launch(
            kernel=kernel,
            grid=(triton.cdiv(rows, height),),
            arguments=sources | own,
            constants={
                "CHANNELS": channels,
                "ROTATED": 2 * self.turn_cos.shape[1],
                "EPS": eps,
                "ELEMENT": element,
                "SCALE": scale,
                "BLOCK": block,
                "AMAX_FLOOR": amax_floor,
                "TILE_ROWS": height,
                "TILE_CHANNELS": width,
            },
            num_warps=NUM_WARPS,
        )


def check_write(
    rows: int,
    channels: int,
    activation: torch.dtype,
    norm_weight: torch.Tensor,
    latent: torch.Tensor | None,
    to: Destination,
    element: str,
    scale: str,
    block: int,
) -> None:
    """Refuse what a write of [rows, channels] of type ``activation`` cannot take; looks at shapes and types only."""
    if latent is not None and (
        latent.dtype != activation or tuple(latent.shape) != (rows, channels) or not latent.is_contiguous()
    ):
        raise ValueError(
            f"latent is {latent.dtype} {list(latent.shape)} with strides {list(latent.stride())}; expected "
            f"{activation} [{rows}, {channels}], contiguous"
        )
    check_format(element, scale, block)
    if not 0 < channels <= MAX_CHANNELS or channels % block:
        raise ValueError(f"rows have {channels} channels; expected a multiple of {block}, at most {MAX_CHANNELS}")
    if norm_weight.dtype not in FLOAT_TYPES or norm_weight.shape != (channels,) or not norm_weight.is_contiguous():
        raise ValueError(
            f"norm_weight is {norm_weight.dtype} {list(norm_weight.shape)}; expected [{channels}] of {FLOAT_NAMES}"
        )
    turn_cos, turn_sin, codes, scales, page, place = to
    pairs = turn_cos.shape[-1] if turn_cos.dim() else 0
    for name, tensor in (("turn_cos", turn_cos), ("turn_sin", turn_sin)):
        if tensor.dtype != torch.float32 or tensor.shape != (rows, pairs) or 2 * pairs > channels:
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)}; expected torch.float32 [{rows}, R/2] for both, "
                f"R at most {channels}"
            )
    widths = {"codes": channels * element_bits(element) // 8, "scales": channels // block}
    for (name, width), tensor in zip(widths.items(), (codes, scales), strict=True):
        if tensor.dtype != torch.uint8 or tensor.dim() != 3 or tensor.shape[2] != width or tensor.stride(2) != 1:
            raise ValueError(
                f"{name} are {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}; expected "
                f"torch.uint8 [pages, entries, {width}], the bytes of a row neighbours"
            )
    if codes.shape[:2] != scales.shape[:2]:
        raise ValueError(f"codes are {list(codes.shape)}, scales {list(scales.shape)}; expected the same pages")
    for name, tensor in (("page", page), ("place", place)):
        if tensor is not None and (
            tensor.dtype != torch.int64 or tensor.shape != (rows,) or not tensor.is_contiguous()
        ):
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; expected torch.int64 [{rows}]")
