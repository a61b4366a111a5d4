"""Every refusal: it names the thing, its value and what was expected, and leaves the cache as it was."""

import pytest
import torch
from cache_steps import TINY, assert_pages_counted, assert_same, expected, seen, step

from ds41 import ModelConfig
from ds41.cache import Cache, CacheError, OutOfPages, PagePool

ZERO = torch.zeros(1, dtype=torch.int64)
ROW = torch.zeros(1, 32)


def test_the_errors_are_value_errors():
    assert issubclass(OutOfPages, CacheError)
    assert issubclass(CacheError, ValueError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
        ({"max_tokens": 2**20 + 1}, "max_tokens is 1048577; the model has max_position_embeddings 1048576"),
        ({"batch": 0}, "batch is 0; expected 1 or more"),
        ({"rollback": -1}, "rollback is -1; expected 0 or more"),
        ({"page_tokens": 63}, "page_tokens is 63; expected a positive multiple of 2"),
        ({"page_tokens": 0}, "page_tokens is 0; expected a positive multiple of 2"),
        ({"storage": "fp4"}, "storage is 'fp4'; expected one of 'packed', 'fake', 'plain'"),
        ({"dtype": torch.float64}, "dtype is torch.float64; expected one of torch.float32, torch.bfloat16"),
    ],
)
def test_a_cache_that_cannot_be(arguments, message):
    with pytest.raises(CacheError, match=message):
        Cache(TINY, **({"max_tokens": 64} | arguments))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.reserve([1]), "counts has 1 entries; expected one for each of 2 rows"),
        (lambda c: c.reserve([1, -2]), r"counts\[1\] is -2; expected zero or more"),
        (lambda c: c.reserve([1, 14]), "row 1 holds 3 tokens and cannot take 14 more: max_tokens is 16"),
        (lambda c: c.advance([9, 0]), "row 0 would hold 14 tokens and has pages for 8: reserve them first"),
        (lambda c: c.truncate(0, 6), "row 0 holds 5 tokens; it cannot be cut to 6"),
        (lambda c: c.truncate(0, -1), "row 0 holds 5 tokens; it cannot be cut to -1"),
        (
            lambda c: c.truncate(0, 2),
            r"row 0 holds 5 tokens, was written as far as 5: it can be cut to 3 or more \(rollback is 2\), not to 2",
        ),
        (lambda c: c.truncate(2, 0), "there is no row 2; the cache has rows 0 to 1"),
        (lambda c: c.reset(-1), "there is no row -1; the cache has rows 0 to 1"),
        (lambda c: c.fork(1, 1), "row 1 cannot be forked into itself"),
        (lambda c: c.fork(0, 2), "there is no row 2"),
        (lambda c: c.adopt(1, c.pages_of(0), 9), "2 pages for 9 tokens; expected 3 of 4 tokens"),
        (lambda c: c.adopt(1, [0] * 5, 17), "length is 17; expected 0 to max_tokens, 16"),
        (lambda c: c.adopt(1, [0, 7], 8), "page 7 is free: it cannot be shared"),
        (lambda c: c.adopt(1, [0, 99], 8), "there is no page 99; the pool has pages 0 to 7"),
        (lambda c: c.index_keys(2, 1, 0, 5), "entries 0 to 5 of row 1, layer 2: its pages hold 0 to 4"),
        (lambda c: c.index_keys(2, 1, 3, 2), "entries 3 to 2 of row 1"),
        (lambda c: c.index_keys(2, 2, 0, 1), "there is no row 2"),
        (lambda c: c.write_window(4, ZERO, ZERO, ROW), "layer 4 has no window; there are layers 0 to 3"),
        (lambda c: c.read_window(-1, ZERO, ZERO), "layer -1 has no window"),
        (lambda c: c.write_window(0, ZERO, ZERO, ROW[:, :16]), r"rows is \[1, 16\]; expected \[1, 32\]"),
        (lambda c: c.read_window(0, ZERO.int(), ZERO), "sequence is torch.int32; expected torch.int64"),
        (lambda c: c.read_window(0, ZERO, ZERO[:0]), r"position is \[0\]; expected \[1\]"),
        (lambda c: c.read_open(2, ZERO, ZERO), "layer 2 pools no groups; the layers that do: 1"),
        (lambda c: c.write_open(1, ZERO, ZERO, ROW, ROW[0]), r"gate is \[32\]; expected \[1, 32\]"),
        (lambda c: c.write_history(ZERO, ZERO, ZERO.int()), "ids is torch.int32; expected torch.int64"),
        (lambda c: c.history(ZERO[None]), r"rows is \[1, 1\]; expected one dimension"),
        (lambda c: c.gather_main(2, ZERO, ZERO), r"entry is \[1\]; expected \[1, K\]"),
        (lambda c: c.gather_index(2, ZERO, ZERO.expand(2, 1)), r"entry is \[2, 1\]; expected \[1, 1\]"),
        (lambda c: c.write_entries(2, ZERO, ZERO, ROW[0], ROW), r"main is \[32\]; expected \[1, 32\]"),
        (lambda c: c.write_entries(2, ZERO, ZERO, ROW, ROW[0]), r"index is \[32\]; expected \[1, 32\]"),
        (lambda c: c.write_entries(2, ZERO, ZERO + 9, ROW, ROW), "layer 2: an entry lies beyond the pages"),
    ],
)
def test_refusals_change_nothing(call, message):
    pool = PagePool(TINY, 8, page_tokens=4, storage="plain", dtype=torch.float32)
    cache = Cache(TINY, 16, 2, rollback=2, storage="plain", dtype=torch.float32, pool=pool)
    texts = ([1, 2, 3, 4, 5], [7, 8, 9])
    step(cache, dict(enumerate(texts)))
    with pytest.raises(CacheError, match=message):
        call(cache)
    for row, tokens in enumerate(texts):
        assert_same(seen(cache, row), expected(tokens))
    assert_pages_counted(pool, cache)
    step(cache, {0: [6], 1: [10]})
    assert cache.lengths == (6, 4)


