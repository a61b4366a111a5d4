"""Cache writes of ratio 2: pool the pair of tokens that an entry stands for, then write it as ``cache_write`` does.

The share of each token is a sigmoid of the difference of their gates, channel by channel, in fp32; the pooled row is
cast to the activation type before the norm.

Source: report section 2.3.1; the released ``Compressor``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .launch import CompileCase, Launch, targets_of
from .numbers import to_float, to_type
from .tiles import FLOAT_TYPES, TILE_ELEMENTS, element_bits
from .write_operands import FLOAT_NAMES, Destination, check_write
from .write_tile import find_places, norm_rotate_store


@triton.jit
def _load_half(value_ptr, gate_ptr, index, wanted, CHANNELS: tl.constexpr, TILE_CHANNELS: tl.constexpr):
    """Rows ``index`` int64 [TILE_ROWS, 1] of value and gate; zeros where not wanted."""
    channel = tl.arange(0, TILE_CHANNELS)[None, :]
    offset = index * CHANNELS + channel
    mask = wanted & (channel < CHANNELS)
    return tl.load(value_ptr + offset, mask=mask, other=0.0), tl.load(gate_ptr + offset, mask=mask, other=0.0)


@triton.jit
def pooled_write_kernel(
    value_ptr,
    gate_ptr,
    waiting_value_ptr,
    waiting_gate_ptr,
    partner_ptr,
    closing_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    codes_ptr,
    scales_ptr,
    page_ptr,
    place_ptr,
    latent_ptr,
    rows,
    tokens,
    sequences,
    pages,
    entries,
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
    """Rows partner and closing [rows] of value and gate [tokens, CHANNELS] -> latent and bytes.

    A partner below ``sequences`` is a waiting row; the others are tokens, counted from there.
    """
    first_row = tl.program_id(0).to(tl.int64) * TILE_ROWS
    page, place, kept = find_places(page_ptr, place_ptr, first_row, rows, pages, entries, TILE_ROWS)
    vector = first_row + tl.arange(0, TILE_ROWS)
    closing = tl.load(closing_ptr + vector, mask=vector < rows, other=-1)[:, None]
    partner = tl.load(partner_ptr + vector, mask=vector < rows, other=-1)[:, None]
    closes = (closing >= 0) & (closing < tokens) & (partner >= 0) & (partner < sequences + tokens)
    waits = closes & (partner < sequences)
    follows = closes & (partner >= sequences)

    second_value, second_gate = _load_half(value_ptr, gate_ptr, closing, closes, CHANNELS, TILE_CHANNELS)
    first_value, first_gate = _load_half(value_ptr, gate_ptr, partner - sequences, follows, CHANNELS, TILE_CHANNELS)
    waiting_value, waiting_gate = _load_half(
        waiting_value_ptr, waiting_gate_ptr, partner, waits, CHANNELS, TILE_CHANNELS
    )
    first_value = tl.where(waits, waiting_value, first_value)
    share = tl.sigmoid(tl.where(waits, waiting_gate, first_gate) - second_gate)
    pooled = share * first_value + (1 - share) * second_value

    row = vector[:, None]
    norm_rotate_store(
        to_float(to_type(pooled, latent_ptr.dtype.element_ty)),
        latent_ptr.dtype.element_ty,
        weight_ptr,
        cos_ptr,
        sin_ptr,
        codes_ptr,
        scales_ptr,
        latent_ptr,
        row,
        row < rows,
        page,
        place,
        kept & closes,
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


def pooled_write_launch(
    value: torch.Tensor,
    gate: torch.Tensor,
    waiting_value: torch.Tensor,
    waiting_gate: torch.Tensor,
    partner: torch.Tensor,
    closing: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    latent: torch.Tensor,
    to: Destination,
    **block_format,
) -> Launch:
    """The launch of :func:`write_pooled`; block_format: element, scale, block, amax_floor."""
    rows, channels = latent.shape
    sources = {
        "value_ptr": value,
        "gate_ptr": gate,
        "waiting_value_ptr": waiting_value,
        "waiting_gate_ptr": waiting_gate,
        "partner_ptr": partner,
        "closing_ptr": closing,
        "weight_ptr": norm_weight,
        "latent_ptr": latent,
        "tokens": value.shape[0],
        "sequences": waiting_value.shape[0],
    }
    # Six rows are read for one that is written: half a tile leaves registers for them.
    half = TILE_ELEMENTS // 2
    return to.launch(pooled_write_kernel, sources, rows, channels, eps=eps, tile=half, **block_format)


def write_pooled(
    value: torch.Tensor,
    gate: torch.Tensor,
    waiting_value: torch.Tensor,
    waiting_gate: torch.Tensor,
    partner: torch.Tensor,
    closing: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    latent: torch.Tensor,
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
    """Pool pairs of tokens and write the entries; changes ``latent``, ``codes`` and ``scales``.

    Args:
        value, gate: float32 [N, C], contiguous, of the step's tokens. waiting_value, waiting_gate: float32 [S, C],
            contiguous, of the tokens that wait from before the step, one a sequence.
        partner, closing: int64 [M], the two tokens of each entry. closing counts the step's tokens; partner counts
            the waiting rows and, from S on, the step's tokens. -1, or a number beyond: no entry, whose latent is zero
            and which is not stored, so that M may be fixed before anybody knows how many pairs close.
        latent: [M, C], contiguous; its type is the activation type, to which the pooled rows are cast.
        norm_weight, eps, turn_cos, turn_sin, codes, scales, page, place, element, scale, block, amax_floor: as in
            :func:`ds41.kernels.cache_write.write_rows`.

    Raises:
        ValueError: a tensor of another shape, type, device or layout, or a number out of range; the message names it.
    """
    if latent.dtype not in FLOAT_TYPES or latent.dim() != 2:
        raise ValueError(f"latent is {latent.dtype} {list(latent.shape)}; expected [rows, channels] of {FLOAT_NAMES}")
    rows, channels = latent.shape
    to = Destination(turn_cos, turn_sin, codes, scales, page, place)
    check_write(rows, channels, latent.dtype, norm_weight, latent, to, element, scale, block)
    for name, tensor, other in (
        ("value", value, gate),
        ("gate", gate, value),
        ("waiting_value", waiting_value, waiting_gate),
        ("waiting_gate", waiting_gate, waiting_value),
    ):
        expected = [other.shape[0] if other.dim() else 0, channels]
        if tensor.dtype != torch.float32 or list(tensor.shape) != expected or not tensor.is_contiguous():
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)}; expected torch.float32 {expected}, contiguous"
            )
    for name, tensor in (("partner", partner), ("closing", closing)):
        if tensor.dtype != torch.int64 or tensor.shape != (rows,) or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; expected torch.int64 [{rows}]")
    if rows:
        pairs = (value, gate, waiting_value, waiting_gate, partner, closing)
        block_format = {"element": element, "scale": scale, "block": block, "amax_floor": amax_floor}
        pooled_write_launch(*pairs, norm_weight, eps, latent, to, **block_format).run()


def write_pooled_cost(
    rows: int, channels: int, rotated: int, element: str, block: int, latent_bytes: int
) -> tuple[int, int]:
    """Bytes and operations of :func:`write_pooled` where every row is an entry.

    Two float32 rows of values and two of gates are read, ``rotated`` numbers of the rotation, 32 bytes of indices;
    the latent, codes and scales are written. Operations: eight a channel to pool (sigmoid as four), then those of
    :func:`ds41.kernels.cache_write.write_rows_cost`.
    """
    stored = channels * element_bits(element) // 8 + channels // block
    moved = 16 * channels + 4 * rotated + 32 + channels * latent_bytes + stored
    return rows * moved + 4 * channels, rows * (12 * channels + 3 * rotated)


def compile_cases() -> Iterator[CompileCase]:
    """Main entries of a page of 64 tokens at the published width; all activation types."""
    for dtype in FLOAT_TYPES:
        rows, channels = 4096, 512
        latent = torch.empty(rows, channels, dtype=dtype, device="meta")
        value, waiting = (latent.new_empty(n, channels, dtype=torch.float32) for n in (2 * rows, 16))
        to = Destination.empty(rows, channels, 64, 1024, 32, 56960, "e2m1", 16)
        index, weight = to.place, value.new_empty(channels)
        launch = pooled_write_launch(
            value, value, waiting, waiting, index, index, weight, 1e-20, latent, to,
            element="e2m1", scale="e4m3", block=16, amax_floor=6 * 2.0**-9,
        )  # fmt: skip
        yield CompileCase(f"write_pooled_{str(dtype).removeprefix('torch.')}", launch, targets=targets_of(dtype))
