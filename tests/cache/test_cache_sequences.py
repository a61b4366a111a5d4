"""Sequences that grow, are cut, forked, adopted and reset: always what a plain list of tokens says.

Fault reports behind these tests: groups that straddle steps, rollback that forgets state, window rows of an earlier
request, live pages handed out twice.
"""

import pytest
import torch
from cache_steps import (
    LOOK_BACK,
    TINY,
    WINDOW,
    assert_same,
    expected,
    poison,
    poison_private,
    rows,
    seen,
    step,
)
from hypothesis import given
from hypothesis import strategies as st
from small_configs import plans

from ds41 import ModelConfig, ledger
from ds41.cache import DEAD, Cache, CacheError, PagePool


@pytest.mark.parametrize("rejected", range(6))
@pytest.mark.parametrize("length", [0, 1, 7, 8, 30, 31])
def test_rejected_drafts_leave_no_trace(length, rejected):
    """Reject after 0 to 5 drafts at odd and even lengths: as if the drafts had never been."""
    drafted, never = (Cache(TINY, 64, page_tokens=8, dtype=torch.float32) for _ in range(2))
    assert drafted.rollback == 5
    tokens = list(range(1, length + 6 - rejected))
    poison(drafted)
    step(drafted, {0: tokens[:length]})
    step(drafted, {0: tokens[length:] + list(range(900, 900 + rejected))})
    drafted.truncate(0, len(tokens))
    step(never, {0: tokens})
    assert_same(seen(drafted, 0), seen(never, 0))
    assert drafted.page_table.tolist() == never.page_table.tolist()
    assert drafted.pool.free_pages == never.pool.free_pages
    for _ in range(3):
        more = [len(tokens) + 500]
        tokens += more
        step(drafted, {0: more})
        step(never, {0: more})
        assert_same(seen(drafted, 0), seen(never, 0))


@pytest.mark.parametrize("splits", [[7], [3, 4], [2, 5], [6, 1], [1] * 7])
def test_a_group_may_straddle_steps(splits):
    cache, whole = (Cache(TINY, 16, page_tokens=4, storage="plain", dtype=torch.float32) for _ in range(2))
    tokens = list(range(1, 8))
    poison(cache)
    for count in splits:
        done = cache.lengths[0]
        step(cache, {0: tokens[done : done + count]})
    step(whole, {0: tokens})
    assert_same(seen(cache, 0), expected(tokens))
    assert_same(seen(cache, 0), seen(whole, 0))


def test_rows_of_unequal_length_equal_single_runs():
    lengths = (1, 2, 0, WINDOW - 1, WINDOW, WINDOW + 1, 39)
    batch = Cache(TINY, 40, len(lengths), page_tokens=4, dtype=torch.float32)
    poison(batch)
    texts = {row: list(range(100 * row, 100 * row + length)) for row, length in enumerate(lengths)}
    step(batch, texts)
    for row, tokens in texts.items():
        single = Cache(TINY, 40, page_tokens=4, dtype=torch.float32)
        step(single, {0: tokens})
        assert_same(seen(batch, row), seen(single, 0))


def test_a_prefix_hit_sees_nothing_of_the_request_before():
    """A prefix is adopted by a row whose private rows are poison: no position before it can be looked at."""
    cache = Cache(TINY, 64, 2, page_tokens=4, dtype=torch.float32)
    step(cache, {0: list(range(24))})
    poison_private(cache, 1)
    cache.adopt(1, cache.pages_of(0), 24)
    assert cache.window_start[:, 1].tolist() == [24] * TINY.num_hidden_layers
    assert cache.history(torch.tensor([1])).tolist() == [[DEAD] * LOOK_BACK]
    step(cache, {1: [50, 51]})
    found = seen(cache, 1)
    assert found["window 3"].shape[0] == 2
    assert all(torch.isfinite(values).all() for values in found.values())


def test_a_shared_last_page_is_copied_before_it_is_written():
    """Of three sequences on one last page two take a copy: the pool has just the pages for that."""
    pool = PagePool(TINY, 4, page_tokens=8, storage="plain", dtype=torch.float32)
    cache = Cache(TINY, 64, 3, storage="plain", dtype=torch.float32, pool=pool)
    step(cache, {0: list(range(11))})
    cache.fork(0, 1)
    cache.fork(1, 2)
    first, last = cache.pages_of(0)
    assert cache.pages_of(2) == [first, last]
    step(cache, {0: [20], 1: [30, 31], 2: [40]})
    assert [cache.pages_of(row)[0] for row in range(3)] == [first] * 3
    assert len({cache.pages_of(row)[1] for row in range(3)}) == 3
    assert pool.free_pages == 0
    for row, new in enumerate(([20], [30, 31], [40])):
        assert_same(seen(cache, row), expected([*range(11), *new]))


