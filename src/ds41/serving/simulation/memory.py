"""The model's memory as books alone: which row refers to which page, how often, and how many are free.

:class:`ds41.serving.rows.Rows` and :class:`ds41.serving.resident.ResidentPages` decide over it exactly as they do over
a real cache. A page's name stands for its content: what is shared has the same name for all that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ds41.cache import PageLayout
from ds41.serving.simulation.store_tier import Content


class ContentKeys:
    """Names of every prefix of a conversation of ``tokens`` tokens, in place of the hashes of its ids."""

    def __init__(self, content: Content, tokens: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self._content, self._tokens = content, tokens

    def __len__(self) -> int:
        return self._tokens

    def at(self, n: int) -> tuple[str, int]:
        """The name of the first ``n`` tokens."""
        return (self._content.shared if n <= self._content.tokens else self._content.key), n


class PageBooks:
    """Page numbers with counts of references, of a pool of ``pages``."""

    def __init__(self, layout: PageLayout, pages: int) -> None:
        self.layout, self.pages = layout, pages
        self._free, self._references = list(range(pages - 1, -1, -1)), [0] * pages

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A free page with one reference."""
        page = self._free.pop()
        self._references[page] = 1
        return page

    def references(self, page: int) -> int:
        return self._references[page]

    def share(self, page: int) -> None:
        self._references[page] += 1

    def share_many(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._references[page] += 1

    def release_many(self, pages: Iterable[int]) -> None:
        """Give one reference of each back; a page without any is free."""
        for page in pages:
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)


class RowBooks:
    """The rows of a cache: the tokens and pages of each.

    lengths: tokens that were fed. stored: tokens whose entries were there before. on_reset: called with a row that
    is emptied.
    """

    def __init__(self, pool: PageBooks, rows: int, on_reset: Callable[[int], None] | None = None) -> None:
        self.pool, self.batch = pool, rows
        self.lengths, self.stored = [0] * rows, [0] * rows
        self._pages: list[list[int]] = [[] for _ in range(rows)]
        self._on_reset = on_reset

    def pages_of(self, row: int) -> list[int]:
        return self._pages[row]

    def held_pages(self, row: int) -> int:
        return len(self._pages[row])

    def reset(self, row: int) -> None:
        """Empty a row."""
        if self._on_reset:
            self._on_reset(row)
        self.pool.release_many(self._pages[row])
        self._pages[row], self.lengths[row], self.stored[row] = [], 0, 0

    def adopt(self, row: int, pages: list[int], tokens: int, start: int) -> None:
        """Begin a row with pages that hold ``tokens`` tokens, of which those from ``start`` on are fed again."""
        self.pool.share_many(pages)
        self.pool.release_many(self._pages[row])
        self._pages[row] = list(pages)
        self.lengths[row], self.stored[row] = start, tokens

    def feed(self, row: int, tokens: int) -> None:
        """Append ``tokens`` tokens, with pages for those whose entries are new."""
        self.lengths[row] += tokens
        missing = self.pool.layout.pages_for(self.lengths[row]) - len(self._pages[row])
        self._pages[row].extend(self.pool.allocate() for _ in range(missing))
