"""The three ways in which a cache can hold rows: packed bytes, rounded values, plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ds41 import ops
from ds41.cache.errors import CacheError
from ds41.cache.layout import row_widths
from ds41.formats import BlockFormat, Packed

# packed: the format's bytes. fake: the values that those bytes stand for. plain: values that are not rounded.
Storage = Literal["packed", "fake", "plain"]
STORAGES = ("packed", "fake", "plain")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_storage(storage: str, dtype: torch.dtype) -> None:
    """Refuse a storage or a type of values that no cache has."""
    if storage not in STORAGES:
        raise CacheError(f"storage is {storage!r}; expected one of {', '.join(map(repr, STORAGES))}")
    if dtype not in DTYPES:
        raise CacheError(f"dtype is {dtype}; expected one of {', '.join(map(str, DTYPES))}")


@dataclass(frozen=True)
class RowCodec:
    """How a row of ``channels`` values becomes the parts that are stored, and values again.

    ``dtype`` is the type in which values are held where they are not packed.
    """

    block_format: BlockFormat
    channels: int
    storage: Storage
    dtype: torch.dtype

    @property
    def parts(self) -> tuple[tuple[int, torch.dtype], ...]:
        """Width and type of each stored part: codes and scales where packed, else the values."""
        if self.storage != "packed":
            return ((self.channels, self.dtype),)
        codes, scales = row_widths(self.block_format, self.channels)
        return (codes, torch.uint8), (scales, torch.uint8)

    def store(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[..., channels] -> one tensor per part. Nothing stored carries a gradient.

        Raises:
            ValueError: NaN or infinity, on a CPU. Elsewhere finding it would wait for the device, so it is not
                looked for.
        """
        rows = rows.detach()
        if self.storage == "plain":
            return (rows.to(self.dtype),)
        packed = ops.encode(self.block_format, rows, validate=rows.device.type == "cpu")
        if self.storage == "fake":
            return (ops.decode(self.block_format, packed, self.dtype),)
        return tuple(packed)

    def load(self, parts: tuple[torch.Tensor, ...], dtype: torch.dtype) -> torch.Tensor:
        """Stored parts -> [..., channels] of ``dtype``."""
        if self.storage != "packed":
            return parts[0].to(dtype)
        return ops.decode(self.block_format, Packed(*parts), dtype)
