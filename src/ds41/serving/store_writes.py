"""One put: reserve room in the index, write a file without holding up anybody, and enter its pages.

The reservation names its process. If that dies, the next one to open the store, or to look for room, removes the
file; pages are only in the index once their bytes are on the disk.

Source: ds41's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ds41.serving import page_bytes, store_pages
from ds41.serving.keys import PrefixKeys
from ds41.serving.store_errors import MissingPrefix, StoreError, from_os_error
from ds41.serving.store_pages import Page
from ds41.serving.store_room import ROW_BYTES, make_room

if TYPE_CHECKING:
    from ds41.serving.store import PrefixStore

# Older than any clock: a page that a fuller one has replaced goes first, once nobody reads it any more.
_REPLACED = -1.0


@dataclass(frozen=True)
class Stored:
    """What one put did: ``pages`` written with ``bytes`` of their own, and ``tokens`` of the ids now stored."""

    pages: int
    tokens: int
    bytes: int


class Put:
    """The pages of ``keys`` from ``first_page`` on, on their way into ``store``."""

    def __init__(self, store: PrefixStore, keys: PrefixKeys, first_page: int) -> None:
        self._store, self._keys, self._first_page = store, keys, first_page
        layout = store.layout
        self._total = layout.pages_for(len(keys))
        self._whole, self._rest = divmod(len(keys), layout.page_tokens)
        self._first = first_page
        self._file: int | None = None
        self._pin: int | None = None
        self._parent = -1
        self._now = store.clock()
        self._packed: list[bytes] = []
        self._digests: list[bytes] = []

    def run(self, pages: Iterable) -> Stored:
        """Write what is not there yet; see :meth:`PrefixStore.put`."""
        if not self._reserve():
            return Stored(0, len(self._keys), 0)
        path = self._store.files.path(self._file)
        try:
            self._store.files.write(self._file, self._parts(pages))
        except BaseException as error:
            self._abandon(written=False)
            if isinstance(error, OSError):
                raise from_os_error(error, path) from error
            raise
        try:
            stored = self._commit()
        except BaseException:
            self._abandon(written=True)
            raise
        self._store.cut_files()
        return stored

    def _reserve(self) -> bool:
        """Find what is missing and reserve a file for it, with its place held; False if nothing is."""
        store = self._store
        index_bytes = store.index.database_bytes()
        with store.index.transaction() as database:
            root = store_pages.add_root(database, self._keys.at(0))
            first, self._parent = min(self._first_page, self._whole), root
            before = store_pages.whole_path(database, root, self._keys, first)
            if before is None:
                first = 0
            else:
                self._parent = before
                store_pages.touch_path(database, before, self._now, store.grain_s)
            path, complete = self._stored_path(database, self._parent, first)
            store_pages.touch(database, path, self._now, store.grain_s)
            touched = first + len(path)
            if not complete:
                self._first = touched
                self._parent = path[-1].id if path else self._parent
                sizes = self._sizes(self._first)
                self._pin = store_pages.pin(database, self._parent, store.owner)
                self._packed = [page_bytes.pack_ids(self._keys.page_ids(number)) for number, _ in sizes]
                rows = sum(ROW_BYTES + len(packed) for packed in self._packed)
                nbytes = sum(size for _, size in sizes)
                freed = make_room(database, store, store.files.blocks(nbytes) + rows, index_bytes)
                insert = "INSERT INTO file (size, disk, owner) VALUES (?, ?, ?)"
                self._file = database.execute(insert, [nbytes, nbytes, store.owner]).lastrowid
        store.counters.add("pages_touched", touched)
        if not complete:
            store.count(freed)
            store.cut_files()
        return not complete

    def _parts(self, pages: Iterable) -> Iterator[np.ndarray]:
        """The stored bytes of the missing pages one after the other; their checksums are kept."""
        layout, found = self._store.layout, 0
        for number, page in enumerate(islice(iter(pages), self._first - self._first_page, None), self._first):
            if number == self._total:
                raise ValueError(f"there are more pages than the {self._total - self._first_page} expected")
            tokens = self._tokens(number)
            part = page_bytes.trim(page_bytes.as_page(page, layout), layout, tokens)
            self._digests.append(page_bytes.checksum(self._keys.at(number * layout.page_tokens + tokens), part))
            found += 1
            yield part
        if self._first + found < self._total:
            raise ValueError(f"the pages end before page {self._first + found}; expected all up to {self._total - 1}")

    def _commit(self) -> Stored:
        """Enter the pages, except those that another process has stored in the meantime."""
        store = self._store
        with store.index.transaction(durable=True) as database:
            # The pin keeps the path from all but its own damage.
            if not store_pages.exists(database, self._parent):
                raise self._missing(0)
            path, complete = self._stored_path(database, self._parent, self._first)
            store_pages.touch(database, path, self._now, store.grain_s)
            first = self._total if complete else self._first + len(path)
            sizes = self._sizes(self._first)
            new = [(number, size) for number, size in sizes if number >= first]
            start = end = sum(size for number, size in sizes if number < first)
            parent = path[-1].id if path else self._parent
            if new:
                self._replace_partial(database, parent, first)
            for number, size in new:
                parent = self._insert(database, parent, number, end)
                end += size
            database.execute(
                "UPDATE file SET size = ?, pages = ?, owner = NULL WHERE id = ?",
                [end if new else 0, len(new), self._file],
            )
            store_pages.unpin(database, self._pin)
        store.counters.add("pages_written", len(new))
        store.counters.add("bytes_written", end - start)
        return Stored(len(new), len(self._keys), end - start)

    def _abandon(self, written: bool) -> None:
        """Give back what was reserved. What fails here is done when this process has ended, or closes the store."""
        store = self._store
        if not written:
            # On a full disk the index may have no room to be told until the file is gone.
            with suppress(OSError):
                store.files.cut(self._file, 0)
        with suppress(StoreError), store.index.transaction() as database:
            store_pages.unpin(database, self._pin)
            database.execute("UPDATE file SET size = 0, owner = NULL WHERE id = ? AND owner IS NOT NULL", [self._file])
        store.cut_files()

    def _stored_path(self, database: sqlite3.Connection, parent: int, first: int) -> tuple[list[Page], bool]:
        """What is stored of the ids from page ``first``, which follows ``parent``, on, and whether that is all.

        The last page may be a fuller one that covers the rest.

        Raises:
            MissingPrefix: not all before the first page that was given.
        """
        path = store_pages.walk(database, parent, self._keys, first)
        complete = first + len(path) == self._whole
        if complete and self._rest:
            parent, ids = path[-1].id if path else parent, self._keys.page_ids(self._whole)
            best = store_pages.best_child(database, parent, self._key_before(self._whole), ids, float("-inf"))
            complete = best is not None and best[1] == self._rest
            if complete:
                path.append(best[0])
        if first + len(path) < self._first:
            raise self._missing(first + len(path))
        return path, complete

    def _missing(self, pages: int) -> MissingPrefix:
        tokens = min(pages * self._keys.page_tokens, len(self._keys))
        return MissingPrefix(
            f"page {self._first - 1} is no longer stored, only the first {tokens} tokens are; put the pages from "
            f"page {pages} on",
            tokens,
        )

    def _replace_partial(self, database: sqlite3.Connection, parent: int, number: int) -> None:
        """Drop partial pages that page ``number``, about to be entered, holds in full; keep what is being read."""
        ids = self._keys.page_ids(number)
        for page, own in store_pages.children(database, parent, self._key_before(number), ids):
            if len(own) < len(ids) and store_pages.common_prefix(own, ids) == len(own):
                if store_pages.is_pinned(database, page.id):
                    database.execute("UPDATE page SET used = ? WHERE id = ?", [_REPLACED, page.id])
                else:
                    store_pages.drop_tree(database, page.id, self._store.stored_bytes)

    def _insert(self, database: sqlite3.Connection, parent: int, number: int, start: int) -> int:
        ids, tokens = self._keys.page_ids(number), self._tokens(number)
        return database.execute(
            "INSERT INTO page (parent, height, key, tokens, first, used, file, start, digest, ids) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                parent,
                -number - 1,
                self._keys.at(number * self._keys.page_tokens + tokens),
                tokens,
                int(ids[0]),
                float(self._now),
                self._file,
                start,
                self._digests[number - self._first],
                self._packed[number - self._first],
            ],
        ).lastrowid

    def _sizes(self, first: int) -> list[tuple[int, int]]:
        """Number and stored bytes of the pages from ``first`` on."""
        return [(number, self._store.stored_bytes(self._tokens(number))) for number in range(first, self._total)]

    def _tokens(self, number: int) -> int:
        return min(self._keys.page_tokens, len(self._keys) - number * self._keys.page_tokens)

    def _key_before(self, number: int) -> bytes:
        return self._keys.at(number * self._keys.page_tokens)
