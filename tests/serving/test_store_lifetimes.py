"""How long pages stay: budget, guarantee, expiry, and pins."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_configs import with_plan
from store_made import LAYOUT, PAGE, Clock, hit, made_pages, open_store, page_files, put, read_right

from ds41.cache import PageLayout
from ds41.serving.store import StoreFull
from ds41.serving.store_pages import evict

HOUR = 3600.0
WHOLE_FILE = 4096
INDEX = 60_000


@pytest.fixture
def clock():
    return Clock()


def budget(files: int) -> int:
    """Room for the index and so many files of one block."""
    return INDEX + files * WHOLE_FILE


def test_a_full_store_refuses_and_keeps_its_promise(tmp_path, clock):
    with open_store(tmp_path, budget_bytes=budget(10), clock=clock) as store:
        kept = [[tenant] * 20 for tenant in range(30)]
        stored = []
        with pytest.raises(StoreFull, match=r"guarantee of the oldest page ends in 7[12]\.\d\d hours") as caught:
            put_in_turn(store, kept, stored, clock)
        numbers = re.findall(r"([\d,]+)(?= bytes are| of the budget| have)", str(caught.value))
        needed, held, limit = (int(number.replace(",", "")) for number in numbers)
        assert limit == store.budget_bytes == budget(10)
        assert needed > WHOLE_FILE
        assert held <= limit < held + needed
        for ids in stored:
            assert hit(store, ids) == 20
            # A use is noted once a minute.
            clock.now += 61
        assert store.usage().held_bytes <= store.budget_bytes
        assert store.counters["refused_puts"] == 1
        assert store.counters["evicted_pages"] == 0
        clock.now += 72 * HOUR + store.grain_s
        hit(store, stored[0])
        put(store, kept[len(stored)])
        assert hit(store, stored[0]) == 20
        assert hit(store, stored[1]) == 0
        assert store.counters["evicted_pages"] == 3


def put_in_turn(store, conversations, stored, clock):
    for ids in conversations:
        put(store, ids)
        stored.append(ids)
        clock.now += 100


def test_what_can_never_fit_says_so(tmp_path):
    with open_store(tmp_path, budget_bytes=100_000) as store:
        with pytest.raises(StoreFull, match="can never fit"):
            put(store, range(200 * PAGE))
        assert store.usage().pages == 0
        assert page_files(store) == []


def test_the_least_recently_used_goes_first(tmp_path, clock):
    with open_store(tmp_path, guaranteed_s=0, clock=clock) as store:
        for tenant in "abcd":
            put(store, range(20), tenant)
            clock.now += 1
        hit(store, range(20), "a")
        clock.now += 1
        evict_pages(store, 6)
        assert [hit(store, range(20), tenant) for tenant in "abcd"] == [20, 0, 0, 20]


def test_children_never_outlive_their_parents(tmp_path, clock):
    with open_store(tmp_path, guaranteed_s=0, clock=clock) as store:
        ids = list(range(6 * PAGE))
        put(store, ids)
        clock.now += 1
        put(store, [*ids[: 2 * PAGE], *range(100, 100 + 2 * PAGE)])
        clock.now += 1
        left = []
        for _ in range(store.usage().pages):
            left.append((hit_without_use(store, ids), store.usage().pages))
            evict_pages(store, 1)
        # The older branch goes page by page from its end, then the newer one, then what they share.
        assert left == [(48, 8), (40, 7), (32, 6), (24, 5), (16, 4), (16, 3), (16, 2), (8, 1)]


def hit_without_use(store, ids) -> int:
    used = store.index.query("SELECT id, used FROM page")
    tokens = hit(store, ids)
    with store.index.transaction() as database:
        database.executemany("UPDATE page SET used = ? WHERE id = ?", [(moment, page) for page, moment in used])
    return tokens


def evict_pages(store, count: int) -> None:
    """Evict so many pages one by one, whatever their files take in blocks."""
    left = store.usage().pages - count
    query = "SELECT count(*) FROM page WHERE parent IS NOT NULL"
    with store.index.transaction() as database:
        evict(database, store.clock(), store.stored_bytes, lambda: database.execute(query).fetchone()[0] <= left)


def test_locking_a_page_pins_its_whole_path(tmp_path):
    with open_store(tmp_path, guaranteed_s=0) as store:
        ids = list(range(2 * PAGE))
        put(store, ids)
        put(store, [*ids[:PAGE], 1, 1, 1])
        with store.find("a", ids) as prefix:
            assert store.evict(0).pages == 1
            assert read_right(prefix, ids) == 2
        assert store.evict(0).pages == 2
        assert hit(store, ids) == 0


def test_two_readers_of_a_page_both_pin_it(tmp_path):
    with open_store(tmp_path, guaranteed_s=0) as store, open_store(tmp_path, guaranteed_s=0) as other:
        ids = list(range(2 * PAGE))
        put(store, ids)
        first, second = store.find("a", ids), other.find("a", ids)
        first.close()
        first.close()
        assert store.evict(0).pages == other.evict(0).pages == 0
        second.close()
        assert store.evict(0).pages == 2


def test_an_evicted_place_has_no_old_key(tmp_path):
    with open_store(tmp_path, guaranteed_s=0) as store:
        put(store, [1] * PAGE)
        held = store.find("a", [1] * PAGE)
        held.close()
        store.evict(0)
        put(store, [2] * PAGE)
        assert hit(store, [1] * PAGE) == 0
        assert hit(store, [2] * PAGE) == PAGE
        # Numbers of files and pages are never given out twice, so nothing old can point at something new.
        assert store.index.query("SELECT id FROM file") == [(2,)]


@pytest.mark.parametrize("evicts", [False, True])
def test_an_expired_page_is_a_miss_and_never_data(tmp_path, evicts):
    clock = Clock()
    options = {"guaranteed_s": 0.1, "expires_s": 0.5, "clock": clock}
    with open_store(tmp_path, **options) as store, open_store(tmp_path, **options) as other:
        ids = list(range(5 * PAGE))
        put(store, ids)
        prefix = store.find("a", ids)
        pages = prefix.pages()
        next(pages)
        clock.now += 0.6
        if evicts:
            other.evict(0)
        assert list(pages) == []
        assert prefix.tokens == PAGE
        prefix.close()
        assert hit(store, ids) == 0
        other.evict()
        assert store.usage().pages == 0
        assert store.counters["expired_pages"] + other.counters["expired_pages"] == 5


def test_every_use_starts_the_lifetimes_anew(tmp_path, clock):
    with open_store(tmp_path, guaranteed_s=10, expires_s=20, clock=clock) as store:
        ids = list(range(3 * PAGE))
        put(store, ids)
        for _ in range(5):
            clock.now += 15
            assert hit(store, ids[: 2 * PAGE]) == 2 * PAGE
            assert store.usage().pages == 3
        # The last page was used by none of them; it expires alone.
        assert hit(store, ids) == 2 * PAGE
        assert store.usage().pages == 2
        clock.now += 15
        put(store, ids[:PAGE])
        clock.now += 15
        assert hit(store, ids) == PAGE


def test_both_lifetimes_last_as_long_as_the_noting_of_a_use_allows(tmp_path, clock):
    # Every sum is exact: 1000 / 8000 is an eighth.
    with open_store(tmp_path, guaranteed_s=125, expires_s=250, clock=clock) as store:
        put(store, [0])
        clock.now += 125
        # Its guarantee is over, but the use may have been noted up to a grain too early.
        assert store.evict(0).pages == 0
        clock.now += store.grain_s
        assert store.evict(0).pages == 1
        put(store, [0])
        clock.now += 250
        assert store.usage().pages == 1
        assert hit_without_use(store, [0]) == 1
        clock.now += store.grain_s
        assert hit(store, [0]) == 0


def test_a_conversation_that_grew_within_a_minute_goes_in_one_eviction(tmp_path, clock):
    with open_store(tmp_path, guaranteed_s=HOUR, clock=clock) as store:
        ids = list(range(5 * PAGE))
        for page in range(1, 6):
            # The pages before the new one were used a moment ago and are not noted again.
            put(store, ids[: page * PAGE])
            clock.now += store.grain_s / 10
        put(store, range(100, 100 + PAGE))
        clock.now += HOUR + store.grain_s
        hit(store, range(100, 100 + PAGE))
        with store.find("a", ids[: 2 * PAGE]):
            clock.now += HOUR + store.grain_s
            assert store.evict(0).pages == 4
        clock.now += HOUR
        assert store.evict(0).pages == 2


def test_the_oldest_goes_first_in_a_conversation_that_grew_within_a_minute(tmp_path, clock):
    with open_store(tmp_path, guaranteed_s=HOUR, clock=clock) as store:
        ids, other = list(range(3 * PAGE)), list(range(100, 100 + PAGE))
        for page in range(1, 4):
            put(store, ids[: page * PAGE])
            clock.now += store.grain_s / 10
        put(store, other)
        clock.now += HOUR + store.grain_s
        evict_pages(store, 2)
        assert hit_without_use(store, ids) == PAGE
        evict_pages(store, 1)
        assert (hit_without_use(store, ids), hit_without_use(store, other)) == (0, PAGE)


def test_reading_does_not_outlast_what_somebody_else_uses(tmp_path, clock):
    options = {"guaranteed_s": 1, "expires_s": 10, "clock": clock}
    with open_store(tmp_path, **options) as store:
        ids = list(range(2 * PAGE))
        put(store, ids)
        late = store.find("a", ids)
        clock.now += 9
        assert hit(store, ids) == 2 * PAGE
        clock.now += 2
        assert list(late.pages()) == []
        assert hit(store, ids) == 2 * PAGE


def test_expired_pages_make_room(tmp_path, clock):
    with open_store(tmp_path, budget_bytes=budget(4), guaranteed_s=10, expires_s=10, clock=clock) as store:
        for turn in range(20):
            put(store, [turn] * 20)
            clock.now += 11
        assert store.usage().held_bytes <= store.budget_bytes
        assert store.counters["refused_puts"] == store.counters["evicted_pages"] == 0
        assert store.counters["expired_pages"] > 30


def test_a_put_under_way_counts_and_its_path_stays(tmp_path):
    ids = list(range(4 * PAGE))
    with open_store(tmp_path, guaranteed_s=0) as store, open_store(tmp_path, guaranteed_s=0) as other:
        put(store, ids[: 2 * PAGE])
        before = other.usage().file_bytes

        def pages():
            for page in made_pages(ids, first=2):
                assert other.usage().file_bytes == before + WHOLE_FILE
                assert other.evict(0).pages == 0
                yield page

        assert store.put("a", ids, pages(), first_page=2).pages == 2
        assert hit(other, ids) == 4 * PAGE


def test_two_puts_of_the_same_pages_store_them_once(tmp_path):
    ids = list(range(6 * PAGE + 3))
    with open_store(tmp_path) as store, open_store(tmp_path) as other:

        def pages(length):
            for number, page in enumerate(made_pages(ids)):
                if number == 4:
                    put(other, ids[:length])
                yield page

        assert store.put("a", ids, pages(len(ids))).pages == 0
        assert len(page_files(store)) == 1
        ids = [99, *ids]
        stored = store.put("a", ids, pages(2 * PAGE + 3))
        assert stored.pages == 5
        assert hit(other, ids) == len(ids)
        assert store.usage().pages == 7 + 7
        assert store.verify() == (14, 0, 0)
        # What the first of two had already stored is dead weight in the file of the second, and is counted.
        assert store.usage().file_bytes == store.files.disk_bytes()


def test_roots_go_with_their_last_page(tmp_path):
    with open_store(tmp_path, guaranteed_s=0) as store:
        for tenant in "abc":
            put(store, range(20), tenant)
        store.evict(0)
        assert store.index.query("SELECT count(*) FROM page")[0][0] == 0
        assert store.index.query("SELECT count(*) FROM file")[0][0] == 0
        assert store.index.query("SELECT bytes FROM total")[0][0] == 0


def test_a_page_without_an_entry_has_no_bytes(tmp_path):
    layout = PageLayout.of(with_plan((2,), (0,)), PAGE)
    with open_store(tmp_path, layout=layout, guaranteed_s=0) as store:
        put(store, [7])
        assert hit(store, [7, 8]) == 1
        assert store.verify() == (1, 0, 0)
    with open_store(tmp_path, layout=layout, guaranteed_s=0) as store:
        assert hit(store, [7, 8]) == 1
        put(store, [7, 8, 9])
        assert hit(store, [7, 8, 9]) == 3
        assert store.evict(0).pages == 1
        assert page_files(store) == []


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=12), st.integers(6, 12))
def test_the_budget_holds_whatever_is_put(tmp_path_factory, puts, files):
    clock = Clock()
    folder = tmp_path_factory.mktemp("store")
    with open_store(folder, budget_bytes=budget(files), guaranteed_s=0, clock=clock) as store:
        for token, length in puts:
            clock.now += 1
            put(store, [token] * length)
            assert hit(store, [token] * length) == length
            usage = store.usage()
            assert usage.file_bytes == store.files.disk_bytes()
            assert usage.held_bytes <= store.budget_bytes


def test_the_layout_of_the_tests_is_small():
    assert LAYOUT.nbytes * 3 < WHOLE_FILE
