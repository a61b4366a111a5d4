"""Pages: handed out once, counted, shared between caches and threads, and moved as bytes."""

import gc
import threading

import pytest
import torch
from cache_steps import TINY, assert_pages_counted, assert_same, expected, poison, seen, step
from hypothesis import given
from hypothesis import strategies as st

from ds41 import ModelConfig, ledger
from ds41.cache import Cache, CacheError, OutOfPages, PagePool
from ds41.formats import Packed


def test_a_million_tokens_of_flash():
    pool = PagePool(ModelConfig.flash(), 16384)
    assert pool.nbytes == pool.data.nbytes == 933_232_640


def test_a_bf16_pool_holds_3200_bytes_per_token():
    cache = Cache(ModelConfig.flash(), 4096, storage="fake")
    assert cache.nbytes_per_token == 3200 == ledger.bytes_per_token(cache.config, ledger.Storage.bf16(cache.config))


def test_pages_run_out_with_counts():
    pool = PagePool(TINY, 3)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OutOfPages, match="1 pages asked for, 0 free: 3 of 3 are in use"):
        pool.allocate()
    pool.release(1)
    with pytest.raises(OutOfPages, match="2 pages asked for, 1 free: 2 of 3 are in use"):
        pool.allocate_many(2)
    assert pool.free_pages == 1
    assert pool.allocate() == 1


def test_a_page_is_free_when_nobody_refers_to_it():
    pool = PagePool(TINY, 1)
    page = pool.allocate()
    pool.share(page)
    pool.release(page)
    assert (pool.references(page), pool.free_pages) == (1, 0)
    pool.release(page)
    assert (pool.references(page), pool.free_pages) == (0, 1)


@given(st.lists(st.tuples(st.sampled_from(("allocate", "share", "release")), st.integers(0, 3))))
def test_references_are_counted(operations):
    pool, counts = PagePool(TINY, 4), [0] * 4
    for operation, page in operations:
        if operation == "allocate" and 0 in counts:
            page = pool.allocate()
            assert counts[page] == 0
            counts[page] = 1
        elif operation != "allocate" and counts[page] == 0:
            with pytest.raises(CacheError, match=f"page {page} is free: it cannot be {operation}d"):
                getattr(pool, operation)(page)
        elif operation != "allocate":
            getattr(pool, operation)(page)
            counts[page] += 1 if operation == "share" else -1
        assert [pool.references(page) for page in range(4)] == counts
        assert pool.free_pages == counts.count(0)


def test_releasing_many_pages_of_which_one_is_free_releases_none():
    pool = PagePool(TINY, 3)
    pages = pool.allocate_many(2)
    with pytest.raises(CacheError, match="page 2 is free"):
        pool.release_many([*pages, 2])
    with pytest.raises(CacheError, match="page 2 is free"):
        pool.share_many([*pages, 2])
    assert [pool.references(page) for page in range(3)] == [1, 1, 0]
    with pytest.raises(CacheError, match="page 0 has 1 references: it cannot be released 2 times"):
        pool.release_many([0, 0])
    assert pool.references(0) == 1


def test_threads_never_get_the_same_page():
    pool = PagePool(TINY, 8)
    owner = [None] * 8
    faults = []

    def work(name):
        for _ in range(400):
            try:
                pages = pool.allocate_many(3)
            except OutOfPages:
                continue
            for page in pages:
                if owner[page] is not None:
                    faults.append((page, owner[page], name))
                owner[page] = name
            pool.share_many(pages)
            pool.release_many(pages)
            for page in pages:
                owner[page] = None
            pool.release_many(pages)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert pool.free_pages == 8
    assert sorted(pool.allocate_many(8)) == list(range(8))


@pytest.mark.parametrize("storage", ["packed", "fake", "plain"])
def test_planes_are_views_of_the_pages(storage):
    pool = PagePool(TINY, 3, page_tokens=4, storage=storage, dtype=torch.float32)
    for source in pool.layout.sources:
        for plane in (pool.main_plane(source.layer), pool.index_plane(source.layer)):
            parts = plane if storage == "packed" else (plane,)
            for part in parts:
                assert part.shape[:2] == (3, source.entries)
                part.fill_(7)
    if storage == "packed":
        assert isinstance(pool.main_plane(1), Packed)
        assert bool((pool.data == 7).all())
    assert bool((torch.as_tensor(pool.main_plane(2)[0]) == 7).all())


