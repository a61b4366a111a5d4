"""Cache writes: norm, rotation, encoding and the store into a ring or into pages, in one launch.

Serves window rows (MXFP8), index keys (MXFP4) and main entries (E2M1 with E4M3 scales). The order of roundings is
that of the model: norm in fp32, cast to the activation type, rotation in fp32, cast, encode.

Source: report sections 2.3 and 2.4.4; the released ``_window_kv``, ``Compressor`` and ``Indexer``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch, targets_of
from .numbers import to_float
from .tiles import FLOAT_TYPES, element_bits
from .write_operands import FLOAT_NAMES, Destination, check_write
from .write_tile import find_places, norm_rotate_store


@triton.jit
def write_rows_kernel(
    x_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    codes_ptr,
    scales_ptr,
    page_ptr,
    place_ptr,
    latent_ptr,
    rows,
    pages,
    entries,
    x_row_stride,
    x_channel_stride,
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
    """x [rows, CHANNELS] -> bytes at page and place; latent [rows, CHANNELS] is the norm's result, None to drop it."""
    first_row = tl.program_id(0).to(tl.int64) * TILE_ROWS
    page, place, kept = find_places(page_ptr, place_ptr, first_row, rows, pages, entries, TILE_ROWS)
    row = first_row + tl.arange(0, TILE_ROWS)[:, None]
    given = row < rows
    channel = tl.arange(0, TILE_CHANNELS)[None, :]
    wanted = kept if latent_ptr is None else given
    x = tl.load(
        x_ptr + (row * x_row_stride + channel.to(tl.int64) * x_channel_stride),
        mask=wanted & (channel < CHANNELS),
        other=0.0,
    )
    norm_rotate_store(
        to_float(x),
        x_ptr.dtype.element_ty,
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
        CHANNELS,
        ROTATED,
        EPS,
        ELEMENT,
        SCALE,
        BLOCK,
        AMAX_FLOOR,
        TILE_ROWS,
        TILE_CHANNELS,
    )


def write_rows_launch(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    latent: torch.Tensor | None,
    to: Destination,
    **block_format,
) -> Launch:
    """The launch of :func:`write_rows`; block_format: element, scale, block, amax_floor."""
    rows, channels = x.shape
    sources = {
        "x_ptr": x,
        "weight_ptr": norm_weight,
        "latent_ptr": latent,
        "x_row_stride": x.stride(0),
        "x_channel_stride": x.stride(1),
    }
    return to.launch(write_rows_kernel, sources, rows, channels, eps=eps, **block_format)


def write_rows(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    latent: torch.Tensor | None,
    turn_cos: torch.Tensor,
    turn_sin: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    page: torch.Tensor | None,
    place: torch.Tensor,
    element: str,
    scale: str,
    block: int,
    amax_floor: float,
) -> None:
    """Normalise, rotate and encode rows, and store their bytes; changes ``codes``, ``scales`` and ``latent``.

    Args:
        x: [M, C], a projection's output: float32, bfloat16 or float16, any strides. Its type is the activation type.
        norm_weight: [C], contiguous, one of the same types. eps: added to the mean square.
        latent: None, or [M, C], contiguous, in the type of x: receives the normalised rows, neither rotated nor
            encoded, which the index keys are made from; every row, also one that goes nowhere.
        turn_cos, turn_sin: float32 [M, R/2], any strides: the rotation of the last R channels, as interleaved pairs.
        codes, scales: uint8 [pages, entries, bytes of a row], the bytes of a row neighbours; a ring is one page.
        page, place: int64 [M], where each row goes; page None: page 0. A row whose page or place is -1, or beyond the
            planes, is not stored. No two rows may go to the same place.
        element, scale, block, amax_floor: the format, as in :func:`ds41.kernels.encode.encode_blocks`.

    NaN and infinity are not looked for, which would wait for the device. A block that holds one gets the scale that
    is NaN and is read back as NaN; one NaN in a row of x makes the whole row NaN.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    if x.dim() != 2 or x.dtype not in FLOAT_TYPES:
        raise ValueError(f"x is {x.dtype} {list(x.shape)}; expected [rows, channels] of {FLOAT_NAMES}")
    rows, channels = x.shape
    to = Destination(turn_cos, turn_sin, codes, scales, page, place)
    check_write(rows, channels, x.dtype, norm_weight, latent, to, element, scale, block)
    if rows:
        block_format = {"element": element, "scale": scale, "block": block, "amax_floor": amax_floor}
        write_rows_launch(x, norm_weight, eps, latent, to, **block_format).run()


def write_rows_cost(
    rows: int, channels: int, rotated: int, element: str, block: int, x_bytes: int, writes_latent: bool = False
) -> tuple[int, int]:
    """Bytes and operations of :func:`write_rows`, float32 weight and rotation, pages addressed.

    A row is read once, with ``rotated`` float32 numbers of the rotation and 16 bytes of address; its codes and
    scales are written, and the latent if wanted. Operations: square and sum, two products a channel for the norm,
    and three a rotated channel.
    """
    stored = channels * element_bits(element) // 8 + channels // block
    moved = channels * x_bytes * (2 if writes_latent else 1) + 4 * rotated + 16 + stored
    return rows * moved + 4 * channels, rows * (4 * channels + 3 * rotated)


def compile_cases() -> Iterator[CompileCase]:
    """A window ring, index keys and main entries of a page of 64 tokens, at the published widths; all input types."""
    window = {"element": "e4m3", "scale": "e8m0", "block": 32, "amax_floor": 1e-4}
    index = {"element": "e2m1", "scale": "e8m0", "block": 32, "amax_floor": 6 * 2.0**-126}
    main = {"element": "e2m1", "scale": "e4m3", "block": 16, "amax_floor": 6 * 2.0**-9}
    for name, block_format, channels, pages in (
        ("window", window, 512, 1),
        ("index", index, 128, 1024),
        ("main", main, 512, 1024),
    ):
        for dtype in FLOAT_TYPES:
            x = torch.empty(4096, channels, dtype=dtype, device="meta")
            to = Destination.empty(4096, channels, 64, pages, 64, 56960, block_format["element"], block_format["block"])
            latent = x if name == "main" else None
            launch = write_rows_launch(x, x.new_empty(channels, dtype=torch.float32), 1e-20, latent, to, **block_format)
            yield CompileCase(f"write_{name}_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
