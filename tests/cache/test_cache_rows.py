"""Writing and reading rows: packed against fake, absent rows, whole pages, full rings, large pools."""

import pytest
import torch
from cache_steps import TINY, WINDOW, poison, rows, step
from small_configs import with_plan

from ds41 import ModelConfig
from ds41.cache import DEAD, Cache, CacheError, PagePool
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV

FLASH = ModelConfig.flash()
EVERY_TYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def random_rows(count: int, channels: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-12, 6, (count, 1), generator=generator).float())
    return (torch.randn(count, channels, generator=generator) * scale).to(dtype)


@EVERY_TYPE
def test_packed_and_fake_read_the_same_bits(dtype):
    """24 tokens of two rows, entries of a ratio-2 and a ratio-1 layer at their published widths."""
    packed, fake = (Cache(FLASH, 64, 2, page_tokens=8, storage=s, dtype=dtype) for s in ("packed", "fake"))
    for cache in (packed, fake):
        cache.reserve([24, 24])
        sequence = torch.arange(2).repeat_interleave(24)
        position = torch.arange(24).repeat(2)
        window = random_rows(48, 512, dtype, 1)
        cache.returned = cache.write_window(5, sequence, position, window)
        for layer, ratio in ((8, 2), (20, 1)):
            count = 24 // ratio
            cache.write_entries(
                layer,
                torch.arange(2).repeat_interleave(count),
                torch.arange(count).repeat(2),
                random_rows(2 * count, 512, dtype, layer),
                random_rows(2 * count, 128, dtype, layer + 1),
            )
    assert torch.equal(packed.returned, fake.returned)
    assert torch.equal(packed.returned, WINDOW_KV.fake_quantize(random_rows(48, 512, dtype, 1)))
    assert torch.equal(*(cache.read_window(5, sequence, position) for cache in (packed, fake)))
    assert packed.read_window(5, sequence, position).dtype == dtype
    entry = torch.tensor([[0, 3, -1, 11], [5, 5, 2, -1]])
    for layer in (8, 20):
        main, keys = (
            [getattr(cache, name)(layer, torch.tensor([1, 0]), entry) for cache in (packed, fake)]
            for name in ("gather_main", "gather_index")
        )
        assert torch.equal(*main)
        assert torch.equal(*keys)
        assert (main[0].dtype, keys[0].dtype) == (dtype, torch.float32)
        assert torch.equal(*(cache.index_keys(layer, 1, 3, 10) for cache in (packed, fake)))
    given = random_rows(24, 512, dtype, 8)
    kept = packed.gather_main(8, torch.tensor([1]), torch.arange(12)[None])[0]
    assert torch.equal(kept, MAIN_KV.decode(MAIN_KV.encode(given[12:]), dtype))


@EVERY_TYPE
def test_index_keys_keep_scales_that_float16_cannot_hold(dtype):
    tiny_keys = random_rows(4, 128, torch.float32, 3) * 2.0**-40
    right = INDEX_KEY.decode(INDEX_KEY.encode(tiny_keys), torch.float32)
    for storage in ("packed", "fake"):
        cache = Cache(FLASH, 64, storage=storage, dtype=dtype)
        cache.reserve([4])
        cache.write_entries(20, torch.zeros(4, dtype=torch.int64), torch.arange(4), torch.zeros(4, 512), tiny_keys)
        assert torch.equal(cache.index_keys(20, 0, 0, 4), right)
        assert bool((right != 0).any())


def test_plain_storage_rounds_nothing():
    cache = Cache(TINY, 8, storage="plain", dtype=torch.float32)
    cache.reserve([2])
    zero = torch.zeros(1, dtype=torch.int64)
    x = torch.full((1, 32), 1 / 3)
    cache.write_entries(2, zero, zero, x, x)
    assert torch.equal(cache.gather_main(2, zero, zero[None])[0], x)
    assert torch.equal(cache.write_window(0, zero, zero, x), x)


