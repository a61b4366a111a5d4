"""What both cache writes share: the tile from the norm to the stored bytes, its launch arguments and their checks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .blocks import encode_tile
from .launch import Launch
from .numbers import INFINITY_BITS, float_bits, to_float, to_type
from .tiles import FLOAT_TYPES, NUM_WARPS, TILE_ELEMENTS, check_format, element_bits

# A row is normalised in one piece, which registers have to hold.
MAX_CHANNELS = TILE_ELEMENTS

FLOAT_NAMES = ", ".join(map(str, FLOAT_TYPES))


@triton.jit
def norm_rotate_store(
    x,
    x_type: tl.constexpr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    codes_ptr,
    scales_ptr,
    latent_ptr,
    row,
    given,
    page,
    place,
    kept,
    cos_row_stride,
    cos_pair_stride,
    sin_row_stride,
    sin_pair_stride,
    codes_page_stride,
    codes_entry_stride,
    scales_page_stride,
    scales_entry_stride,
    CHANNELS: tl.constexpr,
    ROTATED: tl.constexpr,
    EPS: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    AMAX_FLOOR: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
):
    """What is left to do with fp32 x [TILE_ROWS, TILE_CHANNELS], zero beyond CHANNELS; x_type is the activation type.

    row, page, place: int64 [TILE_ROWS, 1]. given: whose latents are written; kept: whose bytes are.
    """
    channel = tl.arange(0, TILE_CHANNELS)[None, :]
    inside = channel < CHANNELS
    weight = to_float(tl.load(weight_ptr + channel, mask=inside, other=0.0))
    # Correctly rounded, so that a mean square that is a power of four scales without an error on every device.
    mean_square = tl.div_rn(tl.sum(x * x, axis=1), CHANNELS * 1.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean_square + EPS))
    latent = to_type(x * factor[:, None] * weight, x_type)
    if latent_ptr is not None:
        tl.store(latent_ptr + (row * CHANNELS + channel), latent, mask=given & inside)

    even, odd = tl.split(to_float(latent).reshape(TILE_ROWS, TILE_CHANNELS // 2, 2))
    pair = tl.arange(0, TILE_CHANNELS // 2)[None, :]
    # Only the last ROTATED channels turn; the others keep their bits, the sign of a zero included.
    turn = pair - (CHANNELS - ROTATED) // 2
    turns = (turn >= 0) & (turn < ROTATED // 2)
    offset = turn.to(tl.int64)
    cos = tl.load(cos_ptr + (row * cos_row_stride + offset * cos_pair_stride), mask=kept & turns, other=0.0)
    sin = tl.load(sin_ptr + (row * sin_row_stride + offset * sin_pair_stride), mask=kept & turns, other=0.0)
    turned_even = to_float(to_type(even * cos - odd * sin, x_type))
    turned_odd = to_float(to_type(even * sin + odd * cos, x_type))
    even = tl.where(turns, turned_even, even)
    odd = tl.where(turns, turned_odd, odd)

    bits = float_bits(tl.join(even, odd)).reshape(TILE_ROWS, TILE_CHANNELS)
    code_bytes, scale_code, amax_bits = encode_tile(bits, ELEMENT, SCALE, BLOCK, AMAX_FLOOR, TILE_ROWS, TILE_CHANNELS)
    # What is not finite has no code. The scale that is NaN keeps it from being read back as a number.
    scale_code = tl.where(amax_bits >= INFINITY_BITS, 0x7F if SCALE == "e4m3" else 0xFF, scale_code)
    ROW_BYTES: tl.constexpr = CHANNELS // 2 if ELEMENT == "e2m1" else CHANNELS
    byte = tl.arange(0, TILE_CHANNELS // 2 if ELEMENT == "e2m1" else TILE_CHANNELS)[None, :]
    tl.store(
        codes_ptr + (page * codes_page_stride + place * codes_entry_stride + byte),
        code_bytes.to(tl.uint8),
        mask=kept & (byte < ROW_BYTES),
    )
    block = tl.arange(0, TILE_CHANNELS // BLOCK)[None, :]
    tl.store(
        scales_ptr + (page * scales_page_stride + place * scales_entry_stride + block),
        scale_code.to(tl.uint8),
        mask=kept & (block < CHANNELS // BLOCK),
    )


@triton.jit
def find_places(page_ptr, place_ptr, first_row, rows, pages, entries, TILE_ROWS: tl.constexpr):
    """Page and place of rows, int64 [TILE_ROWS, 1], and whether there is such a place; page 0 without a page_ptr.

    Loaded as vectors: a column would be loaded anew for each channel that a thread has.
    """
    row = first_row + tl.arange(0, TILE_ROWS)
    place = tl.load(place_ptr + row, mask=row < rows, other=-1)
    kept = (place >= 0) & (place < entries)
    if page_ptr is None:
        page = tl.zeros_like(place)
    else:
        page = tl.load(page_ptr + row, mask=row < rows, other=-1)
        kept = kept & (page >= 0) & (page < pages)
    return page[:, None], place[:, None], kept[:, None]


def destination_launch(
    kernel,
    sources: dict,
    rows: int,
    turn_cos: torch.Tensor,
    turn_sin: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    page: torch.Tensor | None,
    place: torch.Tensor,
    *,
    channels: int,
    eps: float,
    element: str,
    scale: str,
    block: int,
    amax_floor: float,
    tile: int = TILE_ELEMENTS,
) -> Launch:
    """A launch of ``kernel`` whose arguments are ``sources`` and all that belongs to rotation and destination."""
    width = triton.next_power_of_2(channels)
    height = max(1, tile // width)
    destination = {
        "cos_ptr": turn_cos,
        "sin_ptr": turn_sin,
        "codes_ptr": codes,
        "scales_ptr": scales,
        "page_ptr": page,
        "place_ptr": place,
        "rows": rows,
        "pages": codes.shape[0],
        "entries": codes.shape[1],
        "cos_row_stride": turn_cos.stride(0),
        "cos_pair_stride": turn_cos.stride(1),
        "sin_row_stride": turn_sin.stride(0),
        "sin_pair_stride": turn_sin.stride(1),
        "codes_page_stride": codes.stride(0),
        "codes_entry_stride": codes.stride(1),
        "scales_page_stride": scales.stride(0),
        "scales_entry_stride": scales.stride(1),
    }
    return Launch(
        kernel=kernel,
        grid=(triton.cdiv(rows, height),),
        arguments=sources | destination,
        constants={
            "CHANNELS": channels,
            "ROTATED": 2 * turn_cos.shape[1],
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


def check_latent(latent: torch.Tensor | None, rows: int, channels: int, dtype: torch.dtype) -> None:
    if latent is None:
        return
    if latent.dtype != dtype or tuple(latent.shape) != (rows, channels) or not latent.is_contiguous():
        raise ValueError(
            f"latent is {latent.dtype} {list(latent.shape)} with strides {list(latent.stride())}; expected {dtype} "
            f"[{rows}, {channels}], contiguous"
        )


def check_write(
    rows: int,
    channels: int,
    norm_weight: torch.Tensor,
    turn_cos: torch.Tensor,
    turn_sin: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    page: torch.Tensor | None,
    place: torch.Tensor,
    element: str,
    scale: str,
    block: int,
) -> None:
    """Refuse what a write cannot take. Looks at shapes and types only."""
    check_format(element, scale, block)
    if not 0 < channels <= MAX_CHANNELS or channels % block:
        raise ValueError(f"rows have {channels} channels; expected a multiple of {block}, at most {MAX_CHANNELS}")
    if norm_weight.dtype not in FLOAT_TYPES or norm_weight.shape != (channels,) or not norm_weight.is_contiguous():
        raise ValueError(
            f"norm_weight is {norm_weight.dtype} {list(norm_weight.shape)}; expected [{channels}] of {FLOAT_NAMES}"
        )
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


def write_arguments(
    rows: int, channels: int, rotated: int, pages: int, entries: int, page_bytes: int, element: str, block: int
) -> tuple[torch.Tensor | None, ...]:
    """Rotation and destination on the meta device, with the strides of a pool: for compile cases.

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
    return cos, cos, *planes, None if pages == 1 else address, address
