"""Whole pages that lie in the model's own memory, found by the prefix that they end: the first tier of a hit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from ds41.cache import PagePool
from ds41.serving.keys import PrefixKeys


class ResidentPages:
    """Pages of a pool by key, each with a reference of its own, the least recently used first.

    A page is let go only while nobody else refers to it, and a prefix from its end.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def longest(self, keys: PrefixKeys) -> list[int]:
        """The page numbers of the longest prefix of ``keys`` in whole pages."""
        found = []
        for key in _page_keys(keys, len(keys) // keys.page_tokens):
            if key not in self._pages:
                break
            found.append(key)
        self._touch(found)
        return [self._pages[key] for key in found]

    def keep(self, keys: PrefixKeys, pages: Sequence[int], first: int = 0) -> None:
        """Let the whole pages ``first`` and on of a prefix be found; those that are there already stay."""
        chain = _page_keys(keys, first + len(pages))
        for key, page in zip(chain[first:], pages, strict=True):
            if key not in self._pages:
                self._pool.share(page)
                self._pages[key] = page
        self._touch(chain)

    def let_go(self, count: int) -> int:
        """Give up as many as ``count`` of the least recently used pages that nobody else refers to; says how many."""
        idle = (key for key, page in self._pages.items() if self._pool.references(page) == 1)
        going = list(islice(idle, count))
        self._pool.release_many([self._pages.pop(key) for key in going])
        return len(going)

    def clear(self) -> None:
        """Give up everything."""
        self._pool.release_many(self._pages.values())
        self._pages.clear()

    def _touch(self, chain: list[bytes]) -> None:
        # The end of a prefix first: it is of no use without what stands before it.
        for key in reversed(chain):
            if key in self._pages:
                self._pages.move_to_end(key)


def _page_keys(keys: PrefixKeys, pages: int) -> list[bytes]:
    return [keys.at((number + 1) * keys.page_tokens) for number in range(pages)]
