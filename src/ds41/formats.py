"""The three block formats in which the model stores its caches.

===========  ========  =================  =====================  ==============
format       elements  scale              a row of the model     stored in
===========  ========  =================  =====================  ==============
MAIN_KV      E2M1      E4M3 per 16        512 channels, 288 B    global KV
INDEX_KEY    E2M1      E8M0 per 32        128 channels,  68 B    global KV
WINDOW_KV    E4M3      E8M0 per 32        512 channels, 528 B    sliding window
===========  ========  =================  =====================  ==============

MAIN_KV is NVFP4 without the tensor-wide scale; INDEX_KEY is OCP MXFP4 and WINDOW_KV is OCP MXFP8, both with a
scale that is rounded up, so that they never clip. This file is the definition in plain torch; the Triton kernels
give the same bits.

Source: report section 2.4.4 and the released inference code's quantisers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from ds41.small_floats import (
    E2M1_MAX,
    E4M3_MAX,
    Element,
    Scale,
    number_table,
    round_to_e2m1_,
    round_to_e4m3,
    write_e4m3,
)

# On a CPU the work runs in pieces whose fp32 copy stays in the second-level cache.
_CPU_PIECE = 2**19


class Packed(NamedTuple):
    """Stored bytes of one tensor.

    codes: uint8 [..., C/2] for E2M1 (even channel in the low nibble), [..., C] for E4M3.
    scales: uint8 [..., C/block].
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales together."""
        return self.codes.numel() + self.scales.numel()


@dataclass(frozen=True)
class BlockFormat:
    """Elements of one small float type, with one scale byte for every ``block`` neighbouring channels.

    ``amax_floor`` is the smallest block maximum that a scale is computed from: it keeps the scale of an all-zero
    block above zero.
    """

    name: str
    element: Element
    scale: Scale
    block: int
    amax_floor: float

    @property
    def element_max(self) -> float:
        """Largest element: 6 for E2M1, 448 for E4M3."""
        return E2M1_MAX if self.element == "e2m1" else E4M3_MAX

    @property
    def element_bits(self) -> int:
        """Bits of one element, without its share of a scale: 4 for E2M1, 8 for E4M3."""
        return 4 if self.element == "e2m1" else 8

    @property
    def bits_per_element(self) -> float:
        """Bits per stored channel, the scale's share included: 4.5, 4.25 and 8.25."""
        return self.element_bits + 8 / self.block

    @property
    def layout(self) -> dict[str, str | int | float]:
        """What a kernel that encodes has to know, by the names of its arguments."""
        return {"element": self.element, "scale": self.scale, "block": self.block, "amax_floor": self.amax_floor}

    def bytes_per_row(self, channels: int) -> int:
        """Bytes of one row of ``channels`` channels, scales included.

        Raises:
            ValueError: the channels do not divide into blocks.
        """
        self._check_channels(channels)
        return channels * self.element_bits // 8 + channels // self.block

    def encode(self, x: torch.Tensor, validate: bool = True) -> Packed:
        """Quantise the last dimension of ``x`` in blocks.

        Args:
            x: [..., C], float32, bfloat16 or float16, on any device; C a multiple of ``block``. Each value is
                quantised as given: float32 is not rounded to bfloat16 first.
            validate: refuse NaN and infinity, for which no code exists. Without it the caller vouches for finite
                values (on a GPU this spares a wait for the device).

        Returns:
            Packed(codes, scales), on the device of ``x``.

        Raises:
            TypeError: ``x`` is not of a supported type. ValueError: C does not divide into blocks, or a value is
                not finite; the message says where.
        """
        channels = self._check_input(x)
        rows = x.detach().reshape(-1, channels)
        codes = torch.empty(rows.shape[0], channels * self.element_bits // 8, dtype=torch.uint8, device=x.device)
        scales = torch.empty(rows.shape[0], channels // self.block, dtype=torch.uint8, device=x.device)
        work = _workspace(rows, 4)
        for part in _pieces(rows):
            values, magnitudes, spare, spare_too = (w[: rows[part].numel()].view(-1, self.block) for w in work)
            values.view_as(rows[part]).copy_(rows[part])
            torch.abs(values, out=magnitudes)
            amax = _block_amax(magnitudes)
            if validate and not bool(torch.isfinite(amax).all()):
                raise not_finite_error(x)
            scale_codes = self._scale_codes(amax)
            scales[part] = scale_codes.view(-1, scales.shape[1])
            divisor = self.scale_values(scale_codes)[:, None]
            if self.element == "e4m3":
                write_e4m3(values.div_(divisor).view_as(codes[part]), codes[part])
            else:
                nibbles = round_to_e2m1_(magnitudes.div_(divisor), spare, spare_too)
                _write_nibbles(nibbles, values, spare, codes[part])
        leading = x.shape[:-1]
        return Packed(codes.view(*leading, codes.shape[1]), scales.view(*leading, scales.shape[1]))

    def decode(self, packed: Packed, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Give back the values that ``packed`` stores, [..., C].

        Every value that :meth:`encode` stores is exact in bfloat16 and float32, those of MAIN_KV in float16 too. A
        product beyond the finite range of ``dtype`` saturates (only E8M0 scales reach that far); a byte that is NaN
        in its format gives NaN.

        Raises:
            ValueError: codes and scales do not belong together.
            TypeError: codes or scales are not uint8, or ``dtype`` is none of the three float types.
        """
        codes, scales = packed
        channels = self._check_packed(codes, scales)
        if dtype not in _FLOAT_TYPES:
            raise TypeError(f"{self.name}.decode: dtype is {dtype}; expected one of {_FLOAT_NAMES}")
        code_rows = codes.reshape(-1, codes.shape[-1]).contiguous()
        scale_rows = scales.reshape(-1, scales.shape[-1])
        out = torch.empty(code_rows.shape[0], channels, dtype=dtype, device=codes.device)
        pairs = _pair_table(self.element, codes.device)
        largest = torch.finfo(dtype).max
        work = _workspace(out, 2)
        for part in _pieces(out):
            values, index = (w[: out[part].numel()] for w in work)
            table_index = self._write_pair_index(code_rows[part], index)
            torch.index_select(pairs, 0, table_index, out=values.view(torch.int64))
            blocks = values.view(-1, self.block)
            blocks *= self.scale_values(scale_rows[part].reshape(-1))[:, None]
            if self.scale == "e8m0":
                blocks.clamp_(-largest, largest)
            out[part] = blocks.view(-1, channels)
        return out.view(*codes.shape[:-1], channels)

    def fake_quantize(self, x: torch.Tensor) -> torch.Tensor:
        """``decode(encode(x))`` for ``x`` [..., C], in its type; the gradient passes straight through."""
        return _StraightThrough.apply(x, self)

    def clipped_blocks(self, x: torch.Tensor) -> torch.Tensor:
        """Which blocks of ``x`` [..., C] hold a value beyond the largest element times their scale: bool [...,
        C/block].

        MAIN_KV clips where its scale was rounded down (by at most 1/17 of the maximum) and where the maximum
        exceeds 448 * 6 = 2688; the other two formats round their scale up.

        Raises:
            TypeError: ``x`` is not of a supported type.
            ValueError: C does not divide into blocks, or a value is not finite.
        """
        channels = self._check_input(x)
        blocks = x.detach().reshape(-1, self.block).to(torch.float32)
        amax = _block_amax(blocks.abs())
        if not bool(torch.isfinite(amax).all()):
            raise not_finite_error(x)
        clipped = amax > self.element_max * self.scale_values(self._scale_codes(amax))
        return clipped.view(*x.shape[:-1], channels // self.block)

    def scale_values(self, scales: torch.Tensor) -> torch.Tensor:
        """Scale bytes, ``scales`` uint8 [...], as float32 numbers in the same shape."""
        table = number_table(self.scale, scales.device)
        return torch.index_select(table, 0, scales.reshape(-1).to(torch.int32)).view(scales.shape)

    def _scale_codes(self, amax: torch.Tensor) -> torch.Tensor:
        floored = amax.clamp(min=self.amax_floor)
        if self.scale == "e4m3":
            return round_to_e4m3(floored / self.element_max)
        # The smallest power of two that is not below amax / element_max, read off the float32 bits. The factor is
        # the float32 reciprocal, as in the released code.
        bits = (floored * torch.tensor(1 / self.element_max, dtype=torch.float32)).view(torch.int32)
        return ((bits >> 23) + ((bits & 0x7FFFFF) != 0)).to(torch.uint8)

    def _write_pair_index(self, codes: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
        """Stored bytes -> one int32 table index for two channels (flat, in the memory of ``spare``)."""
        stored = codes.reshape(-1)
        if self.element == "e4m3":
            # A slice of a byte pool may start at an odd byte, where torch does not read pairs.
            stored = (stored.clone() if stored.storage_offset() % 2 else stored).view(torch.int16)
        index = spare.view(torch.int32)[: stored.numel()].copy_(stored)
        return index.bitwise_and_(0xFFFF)

    def _check_channels(self, channels: int) -> None:
        if channels <= 0 or channels % self.block:
            raise ValueError(
                f"{self.name}: a row has {channels} channels; expected a positive multiple of {self.block}"
            )

    def _check_input(self, x: torch.Tensor) -> int:
        if x.dtype not in _FLOAT_TYPES:
            raise TypeError(f"{self.name}: the input is {x.dtype}; expected one of {_FLOAT_NAMES}")
        if x.dim() == 0:
            raise ValueError(f"{self.name}: the input is a scalar; expected [..., channels]")
        self._check_channels(x.shape[-1])
        return x.shape[-1]

    def _check_packed(self, codes: torch.Tensor, scales: torch.Tensor) -> int:
        for label, tensor in (("codes", codes), ("scales", scales)):
            if tensor.dtype != torch.uint8:
                raise TypeError(f"{self.name}: {label} are {tensor.dtype}; expected torch.uint8")
            if tensor.dim() == 0:
                raise ValueError(f"{self.name}: {label} are a scalar; expected [..., bytes]")
        channels = codes.shape[-1] * 8 // self.element_bits
        self._check_channels(channels)
        expected = (*codes.shape[:-1], channels // self.block)
        if tuple(scales.shape) != expected:
            raise ValueError(
                f"{self.name}: codes {list(codes.shape)} hold {channels} channels a row, so scales should be "
                f"{list(expected)}; they are {list(scales.shape)}"
            )
        return channels


# The floors keep the scale of an all-zero block at 2^-9 (the smallest E4M3 number), 2^-126 and 2^-22.
MAIN_KV = BlockFormat("main KV", "e2m1", "e4m3", block=16, amax_floor=E2M1_MAX * 2.0**-9)
"""Main entries of the global KV: 4.5 bits a channel, 288 bytes for 512 channels."""
INDEX_KEY = BlockFormat("index key", "e2m1", "e8m0", block=32, amax_floor=E2M1_MAX * 2.0**-126)
"""Index keys of the global KV: 4.25 bits a channel, 68 bytes for 128 channels."""
WINDOW_KV = BlockFormat("window KV", "e4m3", "e8m0", block=32, amax_floor=1e-4)
"""Rows of sliding windows: 8.25 bits a channel, 528 bytes for 512 channels."""

_FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_FLOAT_NAMES = "float32, bfloat16, float16"


def not_finite_error(x: torch.Tensor) -> ValueError:
    """The error for an input ``x`` [...] with NaN or infinity; names the first place and the count."""
    places = torch.nonzero(~torch.isfinite(x))
    first = tuple(places[0].tolist())
    where = ", ".join(str(i) for i in first)
    return ValueError(
        f"cannot encode x[{where}] = {x[first].item()}: block formats hold finite numbers only "
        f"({len(places)} of {x.numel()} values are not finite)"
    )


def _block_amax(magnitudes: torch.Tensor) -> torch.Tensor:
    """[N, block] -> the largest of each block; NaN if the block holds one."""
    # Folding once makes the slow reduction over a short dimension half as long.
    half = magnitudes.shape[1] // 2
    return torch.maximum(magnitudes[:, :half], magnitudes[:, half:]).amax(-1)


def _write_nibbles(nibbles: torch.Tensor, values: torch.Tensor, spare: torch.Tensor, out: torch.Tensor) -> None:
    """Codes 0..7 (float32) with the signs of ``values``, two to a byte, into ``out``; the rest is overwritten."""
    signs = torch.bitwise_right_shift(values.view(torch.int32), 28, out=spare.view(torch.int32)).bitwise_and_(8)
    codes = values.view(torch.int32).copy_(nibbles).bitwise_or_(signs)
    # Two neighbours side by side in 64 bits: shift the odd one down next to the even one, keep the low byte.
    pairs = codes.view(torch.int64)
    shifted = torch.bitwise_right_shift(pairs, 28, out=spare.view(torch.int64))
    out.copy_(shifted.bitwise_or_(pairs).view_as(out))


def _workspace(rows: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` float32 buffers of one piece: fresh ones for each piece would be paged in each time."""
    largest = max((rows[part].numel() for part in _pieces(rows)[:1]), default=0)
    return torch.empty(count, largest, dtype=torch.float32, device=rows.device)


def _pieces(rows: torch.Tensor) -> list[slice]:
    count, width = rows.shape
    size = max(1, _CPU_PIECE // width) if rows.device.type == "cpu" else max(1, count)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


@lru_cache(maxsize=16)
def _pair_table(element: Element, device: torch.device) -> torch.Tensor:
    """Two neighbouring channels by their stored bits, as two float32 in one int64."""
    values = number_table(element, torch.device("cpu"))
    low, high = torch.meshgrid(values, values, indexing="xy")
    return torch.stack((low, high), dim=-1).reshape(-1).contiguous().view(torch.int64).to(device)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, block_format: BlockFormat) -> torch.Tensor:
        return block_format.decode(block_format.encode(x), dtype=x.dtype)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return gradient, None
