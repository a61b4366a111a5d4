"""Everything that a batch of live sequences keeps between steps.

Source: report sections 2.3, 2.4.4 and 3.2 for what is kept; pages and rings are ds41's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import index

import torch

from ds41.cache.errors import CacheError
from ds41.cache.global_kv import GlobalKV
from ds41.cache.layout import PAGE_TOKENS, PageLayout
from ds41.cache.pool import PagePool
from ds41.cache.private_rows import PrivateRows
from ds41.cache.progress import Progress
from ds41.cache.storage import Storage, check_storage
from ds41.config import ModelConfig


class Cache(GlobalKV, PrivateRows):
    """The state of ``batch`` sequences of up to ``max_tokens`` tokens each; every sequence has its own length.

    ==============  =======================================================================  ==================
    what            where                                                                    grows with tokens
    ==============  =======================================================================  ==================
    global KV       pages of a pool, found by ``page_table``; may be shared between rows     yes
    windows         per layer a ring of ``sliding_window + rollback`` rows                   no
    open groups     per layer that pools, a ring of ``ratio - 1 + rollback`` fp32 rows       no
    Engram history  a ring of ``engram_max_ngram_size - 1 + rollback`` compressed ids        no
    ==============  =======================================================================  ==================

    One step of a model: :meth:`reserve` what it will write, then read and write, then :meth:`advance`. A step that
    is longer than ``rollback + 1`` tokens must read the private rows it needs before it writes its own.
    :meth:`truncate` takes tokens back: the rings still hold what was there ``rollback`` tokens ago.

    Rows to read or write are addressed by flat tensors: ``sequence`` int64 [M], which sequence, and ``position`` or
    ``entry`` int64 [M]. In one write the positions of a sequence follow each other. What was never written can be
    read, and is arbitrary: a caller looks only at positions from ``window_start`` and at entries below
    ``length // ratio``.

    Args:
        storage: "packed" bytes, "fake" (the values those bytes stand for) or "plain" (not rounded).
        rollback: tokens that can be taken back; as many as a draft block has if None.
        page_tokens: tokens of a page; those of ``pool`` if it is given, else 64.
        dtype: of the values that are read, and of those held where storage is not packed.
        pool: pages to draw from, perhaps shared with other caches; else a pool for ``batch * max_tokens`` tokens.
        draft_layers: layers of a drafter, which have windows too; they are numbered after the model's own.

    Attributes:
        page_table: int64 [batch, max_pages], -1 where a sequence has no page.
        window_start: int64 [num_layers, batch] on the CPU, the first position whose window row is valid in that
            layer. A model that writes only some rows of a layer sets it.
        window_kept: int64 [num_layers, batch] on the CPU. Rows from ``window_start`` up to there stay as they are when
            their tokens are fed again.
        follower: called by the model after the layers of every step with what came out of them, and this cache, to
            write the windows of the draft layers; None where nobody drafts.

    Raises:
        CacheError: a size, storage or type that cannot be, or a pool that does not fit.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        config: ModelConfig,
        max_tokens: int,
        batch: int = 1,
        *,
        storage: Storage = "packed",
        rollback: int | None = None,
        page_tokens: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        pool: PagePool | None = None,
        draft_layers: int = 0,
    ) -> None:
        check_storage(storage, dtype)
        rollback = config.dspark_block_size if rollback is None else rollback
        sizes = (
            ("max_tokens", max_tokens, 1),
            ("batch", batch, 1),
            ("rollback", rollback, 0),
            ("draft_layers", draft_layers, 0),
        )
        for name, value, least in sizes:
            if index(value) < least:
                raise CacheError(f"{name} is {value}; expected {least} or more")
        if max_tokens > config.max_position_embeddings:
            raise CacheError(
                f"max_tokens is {max_tokens}; the model has max_position_embeddings {config.max_position_embeddings}"
            )
        if pool is None:
            page_tokens = PAGE_TOKENS if page_tokens is None else page_tokens
            pages = batch * PageLayout.of(config, page_tokens).pages_for(max_tokens)
            pool = PagePool(config, pages, page_tokens=page_tokens, storage=storage, dtype=dtype, device=device)
        else:
            pool.check_fits(config, page_tokens, storage, dtype, device)
        self.batch, self.max_tokens, self.storage, self.rollback = batch, max_tokens, storage, rollback
        GlobalKV.__init__(self, pool, batch, max_tokens, dtype)
        PrivateRows.__init__(
            self,
            config,
            batch,
            storage=storage,
            rollback=rollback,
            progress=Progress(batch, rollback, max_tokens),
            dtype=dtype,
            device=pool.device,
            draft_layers=draft_layers,
        )
        self.follower: Callable[[object, Cache], None] | None = None
        # A pool may outlive its caches: one that goes away gives its pages back.
        weakref.finalize(self, self._table.release)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that each sequence holds."""
        return tuple(self._progress.lengths)

    @property
    def stored(self) -> tuple[int, ...]:
        """Tokens of each sequence whose global entries are not to be written: more than ``lengths`` in a replay."""
        return tuple(self._progress.stored)

    def reserve(self, counts: Iterable[int]) -> None:
        """Make room for ``counts[row]`` more tokens of each sequence; a shared last page is copied first.

        Raises:
            CacheError: beyond ``max_tokens``, or after a step that was left half done. OutOfPages: the pool has too
                few. Either way nothing has changed.
        """
        targets = self._progress.step(counts)
        # A replayed token changes no page, so the page that it lies in may stay shared.
        self._table.make_room(self._held(), list(map(max, targets, self._progress.stored)))
        self._progress.begin(targets)

    def advance(self, counts: Iterable[int]) -> None:
        """Count ``counts[row]`` more tokens of each sequence, after all writes of a step.

        Fewer than were written leaves the rest to be overwritten, like :meth:`truncate`.

        Raises:
            CacheError: more than was reserved.
        """
        page_tokens = self.pool.layout.page_tokens
        self._progress.advance(counts, [len(pages) * page_tokens for pages in self._table.pages])

    def truncate(self, row: int, length: int) -> None:
        """Take back the tokens of a sequence from position ``length`` on.

        What follows is as if they had never been there; nothing happens at the current length. One thing stays:
        ``window_start`` where a model left rows out, as a prefill with a bounded decoder does.

        Raises:
            CacheError: longer than the sequence, or further back than ``rollback`` tokens before the furthest that
                was written; the message names the least length.
        """
        row = self._table.check_row(row)
        length = index(length)
        if length == self._progress.lengths[row]:
            return
        self._progress.take_back(row, length)
        self._table.keep(row, self.pool.layout.pages_for(length))
        self.window_start[:, row].clamp_(max=length)
        self.window_kept[:, row].clamp_(max=length)

    def rewind(self, row: int, start: int) -> None:
        """Let the same tokens be fed again from position ``start`` on: their global entries stay as they are.

        Until the sequence is as long as it was, steps write private rows only. Window rows that are there are
        kept and read, in each layer whose rows reach back to ``start``; another layer's begin anew there. The
        Engram history is DEAD until :meth:`write_history`. Source: report section 3.2.2.

        Raises:
            CacheError: ``start`` is beyond the sequence.
        """
        row, start = self._table.check_row(row), index(start)
        furthest = self._progress.rewind(row, start)
        self._rewind_private(row, start, furthest)

    def reset(self, row: int) -> None:
        """Empty a sequence."""
        row = self._table.check_row(row)
        self._table.keep(row, 0)
        self._restart_private(row, 0)

    def fork(self, source: int, target: int) -> None:
        """Make sequence ``target`` a continuation of ``source``: all pages shared, private rows copied.

        Raises:
            CacheError: they are the same sequence.
        """
        source, target = self._table.check_row(source), self._table.check_row(target)
        if source == target:
            raise CacheError(f"row {source} cannot be forked into itself")
        held = self.pool.layout.pages_for(self._held()[source])
        self._table.share(target, self._table.pages[source][:held])
        self._copy_private(source, target)

    def adopt(self, row: int, pages: Sequence[int], length: int) -> None:
        """Start a sequence with ``length`` tokens whose global KV lies in ``pages``, which stay shared.

        The cache adds a reference of its own to each page. The prefix has no window rows, so ``window_start`` is
        ``length`` in every layer, its history is DEAD until :meth:`write_history`, and at a length that leaves a
        group open its rows are missing until :meth:`write_open`: :meth:`restore_windows` brings all of them, or
        :meth:`rewind` lets the last tokens be fed again.

        Raises:
            CacheError: the number of pages does not fit the length, a page is free, or the length is beyond
                ``max_tokens``. Then nothing has changed.
        """
        row, length = self._table.check_row(row), index(length)
        pages = [index(page) for page in pages]
        if not 0 <= length <= self.max_tokens:
            raise CacheError(f"length is {length}; expected 0 to max_tokens, {self.max_tokens}")
        needed = self.pool.layout.pages_for(length)
        if len(pages) != needed:
            raise CacheError(
                f"{len(pages)} pages for {length} tokens; expected {needed} of {self.pool.layout.page_tokens} tokens"
            )
        self._table.share(row, pages)
        self._restart_private(row, length)

    def pages_of(self, row: int) -> list[int]:
        """The pages that hold a sequence's tokens, in order; the last perhaps in part."""
        row = self._table.check_row(row)
        return self._table.pages[row][: self.pool.layout.pages_for(self._progress.lengths[row])]

    def held_pages(self, row: int) -> int:
        """How many pages a sequence refers to, those that are reserved for it among them."""
        return len(self._table.pages[self._table.check_row(row)])

    def _held(self) -> list[int]:
        """Tokens of each sequence that its pages hold entries of."""
        return list(map(max, self._progress.lengths, self._progress.stored))
