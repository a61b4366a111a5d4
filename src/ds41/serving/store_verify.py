"""Reading everything that a store holds, and removing what is wrong or belongs to nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ds41.serving import page_bytes, store_pages
from ds41.serving.keys import next_key
from ds41.serving.store_errors import damaged_index

if TYPE_CHECKING:
    from ds41.cache import PageLayout
    from ds41.serving.store_files import PageFiles, Reader
    from ds41.serving.store_schema import Index

_BATCH = 256


class Verified(NamedTuple):
    """``pages`` that are right, ``damaged`` ones that were dropped (with those after them), ``orphans``: files."""

    pages: int
    damaged: int
    orphans: int


def verify(index: Index, files: PageFiles, layout: PageLayout) -> Verified:
    """Check the database, then every page against its ids, its key and the key before it.

    Raises:
        StoreError: the database is damaged.
    """
    (report,) = index.query("PRAGMA quick_check(1)")[0]
    if report != "ok":
        raise damaged_index(report, index.folder)
    good, damaged, last, gone = 0, 0, 0, set()
    with files.reader() as reader:
        while rows := index.query(
            "SELECT page.id, page.parent, parent.key, page.key, page.ids, page.file, page.start, page.digest FROM page "
            "LEFT JOIN page AS parent ON parent.id = page.parent "
            "WHERE page.parent IS NOT NULL AND page.id > ? ORDER BY page.id LIMIT ?",
            [last, _BATCH],
        ):
            last = rows[-1][0]
            for number, parent, *row in rows:
                if parent in gone:
                    # Dropped with the page before it, which has the smaller number.
                    gone.add(number)
                    continue
                if _is_right(reader, layout, *row):
                    good += 1
                    continue
                gone.add(number)
                with index.transaction() as database:
                    damaged += store_pages.drop_tree(
                        database, number, lambda tokens: page_bytes.stored_bytes(layout, tokens)
                    ).pages
    return Verified(good, damaged, remove_orphans(index, files))


def remove_orphans(index: Index, files: PageFiles) -> int:
    """Remove files that have no row; gives how many."""
    # A file gets its row first, so one that is listed before the rows are read has it.
    numbers = set(files.numbers())
    with index.transaction() as database:
        orphans = numbers - {number for (number,) in database.execute("SELECT id FROM file")}
        for number in orphans:
            with suppress(OSError):
                files.cut(number, 0)
    return len(orphans)


def _is_right(reader: Reader, layout: PageLayout, parent_key, key, packed, file, start, digest) -> bool:
    ids = page_bytes.unpack_ids(packed)
    if ids is None or not isinstance(parent_key, bytes) or next_key(parent_key, ids) != key:
        return False
    if not isinstance(file, int) or not isinstance(start, int) or len(ids) > layout.page_tokens:
        return False
    stored = reader.read(file, start, page_bytes.stored_bytes(layout, len(ids)))
    return stored is not None and page_bytes.checksum(key, stored) == digest