def test_a_batch_gets_its_pages_all_or_not_at_all():
    pool = PagePool(TINY, 4, page_tokens=4)
    cache = Cache(TINY, 16, 2, pool=pool)
    step(cache, {0: [1, 2, 3]})
    with pytest.raises(OutOfPages, match="4 pages asked for, 3 free: 1 of 4 are in use"):
        cache.reserve([5, 9])
    assert_pages_counted(pool, cache)
    assert pool.free_pages == 3
    cache.reserve([5, 5])


def test_an_entry_without_a_page_is_not_written_anywhere():
    """-1 in a page table would be the last page of the pool, which belongs to somebody else."""
    pool = PagePool(TINY, 2, page_tokens=4)
    mine, other = Cache(TINY, 8, pool=pool), Cache(TINY, 8, pool=pool)
    mine.reserve([4])
    other.reserve([4])
    before = pool.data.clone()
    for entry in (ZERO + 4, ZERO - 1):
        with pytest.raises(CacheError, match="reserve its tokens first"):
            mine.write_entries(2, ZERO, entry, ROW, ROW)
    assert torch.equal(pool.data, before)


def test_a_value_that_no_code_stands_for_is_refused():
    cache = Cache(ModelConfig.nano(), 16)
    rows = torch.zeros(2, 64)
    rows[1, 5] = float("nan")
    with pytest.raises(ValueError, match=r"x\[1, 5\] = nan"):
        cache.write_window(0, torch.zeros(2, dtype=torch.int64), torch.arange(2), rows)


def test_a_sequence_is_not_cut_into_an_adopted_prefix():
    """It never had the windows and the waiting row of what comes before."""
    cache = Cache(TINY, 32, 2, page_tokens=4)
    step(cache, {0: list(range(8))})
    cache.adopt(1, cache.pages_of(0), 8)
    step(cache, {1: [50, 51]})
    with pytest.raises(CacheError, match="its first 8 are adopted: it can be cut to 8 or more"):
        cache.truncate(1, 7)
    cache.truncate(1, 8)
    assert cache.window_start[:, 1].tolist() == [8] * TINY.num_hidden_layers
