"""Rows of one kind (main entries or index keys of one layer) through all pages of a pool."""

from __future__ import annotations

import math

import torch

from ds41.cache.storage import RowCodec
from ds41.formats import Packed

_BY_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class PagedRows:
    """Rows addressed by page and by place in the page.

    ``parts`` are what ``codec`` stores of a row, each [pages, entries, width], views of the pool's memory.
    Addresses are int64 throughout: at 288 bytes a row, byte offsets leave int32 at 7,456,541 rows.
    """

    def __init__(self, codec: RowCodec, parts: tuple[torch.Tensor, ...]) -> None:
        self.codec = codec
        self.parts = parts
        self._wide = tuple(map(_widest, parts))

    @property
    def view(self) -> Packed | torch.Tensor:
        """All rows: Packed of [pages, entries, bytes], or [pages, entries, channels] where not packed."""
        return Packed(*self.parts) if self.codec.storage == "packed" else self.parts[0]

    def write(self, page: torch.Tensor, place: torch.Tensor, rows: torch.Tensor) -> None:
        """Store ``rows`` [M, channels] at ``page`` [M], ``place`` [M].

        Raises:
            IndexError: there is no such page or place; on a GPU a device assertion instead.
        """
        for part, stored in zip(self.parts, self.codec.store(rows), strict=True):
            part[page, place] = stored

    def gather(self, page: torch.Tensor, place: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Values [..., channels] of the rows at ``page`` [...], ``place`` [...]; zeros where the page is -1."""
        parts = (part[page, place].view(stored.dtype) for part, stored in zip(self._wide, self.parts, strict=True))
        return zero_rows(self.codec.load(tuple(parts), dtype), page < 0)

    def read(self, pages: torch.Tensor, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
        """Values [stop - start, channels] of rows ``start`` to ``stop``, counted from the first of ``pages``."""
        parts = (part.index_select(0, pages).flatten(0, 1)[start:stop] for part in self._wide)
        stored = (part.view(kept.dtype) for part, kept in zip(parts, self.parts, strict=True))
        return self.codec.load(tuple(stored), dtype)

    def copy_page(self, source: int, target: int) -> None:
        for part in self.parts:
            part[target].copy_(part[source])


def zero_rows(values: torch.Tensor, absent: torch.Tensor) -> torch.Tensor:
    """``values`` [..., channels] with zeros where ``absent`` [...], in place.

    On a CPU looking first is cheaper than writing; on a GPU looking would wait for the device.
    """
    if values.device.type == "cpu" and not bool(absent.any()):
        return values
    return values.masked_fill_(absent[..., None], 0)


def _widest(part: torch.Tensor) -> torch.Tensor:
    """The same rows in the widest integers that their addresses allow: gathering moves fewer, larger elements."""
    if part.dtype != torch.uint8:
        return part
    width = math.gcd(8, part.shape[-1], part.storage_offset(), *part.stride()[:-1])
    return part.view(_BY_WIDTH[width])
