"""Where the bytes of one page lie.

A page holds the global KV of ``page_tokens`` consecutive tokens of one sequence: for each layer that owns keys
``page_tokens / ratio`` entries, main record and index key together. They lie layer by layer, each layer in four planes:
for the published configuration and pages of 64 tokens, 890 * 64 = 56,960 bytes,

===============  ==========  ==============  ==============  ==============  ==============
plane            bytes/row   layer 2         layer 8         layer 14        layer 20
===============  ==========  ==============  ==============  ==============  ==============
entries                      32              32              32              64
main codes       256         0 .. 8191       11392 .. 19583  22784 .. 30975  34176 .. 50559
main scales      32          8192 .. 9215    19584 .. 20607  30976 .. 31999  50560 .. 52607
index codes      64          9216 .. 11263   20608 .. 22655  32000 .. 34047  52608 .. 56703
index scales     4           11264 .. 11391  22656 .. 22783  34048 .. 34175  56704 .. 56959
===============  ==========  ==============  ==============  ==============  ==============

Nothing is padded. Every plane starts at a multiple of 16 bytes as long as each plane's size is one, which for the
published sizes holds if ``page_tokens`` is a multiple of 8; :attr:`PageLayout.alignment` says what holds.
Only the bytes of an entry are canonical; how a page orders them is this project's choice.

Source: report sections 2.4.4 and 3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from operator import index

from ds41.cache.errors import CacheError
from ds41.config import ModelConfig
from ds41.formats import INDEX_KEY, MAIN_KV, BlockFormat

_WIDEST = 16
# Where nobody asks for another size: 57 KB of the published configuration.
PAGE_TOKENS = 64


@dataclass(frozen=True)
class Plane:
    """``entries`` rows of ``row_bytes`` bytes, one after the other from byte ``offset`` of the page."""

    offset: int
    entries: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return self.entries * self.row_bytes

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True)
class SourceLayout:
    """The four planes of one layer that owns keys: ``entries`` rows each, one for every ``ratio`` tokens."""

    layer: int
    ratio: int
    entries: int
    main_codes: Plane
    main_scales: Plane
    index_codes: Plane
    index_scales: Plane

    @property
    def planes(self) -> tuple[Plane, Plane, Plane, Plane]:
        return self.main_codes, self.main_scales, self.index_codes, self.index_scales


@dataclass(frozen=True)
class PageLayout:
    """The layout of a page: its size and, for each layer that owns keys, its planes."""

    page_tokens: int
    head_dim: int
    index_head_dim: int
    nbytes: int
    sources: tuple[SourceLayout, ...]

    @classmethod
    def of(cls, config: ModelConfig, page_tokens: int = PAGE_TOKENS) -> PageLayout:
        """The layout for a configuration; ``nbytes`` is the ledger's bytes per token times ``page_tokens``.

        Raises:
            CacheError: a group of tokens that becomes one entry would straddle two pages.
        """
        owners = [layer for layer in config.layers if layer.owns_kv]
        step = math.lcm(2, *(layer.ratio for layer in owners))
        page_tokens = index(page_tokens)
        if page_tokens <= 0 or page_tokens % step:
            raise CacheError(
                f"page_tokens is {page_tokens}; expected a positive multiple of {step}, "
                "so that no group of tokens straddles a page"
            )
        sources, offset = [], 0
        for layer in owners:
            entries = page_tokens // layer.ratio
            planes = []
            for block_format, channels in ((MAIN_KV, config.head_dim), (INDEX_KEY, config.index_head_dim)):
                for row_bytes in row_widths(block_format, channels):
                    planes.append(Plane(offset, entries, row_bytes))
                    offset = planes[-1].end
            sources.append(SourceLayout(layer.index, layer.ratio, entries, *planes))
        return cls(page_tokens, config.head_dim, config.index_head_dim, offset, tuple(sources))

    def source(self, layer: int) -> SourceLayout:
        """The planes of ``layer``.

        Raises:
            CacheError: the layer owns no keys.
        """
        try:
            return self._by_layer[layer]
        except KeyError:
            owners = ", ".join(map(str, self._by_layer)) or "none"
            raise CacheError(f"layer {layer} owns no global KV; the layers that do: {owners}") from None

    def pages_for(self, tokens: int) -> int:
        """Pages that ``tokens`` tokens need, the last one perhaps in part."""
        return -(-tokens // self.page_tokens)

    @cached_property
    def alignment(self) -> int:
        """The largest power of two, at most 16, that divides where every page and every plane starts."""
        starts = [plane.offset for source in self.sources for plane in source.planes]
        return math.gcd(_WIDEST, self.nbytes, *starts)

    @cached_property
    def _by_layer(self) -> dict[int, SourceLayout]:
        return {source.layer: source for source in self.sources}


def row_widths(block_format: BlockFormat, channels: int) -> tuple[int, int]:
    """Bytes of one row's codes and of its scales."""
    scales = channels // block_format.block
    return block_format.bytes_per_row(channels) - scales, scales
