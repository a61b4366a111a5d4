"""Engines that could keep cache pages on disk, all with the same three methods: put a batch, give all pages, close.

Pages are those of the published configuration; every engine checks a SHA-256 of each page that it gives out.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ds41 import ModelConfig
from ds41.cache import PageLayout
from ds41.serving.store import PrefixStore

LAYOUT = PageLayout.of(ModelConfig.flash())
NBYTES = LAYOUT.nbytes
FINGERPRINT = bytes(32)
_UNBOUNDED = 2**50


def fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Damaged(Exception):
    """A page that an engine gave out is not the one that was written."""


def digest(page: bytes | memoryview) -> bytes:
    return hashlib.sha256(page).digest()[:16]


def checked(page: bytes | memoryview, expected: bytes) -> bytes | memoryview:
    if digest(page) != expected:
        raise Damaged
    return page


def page_bytes(number: int) -> bytes:
    """Incompressible bytes of their own for every page."""
    return hashlib.shake_128(number.to_bytes(8, "little")).digest(NBYTES)


class Blobs:
    """SQLite with the pages as blobs in the database."""

    def __init__(self, folder: Path, page_size: int, synchronous: str) -> None:
        self.database = sqlite3.connect(folder / "pages.db", isolation_level=None)
        self.database.execute(f"PRAGMA page_size = {page_size}")
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute(f"PRAGMA synchronous = {synchronous}")
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS page (id INTEGER PRIMARY KEY, digest BLOB NOT NULL, data BLOB NOT NULL)"
        )

    def put(self, batch: list[bytes]) -> None:
        self.database.execute("BEGIN IMMEDIATE")
        self.database.executemany(
            "INSERT INTO page (digest, data) VALUES (?, ?)", ((digest(page), page) for page in batch)
        )
        self.database.execute("COMMIT")

    def pages(self) -> Iterator[bytes]:
        for expected, data in self.database.execute("SELECT digest, data FROM page ORDER BY id"):
            yield checked(data, expected)

    def close(self) -> None:
        self.database.close()


class Files:
    """SQLite for the index, and a file for the pages of every batch that is written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = sqlite3.connect(folder / "index.db", isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute("CREATE TABLE IF NOT EXISTS page (id INTEGER PRIMARY KEY, file INT, digest BLOB)")

    def put(self, batch: list[bytes]) -> None:
        (number,) = self.database.execute("SELECT coalesce(max(file), 0) + 1 FROM page").fetchone()
        with open(self.folder / f"{number}.pages", "wb", buffering=0) as file:
            for page in batch:
                file.write(page)
            os.fsync(file.fileno())
        fsync_folder(self.folder)
        self.database.execute("BEGIN IMMEDIATE")
        self.database.executemany(
            "INSERT INTO page (file, digest) VALUES (?, ?)", ((number, digest(page)) for page in batch)
        )
        self.database.execute("COMMIT")

    def pages(self) -> Iterator[bytes]:
        for (number,) in self.database.execute("SELECT DISTINCT file FROM page ORDER BY file").fetchall():
            with open(self.folder / f"{number}.pages", "rb", buffering=0) as file:
                for (expected,) in self.database.execute(
                    "SELECT digest FROM page WHERE file = ? ORDER BY id", [number]
                ):
                    yield checked(file.read(NBYTES), expected)

    def close(self) -> None:
        self.database.close()


class Lmdb:
    """LMDB, which maps its one file into memory."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        self.environment = lmdb.open(str(folder), map_size=2**34)
        with self.environment.begin() as transaction:
            self.next = transaction.stat()["entries"]

    def put(self, batch: list[bytes]) -> None:
        with self.environment.begin(write=True) as transaction:
            for page in batch:
                transaction.put(self.next.to_bytes(8, "big"), digest(page) + page, append=True)
                self.next += 1

    def pages(self) -> Iterator[memoryview]:
        with self.environment.begin(buffers=True) as transaction:
            for _, value in transaction.cursor():
                yield checked(value[16:], bytes(value[:16]))

    def close(self) -> None:
        self.environment.close()


class Ours:
    """The package's prefix store; every batch goes on from the one before, and all are read as one prefix."""

    def __init__(self, folder: Path) -> None:
        self.store = PrefixStore(folder, LAYOUT, FINGERPRINT, budget_bytes=_UNBOUNDED)
        self.written = self.store.usage().pages

    def put(self, batch: list[bytes]) -> None:
        first, self.written = self.written, self.written + len(batch)
        self.store.put("bench", range(self.written * LAYOUT.page_tokens), batch, first_page=first)

    def pages(self) -> Iterator[memoryview]:
        pages = 0
        with self.store.find("bench", range(self.written * LAYOUT.page_tokens)) as prefix:
            for page in prefix.pages():
                pages += 1
                yield page.data
        if pages < self.written:
            raise Damaged

    def close(self) -> None:
        self.store.close()


PageEngine = Blobs | Files | Lmdb | Ours
ENGINES: dict[str, Callable[[Path], PageEngine]] = {
    **{
        f"SQLite blobs, {size} B pages, {synchronous}": partial(Blobs, page_size=size, synchronous=synchronous)
        for size in (4096, 8192, 16384, 65536)
        for synchronous in ("normal", "full")
    },
    "SQLite index + files, full": Files,
    "LMDB": Lmdb,
    "ds41 PrefixStore": Ours,
}