def test_a_page_travels_as_bytes():
    there, here = (Cache(TINY, 16, page_tokens=8, dtype=torch.float32, storage="packed") for _ in range(2))
    tokens = list(range(30, 41))
    step(there, {0: tokens})
    pages = here.pool.allocate_many(2)
    for page, source in zip(pages, there.pages_of(0), strict=True):
        here.pool.write_page(page, there.pool.read_page(source))
    here.adopt(0, pages, 11)
    sent, arrived = seen(there, 0), seen(here, 0)
    for name in sent:
        if name.split()[0] in ("main", "index"):
            assert torch.equal(sent[name], arrived[name])


def test_a_read_page_is_a_copy():
    pool = PagePool(TINY, 1)
    page = pool.allocate()
    data = pool.read_page(page)
    assert data.shape == (pool.layout.nbytes,)
    before = data.clone()
    pool.data.add_(1)
    assert torch.equal(data, before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pool: pool.read_page(1), "page 1 is free: it cannot be read"),
        (lambda pool: pool.write_page(1, pool.read_page(0)), "page 1 is free: it cannot be written"),
        (lambda pool: pool.read_page(2), "there is no page 2; the pool has pages 0 to 1"),
        (lambda pool: pool.references(-1), "there is no page -1"),
        (lambda pool: pool.write_page(0, torch.zeros(3)), r"data is torch.float32 \[3\]; expected torch.uint8 \["),
        (lambda pool: pool.main_plane(0), "layer 0 owns no global KV; the layers that do: 1, 2"),
    ],
)
def test_pool_errors(call, message):
    pool = PagePool(TINY, 2)
    pool.allocate()
    with pytest.raises(CacheError, match=message):
        call(pool)


def test_only_packed_pages_are_bytes():
    pool = PagePool(TINY, 2, storage="fake")
    with pytest.raises(CacheError, match="storage is 'fake': only packed pages have bytes to be read"):
        pool.read_page(pool.allocate())


def test_a_pool_without_pages_is_refused():
    with pytest.raises(CacheError, match="pages is 0; expected a positive number"):
        PagePool(TINY, 0)


def test_two_prefills_never_share_a_page_by_accident():
    """A pool of exactly as many pages as one of two interleaved prompts needs, twice over but one."""
    pool = PagePool(TINY, 7, page_tokens=4, storage="plain", dtype=torch.float32)
    first, second = (Cache(TINY, 16, storage="plain", dtype=torch.float32, pool=pool) for _ in range(2))
    poison(first)
    poison(second)
    texts = {0: list(range(16)), 1: list(range(100, 116))}
    for start in (0, 4, 8):
        step(first, {0: texts[0][start : start + 4]})
        step(second, {0: texts[1][start : start + 4]})
        assert_pages_counted(pool, first, second)
    step(first, {0: texts[0][12:]})
    with pytest.raises(OutOfPages, match="1 pages asked for, 0 free: 7 of 7 are in use"):
        step(second, {0: texts[1][12:]})
    assert_pages_counted(pool, first, second)
    assert_same(seen(first, 0), expected(texts[0]))
    assert_same(seen(second, 0), expected(texts[1][:12]))
    first.reset(0)
    step(second, {0: texts[1][12:]})
    assert_same(seen(second, 0), expected(texts[1]))


def test_a_cache_that_goes_away_gives_its_pages_back():
    pool = PagePool(TINY, 4, page_tokens=4)
    cache = Cache(TINY, 16, pool=pool)
    cache.reserve([9])
    assert pool.free_pages == 1
    del cache
    gc.collect()
    assert pool.free_pages == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"storage": "packed"}, "the pool's storage is fake; the cache asks for packed"),
        ({"page_tokens": 8}, "the pool's page_tokens is 4; the cache asks for 8"),
        ({"dtype": torch.float32}, "the pool's dtype is torch.bfloat16; the cache asks for torch.float32"),
        ({"config": ModelConfig.nano()}, "the pool's pages are those of another configuration"),
    ],
)
def test_a_pool_that_does_not_fit_is_refused(changes, message):
    pool = PagePool(TINY, 4, page_tokens=4, storage="fake")
    arguments = {"config": TINY, "max_tokens": 16, "storage": "fake", "pool": pool} | changes
    with pytest.raises(CacheError, match=message):
        Cache(arguments.pop("config"), **arguments)
