"""Counters refuse what was not declared, lose nothing between threads, and stand side by side in a table."""

from __future__ import annotations

import threading

import pytest

from ds41.serving.counters import Counters, table


def test_counters_start_at_zero_and_grow():
    counters = Counters(["hits", "bytes_read"])
    counters.add("hits")
    counters.add("bytes_read", 890)
    counters.add("bytes_read", 0)
    assert counters.snapshot() == {"hits": 1, "bytes_read": 890}
    assert counters["hits"] == 1
    assert counters.names == ("hits", "bytes_read")


def test_a_snapshot_stays_as_it_was():
    counters = Counters(["hits"])
    before = counters.snapshot()
    counters.add("hits")
    before["hits"] += 10
    assert before == {"hits": 10}
    assert counters["hits"] == 1


def test_an_unknown_name_is_refused():
    counters = Counters(["hits", "misses"])
    for use in (lambda: counters.add("hit"), lambda: counters["hit"]):
        with pytest.raises(KeyError, match="'hit'; expected one of hits, misses"):
            use()
    assert counters.snapshot() == {"hits": 0, "misses": 0}


def test_a_count_cannot_go_down():
    counters = Counters(["hits"])
    with pytest.raises(ValueError, match="'hits' cannot go down by 1"):
        counters.add("hits", -1)


def test_threads_lose_no_count():
    counters = Counters(["hits", "bytes_read"])

    def work():
        for _ in range(2000):
            counters.add("hits")
            counters.add("bytes_read", 3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot() == {"hits": 8000, "bytes_read": 24000}


def test_a_table_sets_tiers_side_by_side():
    pages, windows = Counters(["lookups", "pages_read"]), Counters(["lookups", "recycled"])
    pages.add("pages_read", 1234567)
    windows.add("lookups", 12)
    assert table("Tiers", store=pages, window_pool=windows.snapshot()).splitlines() == [
        "Tiers",
        "                  store  window_pool",
        "  lookups             0           12",
        "  pages read  1,234,567            -",
        "  recycled            -            0",
    ]


def test_a_table_of_nothing_is_its_title():
    assert table("Tiers").splitlines()[0] == "Tiers"
