"""Several threads and processes on one store."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest
from store_made import LAYOUT, PAGE, hit, made_pages, open_store, page_files, put, read_right

from ds41.serving import store_owners
from ds41.serving.store import StoreError

CONTEXT = multiprocessing.get_context("fork")
ROUNDS = 25


def conversation(number: int) -> np.ndarray:
    return np.concatenate([np.arange(3 * PAGE + 5), np.full(2 * PAGE, 1000 + number % 6)])


def work(folder, seed, results, budget_bytes=2**40):
    """Put, find and evict at random; every page that is read is checked."""
    random = np.random.default_rng(seed)
    pages = 0
    with open_store(folder, budget_bytes=budget_bytes, guaranteed_s=0) as store:
        for _ in range(ROUNDS):
            ids = conversation(int(random.integers(100)))[: int(random.integers(1, 60))]
            put(store, ids)
            ids = conversation(int(random.integers(100)))
            with store.find("a", ids) as prefix:
                if random.random() < 0.5:
                    store.evict(int(random.integers(40_000, 200_000)))
                # A page in use stays whatever the others evict.
                tokens = prefix.tokens
                pages += read_right(prefix, ids)
                assert prefix.tokens == tokens
        results.append(pages) if isinstance(results, list) else results.put(pages)


def test_processes_write_read_and_evict_at_once(tmp_path):
    results = CONTEXT.Queue()
    processes = [CONTEXT.Process(target=work, args=(tmp_path, seed, results)) for seed in range(3)]
    for process in processes:
        process.start()
    pages = sum(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert pages > ROUNDS
    with open_store(tmp_path) as store:
        assert store.verify()[1:] == (0, 0)
        assert store.usage().file_bytes == store.files.disk_bytes()
        assert store.index.query("SELECT count(*) FROM pin")[0][0] == 0
        assert store.index.query("SELECT count(*) FROM owner")[0][0] == 1


def test_threads_share_a_store(tmp_path):
    with open_store(tmp_path, guaranteed_s=0) as store:
        errors = []

        def run(seed):
            random = np.random.default_rng(seed)
            try:
                for _ in range(ROUNDS):
                    put(store, conversation(int(random.integers(100)))[: int(random.integers(1, 60))])
                    ids = conversation(int(random.integers(100)))
                    with store.find("a", ids) as prefix:
                        store.evict(80_000)
                        read_right(prefix, ids)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert store.counters["lookups"] == 4 * ROUNDS
        assert store.verify()[1:] == (0, 0)


def test_processes_create_a_store_together(tmp_path):
    results = CONTEXT.Queue()

    def create(number):
        with open_store(tmp_path / "new") as store:
            results.put(put(store, [number] * 20).pages)

    processes = [CONTEXT.Process(target=create, args=(number,)) for number in range(6)]
    for process in processes:
        process.start()
    assert [results.get(timeout=30) for _ in processes] == [3] * 6
    for process in processes:
        process.join(30)
    with open_store(tmp_path / "new") as store:
        assert [hit(store, [number] * 20) for number in range(6)] == [20] * 6


def test_a_dead_reader_pins_nothing(tmp_path):
    def read_and_die():
        store = open_store(tmp_path)
        store.find("a", range(20))
        os._exit(0)

    with open_store(tmp_path, guaranteed_s=0) as store:
        put(store, range(20))
        process = CONTEXT.Process(target=read_and_die)
        process.start()
        process.join(30)
        assert store.index.query("SELECT count(*) FROM pin")[0][0] == 1
        assert store.evict(0).pages == 3


def test_a_dead_writers_room_is_used_again(tmp_path):
    def write_and_die():
        def pages():
            yield from made_pages(range(40 * PAGE))[:30]
            os._exit(0)

        open_store(tmp_path, budget_bytes=120_000).put("a", range(40 * PAGE), pages())

    with open_store(tmp_path, budget_bytes=120_000) as store:
        process = CONTEXT.Process(target=write_and_die)
        process.start()
        process.join(30)
        assert store.usage().file_bytes > 0
        assert len(page_files(store)) == 1
        put(store, range(1000, 1000 + 40 * PAGE))
        assert len(page_files(store)) == 1
        assert store.usage().pages == 40


def test_a_store_does_not_pass_through_a_fork(tmp_path):
    results = CONTEXT.Queue()

    def use(store):
        try:
            store.find("a", range(20))
        except StoreError as error:
            results.put(str(error))
        store.close()

    with open_store(tmp_path) as store:
        put(store, range(20))
        process = CONTEXT.Process(target=use, args=(store,))
        process.start()
        assert "open it anew after a fork" in results.get(timeout=30)
        process.join(30)
        assert hit(store, range(20)) == 20


def test_processes_are_known_by_more_than_their_number():
    own = store_owners.process_name()
    boot, namespace, pid, started = own.split("/")
    assert store_owners.is_alive(own)
    assert not store_owners.is_alive("/".join([boot, namespace, pid, "1" + started]))
    assert not store_owners.is_alive("/".join(["another start of the machine", namespace, pid, started]))
    assert store_owners.is_alive("/".join([boot, "another container", pid, started]))
    assert not store_owners.is_alive("damaged")
    # One that has ended but that nobody has asked about yet holds nothing either.
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    name = store_owners.process_name(child.pid)
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not store_owners.is_alive(name)
    child.communicate()


def test_without_a_process_table_a_number_has_to_do(monkeypatch):
    monkeypatch.setattr(store_owners, "_started", lambda pid: None)
    name = store_owners.process_name()
    assert name.endswith("/")
    assert store_owners.is_alive(name)
    monkeypatch.setattr(store_owners.os, "kill", raises(ProcessLookupError))
    assert not store_owners.is_alive(name)
    monkeypatch.setattr(store_owners.os, "kill", raises(PermissionError))
    assert store_owners.is_alive(name)


def raises(error):
    def call(*arguments):
        raise error

    return call


def test_after_a_restart_of_the_machine_files_without_a_row_go(tmp_path, monkeypatch):
    with open_store(tmp_path) as store:
        put(store, range(20))
        orphan = store.files.path(77)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(bytes(LAYOUT.nbytes))
    with open_store(tmp_path) as store:
        assert orphan.exists()
    monkeypatch.setattr(store_owners, "boot_id", lambda: "another start")
    with open_store(tmp_path) as store:
        assert not orphan.exists()
        assert hit(store, range(20)) == 20


def test_a_store_that_somebody_holds_for_too_long_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("ds41.serving.store_schema._BUSY_S", 0.05)
    with open_store(tmp_path) as store:
        other = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process holds the index"):
            store.find("a", range(3))
        other.execute("ROLLBACK")
        other.close()
        assert hit(store, range(3)) == 0
