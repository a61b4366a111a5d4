"""Damage and failing disks: what is served is right, or nothing is served, or the error says what to do."""

import errno
import multiprocessing
import os
import resource
import shutil
import sqlite3

import numpy as np
import pytest
from store_made import LAYOUT, PAGE, Clock, hit, made_pages, open_store, page_files, put, read_right

from ds41 import ModelConfig
from ds41.cache import PageLayout
from ds41.serving import store_files
from ds41.serving.store import StoreError, StoreFull
from ds41.serving.store_schema import FILES_TO_CUT

CONTEXT = multiprocessing.get_context("fork")
FILLED = [np.concatenate([np.arange(2 * PAGE), np.full(20, number)]) for number in range(6)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A closed store with a few conversations that share their start."""
    folder = tmp_path_factory.mktemp("filled")
    with open_store(folder) as store:
        for ids in FILLED:
            put(store, ids)
    return folder


@pytest.fixture
def copy(filled, tmp_path):
    def fresh(name="copy"):
        target = tmp_path / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(filled, target)
        return target

    return fresh


def flip(path, place, mask=0xFF):
    with open(path, "r+b") as file:
        file.seek(place)
        value = file.read(1)[0]
        file.seek(place)
        file.write(bytes([value ^ mask]))


def check(folder) -> tuple[int, bool]:
    """Read all there is, twice; gives the tokens that were served, and whether an error said what to do."""
    served = 0
    try:
        with open_store(folder) as store:
            for _ in range(2):
                served = sum(hit(store, ids) for ids in FILLED)
            store.verify()
            for ids in FILLED:
                put(store, ids)
                assert hit(store, ids) == len(ids)
    except StoreError as error:
        message = str(error)
    else:
        return served, False
    assert any(hint in message for hint in ("delete", "choose another", "look to")), message
    return served, True


WHOLE = sum(map(len, FILLED))


def test_an_undamaged_copy_serves_everything(copy):
    assert check(copy()) == (WHOLE, False)


def test_a_flipped_byte_in_a_page_costs_that_page_and_those_after_it(copy):
    folder = copy()
    with open_store(folder) as store:
        flip(store.files.path(2), LAYOUT.nbytes + 5)
        ids = FILLED[1]
        with store.find("a", ids) as prefix:
            assert prefix.tokens == len(ids)
            assert read_right(prefix, ids) == 3
            assert prefix.tokens == 3 * PAGE
            assert read_right(prefix, ids) == 3
        assert hit(store, ids) == 3 * PAGE
        assert store.counters["damaged_pages"] == 2
        assert [hit(store, other) for other in FILLED if other is not ids] == [len(ids)] * 5
        put(store, ids)
        assert hit(store, ids) == len(ids)


def test_pages_that_changed_places_are_damage(copy):
    folder = copy()
    with open_store(folder) as store:
        one, other = store.files.path(2), store.files.path(3)
        one_bytes, other_bytes = one.read_bytes(), other.read_bytes()
        assert len(one_bytes) == len(other_bytes)
        one.write_bytes(other_bytes)
        other.write_bytes(one_bytes)
        assert [hit(store, ids) for ids in FILLED[1:3]] == [2 * PAGE] * 2
        assert store.counters["damaged_pages"] == 6


def test_a_page_of_another_key_is_damage_with_its_checksum_too(copy):
    folder = copy()
    database = sqlite3.connect(folder / "index.db")
    rows = database.execute("SELECT id, file, start, digest FROM page WHERE height = -4 ORDER BY id").fetchall()
    for (number, *_), (_, *other) in zip(rows, rows[1:] + rows[:1], strict=True):
        database.execute("UPDATE page SET file = ?, start = ?, digest = ? WHERE id = ?", [*other, number])
    database.commit()
    database.close()
    with open_store(folder) as store:
        assert [hit(store, ids) for ids in FILLED] == [3 * PAGE] * 6
        assert store.counters["damaged_pages"] == 12


@pytest.mark.parametrize("seed", range(20))
def test_a_page_file_cut_or_flipped_anywhere(copy, seed):
    random, folder = np.random.default_rng(seed), copy()
    for path in sorted((folder / "pages").glob("*/*.pages")):
        kind, size = random.integers(4), path.stat().st_size
        if kind == 0:
            flip(path, int(random.integers(size)), 1 << int(random.integers(8)))
        elif kind == 1:
            os.truncate(path, int(random.integers(size)))
        elif kind == 2 and random.random() < 0.3:
            path.unlink()
    served, refused = check(folder)
    assert not refused
    assert served < WHOLE


def test_the_index_flipped_anywhere(copy):
    random, outcomes = np.random.default_rng(7), []
    for trial in range(30):
        folder = copy()
        for _ in range(1 + trial % 3):
            place = int(random.integers((folder / "index.db").stat().st_size))
            flip(folder / "index.db", place, int(random.integers(1, 256)))
        outcomes.append(check(folder))
    # Some bytes hold nothing, some cost a page or more, and some the whole index.
    assert (WHOLE, False) in outcomes
    assert any(refused for _, refused in outcomes)


@pytest.mark.parametrize("place", [0, 5, 17, 18, 30, 100, 101, 103])
def test_a_flipped_header_says_what_to_do(copy, place):
    folder = copy()
    flip(folder / "index.db", place)
    _, refused = check(folder)
    assert refused or place in (17, 30)


@pytest.mark.parametrize("size", [1, 100, 4096, 10_000, 30_000])
def test_an_index_cut_short_says_what_to_do(copy, size):
    folder = copy()
    os.truncate(folder / "index.db", size)
    served, refused = check(folder)
    # One byte is as good as an empty file, in which a new index is made.
    assert refused or size == 1
    assert served < WHOLE


def test_rows_of_other_types_are_misses(copy):
    for column, value in [("used", "soon"), ("file", b"x"), ("start", None), ("digest", 5), ("start", -8), ("ids", 3)]:
        folder = copy()
        database = sqlite3.connect(folder / "index.db")
        # The last page is found by its ids, one in the middle by its key.
        for height in (-4, -5):
            database.execute("DROP TRIGGER IF EXISTS file_changed")
            database.execute(f"UPDATE page SET {column} = ? WHERE height = ?", [value, height])
        database.commit()
        database.close()
        with open_store(folder) as store:
            assert all(hit(store, ids) <= len(ids) for ids in FILLED)


def test_ids_that_do_not_belong_to_their_key_are_not_believed(copy):
    folder = copy()
    database = sqlite3.connect(folder / "index.db")
    packed = database.execute("SELECT ids FROM page WHERE tokens = 4 ORDER BY id LIMIT 1").fetchone()[0]
    database.execute("UPDATE page SET ids = ? WHERE ids = ?", [packed[:-1] + bytes([packed[-1] ^ 1]), packed])
    database.commit()
    database.close()
    with open_store(folder) as store:
        wrong = FILLED[0].copy()
        wrong[-1] ^= 1
        assert hit(store, wrong) == 4 * PAGE
        assert store.verify().damaged == 1


def test_rows_in_a_circle_do_not_hang(copy):
    folder = copy()
    database = sqlite3.connect(folder / "index.db")
    database.execute("UPDATE page SET parent = (SELECT max(id) FROM page) WHERE height = -1")
    database.commit()
    database.close()
    with open_store(folder) as store:
        assert [hit(store, ids) for ids in FILLED] == [0] * 6
        store.verify()
        store.evict(0)


def test_a_folder_of_something_else_is_refused(copy, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    database = sqlite3.connect(folder / "index.db")
    database.execute("CREATE TABLE bookmarks (address TEXT)")
    database.commit()
    database.close()
    with pytest.raises(StoreError, match="database of something else; choose another folder"):
        open_store(folder)
    folder = copy()
    with pytest.raises(StoreError, match="pages of another layout") as caught:
        open_store(folder, layout=PageLayout.of(ModelConfig.nano(), 2 * PAGE))
    assert "16 tokens, 1696 bytes" in str(caught.value)
    database = sqlite3.connect(folder / "index.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="format 99; this version reads format 1"):
        open_store(folder)
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="cannot be used"):
        open_store(tmp_path / "file")


def test_verify_removes_what_is_damaged_and_what_belongs_to_nothing(copy):
    folder = copy()
    with open_store(folder) as store:
        flip(store.files.path(4), 3)
        orphan = store.files.path(1000)
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"x")
        pages = store.usage().pages
        assert store.verify() == (pages - 3, 3, 1)
        assert store.verify() == (pages - 3, 0, 0)
        assert not store.files.path(4).exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "sync", "folder"])
def test_a_disk_that_fails_stores_nothing(copy, monkeypatch, call, code):
    error = OSError(code, os.strerror(code))

    def fail(*arguments):
        raise error

    with open_store(copy()) as store:
        files, usage = len(page_files(store)), store.usage()
        with monkeypatch.context() as patch:
            if call == "write":
                patch.setattr(store_files, "memoryview", fail, raising=False)
            else:
                patch.setattr(store_files.os if call == "sync" else store_files, *SYNCS[call], fail)
            with pytest.raises(StoreError) as caught:
                put(store, [3] * 50)
        assert isinstance(caught.value, StoreFull) == (code != errno.EIO)
        assert store.counters["refused_puts"] == (code != errno.EIO)
        assert len(page_files(store)) == files
        assert store.usage() == usage
        assert [hit(store, ids) for ids in FILLED] == [len(ids) for ids in FILLED]
        put(store, [3] * 50)
        assert hit(store, [3] * 50) == 50


def test_an_early_flush_that_fails_stores_nothing(copy, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with open_store(copy()) as store:
        usage = store.usage()
        with monkeypatch.context() as patch:
            patch.setattr(store_files, "_FLUSH_BYTES", 3 * LAYOUT.nbytes)
            patch.setattr(store_files.os, "fdatasync", fail)
            with pytest.raises(StoreError, match="cannot be used"):
                put(store, [3] * 100)
        assert store.usage() == usage


SYNCS = {"sync": ("fsync",), "folder": ("_sync_folder",)}


@pytest.mark.parametrize("limit", [20_000, 120_000, 300_000])
def test_a_limit_on_files_is_met_as_a_full_disk(tmp_path, limit):
    """Every file of a process with this limit ends there: those of pages, the log of the index, the index."""
    results = CONTEXT.Queue()

    def fill():
        random, done, errors = np.random.default_rng(0), [], []
        store = open_store(tmp_path)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        for turn in range(60):
            ids = [turn] * int(random.integers(1, 60 if turn % 6 else 4000))
            try:
                put(store, ids)
                done.append(ids)
            except StoreError as error:
                errors.append(type(error).__name__)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        found = [hit(store, ids) for ids in done]
        put(store, [99] * 50)
        verified = store.verify()
        results.put((errors, found == [len(ids) for ids in done], hit(store, [99] * 50), verified))
        store.close()

    process = CONTEXT.Process(target=fill)
    process.start()
    errors, all_found, again, verified = results.get(timeout=60)
    process.join(30)
    assert errors
    assert all_found
    assert again == 50
    assert (verified.damaged, verified.orphans) == (0, 0)
    with open_store(tmp_path) as store:
        assert store.usage().file_bytes == store.files.disk_bytes()
        assert store.usage().pages == verified.pages


def test_files_that_cannot_be_cut_now_hold_up_nobody(tmp_path, monkeypatch):
    """Neither a reservation nor a pin stays behind, which nothing would take away before the process ends."""
    with open_store(tmp_path) as store:
        query = store.index.query

        def refusing(statement, *values):
            if statement == FILES_TO_CUT:
                raise StoreError("another process holds the index for too long")
            return query(statement, *values)

        monkeypatch.setattr(store.index, "query", refusing)
        put(store, FILLED[0])
        assert hit(store, FILLED[0]) == len(FILLED[0])
        assert query("SELECT count(*) FROM file WHERE owner IS NOT NULL") == [(0,)]
        assert query("SELECT count(*) FROM pin") == [(0,)]


def test_a_file_that_two_drop_pages_of_leaves_nothing(tmp_path, monkeypatch):
    clock = Clock()
    with (
        open_store(tmp_path, guaranteed_s=0, clock=clock) as store,
        open_store(tmp_path, guaranteed_s=0, clock=clock) as other,
    ):
        put(store, range(20 * PAGE))
        cut = store.files.cut

        def cut_late(number, size):
            # The other one drops the rest of the file while this one is about to cut it.
            monkeypatch.undo()
            other.evict(0)
            cut(number, size)

        monkeypatch.setattr(store.files, "cut", cut_late)
        store.evict(store.usage().held_bytes - 1)
        assert page_files(store) == []
        assert store.verify() == (0, 0, 0)
        assert store.index.query("SELECT count(*) FROM file")[0][0] == 0


def test_a_prefix_whose_file_is_gone_ends(copy):
    with open_store(copy()) as store, store.find("a", FILLED[0]) as prefix:
        pages = prefix.pages()
        assert np.array_equal(next(pages), made_pages(FILLED[0])[0])
        os.truncate(store.files.path(1), LAYOUT.nbytes)
        assert list(pages) == []
        assert prefix.tokens == PAGE