def test_a_full_shared_page_is_never_copied():
    cache = Cache(TINY, 64, 2, page_tokens=8)
    step(cache, {0: list(range(16))})
    cache.fork(0, 1)
    step(cache, {1: [90]})
    assert cache.pages_of(1)[:2] == cache.pages_of(0)


def test_a_page_held_elsewhere_stays_as_it_was():
    """Somebody else, such as a prefix store, refers to the last page in part: the sequence goes on in a copy."""
    cache = Cache(TINY, 64, page_tokens=8)
    step(cache, {0: list(range(5))})
    (page,) = cache.pages_of(0)
    cache.pool.share(page)
    before = cache.pool.read_page(page)
    step(cache, {0: [90, 91, 92]})
    assert cache.pages_of(0) != [page]
    assert torch.equal(cache.pool.read_page(page), before)


def test_a_step_cut_short_is_noticed():
    """An interrupted prefill has overwritten windows that the old length needs: going on would be wrong."""
    cache = Cache(TINY, 64, rollback=2)
    step(cache, {0: [1, 2, 3]})
    cache.reserve([20])
    position = torch.arange(3, 23)
    cache.write_window(0, torch.zeros_like(position), position, rows(position, 0))
    with pytest.raises(CacheError, match="row 0 holds 3 tokens, but a step may have written as far as 23 and only 2"):
        cache.reserve([20])
    cache.reset(0)
    step(cache, {0: [1, 2, 3]})
    assert_same(seen(cache, 0), seen(_fresh([1, 2, 3], rollback=2), 0))


def test_going_back_twice_counts_from_the_furthest_token():
    """Tokens that were written and not counted, or taken back before, have overwritten private rows all the same."""
    cache = Cache(TINY, 64, rollback=4)
    step(cache, {0: list(range(20))})
    step(cache, {0: [50, 51, 52]}, accepted={0: 1})
    cache.truncate(0, 20)
    message = (
        r"row 0 holds 20 tokens, was written as far as 23: it can be cut to 19 or more \(rollback is 4\), not to 18"
    )
    with pytest.raises(CacheError, match=message):
        cache.truncate(0, 18)
    cache.truncate(0, 19)
    step(cache, {0: [60, 61]})
    with pytest.raises(CacheError, match="was written as far as 23: it can be cut to 19 or more"):
        cache.truncate(0, 18)
    assert_same(seen(cache, 0), seen(_fresh([*range(19), 60, 61], rollback=4), 0))


def test_pages_may_be_reserved_ahead():
    cache = Cache(TINY, 64, page_tokens=4)
    cache.reserve([40])
    held = cache._table.pages[0].copy()
    step(cache, {0: list(range(7))})
    step(cache, {0: list(range(7, 9))})
    cache.truncate(0, 7)
    assert cache.lengths == (7,)
    assert cache.pages_of(0) == held[:2]


def _fresh(tokens, **arguments) -> Cache:
    cache = Cache(TINY, 64, **arguments)
    step(cache, {0: tokens})
    return cache


@pytest.mark.parametrize("batch", [1, 3])
def test_bytes_agree_with_the_ledger_for_flash(batch):
    config = ModelConfig.flash()
    cache = Cache(config, 2**20 // batch, batch, rollback=0)
    assert cache.nbytes_per_token == 890
    assert cache.window_bytes == batch * ledger.window_bytes(config) == batch * 2_703_360
    assert cache.open_group_bytes == batch * ledger.open_group_bytes(config)
    assert cache.history_bytes == batch * ledger.engram_history_bytes(config)
    if batch == 1:
        assert cache.page_bytes == 933_232_640 == ledger.global_bytes(config, 2**20)
        assert cache.page_table.shape == (1, 16384)


@given(plans(), st.integers(1, 2), st.integers(1, 300))
def test_bytes_agree_with_the_ledger_for_any_plan(config, batch, tokens):
    cache = Cache(config, tokens, batch, rollback=0, page_tokens=8)
    pages = -(-tokens // 8)
    assert cache.nbytes_per_token == ledger.bytes_per_token(config)
    assert cache.page_bytes == batch * ledger.global_bytes(config, 8 * pages)
    assert cache.window_bytes == batch * ledger.window_bytes(config)
    assert cache.open_group_bytes == batch * ledger.open_group_bytes(config)


def test_rollback_adds_its_rows_and_nothing_else():
    config = ModelConfig.flash()
    cache = Cache(config, 64)
    assert cache.window_bytes == 40 * (128 + 5) * 528
    assert cache.open_group_bytes == 3 * (1 + 5) * 2 * 512 * 4
    assert cache.history_bytes == (3 + 5) * 8
