"""Which pages are free, and how many tables hold each of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import index
from threading import RLock

from ds41.cache.errors import CacheError, OutOfPages


class PageAllocator:
    """Reference counts of ``pages`` pages. Every method may be called from any thread.

    A page is free while nobody refers to it; only then can it be handed out. Free pages are handed out from the
    lowest, and the one freed last comes first.
    """

    def __init__(self, pages: int) -> None:
        if pages <= 0:
            raise CacheError(f"pages is {pages}; expected a positive number")
        self.pages = pages
        self._references = [0] * pages
        self._free = list(range(pages - 1, -1, -1))
        # Re-entrant: a cache that is collected gives its pages back, perhaps in the middle of an allocation.
        self._lock = RLock()

    @property
    def free_pages(self) -> int:
        """Pages that nobody refers to."""
        return len(self._free)

    def allocate(self) -> int:
        """One page, referred to once. Its bytes are whatever was in it.

        Raises:
            OutOfPages: none is free.
        """
        return self.allocate_many(1)[0]

    def allocate_many(self, count: int) -> list[int]:
        """``count`` pages, or none at all.

        Raises:
            OutOfPages: fewer are free.
        """
        with self._lock:
            if count > len(self._free):
                used = self.pages - len(self._free)
                raise OutOfPages(f"{count} pages asked for, {len(self._free)} free: {used} of {self.pages} are in use")
            taken = [self._free.pop() for _ in range(count)]
            for page in taken:
                self._references[page] = 1
        return taken

    def share(self, page: int) -> None:
        """Refer to a page that is in use once more.

        Raises:
            CacheError: the page is free, or there is no such page.
        """
        self.share_many((page,))

    def share_many(self, pages: Iterable[int]) -> None:
        """Refer to each of ``pages`` once more, or to none of them if one is free.

        Raises:
            CacheError: no such page, or one that is free.
        """
        pages = list(pages)
        with self._lock:
            for page in pages:
                self._require_live(page, "shared")
            for page in pages:
                self._references[page] += 1

    def release(self, page: int) -> None:
        """Give up one reference; with the last one the page is free.

        Raises:
            CacheError: the page is free already, or there is no such page.
        """
        self.release_many((page,))

    def release_many(self, pages: Iterable[int]) -> None:
        """Give up one reference to each of ``pages``, or to none of them if one has too few.

        Raises:
            CacheError: no such page, or one that is free.
        """
        counts = Counter(pages)
        with self._lock:
            for page, count in counts.items():
                self._require_live(page, "released", count)
            for page, count in counts.items():
                self._references[page] -= count
                if not self._references[page]:
                    self._free.append(page)

    def references(self, page: int) -> int:
        """How many tables (and other holders) refer to a page; 0 for a free one.

        Raises:
            CacheError: no such page.
        """
        return self._references[self._known(page)]

    def _known(self, page: int) -> int:
        page = index(page)
        if not 0 <= page < self.pages:
            raise CacheError(f"there is no page {page}; the pool has pages 0 to {self.pages - 1}")
        return page

    def _require_live(self, page: int, what: str, times: int = 1) -> None:
        references = self._references[self._known(page)]
        if not references:
            raise CacheError(f"page {page} is free: it cannot be {what}")
        if references < times:
            raise CacheError(f"page {page} has {references} references: it cannot be {what} {times} times")
