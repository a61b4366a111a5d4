"""Main entries and index keys of a batch of sequences, found through their page tables."""

from __future__ import annotations

from fractions import Fraction

import torch

from ds41.cache.checks import check_index, check_shape, check_vector
from ds41.cache.errors import CacheError
from ds41.cache.page_table import PageTable
from ds41.cache.plane import PagedRows
from ds41.cache.pool import PagePool


class GlobalKV:
    """The part of a cache that grows: entries in pages.

    Entry j of a layer with ratio m stands for tokens ``j * m`` to ``j * m + m - 1`` of its sequence. Layers that
    borrow keys read the entries of their source: ``layer`` is always the layer that owns them.
    """

    def __init__(self, pool: PagePool, batch: int, max_tokens: int, dtype: torch.dtype) -> None:
        self.pool = pool
        self.dtype = dtype
        self._table = PageTable(pool, batch, pool.layout.pages_for(max_tokens))

    @property
    def page_table(self) -> torch.Tensor:
        """int64 [batch, max_pages], on the device: page numbers, -1 where a sequence has no page."""
        return self._table.tensor

    @property
    def page_bytes(self) -> int:
        """Bytes allocated for pages: the whole pool, also where other caches use it."""
        return self.pool.nbytes

    @property
    def nbytes_per_token(self) -> Fraction:
        """Global KV bytes per token, from the tensors that were allocated; 890 for the published configuration."""
        return Fraction(self.pool.nbytes, self.pool.pages * self.pool.layout.page_tokens)

    def write_entries(
        self, layer: int, sequence: torch.Tensor, entry: torch.Tensor, main: torch.Tensor, index: torch.Tensor
    ) -> None:
        """Store entries of ``layer``, in pages that are reserved.

        Args:
            sequence, entry: int64 [M].
            main: [M, head_dim], rotated. index: [M, index_head_dim]. float32, bfloat16 or float16.

        Raises:
            CacheError: shapes that do not fit, or (on a CPU; a GPU stops with an assertion) an entry without a page.
            ValueError: a value that is not finite, on a CPU.
        """
        layout = self.pool.layout
        count = check_vector("sequence", sequence)
        check_index("entry", entry, (count,))
        check_shape("main", main, (count, layout.head_dim))
        check_shape("index", index, (count, layout.index_head_dim))
        page, place = self.places(layer, sequence, entry)
        # -1 would mean the last page of the pool, somebody else's. One beyond it is refused.
        page = page % (self.pool.pages + 1)
        try:
            self.pool.main_rows(layer).write(page, place, main)
            self.pool.index_rows(layer).write(page, place, index)
        except IndexError:
            raise CacheError(
                f"layer {layer}: an entry lies beyond the pages of its sequence; reserve its tokens first"
            ) from None

    def gather_main(
        self, layer: int, sequence: torch.Tensor, entry: torch.Tensor, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Main entries ``entry`` int64 [N, K] of sequences ``sequence`` int64 [N], [N, K, head_dim] in ``dtype``, the
        cache's type if None; zeros for entry -1, and for entries whose page there is not.

        Raises:
            CacheError: no such source layer, or shapes that do not fit.
        """
        return self._gather(self.pool.main_rows(layer), layer, sequence, entry, dtype or self.dtype)

    def gather_index(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """Index keys, float32 [N, K, index_head_dim]; arguments as in :meth:`gather_main`.

        Raises:
            CacheError: no such source layer, or shapes that do not fit.
        """
        return self._gather(self.pool.index_rows(layer), layer, sequence, entry, torch.float32)

    def index_keys(self, layer: int, row: int, start: int, stop: int) -> torch.Tensor:
        """Index keys of entries ``start`` to ``stop - 1`` of one sequence, float32 [stop - start, index_head_dim].

        Reads whole pages: the way to score a long context, tile by tile.

        Raises:
            CacheError: the range is not within the sequence's pages, or there is no such sequence.
        """
        per_page = self.pool.layout.source(layer).entries
        row = self._table.check_row(row)
        held = len(self._table.pages[row]) * per_page
        if not 0 <= start <= stop <= held:
            raise CacheError(f"entries {start} to {stop} of row {row}, layer {layer}: its pages hold 0 to {held}")
        first, last = start // per_page, -(-stop // per_page)
        pages = self.page_table[row, first:last]
        base = first * per_page
        return self.pool.index_rows(layer).read(pages, start - base, stop - base, torch.float32)

    def _gather(
        self, rows: PagedRows, layer: int, sequence: torch.Tensor, entry: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        count = check_vector("sequence", sequence)
        if entry.dim() != 2:
            raise CacheError(f"entry is {list(entry.shape)}; expected [{count}, K]")
        check_index("entry", entry, (count, entry.shape[1]))
        return rows.gather(*self.places(layer, sequence[:, None], entry), dtype)

    def places(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Page, and place in that page, of ``entry`` int64 [...], broadcast against ``sequence`` int64 [...].

        The page is -1 for entry -1 and where the sequence has no page.
        """
        per_page = self.pool.layout.source(layer).entries
        column = torch.div(entry, per_page, rounding_mode="floor")
        return self._table.find(sequence, column), entry % per_page
