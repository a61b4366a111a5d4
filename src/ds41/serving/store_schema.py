"""The index of a prefix store: one SQLite database in WAL mode, its tables and its transactions.

``page``   one row a page: the row of the page before it, its key, ids, file and place in it, checksum, last use
``file``   one row a file: ``size`` bytes of it are wanted, up to ``disk`` may be there; ``owner`` is still writing it
``pin``    pages that are in use. Pages are dropped from the end of a path, so one pin holds all pages before it
``owner``  the processes that use the store
``total``  bytes of all files in whole blocks, kept by triggers
A page with no parent is the root of a tenant. ``height`` is minus the page number: deeper pages sort first.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ds41.serving.store_errors import DATABASE_ERRORS, StoreError, from_database_error

if TYPE_CHECKING:
    from ds41.cache import PageLayout

# A change of the tables, of page_bytes or of the keys needs another number.
SCHEMA = 1
_APPLICATION = 0x64733431
_BUSY_S = 30.0
_WAL_BYTES = 4 * 2**20
FILES_TO_CUT = "SELECT id, size, pages FROM file WHERE owner IS NULL AND (size < disk OR pages = 0)"
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE owner (id INTEGER PRIMARY KEY AUTOINCREMENT, process TEXT NOT NULL);
CREATE TABLE file (
    id INTEGER PRIMARY KEY AUTOINCREMENT, size INTEGER NOT NULL, disk INTEGER NOT NULL,
    pages INTEGER NOT NULL DEFAULT 0, owner INTEGER
);
CREATE INDEX file_to_cut ON file (id) WHERE owner IS NULL AND (size < disk OR pages = 0);
CREATE TABLE page (
    id INTEGER PRIMARY KEY AUTOINCREMENT, parent INTEGER, height INTEGER NOT NULL, key BLOB NOT NULL UNIQUE,
    tokens INTEGER NOT NULL, first INTEGER, used REAL NOT NULL, file INTEGER, start INTEGER, digest BLOB, ids BLOB
);
CREATE INDEX page_parent ON page (parent, first);
CREATE INDEX page_used ON page (used, height) WHERE parent IS NOT NULL;
CREATE TABLE pin (id INTEGER PRIMARY KEY AUTOINCREMENT, page INTEGER NOT NULL, owner INTEGER NOT NULL);
CREATE INDEX pin_page ON pin (page);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER file_added AFTER INSERT ON file BEGIN
    UPDATE total SET bytes = bytes + (new.size + {last}) / {block} * {block}; END;
CREATE TRIGGER file_changed AFTER UPDATE OF size ON file BEGIN
    UPDATE total SET bytes = bytes + ((new.size + {last}) / {block} - (old.size + {last}) / {block}) * {block}; END;
CREATE TRIGGER file_removed AFTER DELETE ON file BEGIN
    UPDATE total SET bytes = bytes - (old.size + {last}) / {block} * {block}; END;
"""


def describe(layout: PageLayout) -> str:
    """Every number of a layout that decides what a page's bytes mean, as text."""
    sources = " ".join(
        f"{source.layer}:{source.ratio}:" + ",".join(f"{p.offset}+{p.entries}x{p.row_bytes}" for p in source.planes)
        for source in layout.sources
    )
    return f"{layout.page_tokens} tokens, {layout.nbytes} bytes, {sources}"


class Index:
    """A connection to the database of ``folder``, shared by the threads of one process.

    Raises:
        StoreError: a folder of another format or layout, a damaged database, or one that cannot be opened.
    """

    def __init__(self, folder: Path, layout: PageLayout, block: int) -> None:
        self.folder = folder
        self.path = folder / "index.db"
        self.created = False
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._database: sqlite3.Connection | None = None
        try:
            self._database = self._connect()
            with self.transaction(durable=True) as database:
                self._create_or_check(database, layout, block)
        except DATABASE_ERRORS as error:
            self.close()
            raise from_database_error(error, folder) from error
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._database is None

    @contextmanager
    def transaction(self, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """All or nothing of what is written inside; one at a time over all threads and processes.

        Args:
            durable: outlives a power failure when it returns. Without, it outlives the end of every process.

        Raises:
            StoreError: the store is closed, came here through a fork, is damaged, or its disk is full.
        """
        with self._lock:
            database = self._usable()
            try:
                database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    if database.in_transaction:
                        database.execute("ROLLBACK")
                if isinstance(error, DATABASE_ERRORS):
                    raise from_database_error(error, self.folder) from error
                raise

    def query(self, statement: str, values: Sequence = ()) -> list[tuple]:
        """The rows of one statement that only reads."""
        with self._lock:
            try:
                return self._usable().execute(statement, values).fetchall()
            except DATABASE_ERRORS as error:
                raise from_database_error(error, self.folder) from error

    def database_bytes(self) -> int:
        """Bytes of the database that hold something; what was freed is used again."""
        pages, free, size = (
            self.query(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def close(self) -> None:
        with self._lock:
            # A connection that came through a fork is the parent's: closing it here would drop the parent's locks.
            if self._database is not None and self._process == os.getpid():
                with suppress(sqlite3.Error):
                    self._database.close()
            self._database = None

    def _usable(self) -> sqlite3.Connection:
        if self._database is None:
            raise StoreError(f"the store in {self.folder} is closed")
        if self._process != os.getpid():
            raise StoreError(
                f"the store in {self.folder} is that of process {self._process}; open it anew after a fork"
            )
        return self._database

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        # Damaged bytes in a column of text must not end in an error of their own.
        database.text_factory = lambda raw: raw.decode(errors="replace")
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                database.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # The change of mode does not wait for others as transactions do.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    database.close()
                    raise
                time.sleep(0.01)
            except DATABASE_ERRORS:
                database.close()
                raise
        database.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        return database

    def _create_or_check(self, database: sqlite3.Connection, layout: PageLayout, block: int) -> None:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (schema,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not application and not tables:
            for statement in _statements(_TABLES.format(block=block, last=block - 1)):
                database.execute(statement)
            database.execute("INSERT INTO meta VALUES ('layout', ?)", [describe(layout)])
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {SCHEMA}")
            self.created = True
            return
        if application != _APPLICATION:
            raise StoreError(f"{self.path} is a database of something else; choose another folder")
        if schema != SCHEMA:
            raise StoreError(
                f"{self.path} has format {schema}; this version reads format {SCHEMA}. Everything in it can be "
                "computed again: delete the folder, or choose another"
            )
        row = database.execute("SELECT value FROM meta WHERE name = 'layout'").fetchone()
        if row is None or row[0] != describe(layout):
            raise StoreError(
                f"{self.folder} holds pages of another layout ({row[0] if row else 'none'}); this model's is "
                f"{describe(layout)}. Choose another folder, or delete this one"
            )


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one, because executescript() would commit first."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
