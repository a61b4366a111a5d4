"""The prefix store: global KV of whole conversations on disk, found again by their token ids.

Why SQLite for the index and plain files for the pages (``benchmarks/store_engines.py`` prints the numbers): pages as
blobs in SQLite are written twice, to its log and to its database, and stay below half the speed of a plain copy; with
large database pages they also break the limit on overhead. LMDB is fast, but it maps its file, so that a file cut
short ends the process with SIGBUS where SQLite and a plain read give an error. Files that are written once and only
ever cut at their end need no second copy, no free list and no compaction, and SQLite, which every Python has, makes the
rows that point into them atomic over threads, processes and crashes. The price is paid by small puts: three waits for
the disk each, where a copy has one, and a touch of every page of the conversation before them.

What is promised:

- A page is served only with the bytes that were put for its ids, model, format and tenant, or not at all.
- A page that was put and used (put again, or found) less than ``guaranteed_s`` ago is not evicted: a store without
  room refuses with :class:`StoreFull`. After ``expires_s`` without use it is no longer served. Uses are noted to the
  minute, which lengthens both lifetimes and never shortens one.
- ``put`` is atomic, and what it has stored outlives a crash. An unfinished one leaves nothing behind.

Source: report section 3.2.1 (lifetimes, least recently used first, global KV only).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ds41.serving import page_bytes, store_owners, store_pages
from ds41.serving.counters import Counters
from ds41.serving.keys import PrefixKeys, root_key
from ds41.serving.store_errors import MissingPrefix, StoreError, StoreFull, from_os_error
from ds41.serving.store_files import PageFiles
from ds41.serving.store_pages import Dropped
from ds41.serving.store_reads import Prefix, longest
from ds41.serving.store_room import Freed, Usage, free_room, held, usage
from ds41.serving.store_schema import FILES_TO_CUT, Index
from ds41.serving.store_verify import Verified, remove_orphans, verify
from ds41.serving.store_writes import Put, Stored

if TYPE_CHECKING:
    import sqlite3

    from ds41.cache import PageLayout

__all__ = ["MissingPrefix", "Prefix", "PrefixStore", "StoreError", "StoreFull", "Stored", "Usage", "Verified"]

COUNTERS = (
    "lookups",
    "hits",
    "misses",
    "hit_tokens",
    "pages_read",
    "bytes_read",
    "pages_written",
    "bytes_written",
    "pages_touched",
    "evicted_pages",
    "evicted_bytes",
    "expired_pages",
    "damaged_pages",
    "refused_puts",
)
# What the report promises for pages on disk.
GUARANTEED_S = 72 * 3600.0


class PrefixStore:
    """Pages of global KV in ``folder``, for any number of threads and processes of one machine.

    Args:
        layout: of the pages; a folder holds pages of one layout.
        fingerprint: of model and formats, from :func:`~ds41.serving.model_fingerprint`; others' pages are misses.
        budget_bytes: files and index together may take, in bytes on disk; SQLite's log adds a few MB.
        guaranteed_s: seconds since its last use in which a page is not evicted.
        expires_s: seconds since its last use after which a page is a miss, at least ``guaranteed_s``. None: never.
        share_tenants: one tenant may hit what another has put. Off, no key of one is a key of another.
        clock: seconds, the same for all processes and over restarts.

    Raises:
        StoreError: a folder of another format or layout, or one that cannot be used; it says what to do.
        ValueError: a negative budget or lifetime, or one that expires before its guarantee ends.
    """

    def __init__(
        self,
        folder: str | Path,
        layout: PageLayout,
        fingerprint: bytes,
        *,
        budget_bytes: int,
        guaranteed_s: float = GUARANTEED_S,
        expires_s: float | None = None,
        share_tenants: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, value in (("budget_bytes", budget_bytes), ("guaranteed_s", guaranteed_s)):
            if not value >= 0:
                raise ValueError(f"{name} is {value}; expected 0 or more")
        if expires_s is not None and not expires_s >= guaranteed_s:
            raise ValueError(f"expires_s is {expires_s}; expected at least guaranteed_s, {guaranteed_s}, or None")
        root_key(fingerprint, None)
        self.folder, self.layout, self.clock = Path(folder), layout, clock
        self.budget_bytes, self.guaranteed_s, self.expires_s = budget_bytes, guaranteed_s, expires_s
        # To note a use costs a row for each page of its prefix, so it is noted once a minute; lifetimes allow for that.
        self.grain_s = min(60.0, guaranteed_s / 1000)
        self.counters = Counters(COUNTERS)
        self.fingerprint, self.share_tenants = fingerprint, share_tenants
        try:
            self.files = PageFiles(self.folder / "pages")
        except OSError as error:
            raise from_os_error(error, self.folder) from error
        self.index = Index(self.folder, layout, self.files.block)
        try:
            with self.index.transaction() as database:
                store_owners.release_dead(database)
                self.owner = store_owners.register(database)
                rebooted = self._note_boot(database)
            self.cut_files()
            # Rows are durable before their file is there, unless the machine itself went down.
            if self.index.created or rebooted:
                remove_orphans(self.index, self.files)
        except BaseException:
            self.index.close()
            raise

    def find(self, tenant: str | None, ids: Sequence[int] | np.ndarray) -> Prefix:
        """The longest stored prefix of ``ids`` [T], to the token, pinned until it is closed: use it in a ``with``.

        After the last whole page that is the same, the page after it with most ids in common counts as far as they go.

        Raises:
            StoreError: the index is damaged. TypeError, ValueError: what :func:`root_key` and :func:`as_ids` refuse.
        """
        keys = self._keys(tenant, ids)
        self.counters.add("lookups")
        now = self.clock()
        with self.index.transaction() as database:
            pages, tokens, expired = longest(database, self, keys, now)
            pin = None
            if tokens:
                store_pages.touch(database, pages, now, self.grain_s)
                pin = store_pages.pin(database, pages[-1].id, self.owner)
        self.cut_files()
        self.counters.add("expired_pages", expired)
        self.counters.add("hits" if tokens else "misses")
        self.counters.add("hit_tokens", tokens)
        expires = float("inf") if self.expires_s is None else now + self.expires_s
        return Prefix(self, pages, tokens, pin, expires)

    def put(self, tenant: str | None, ids: Sequence[int] | np.ndarray, pages: Iterable, first_page: int = 0) -> Stored:
        """Store the pages of ``ids`` from page ``first_page`` on, all of them or, with an error, none.

        Args:
            ids: int64 [n], all from the start of the conversation.
            pages: uint8 [layout.nbytes] each, arrays or tensors, for page numbers ``first_page`` up to the last,
                which may be partial; [N, layout.nbytes] will do. They are read one by one.
            first_page: the pages before it have to be stored.

        Pages that are there are only touched. A partial page gives way to the fuller page of the same prefix.

        Raises:
            StoreFull: the budget cannot be met without breaking the guarantee, or the disk is full.
            MissingPrefix: a page before ``first_page`` is no longer stored.
            StoreError: the index is damaged or the disk fails.
            TypeError, ValueError: bad ids, too few or too many pages, or pages of another size.
        """
        keys = self._keys(tenant, ids)
        total = self.layout.pages_for(len(keys))
        if not 0 <= first_page <= total:
            raise ValueError(f"first_page is {first_page}; expected 0 to {total}, the number of pages")
        if hasattr(pages, "__len__") and len(pages) != total - first_page:
            raise ValueError(f"there are {len(pages)} pages; expected {total - first_page} for {len(keys)} tokens")
        try:
            return Put(self, keys, first_page).run(pages)
        except StoreFull:
            self.counters.add("refused_puts")
            raise

    def evict(self, target_bytes: int | None = None) -> Dropped:
        """Remove expired pages, then the least recently used, until ``target_bytes`` are held (default: the budget).

        Pages in use, and pages whose guarantee still runs, stay.
        """
        target = self.budget_bytes if target_bytes is None else target_bytes
        index_bytes = self.index.database_bytes()
        with self.index.transaction() as database:
            store_owners.release_dead(database)
            freed = free_room(database, self, lambda: held(database) + index_bytes <= target, all_expired=True)
        self.count(freed)
        self.cut_files()
        return freed.dropped

    def usage(self) -> Usage:
        """What the store holds now; all pages are counted, which takes time in a large store."""
        return usage(self)

    def verify(self) -> Verified:
        """Read everything: remove damaged pages and files that belong to nothing, and say how many.

        Raises:
            StoreError: the index itself is damaged.
        """
        verified = verify(self.index, self.files, self.layout)
        self.counters.add("damaged_pages", verified.damaged)
        self.cut_files()
        return verified

    def close(self) -> None:
        """Let go of all pins and close the index; a second time does nothing."""
        if not self.index.closed:
            with suppress(StoreError), self.index.transaction() as database:
                store_owners.release(database, self.owner)
            self.cut_files()
        self.index.close()

    def __enter__(self) -> PrefixStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What follows is for the modules beside this one.

    def cut_files(self) -> None:
        """Do on disk what the index says: cut files whose end was dropped, remove those without pages.

        What cannot be done now is left to the next call, so no caller fails for it.
        """
        with suppress(StoreError):
            done = []
            for number, size, pages in self.index.query(FILES_TO_CUT):
                with suppress(OSError):
                    self.files.cut(number, size if pages else 0)
                    done.append((number, size, pages))
            if done:
                with self.index.transaction() as database:
                    for number, size, pages in done:
                        if pages:
                            # Others may have dropped more pages by now: those are still to be cut.
                            database.execute("UPDATE file SET disk = ? WHERE id = ? AND disk > ?", [size, number, size])
                        else:
                            database.execute("DELETE FROM file WHERE id = ?", [number])

    def release(self, pin: int) -> None:
        """Take one pin away; a store that was closed has none."""
        if not self.index.closed:
            with suppress(StoreError), self.index.transaction() as database:
                store_pages.unpin(database, pin)

    def count(self, freed: Freed) -> None:
        """Add what was freed to the counters."""
        self.counters.add("expired_pages", freed.expired.pages)
        self.counters.add("evicted_pages", freed.evicted.pages)
        self.counters.add("evicted_bytes", freed.evicted.nbytes)

    def expired_before(self, now: float) -> float:
        """A page last used then or earlier has expired."""
        return float("-inf") if self.expires_s is None else now - self.expires_s - self.grain_s

    def stored_bytes(self, tokens: int) -> int:
        """Bytes that a page of ``tokens`` tokens has on disk."""
        return page_bytes.stored_bytes(self.layout, tokens)

    def _keys(self, tenant: str | None, ids: Sequence[int] | np.ndarray) -> PrefixKeys:
        root = root_key(self.fingerprint, tenant)
        if self.share_tenants:
            root = root_key(self.fingerprint, None)
        return PrefixKeys(root, ids, self.layout.page_tokens)

    def _note_boot(self, database: sqlite3.Connection) -> bool:
        """Whether the machine was started anew since the folder was last opened."""
        boot = store_owners.boot_id()
        row = database.execute("SELECT value FROM meta WHERE name = 'boot'").fetchone()
        database.execute("INSERT OR REPLACE INTO meta VALUES ('boot', ?)", [boot])
        return row is not None and row[0] != boot
