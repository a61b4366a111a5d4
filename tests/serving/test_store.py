"""The prefix store by itself: what is put is found, by all of its ids, and nothing else is."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from store_made import FINGERPRINT, LAYOUT, PAGE, hit, made_pages, open_store, page_files, put, read_right

from ds41 import ModelConfig
from ds41.cache import PageLayout, PagePool
from ds41.serving import page_bytes
from ds41.serving.store import MissingPrefix, StoreError


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path) as store:
        yield store


@pytest.mark.parametrize("length", [0, 1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 40, 41, 600 * PAGE + 3])
def test_what_is_put_is_found(store, length):
    ids = np.arange(length) * 7 % 1000
    stored = put(store, ids)
    assert stored.tokens == length
    assert stored.pages == LAYOUT.pages_for(length)
    assert hit(store, ids) == length
    assert hit(store, np.concatenate([ids, [5, 5]])) == length


@pytest.mark.parametrize("hits", range(0, 3 * PAGE + 1))
def test_a_prefix_ends_at_any_token(store, hits):
    ids = np.arange(3 * PAGE) + 10
    put(store, ids)
    asked = ids.copy()
    asked[hits:] = 1
    assert hit(store, asked) == hits
    assert hit(store, ids[:hits]) == hits


def test_a_partial_page_can_be_hit_in_part(store):
    ids = list(range(PAGE + 5))
    put(store, ids)
    assert hit(store, [*ids[: PAGE + 3], 99]) == PAGE + 3


def test_of_several_pages_that_go_on_the_longest_match_wins(store):
    start = list(range(PAGE))
    put(store, [*start, 1, 2, 3, 4])
    put(store, [*start, 1, 2, 9, 9, 9, 9, 9, 9])
    put(store, [*start, 1, 2, 3, 7, 7, 7])
    assert hit(store, [*start, 1, 2, 3, 7, 1]) == PAGE + 4
    assert hit(store, [*start, 1, 2, 9, 9, 1]) == PAGE + 4
    assert hit(store, [*start, 1, 5]) == PAGE + 1
    assert store.usage().pages == 4


def test_the_real_ids_decide_and_not_a_weak_hash(store):
    put(store, [5, 40, 7, 7])
    assert hit(store, [4, 71, 7, 7]) == 0
    put(store, [5, 40, *range(6), 1, 1])
    assert hit(store, [4, 71, *range(6), 1, 1]) == 0


def test_the_same_page_after_another_prefix_is_another_page(store):
    put(store, [1] * PAGE + [9] * PAGE)
    put(store, [2] * PAGE + [9] * PAGE)
    assert hit(store, [1] * PAGE + [9] * PAGE) == hit(store, [2] * PAGE + [9] * PAGE) == 2 * PAGE
    assert hit(store, [3] * PAGE + [9] * PAGE) == 0
    assert store.usage().pages == 4


def test_tenants_models_and_formats_are_apart(tmp_path):
    ids = list(range(20))
    with open_store(tmp_path) as store:
        put(store, ids, "a")
        assert [hit(store, ids, tenant) for tenant in ("a", "b", "", None)] == [20, 0, 0, 0]
        with open_store(tmp_path, fingerprint=FINGERPRINT + b" 2") as other:
            assert hit(other, ids, "a") == 0
            put(other, ids, "a")
        assert hit(store, ids, "a") == 20
        assert store.usage().pages == 6


def test_tenants_share_where_they_are_told_to(tmp_path):
    ids = list(range(20))
    with open_store(tmp_path, share_tenants=True) as store:
        put(store, ids, "a")
        assert hit(store, ids, "b") == hit(store, ids, None) == 20
    with open_store(tmp_path) as store:
        assert hit(store, ids, "a") == 0


def test_pages_that_are_there_are_touched_and_not_written(store):
    ids = list(range(3 * PAGE + 2))
    put(store, ids)
    before = [path.stat().st_mtime_ns for path in page_files(store)]
    assert put(store, ids) == type(put(store, ids))(0, len(ids), 0)
    assert put(store, ids[: PAGE + 3]).pages == 0
    assert [path.stat().st_mtime_ns for path in page_files(store)] == before
    assert store.counters["pages_written"] == 4
    assert store.counters["pages_touched"] == 4 + 4 + 2


def test_a_conversation_grows_page_by_page(store):
    ids = [int(token) for token in np.random.default_rng(0).integers(0, 9, 90)]
    length = 0
    for step in (3, 2, 11, 1, 8, 30, 35):
        first, length = length // PAGE, length + step
        put(store, ids[:length], first_page=first)
        assert hit(store, ids) == length
        usage = store.usage()
        assert (usage.pages, usage.tokens) == (LAYOUT.pages_for(length), length)
    assert usage.page_bytes == sum(page_bytes.stored_bytes(LAYOUT, min(PAGE, 90 - n)) for n in range(0, 90, PAGE))


def test_a_fuller_page_replaces_a_partial_one_once_nobody_reads_it(store):
    ids = list(range(PAGE - 1))
    put(store, ids[:3])
    with store.find("a", ids) as prefix:
        put(store, ids)
        assert store.usage().pages == 2
        assert prefix.tokens == 3
        assert read_right(prefix, ids) == 1
    assert hit(store, ids) == len(ids)
    assert store.evict(0).pages == 1
    assert store.usage().pages == 1
    put(store, [*ids, 1, 2])
    assert store.usage().pages == 2
    assert len(page_files(store)) == 1
    assert hit(store, [*ids, 1, 2]) == PAGE + 1


def test_a_partial_page_that_goes_on_otherwise_stays(store):
    put(store, [1, 2, 3])
    put(store, [1, 2, 4, 5, 6, 7, 8, 9, 10])
    assert hit(store, [1, 2, 3]) == 3
    assert store.usage().pages == 3


def test_pages_before_the_first_are_needed(store):
    ids = list(range(4 * PAGE))
    put(store, ids[: 2 * PAGE])
    with pytest.raises(MissingPrefix, match="only the first 16 tokens") as caught:
        put(store, ids, first_page=3)
    assert caught.value.tokens == 2 * PAGE
    put(store, ids, first_page=1)
    assert hit(store, ids) == 4 * PAGE
    with pytest.raises(MissingPrefix):
        store.put("a", [*ids, 7], [], first_page=5)
    assert store.put("a", ids, [], first_page=4).tokens == 4 * PAGE


def test_a_put_is_all_or_nothing(store):
    def broken():
        yield made_pages(range(PAGE))[0]
        raise OSError("the source went away")

    with pytest.raises(StoreError, match="went away"):
        store.put("a", range(3 * PAGE), broken())
    with pytest.raises(ValueError, match="the pages end before page 2"):
        store.put("a", range(3 * PAGE), iter(made_pages(range(2 * PAGE))))
    with pytest.raises(ValueError, match="more pages than the 1"):
        store.put("a", range(PAGE), iter(made_pages(range(2 * PAGE))))
    with pytest.raises(KeyboardInterrupt):
        store.put("a", range(PAGE), iter(interrupt, None))
    assert store.usage().pages == 0
    assert page_files(store) == []
    assert store.index.query("SELECT count(*) FROM pin")[0][0] == 0
    put(store, range(3 * PAGE))
    assert hit(store, range(3 * PAGE)) == 3 * PAGE


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("pages", "error", "message"),
    [
        ([], ValueError, "there are 0 pages; expected 1"),
        ([np.zeros(5, np.uint8)], ValueError, r"\[5\]; expected \[848\]"),
        ([np.zeros(848)], TypeError, "float64"),
        ([[0] * 848], TypeError, "list"),
        ([torch.zeros(848, dtype=torch.int8)], TypeError, "int8"),
    ],
)
def test_bad_pages_are_refused(store, pages, error, message):
    with pytest.raises(error, match=message):
        store.put("a", range(3), pages)
    assert store.usage().pages == 0


def test_bad_arguments_are_refused(store, tmp_path):
    with pytest.raises(ValueError, match="first_page is 2; expected 0 to 1"):
        store.put("a", range(3), [], first_page=2)
    with pytest.raises(TypeError, match="tenant is 5"):
        store.find(5, [1])
    with pytest.raises(ValueError, match="budget_bytes is -1"):
        open_store(tmp_path / "x", budget_bytes=-1)
    with pytest.raises(ValueError, match="expires_s is 5"):
        open_store(tmp_path / "x", guaranteed_s=10, expires_s=5)
    assert not (tmp_path / "x").exists()


def test_tensors_arrays_and_bytes_are_pages(store):
    ids = list(range(3 * PAGE))
    a, b, c = made_pages(ids)
    store.put("a", torch.tensor(ids), [torch.from_numpy(a), b, c.tobytes()])
    assert hit(store, ids) == 3 * PAGE
    store.put("b", ids, torch.from_numpy(np.stack([a, b, c])))
    assert hit(store, ids, "b") == 3 * PAGE


def test_pages_of_a_pool_come_back_into_a_pool(store):
    pool = PagePool(ModelConfig.nano(), 4, page_tokens=PAGE)
    pool.data.copy_(torch.randint(0, 256, pool.data.shape, dtype=torch.uint8))
    pages = [pool.allocate() for _ in range(2)]
    store.put("a", range(2 * PAGE), [pool.read_page(page) for page in pages])
    with store.find("a", range(2 * PAGE)) as prefix:
        for page, data in zip(pages, prefix.pages(), strict=True):
            target = pool.allocate()
            pool.write_page(target, torch.from_numpy(data))
            assert torch.equal(pool.read_page(target), pool.read_page(page))


def test_a_store_survives_being_closed(tmp_path):
    ids = np.arange(50) - 25
    with open_store(tmp_path) as store:
        put(store, ids)
        prefix = store.find("a", ids)
    prefix.close()
    with pytest.raises(StoreError, match="is closed"):
        store.find("a", ids)
    with open_store(tmp_path) as store:
        assert hit(store, ids) == 50
        assert store.index.query("SELECT count(*) FROM pin")[0][0] == 0


def test_a_closed_prefix_gives_no_pages(store):
    put(store, range(20))
    with store.find("a", range(20)) as prefix:
        pages = prefix.pages()
        next(pages)
    with pytest.raises(ValueError, match="closed"):
        next(pages)


def test_what_is_held_is_what_is_on_the_disk(store):
    for tenant in "abc":
        put(store, range(1000), tenant)
        put(store, range(1003), tenant)
    usage = store.usage()
    assert usage.file_bytes == store.files.disk_bytes()
    assert usage.page_bytes == 3 * page_bytes.stored_bytes(LAYOUT, 3) + 3 * 125 * LAYOUT.nbytes
    assert usage.held_bytes == usage.file_bytes + usage.index_bytes
    store.index.query("PRAGMA wal_checkpoint(TRUNCATE)")
    assert usage.index_bytes <= (store.folder / "index.db").stat().st_size


def test_published_pages_cost_less_than_three_percent_more(tmp_path):
    layout = PageLayout.of(ModelConfig.flash())
    ids = np.arange(64 * 64)
    with open_store(tmp_path, layout=layout) as store:
        page = np.random.default_rng(0).integers(0, 256, layout.nbytes, np.uint8)
        # Turn by turn, as a conversation is stored.
        for turn in range(1, 5):
            store.put("a", ids[: turn * 1024], [page] * 16, first_page=(turn - 1) * 16)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert 1 < sum(path.stat().st_blocks * 512 for path in files) / (890 * len(ids)) < 1.03


@given(st.integers(0, PAGE), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=PAGE))
def test_pages_and_ids_come_back_from_their_packed_form(tokens, ids):
    page = np.random.default_rng(tokens).integers(0, 256, LAYOUT.nbytes, np.uint8)
    stored = page_bytes.trim(page, LAYOUT, tokens)
    assert stored.nbytes == page_bytes.stored_bytes(LAYOUT, tokens)
    again = page_bytes.trim(page_bytes.expand(stored, LAYOUT, tokens), LAYOUT, tokens)
    assert np.array_equal(stored, again)
    assert page_bytes.unpack_ids(page_bytes.pack_ids(np.array(ids))).tolist() == ids


@pytest.mark.parametrize(("largest", "width"), [(255, 1), (256, 2), (129279, 4), (2**32, 8), (-1, 8)])
def test_ids_take_as_few_bytes_as_they_can(largest, width):
    assert len(page_bytes.pack_ids(np.array([0, 1, largest]))) == 1 + 3 * width


@pytest.mark.parametrize("packed", [None, b"", b"\x00", b"\x09\x01", b"\x03\x01\x02", "text", 7])
def test_what_is_no_packed_ids_is_none(packed):
    assert page_bytes.unpack_ids(packed) is None
