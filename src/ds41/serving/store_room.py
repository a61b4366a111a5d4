"""Room in the store: what it holds, what may go, and what a refusal says.

Source: ds41's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds41.serving import store_owners, store_pages
from ds41.serving.store_errors import StoreFull
from ds41.serving.store_pages import NOTHING, Dropped

if TYPE_CHECKING:
    from ds41.serving.store import PrefixStore

# A row and its places in three indices, beside the ids of its page.
ROW_BYTES = 320
_HOUR = 3600.0


@dataclass(frozen=True)
class Usage:
    """What a store holds: ``tokens`` in ``pages``, and bytes.

    ``page_bytes`` are those of the pages, ``file_bytes`` their files in whole blocks, ``index_bytes`` the database
    without its log; ``held_bytes``, the last two together, is what counts against ``budget_bytes``.
    """

    pages: int
    tokens: int
    page_bytes: int
    file_bytes: int
    index_bytes: int
    budget_bytes: int

    @property
    def held_bytes(self) -> int:
        """Bytes of page files and index together."""
        return self.file_bytes + self.index_bytes


def usage(store: PrefixStore) -> Usage:
    """What a store holds now, counted page by page."""
    with store.index.transaction() as database:
        query = "SELECT tokens, count(*) FROM page WHERE parent IS NOT NULL GROUP BY tokens"
        counts = database.execute(query).fetchall()
        file_bytes = held(database)
    return Usage(
        pages=sum(count for _, count in counts),
        tokens=sum(tokens * count for tokens, count in counts),
        page_bytes=sum(store.stored_bytes(tokens) * count for tokens, count in counts),
        file_bytes=file_bytes,
        index_bytes=store.index.database_bytes(),
        budget_bytes=store.budget_bytes,
    )


@dataclass(frozen=True)
class Freed:
    """Pages that were dropped to make room: those that had expired, and those whose guarantee was over."""

    expired: Dropped = NOTHING
    evicted: Dropped = NOTHING

    @property
    def dropped(self) -> Dropped:
        return self.expired.plus(self.evicted)


def held(database: sqlite3.Connection) -> int:
    """Bytes of all files, in whole blocks; those of puts under way are among them."""
    return database.execute("SELECT bytes FROM total").fetchone()[0]


def free_room(
    database: sqlite3.Connection, store: PrefixStore, enough: Callable[[], bool], all_expired: bool = False
) -> Freed:
    """Drop pages until there is enough room or no more may go, expired ones first (or all of these anyway)."""
    now = store.clock()
    expired = NOTHING
    if store.expires_s is not None:
        until = (lambda: False) if all_expired else enough
        expired = store_pages.evict(database, store.expired_before(now), store.stored_bytes, until)
    evicted = store_pages.evict(database, now - store.guaranteed_s - store.grain_s, store.stored_bytes, enough)
    return Freed(expired, evicted)


def make_room(database: sqlite3.Connection, store: PrefixStore, nbytes: int, index_bytes: int) -> Freed:
    """Drop pages until ``nbytes`` more fit into the budget.

    Args:
        nbytes: of a file, in whole blocks, and of its rows. index_bytes: of the database before this transaction.

    Raises:
        StoreFull: they do not fit without breaking the guarantee. The transaction has to be rolled back.
    """

    def enough() -> bool:
        return held(database) + index_bytes + nbytes <= store.budget_bytes

    freed = free_room(database, store, enough)
    if not enough():
        # Pins of a process that is gone hold nothing.
        store_owners.release_dead(database)
        more = free_room(database, store, enough)
        freed = Freed(freed.expired.plus(more.expired), freed.evicted.plus(more.evicted))
    if not enough():
        raise StoreFull(
            f"the store in {store.folder} is full: {nbytes:,} bytes are needed and {held(database) + index_bytes:,} of "
            f"the budget of {store.budget_bytes:,} have to stay; {_when_room(database, store, nbytes, index_bytes)}"
        )
    return freed


def _when_room(database: sqlite3.Connection, store: PrefixStore, nbytes: int, index_bytes: int) -> str:
    if nbytes + index_bytes > store.budget_bytes:
        return "they can never fit, give a larger budget"
    oldest = store_pages.oldest_use(database)
    if oldest is None:
        return "all of that are puts under way, try again when they are done"
    wait = oldest + store.guaranteed_s + store.grain_s - store.clock()
    if wait <= 0:
        return "the pages that may go are in use, try again when they are not"
    return f"the guarantee of the oldest page ends in {wait / _HOUR:.2f} hours"