@pytest.mark.parametrize("storage", ["packed", "fake", "plain"])
def test_absent_entries_are_zeros_whatever_lies_around(storage):
    cache = Cache(TINY, 16, 2, page_tokens=4, storage=storage, dtype=torch.float32)
    poison(cache)
    step(cache, {0: [1, 2, 3, 4]})
    entry = torch.tensor([[-1, 0, 1, -1], [0, -1, 1, -1], [4, 8, 15, 0]])
    for gather in (cache.gather_main, cache.gather_index):
        values = gather(2, torch.tensor([0, 1, 0]), entry)
        assert torch.isfinite(values).all()
        present = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]).bool()
        assert torch.equal(values.abs().sum(-1) > 0, present)
    position = torch.tensor([-1, 3, -1])
    row = torch.tensor([0, 0, 1])
    for values in (cache.read_window(2, row, position), *cache.read_open(1, row, position - (position == 3).long())):
        assert torch.equal(values.abs().sum(-1) > 0, position >= 0)


def test_no_entry_is_zeros_also_where_every_page_is_taken():
    cache = Cache(TINY, 8, page_tokens=4)
    step(cache, {0: list(range(8))})
    assert -1 not in cache.page_table
    assert not cache.gather_main(2, torch.tensor([0]), torch.tensor([[-1]])).any()


@pytest.mark.parametrize("storage", ["packed", "fake"])
@pytest.mark.parametrize("count", [1, WINDOW, WINDOW + 2, WINDOW + 3, 40])
def test_a_long_write_leaves_the_newest_rows(count, storage):
    cache = Cache(TINY, 64, 2, rollback=2, storage=storage, dtype=torch.float32)
    sequence = torch.tensor([1, 0]).repeat_interleave(count)
    position = torch.arange(count).repeat(2)
    values = cache.write_window(1, sequence, position, rows(torch.arange(2 * count), 9))
    assert torch.equal(values, WINDOW_KV.fake_quantize(rows(torch.arange(2 * count), 9)))
    kept = position >= count - WINDOW - 2
    assert torch.equal(cache.read_window(1, sequence[kept], position[kept]), values[kept])


def test_a_long_write_in_any_order_leaves_the_newest_rows():
    cache = Cache(TINY, 64, rollback=0, storage="plain", dtype=torch.float32)
    position = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    zero = torch.zeros(20, dtype=torch.int64)
    cache.write_window(0, zero, position, rows(position, 0))
    newest = torch.arange(15, 20)
    assert torch.equal(cache.read_window(0, zero[:5], newest), rows(newest, 0))


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("length", [1, 9, 21])
@pytest.mark.parametrize("rollback", [0, 1, 4, 5])
def test_open_rows_hold_as_many_tokens_as_can_come_back(rollback, length, everything):
    """Whether all tokens are written or only those that wait, in any order."""
    cache = Cache(TINY, 64, rollback=rollback)
    position = torch.arange(0, length, 1 if everything else 2).flip(0)
    zero = torch.zeros_like(position)
    cache.write_open(1, zero, position, rows(position, 1), rows(position, 2))
    for back in range(min(rollback, length) + 1):
        if (length - back) % 2:
            waiting = torch.tensor([length - back - 1])
            value, gate = cache.read_open(1, zero[:1], waiting)
            assert torch.equal(value, rows(waiting, 1))
            assert torch.equal(gate, rows(waiting, 2))


def test_index_keys_read_any_range():
    cache = Cache(TINY, 64, 2, page_tokens=6, dtype=torch.float32)
    step(cache, {0: list(range(9)), 1: list(range(100, 129))})
    step(cache, {0: list(range(9, 20))})
    for layer, count in ((1, 10), (2, 20)):
        whole = cache.gather_index(layer, torch.tensor([0]), torch.arange(count)[None])[0]
        for start in range(count + 1):
            for stop in range(start, count + 1):
                assert torch.equal(cache.index_keys(layer, 0, start, stop), whole[start:stop])


