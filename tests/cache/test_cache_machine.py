"""Any sequence of operations on a cache: it always holds what a plain list of tokens says."""

import pytest
import torch
from cache_steps import (
    INDEX,
    LOOK_BACK,
    MAIN,
    TINY,
    assert_pages_counted,
    assert_same,
    expected,
    poison,
    poison_free_pages,
    poison_private,
    rows,
    seen,
    step,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ds41.cache import Cache, CacheError, OutOfPages, PagePool

BATCH, MAX_TOKENS, PAGE_TOKENS, PAGES, ROLLBACK = 3, 40, 4, 17, 3
row_number = st.integers(0, BATCH - 1)


def per_row(most: int) -> st.SearchStrategy:
    return st.lists(st.integers(0, most), min_size=BATCH, max_size=BATCH)


class Row:
    """What one sequence must hold."""

    def __init__(self, tokens=(), adopted=0, history_from=0, written=None):
        self.tokens = list(tokens)
        self.adopted = adopted
        self.history_from = history_from
        self.written = len(self.tokens) if written is None else written

    def copy(self) -> "Row":
        return Row(self.tokens, self.adopted, self.history_from, self.written)


class Sequences(RuleBasedStateMachine):
    """The same operations on a plain, a fake and a packed cache and on lists of tokens.

    The pool holds fewer pages than the batch could fill. Free pages are poisoned after every operation, and the
    private rows of a sequence that starts anew.
    """

    def __init__(self):
        super().__init__()
        self.caches = []
        for storage in ("plain", "fake", "packed"):
            pool = PagePool(TINY, PAGES, page_tokens=PAGE_TOKENS, storage=storage, dtype=torch.float32)
            cache = Cache(TINY, MAX_TOKENS, BATCH, storage=storage, rollback=ROLLBACK, dtype=torch.float32, pool=pool)
            poison(cache)
            self.caches.append(cache)
        self.rows = [Row() for _ in range(BATCH)]
        self.next_token = 1

    def new_tokens(self, counts):
        made = {}
        for row, count in enumerate(counts):
            made[row] = list(range(self.next_token, self.next_token + count))
            self.next_token += count
        return made

    def pages_needed(self, counts) -> int:
        """Pages that a step takes: new ones, and copies of shared last pages that are appended to."""
        cache = self.caches[0]
        needed, appending = 0, {}
        for row, count in enumerate(counts):
            length, held = len(self.rows[row].tokens), cache._table.pages[row]
            needed += max(0, -(-(length + count) // PAGE_TOKENS) - len(held))
            if count and length % PAGE_TOKENS:
                page = held[length // PAGE_TOKENS]
                appending[page] = appending.get(page, 0) + 1
        for page, count in appending.items():
            needed += min(count, cache.pool.references(page) - 1)
        return needed

    def attempt(self, counts, accepted=None):
        new = self.new_tokens(counts)
        if any(len(row.tokens) + count > MAX_TOKENS for row, count in zip(self.rows, counts, strict=True)):
            expected_error = CacheError
        elif self.pages_needed(counts) > self.caches[0].pool.free_pages:
            expected_error = OutOfPages
        else:
            for cache in self.caches:
                step(cache, new, accepted)
            for index, row in enumerate(self.rows):
                row.written = max(row.written, len(row.tokens) + counts[index])
                row.tokens += new[index] if accepted is None else new[index][: accepted[index]]
            return
        for cache in self.caches:
            with pytest.raises(expected_error) as caught:
                cache.reserve(counts)
            assert type(caught.value) is expected_error

    @rule(counts=per_row(11))
    def append(self, counts):
        self.attempt(counts)

    @rule(counts=per_row(1 + ROLLBACK), rejected=per_row(ROLLBACK))
    def verify_drafts(self, counts, rejected):
        """Drafts of which the last few are rejected: as many as can be without going back too far."""
        most = [
            ROLLBACK - max(0, row.written - len(row.tokens) - count)
            for row, count in zip(self.rows, counts, strict=True)
        ]
        accepted = {
            row: max(0, count - min(rejected[row], most[row])) for row, count in enumerate(counts)
        }  # fmt: skip
        self.attempt(counts, accepted)

    @rule(row=row_number, back=st.integers(0, ROLLBACK + 2))
    def truncate(self, row, back):
        kept = self.rows[row]
        length = len(kept.tokens) - back
        earliest = min(len(kept.tokens), max(kept.adopted, kept.written - ROLLBACK))
        for cache in self.caches:
            if length < 0 or (back and length < earliest):
                with pytest.raises(CacheError, match=f"row {row} holds {len(kept.tokens)} tokens"):
                    cache.truncate(row, length)
            else:
                cache.truncate(row, length)
        if length >= earliest:
            del kept.tokens[length:]

    @rule(row=row_number)
    def reset(self, row):
        for cache in self.caches:
            cache.reset(row)
            poison_private(cache, row)
        self.rows[row] = Row()

    @rule(source=row_number, into=row_number)
    def fork(self, source, into):
        if source == into:
            return
        for cache in self.caches:
            poison_private(cache, into)
            cache.fork(source, into)
        self.rows[into] = self.rows[source].copy()

    @rule(source=row_number, into=row_number, share=st.floats(0, 1), with_history=st.booleans())
    def adopt(self, source, into, share, with_history):
        """Start a sequence with a prefix of another; the row that waits is handed over beside the pages."""
        tokens = self.rows[source].tokens
        tokens = tokens[: round(share * len(tokens))]
        length = len(tokens)
        for cache in self.caches:
            cache.adopt(into, cache.pages_of(source)[: -(-length // PAGE_TOKENS)], length)
            poison_private(cache, into)
            position = torch.arange(length)
            ids = torch.tensor(tokens, dtype=torch.int64)
            last = slice(length - 1, length)
            if length % 2:
                value, gate = rows(ids[last], 1 + MAIN), rows(ids[last], 1 + INDEX)
                cache.write_open(1, torch.tensor([into]), position[last], value, gate)
            if with_history:
                kept = slice(max(0, length - LOOK_BACK), length)
                cache.write_history(torch.full_like(position[kept], into), position[kept], ids[kept])
        self.rows[into] = Row(tokens, length, 0 if with_history else length)

    @invariant()
    def everything_is_as_the_tokens_say(self):
        plain = self.caches[0]
        for cache in self.caches:
            assert cache.lengths == tuple(len(row.tokens) for row in self.rows)
            assert_pages_counted(cache.pool, cache)
            poison_free_pages(cache.pool)
        for index, row in enumerate(self.rows):
            assert plain.window_start[:, index].tolist() == [row.adopted] * TINY.num_hidden_layers
            assert_same(seen(plain, index), expected(row.tokens, row.adopted, row.history_from))
            assert len(plain.pages_of(index)) == -(-len(row.tokens) // PAGE_TOKENS)

    def teardown(self):
        """What the packed cache ends up with is what the fake one does, and nothing of it is poison."""
        _, fake, packed = self.caches
        for index in range(BATCH):
            found = seen(packed, index)
            assert_same(found, seen(fake, index))
            assert all(torch.isfinite(values).all() for values in found.values())


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=16, stateful_step_count=16)
