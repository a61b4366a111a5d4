"""What a cache keeps: one record's parts, and the planes of records that a model writes as it reads.

Everything here counts exactly: bytes are integers, bytes per token are fractions. The ledger and the
comparison systems are built from these two shapes.

Source: report section 2.4.4 for this model's records; each other record names its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from ds41.formats import BlockFormat

Component = Literal["main", "index"]
"""The two parts of a global entry: main KV and index key."""
# published: printed by the model's authors; derived: computed here; measured: reported by somebody who ran it.
Source = Literal["published", "derived", "measured"]
"""Who says a number: the model's authors, a computation here, or somebody who measured it."""


@dataclass(frozen=True)
class Part:
    """``count`` numbers of ``bits`` bits each, of one kind ("E2M1", "BF16", "E8M0 scale", ...)."""

    kind: str
    count: int
    bits: int

    @property
    def nbytes(self) -> Fraction:
        """Bytes of the part; a fraction where its bits fill no whole byte."""
        return Fraction(self.count * self.bits, 8)


@dataclass(frozen=True)
class Record:
    """One stored entry: its parts, in order.

    ``nbytes`` is a whole number of bytes. Records compare by their parts and their name.

    Raises:
        ValueError: the parts fill no whole number of bytes.
    """

    name: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if self._sum().denominator != 1:
            raise ValueError(f"record {self.name} has {self._sum()} bytes; expected a whole number")

    @classmethod
    def packed(cls, block_format: BlockFormat, channels: int, rows: int = 1) -> Record:
        """``rows`` rows of ``channels`` channels in one of this model's block formats.

        Raises:
            ValueError: the channels do not divide into the format's blocks.
        """
        bits, block = block_format.element_bits, block_format.block
        if channels % block:
            raise ValueError(f"{channels} channels do not divide into {block_format.name}'s blocks of {block}")
        elements = Part(block_format.element.upper(), rows * channels, bits)
        scales = Part(f"{block_format.scale.upper()} scale", rows * channels // block, 8)
        return cls(block_format.name, (elements, scales))

    @classmethod
    def plain(cls, kind: str, bits: int, count: int) -> Record:
        """``count`` numbers of ``bits`` bits, no scales."""
        return cls(kind, (Part(kind, count, bits),))

    @property
    def nbytes(self) -> int:
        """Bytes of the record, a whole number."""
        return int(self._sum())

    @property
    def formula(self) -> str:
        """Where the bytes come from, for example ``256 B E2M1 + 32 B E4M3 scale``."""
        return " + ".join(f"{float(part.nbytes):g} B {part.kind}" for part in self.parts)

    def _sum(self) -> Fraction:
        return sum((part.nbytes for part in self.parts), Fraction(0))


def bf16(channels: int) -> Record:
    """``channels`` numbers of BF16, no scales: 2 bytes each."""
    return Record.plain("BF16", 16, channels)


def v4_entry(head_dim: int, rope_dim: int) -> Record:
    """V4's main entry: FP8 channels, the rotary ones in BF16, one E8M0 scale per 64, padded to 8 bytes.

    584 B for 512 channels of which 64 are rotary.
    """
    nope = head_dim - rope_dim
    scales = -(-nope // 64)
    return Record(
        "V4 entry",
        (
            Part("E4M3", nope, 8),
            Part("BF16 rotary", rope_dim, 16),
            Part("E8M0 scale", scales, 8),
            Part("padding", -scales % 8, 8),
        ),
    )


def mla_fp8_entry(kv_lora_rank: int, rope_dim: int) -> Record:
    """FlashMLA's FP8 latent: one FP32 scale per 128 channels, the rotary ones in BF16; 656 B for 512 + 64."""
    scales = -(-kv_lora_rank // 128)
    return Record(
        "FP8 latent",
        (
            Part("E4M3", kv_lora_rank, 8),
            Part("FP32 scale", scales, 32),
            Part("BF16 rotary", rope_dim, 16),
        ),
    )


def fp8_index_key(channels: int) -> Record:
    """An FP8 index key with one FP32 scale per 128 channels; 132 B for 128."""
    return Record("FP8 key", (Part("E4M3", channels, 8), Part("FP32 scale", -(-channels // 128), 32)))


def int8_index_key(channels: int) -> Record:
    """An INT8 index key with one FP16 scale; 130 B for 128."""
    return Record("INT8 key", (Part("INT8", channels, 8), Part("FP16 scale", 1, 16)))


@dataclass(frozen=True)
class Plane:
    """Entries of one kind that ``layers`` layers keep, one record for every ``ratio`` tokens.

    name: who keeps it, for example "layer 2" or "CSA".
    read_limit: the most entries that one decode step reads in one layer; None reads all of them.
    """

    name: str
    component: Component
    layers: int
    ratio: int
    record: Record
    read_limit: int | None = None

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes for each token of a long sequence: all layers' records over the group's ratio."""
        return Fraction(self.layers * self.record.nbytes, self.ratio)

    def entries(self, tokens: int) -> int:
        """Entries that one layer holds after ``tokens`` tokens: closed groups only."""
        return tokens // self.ratio

    def nbytes(self, tokens: int) -> int:
        """Bytes after ``tokens`` tokens; an entry is stored when its group closes."""
        return self.layers * self.entries(tokens) * self.record.nbytes

    def bytes_read(self, tokens: int) -> int:
        """Bytes that one decode step reads at a context of ``tokens`` tokens."""
        entries = self.entries(tokens)
        if self.read_limit is not None:
            entries = min(entries, self.read_limit)
        return self.layers * entries * self.record.nbytes

    @property
    def formula(self) -> str:
        """Where the bytes per token come from, for example ``3 × 288 / 2``."""
        ratio = f" / {self.ratio}" if self.ratio > 1 else ""
        layers = f"{self.layers} × " if self.layers > 1 else ""
        return f"{layers}{self.record.nbytes}{ratio}"

    def stored_as(self, record: Record) -> Plane:
        """The same plane with another record for each entry."""
        return replace(self, record=record)


@dataclass(frozen=True)
class Window:
    """Sliding windows: each of ``layers`` layers keeps the records of its last ``length`` tokens."""

    layers: int
    length: int
    record: Record

    def nbytes(self, tokens: int | None = None) -> int:
        """Bytes kept after ``tokens`` tokens; of full windows if None."""
        held = self.length if tokens is None else min(tokens, self.length)
        return self.layers * held * self.record.nbytes


@dataclass(frozen=True)
class Row:
    """One line of a table: a quantity in bytes with the formula that gives it and where it comes from."""

    name: str
    bytes: Fraction
    formula: str
    source: Source = "derived"
    note: str = ""


def total(planes: tuple[Plane, ...]) -> Fraction:
    """Bytes per token of all planes together."""
    return sum((plane.bytes_per_token for plane in planes), Fraction(0))


def sum_formula(planes: tuple[Plane, ...]) -> str:
    """The planes' formulas, equal ones gathered: ``21 × (584 + 68) / 4 + 20 × 584 / 128``."""
    groups: dict[tuple[str, int, int], list[int]] = {}
    for plane in planes:
        groups.setdefault((plane.name, plane.layers, plane.ratio), []).append(plane.record.nbytes)
    merged: dict[tuple[int, tuple[int, ...]], int] = {}
    for (_, layers, ratio), sizes in groups.items():
        key = (ratio, tuple(sizes))
        merged[key] = merged.get(key, 0) + layers
    return " + ".join(_term(layers, ratio, sizes) for (ratio, sizes), layers in merged.items()) or "0"


def _term(layers: int, ratio: int, sizes: tuple[int, ...]) -> str:
    size = str(sizes[0]) if len(sizes) == 1 else f"({' + '.join(str(size) for size in sizes)})"
    return f"{f'{layers} × ' if layers > 1 else ''}{size}{f' / {ratio}' if ratio > 1 else ''}"


def exact(value: Fraction) -> int | float:
    """A count of bytes for JSON: an integer where it is whole, else the float that equals it.

    Raises:
        ValueError: no float equals it. Every ratio in use is a power of two, so none of them gets here.
    """
    if value.denominator == 1:
        return int(value)
    if Fraction(float(value)) != value:
        raise ValueError(f"{value} bytes cannot be written as a float exactly")
    return float(value)
