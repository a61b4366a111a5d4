"""Pages in the index: walk a path, find a page that fits in part, touch, drop and evict.

A database has no checksums of its own, so nothing that a row says is believed: a page is found by the key that its
caller computed, the ids of a page that fits in part are hashed again, and its bytes are checked against that key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ds41.serving.keys import PrefixKeys, next_key
from ds41.serving.page_bytes import unpack_ids

_COLUMNS = "id, parent, tokens, used, file, start, digest"
_BATCH = 256
_UPWARD = (
    "WITH RECURSIVE up (id, parent) AS (SELECT id, parent FROM page WHERE id = ? "
    "UNION SELECT page.id, page.parent FROM page JOIN up ON page.id = up.parent), "
    "path (id) AS (SELECT id FROM up)"
)


class Page(NamedTuple):
    """A row of the index, with the key that its reader computed."""

    id: int
    parent: int | None
    tokens: int
    used: float
    file: int
    start: int
    digest: bytes
    key: bytes


class Dropped(NamedTuple):
    """How many pages were dropped and the bytes they had in their files."""

    pages: int
    nbytes: int

    def plus(self, other: Dropped) -> Dropped:
        return Dropped(self.pages + other.pages, self.nbytes + other.nbytes)


NOTHING = Dropped(0, 0)


def root_id(database: sqlite3.Connection, key: bytes) -> int | None:
    row = database.execute("SELECT id FROM page WHERE key = ? AND parent IS NULL", [key]).fetchone()
    return row[0] if row else None


def add_root(database: sqlite3.Connection, key: bytes) -> int:
    found = root_id(database, key)
    if found is not None:
        return found
    insert = "INSERT INTO page (height, key, tokens, used) VALUES (0, ?, 0, 0)"
    return database.execute(insert, [key]).lastrowid


def walk(database: sqlite3.Connection, parent: int, keys: PrefixKeys, first: int = 0) -> list[Page]:
    """The whole pages of the longest stored prefix of ``keys``, from page ``first``, which follows ``parent``, on."""
    found: list[Page] = []
    whole = len(keys) // keys.page_tokens
    for start in range(first, whole, _BATCH):
        wanted = [keys.at(page * keys.page_tokens) for page in range(start + 1, min(start + _BATCH, whole) + 1)]
        marks = ",".join("?" * len(wanted))
        rows = database.execute(f"SELECT key, {_COLUMNS} FROM page WHERE key IN ({marks})", wanted)
        by_key = {key: Page(*columns, key=key) for key, *columns in rows if _plausible(*columns)}
        for key in wanted:
            page = by_key.get(key)
            if page is None or page.parent != parent or page.tokens != keys.page_tokens:
                return found
            found.append(page)
            parent = page.id
    return found


def best_child(
    database: sqlite3.Connection, parent: int, parent_key: bytes, ids: np.ndarray, unexpired: float
) -> tuple[Page, int] | None:
    """The child that has most of the next ``ids`` in front, and how many; of equals the one with most tokens."""
    best: tuple[Page, int] | None = None
    for page, own in children(database, parent, parent_key, ids):
        common = common_prefix(own, ids)
        if page.used > unexpired and common and (best is None or (common, page.tokens) > (best[1], best[0].tokens)):
            best = page, common
    return best


def children(
    database: sqlite3.Connection, parent: int, parent_key: bytes, ids: np.ndarray
) -> Iterator[tuple[Page, np.ndarray]]:
    """Pages after ``parent`` that start with the first of ``ids``, with the ids that their key vouches for."""
    if not len(ids):
        return
    query = f"SELECT key, ids, {_COLUMNS} FROM page WHERE parent = ? AND first = ?"
    for key, packed, *columns in database.execute(query, [parent, int(ids[0])]).fetchall():
        own = unpack_ids(packed)
        if own is not None and _plausible(*columns) and columns[2] == len(own) and next_key(parent_key, own) == key:
            yield Page(*columns, key=key), own


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many ids two rows share at their start."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def touch(database: sqlite3.Connection, pages: list[Page], now: float, grain: float) -> None:
    """Count as used now. One that was touched less than ``grain`` seconds ago is left as it is.

    A page is touched with all before it, so none is older than those after it by more than the grain.
    """
    stale = [page.id for page in pages if page.used < now - grain]
    database.executemany("UPDATE page SET used = ? WHERE id = ? AND used < ?", ((now, id, now) for id in stale))


def whole_path(database: sqlite3.Connection, root: int, keys: PrefixKeys, pages: int) -> int | None:
    """The last of the first ``pages`` pages of ``keys``, if all of them are there; quicker than :func:`walk`."""
    row = database.execute("SELECT id FROM page WHERE key = ?", [keys.at(pages * keys.page_tokens)]).fetchone()
    if row is None:
        return None
    query = f"{_UPWARD} SELECT count(*), max(id = ?) FROM path"
    return row[0] if database.execute(query, [row[0], root]).fetchone() == (pages + 1, 1) else None


def touch_path(database: sqlite3.Connection, page: int, now: float, grain: float) -> None:
    """Count a page and all before it as used now, as :func:`touch` does."""
    update = f"{_UPWARD} UPDATE page SET used = ? WHERE id IN path AND used < ? AND parent IS NOT NULL"
    database.execute(update, [page, now, now - grain])


def pin(database: sqlite3.Connection, page: int, owner: int) -> int:
    return database.execute("INSERT INTO pin (page, owner) VALUES (?, ?)", [page, owner]).lastrowid


def unpin(database: sqlite3.Connection, number: int) -> None:
    database.execute("DELETE FROM pin WHERE id = ?", [number])


def exists(database: sqlite3.Connection, page: int) -> bool:
    return database.execute("SELECT 1 FROM page WHERE id = ?", [page]).fetchone() is not None


def is_pinned(database: sqlite3.Connection, page: int) -> bool:
    return database.execute("SELECT 1 FROM pin WHERE page = ?", [page]).fetchone() is not None


def drop_tree(database: sqlite3.Connection, page: int, page_bytes: Callable[[int], int]) -> Dropped:
    """Drop a page and all after it, in use or not: what is read is checked, so a reader meets a miss at worst."""
    rows = database.execute(
        "WITH RECURSIVE tree (id) AS (SELECT ? UNION SELECT page.id FROM page JOIN tree ON page.parent = tree.id) "
        "SELECT id FROM tree",
        [page],
    ).fetchall()
    dropped = NOTHING
    for (number,) in reversed(rows):
        dropped = dropped.plus(_drop(database, number, page_bytes))
    return dropped


def evict(
    database: sqlite3.Connection, used_before: float, page_bytes: Callable[[int], int], enough: Callable[[], bool]
) -> Dropped:
    """Drop pages last used before a moment, the oldest and deepest first, until there is ``enough`` room.

    A page in use stays, and so do all before it. A page that is older than those after it, as the turns of a quick
    conversation leave it, goes with the last of them.
    """
    dropped, last = NOTHING, (float("-inf"), 0, 0)
    while not enough():
        rows = database.execute(
            "SELECT used, height, id FROM page WHERE parent IS NOT NULL AND used <= ? "
            "AND (used, height, id) > (?, ?, ?) ORDER BY used, height, id LIMIT ?",
            [used_before, *last, _BATCH],
        ).fetchall()
        if not rows:
            break
        for last in rows:
            page = last[2]
            while not enough() and (parent := _parent_of_free(database, page, last)) is not None:
                dropped = dropped.plus(_drop(database, page, page_bytes))
                page = parent
    return dropped


def oldest_use(database: sqlite3.Connection) -> float | None:
    """When the page that may go first was last used; None if there is none."""
    return database.execute("SELECT min(used) FROM page WHERE parent IS NOT NULL").fetchone()[0]


def last_use(database: sqlite3.Connection, page: int) -> float:
    """When a page was last used; infinity for one that is gone."""
    row = database.execute("SELECT used FROM page WHERE id = ?", [page]).fetchone()
    return row[0] if row and isinstance(row[0], float) else float("inf")


def _drop(database: sqlite3.Connection, page: int, page_bytes: Callable[[int], int]) -> Dropped:
    row = database.execute("SELECT parent, tokens, file, start FROM page WHERE id = ?", [page]).fetchone()
    if row is None or row[0] is None:
        return NOTHING
    parent, tokens, file, start = row
    database.execute("DELETE FROM page WHERE id = ?", [page])
    database.execute(
        "UPDATE file SET pages = pages - 1, size = CASE WHEN pages <= 1 THEN 0 ELSE min(size, ?) END WHERE id = ?",
        [start, file],
    )
    if not _has_children(database, parent) and not is_pinned(database, parent):
        database.execute("DELETE FROM page WHERE id = ? AND parent IS NULL", [parent])
    return Dropped(1, page_bytes(tokens) if isinstance(tokens, int) else 0)


def _parent_of_free(database: sqlite3.Connection, page: int, turn: tuple[float, int, int]) -> int | None:
    """The page before one whose turn to go has come and that nothing holds; None if it has to stay."""
    row = database.execute(
        "SELECT parent FROM page WHERE id = ? AND (used, height, id) <= (?, ?, ?)", [page, *turn]
    ).fetchone()
    if row is None or is_pinned(database, page) or _has_children(database, page):
        return None
    return row[0]


def _has_children(database: sqlite3.Connection, page: int) -> bool:
    return database.execute("SELECT 1 FROM page WHERE parent = ? LIMIT 1", [page]).fetchone() is not None


def _plausible(number, parent, tokens, used, file, start, digest) -> bool:
    """Whether a row has the types that were written, which damage may have changed."""
    whole = type(number) is type(parent) is type(tokens) is type(file) is type(start) is int
    return whole and type(used) is float and type(digest) is bytes
