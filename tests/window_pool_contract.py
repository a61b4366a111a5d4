"""What every window pool has to do, as checks that the tests of each pool run on theirs."""

from __future__ import annotations

import numpy as np
import pytest

A, B, C = (bytes([letter]) * 32 for letter in b"ABC")


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def counted(pool, *names):
    return tuple(pool.counters[name] for name in names)


def redis_name(key):
    """Where a pool over Redis keeps the window of a key."""
    return b"ds41:window:" + key.hex().encode()


def a_window_comes_back_whole(pool):
    window = bytes(range(256)) * 50
    assert pool.put(A, window)
    with pool.take([A]) as lease:
        assert lease.key == A
        assert bytes(lease.data) == window
        assert lease.data.readonly
    assert pool.take([B]) is None
    assert pool.take([]) is None
    counts = pool.counters
    assert (counts["lookups"], counts["hits"], counts["misses"], counts["puts"]) == (3, 1, 2, 1)
    assert (counts["bytes_written"], counts["bytes_read"]) == (len(window), len(window))


def the_first_present_key_is_taken(pool):
    for key in (B, C):
        pool.put(key, key)
    assert pool.take([A, B, C]).key == B
    assert pool.take([C, B]).key == C
    assert pool.take([A, A, C]).key == C
    assert pool.take([A, A]) is None


def a_put_replaces(pool):
    pool.put(A, b"old")
    with pool.take([A]) as lease:
        pool.put(A, b"newer")
        assert bytes(lease.data) == b"old"
    assert bytes(pool.take([A]).data) == b"newer"


def a_dropped_window_is_gone_but_not_for_its_reader(pool):
    pool.put(A, b"window")
    lease = pool.take([A])
    assert pool.drop(A) is True
    assert pool.drop(A) is False
    assert pool.take([A]) is None
    assert bytes(lease.data) == b"window"
    assert pool.counters["recycled"] == 1


def any_buffer_is_kept_as_bytes(pool):
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    for window in (bytearray(b"window"), memoryview(b"a window")[2:], rows, rows[:, ::2], rows.T, rows.reshape(-1)):
        expected = window.tobytes() if isinstance(window, np.ndarray) else bytes(window)
        assert pool.put(A, window)
        assert bytes(pool.take([A]).data) == expected
    changing = bytearray(b"before")
    pool.put(B, changing)
    changing[:] = b"after!"
    assert bytes(pool.take([B]).data) == b"before"


def a_released_lease_is_over(pool):
    pool.put(A, b"window")
    lease = pool.take([A])
    lease.release()
    lease.release()
    with pytest.raises(ValueError, match=f"window {A.hex()} was released"):
        _ = lease.data


def wrong_keys_and_data_are_refused(pool):
    for key, error in (("text", TypeError), (b"", ValueError), (None, TypeError)):
        for use in (lambda key: pool.put(key, b"x"), lambda key: pool.take([key]), pool.drop):
            with pytest.raises(error, match="key"):
                use(key)
    with pytest.raises(TypeError, match=f"window {A.hex()} is list; expected bytes"):
        pool.put(A, [1, 2])
    with pytest.raises(ValueError, match="has no bytes"):
        pool.put(A, b"")


CONTRACT = (
    a_window_comes_back_whole,
    the_first_present_key_is_taken,
    a_put_replaces,
    a_dropped_window_is_gone_but_not_for_its_reader,
    any_buffer_is_kept_as_bytes,
    a_released_lease_is_over,
    wrong_keys_and_data_are_refused,
)
