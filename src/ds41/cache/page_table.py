"""Which pages hold which sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import index

import torch

from ds41.cache.errors import CacheError
from ds41.cache.pool import PagePool


class PageTable:
    """The pages of ``batch`` sequences, in order: on the host as lists, on the device as a tensor.

    pages: per sequence the page numbers, each holding one reference in the pool.
    tensor: int64 [batch, max_pages], -1 where there is none.
    """

    def __init__(self, pool: PagePool, batch: int, max_pages: int) -> None:
        self.pool = pool
        self.pages: list[list[int]] = [[] for _ in range(batch)]
        # The last column stays -1: it is what column -1, of the entry that is none, finds.
        self._tensor = torch.full((batch, max_pages + 1), -1, dtype=torch.int64, device=pool.device)
        self.tensor = self._tensor[:, :max_pages]

    def check_row(self, row: int) -> int:
        """A row number as an int.

        Raises:
            CacheError: there is no such sequence.
        """
        row = index(row)
        if not 0 <= row < len(self.pages):
            raise CacheError(f"there is no row {row}; the cache has rows 0 to {len(self.pages) - 1}")
        return row

    def find(self, sequence: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        """Page numbers for int64 ``sequence`` and ``column`` (broadcast); -1 where there is no page or no column."""
        return self._tensor[sequence, column.clamp(-1, self.tensor.shape[1])]

    def make_room(self, lengths: Sequence[int], targets: Sequence[int]) -> None:
        """Give every sequence pages for ``targets`` tokens and a last page of its own to append to.

        A sequence that grows inside a page that others refer to gets a copy of that page.

        Raises:
            OutOfPages: there are not enough for all; then nothing has changed.
        """
        page_tokens = self.pool.layout.page_tokens
        copies: list[tuple[int, int]] = []
        left_behind: Counter[int] = Counter()
        missing = []
        for row, (length, target) in enumerate(zip(lengths, targets, strict=True)):
            held = self.pages[row]
            missing.append(max(0, self.pool.layout.pages_for(target) - len(held)))
            if target > length and length % page_tokens:
                tail = length // page_tokens
                # Of the sequences here that share the page, the last one may keep it if nobody else has it.
                if self.pool.references(held[tail]) - left_behind[held[tail]] > 1:
                    left_behind[held[tail]] += 1
                    copies.append((row, tail))
        fresh = self.pool.allocate_many(len(copies) + sum(missing))
        for (row, tail), page in zip(copies, fresh, strict=False):
            shared = self.pages[row][tail]
            self.pool.copy_page(shared, page)
            self._set(row, tail, [page])
            self.pool.release(shared)
        taken = len(copies)
        for row, count in enumerate(missing):
            if count:
                self._set(row, len(self.pages[row]), fresh[taken : taken + count])
                taken += count

    def keep(self, row: int, count: int) -> None:
        """Give back all pages of a sequence but the first ``count``."""
        given_back = self.pages[row][count:]
        if given_back:
            del self.pages[row][count:]
            self._tensor[row, count : count + len(given_back)] = -1
            self.pool.release_many(given_back)

    def share(self, row: int, pages: Sequence[int]) -> None:
        """Let a sequence refer to ``pages`` instead of its own.

        Raises:
            CacheError: one of them is free or unknown; then nothing has changed.
        """
        self.pool.share_many(pages)
        self.keep(row, 0)
        self._set(row, 0, list(pages))

    def release(self) -> None:
        """Give back every page without touching the device: for a cache that is going away."""
        for pages in self.pages:
            self.pool.release_many(pages)
            pages.clear()

    def _set(self, row: int, start: int, pages: list[int]) -> None:
        if pages:
            self.pages[row][start : start + len(pages)] = pages
            self._tensor[row, start : start + len(pages)] = torch.tensor(pages, device=self._tensor.device)