def test_history_of_rows_of_unequal_length():
    cache = Cache(TINY, 64, 3)
    step(cache, {0: [7], 2: [1, 2, 3, 4, 5, 6, 7, 8, 9]})
    assert cache.history().tolist() == [[7, DEAD, DEAD], [DEAD] * 3, [9, 8, 7]]
    assert cache.history(torch.tensor([2, 0])).tolist() == [[9, 8, 7], [7, DEAD, DEAD]]


def test_a_model_without_engram_has_no_history():
    cache = Cache(with_plan((0, 1), (1,)), 8, 2)
    one = torch.ones(1, dtype=torch.int64)
    cache.write_history(one, one, one)
    assert cache.history().shape == (2, 0)
    assert cache.history_bytes == 0


def test_a_model_of_windows_only_keeps_windows():
    cache = Cache(with_plan((0, 0), ()), 8)
    cache.reserve([3])
    three = torch.arange(3)
    stored = cache.write_window(1, three * 0, three, torch.randn(3, 512))
    cache.advance([3])
    assert torch.equal(cache.read_window(1, three * 0, three), stored)
    assert (cache.page_bytes, cache.nbytes_per_token, cache.open_group_bytes) == (0, 0, 0)


def test_pages_beyond_two_gigabytes():
    """The last page of 40,000 starts at byte 2,278,343,040, where an int32 offset would be negative."""
    pool = PagePool(FLASH, 40_000)
    assert 39_999 * pool.layout.nbytes > 2**31
    pages = pool.allocate_many(40_000)
    cache = Cache(FLASH, 64, pool=pool, dtype=torch.float32)
    pool.data[0].zero_()
    cache.adopt(0, [pages[-1]], 64)
    entry = torch.arange(64)
    main, keys = random_rows(64, 512, torch.float32, 5), random_rows(64, 128, torch.float32, 6)
    cache.write_entries(20, torch.zeros_like(entry), entry, main, keys)
    assert torch.equal(cache.gather_main(20, torch.tensor([0]), entry[None])[0], MAIN_KV.fake_quantize(main))
    assert torch.equal(cache.index_keys(20, 0, 0, 64), INDEX_KEY.fake_quantize(keys))
    assert not pool.data[0].any()


def test_empty_steps_change_nothing():
    cache = Cache(TINY, 16, 2)
    step(cache, {0: [1, 2, 3]})
    before = cache.pool.data.clone()
    step(cache, {})
    assert cache.lengths == (3, 0)
    assert torch.equal(cache.pool.data, before)
    none = torch.zeros(0, dtype=torch.int64)
    assert cache.gather_main(1, none, none[:, None]).shape == (0, 1, 32)
    assert cache.index_keys(1, 1, 0, 0).shape == (0, 32)


@pytest.mark.parametrize("storage", ["packed", "fake", "plain"])
def test_what_is_stored_carries_no_gradient(storage):
    cache = Cache(TINY, 16, storage=storage, dtype=torch.float32)
    cache.reserve([1])
    zero = torch.zeros(1, dtype=torch.int64)
    x = torch.ones(1, 32, requires_grad=True)
    assert not cache.write_window(0, zero, zero, x).requires_grad
    cache.write_entries(2, zero, zero, x, x)
    cache.write_open(1, zero, zero, x, x)
    assert not cache.gather_main(2, zero, zero[None]).requires_grad
    assert not cache.read_open(1, zero, zero)[0].requires_grad


def test_a_cache_made_in_inference_mode_can_be_written_outside_it():
    with torch.inference_mode():
        cache = Cache(TINY, 16)
        step(cache, {0: [1, 2]})
    step(cache, {0: [3]})
    with torch.inference_mode():
        step(cache, {0: [4]})
        cache.truncate(0, 3)
    assert cache.history().tolist() == [[3, 2, 1]]


@pytest.mark.parametrize("name", ["gather_main", "gather_index"])
def test_a_layer_that_borrows_is_refused(name):
    cache = Cache(TINY, 16)
    with pytest.raises(CacheError, match="layer 3 owns no global KV; the layers that do: 1, 2"):
        getattr(cache, name)(3, torch.tensor([0]), torch.tensor([[0]]))
