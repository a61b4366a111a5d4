"""Pages whose bytes follow from the ids before them, so that any page can be checked against the ids it stands for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ds41 import ModelConfig
from ds41.cache import PageLayout
from ds41.serving.store import Prefix, PrefixStore

PAGE = 8
LAYOUT = PageLayout.of(ModelConfig.nano(), PAGE)
FINGERPRINT = b"model and formats"
# What stands where a page has no entry: any byte will do, and none may be served as an entry.
_FILLER = 0xA5


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def open_store(folder, **options) -> PrefixStore:
    """A store of small pages with a budget that is never reached, unless ``options`` say otherwise."""
    settings = {"budget_bytes": 2**40, "fingerprint": FINGERPRINT, "layout": LAYOUT} | options
    return PrefixStore(folder, settings.pop("layout"), settings.pop("fingerprint"), **settings)


def made_pages(ids: Sequence[int], layout: PageLayout = LAYOUT, first: int = 0) -> list[np.ndarray]:
    """Pages ``first`` and on of ``ids``; every entry follows from all ids up to its last token."""
    states, state = [], b""
    for token in ids:
        state = hashlib.sha256(state + int(token).to_bytes(8, "little", signed=True)).digest()
        states.append(state)
    pages = []
    for number in range(first, layout.pages_for(len(ids))):
        page = np.full(layout.nbytes, _FILLER, np.uint8)
        own = states[number * layout.page_tokens : (number + 1) * layout.page_tokens]
        for source, plane, entry, start in _entries(layout, len(own)):
            row = hashlib.shake_128(own[(entry + 1) * source.ratio - 1] + bytes([source.layer, plane.row_bytes % 251]))
            page[start : start + plane.row_bytes] = np.frombuffer(row.digest(plane.row_bytes), np.uint8)
        pages.append(page)
    return pages


def is_right(page: np.ndarray, made: np.ndarray, tokens: int, layout: PageLayout = LAYOUT) -> bool:
    """Whether the first ``tokens`` tokens of a page have the entries that were made for them."""
    return page.shape == made.shape and all(
        np.array_equal(page[start : start + plane.row_bytes], made[start : start + plane.row_bytes])
        for _, plane, _, start in _entries(layout, tokens)
    )


def read_right(prefix: Prefix, ids: Sequence[int], layout: PageLayout = LAYOUT) -> int:
    """Read a prefix of ``ids`` and give the number of its pages; every entry of every page must be right."""
    made, pages = made_pages(ids, layout), list(prefix.pages())
    assert len(pages) == layout.pages_for(prefix.tokens)
    assert prefix.tokens <= len(ids)
    for number, page in enumerate(pages):
        tokens = min(layout.page_tokens, prefix.tokens - number * layout.page_tokens)
        assert is_right(page, made[number], tokens, layout), f"page {number} of {prefix.tokens} tokens is wrong"
    return len(pages)


def put(store: PrefixStore, ids: Sequence[int], tenant: str | None = "a", first_page: int = 0):
    """Put the pages made for ``ids``."""
    return store.put(tenant, ids, made_pages(ids, store.layout, first_page), first_page)


def hit(store: PrefixStore, ids: Sequence[int], tenant: str | None = "a") -> int:
    """Tokens of ``ids`` that the store has, all read and found right."""
    with store.find(tenant, ids) as prefix:
        read_right(prefix, ids, store.layout)
        return prefix.tokens


def page_files(store: PrefixStore) -> list:
    return sorted((store.folder / "pages").glob("*/*.pages"))


def _entries(layout: PageLayout, tokens: int):
    """Every row of every plane that ``tokens`` tokens fill, and where in the page it starts."""
    for source in layout.sources:
        for plane in source.planes:
            for entry in range(tokens // source.ratio):
                yield source, plane, entry, plane.offset + entry * plane.row_bytes
