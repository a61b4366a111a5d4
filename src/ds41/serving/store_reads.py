"""Looking a prefix up, and what is found: pages that cannot be evicted while it is open.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from ds41.serving import page_bytes, store_pages
from ds41.serving.keys import PrefixKeys
from ds41.serving.store_errors import StoreError
from ds41.serving.store_pages import NOTHING, Page

if TYPE_CHECKING:
    import sqlite3

    from ds41.serving.store import PrefixStore


class Prefix:
    """The longest stored prefix of some ids, as :meth:`PrefixStore.find` gives it; a context manager.

    ``tokens`` of the ids are stored, 0 for a miss. The last page may hold more than the prefix needs. Open, it pins
    its pages in all processes; :meth:`close` lets them go.
    """

    def __init__(
        self, store: PrefixStore, pages: list[Page], tokens: int, pin: int | None = None, expires: float = float("inf")
    ) -> None:
        self.tokens = tokens
        self._store, self._pages, self._pin, self._expires = store, pages, pin, expires

    def pages(self, first: int = 0) -> Iterator[np.ndarray]:
        """The pages from number ``first`` on, uint8 [layout.nbytes] each, once its bytes have been found right.

        A page that is damaged, or expired by now, ends the iteration and is removed with those after it;
        ``tokens`` is then what was given out. Entries that a partial page does not hold are zero.

        Raises:
            ValueError: the prefix was closed before, and its pages may be gone.
        """
        layout = self._store.layout
        with self._store.files.reader() as reader:
            for number, page in list(enumerate(self._pages))[first:]:
                if self._pin is None:
                    raise ValueError("the prefix is closed; read its pages before that")
                if self._store.clock() >= self._expires:
                    self._end_expired(number)
                    return
                stored = reader.read(page.file, page.start, page_bytes.stored_bytes(layout, page.tokens))
                if stored is None or page_bytes.checksum(page.key, stored) != page.digest:
                    self._end_damaged(number)
                    return
                self._store.counters.add("pages_read")
                self._store.counters.add("bytes_read", stored.nbytes)
                yield page_bytes.expand(stored, layout, page.tokens)

    def close(self) -> None:
        """Let the pages go; a second time does nothing."""
        if self._pin is not None:
            pin, self._pin = self._pin, None
            self._store.release(pin)

    def __enter__(self) -> Prefix:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _end_expired(self, number: int) -> None:
        """End before a page that has expired; it goes, unless another reader has used it since it was found."""
        store, page = self._store, self._pages[number]
        self._shrink(number)
        with suppress(StoreError):
            with store.index.transaction() as database:
                dropped = NOTHING
                if store_pages.last_use(database, page.id) <= store.expired_before(store.clock()):
                    dropped = store_pages.drop_tree(database, page.id, store.stored_bytes)
            store.counters.add("expired_pages", dropped.pages)
            store.cut_files()

    def _end_damaged(self, number: int) -> None:
        """End before a page whose bytes are wrong, and remove it with those after it."""
        store, page = self._store, self._pages[number]
        self._shrink(number)
        with suppress(StoreError):
            with store.index.transaction() as database:
                dropped = store_pages.drop_tree(database, page.id, store.stored_bytes)
            store.counters.add("damaged_pages", dropped.pages)
            store.cut_files()

    def _shrink(self, pages: int) -> None:
        self._pages = self._pages[:pages]
        self.tokens = min(self.tokens, pages * self._store.layout.page_tokens)


def longest(
    database: sqlite3.Connection, store: PrefixStore, keys: PrefixKeys, now: float
) -> tuple[list[Page], int, int]:
    """Pages of the longest stored prefix, its tokens, and how many pages were dropped because they had expired."""
    root = store_pages.root_id(database, keys.at(0))
    if root is None:
        return [], 0, 0
    pages, expired, dropped = store_pages.walk(database, root, keys), store.expired_before(now), NOTHING
    for number, page in enumerate(pages):
        if page.used <= expired:
            dropped = store_pages.drop_tree(database, page.id, store.stored_bytes)
            pages = pages[:number]
            break
    tokens = len(pages) * keys.page_tokens
    parent = pages[-1].id if pages else root
    child = store_pages.best_child(database, parent, keys.at(tokens), keys.page_ids(len(pages)), expired)
    if child is not None:
        pages.append(child[0])
        tokens += child[1]
    return pages, tokens, dropped.pages
