"""The window pool over Redis when things go wrong: the server fails, or what it holds is not what was put."""

from __future__ import annotations

import pytest
from window_pool_contract import A, B, Clock, counted, redis_name

from ds41.serving.redis_windows import RedisWindowPool, WindowPoolError

TIMEOUT_S, RETRY_S = 0.3, 5.0
MIB = 2**20


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pool(server, clock):
    with RedisWindowPool(server.url, timeout_s=TIMEOUT_S, retry_s=RETRY_S, clock=clock) as opened:
        yield opened


def test_a_full_server_that_does_not_evict_refuses(pool, admin):
    pool.put(A, b"window")
    admin.config_set("maxmemory-policy", "noeviction")
    admin.config_set("maxmemory", admin.info("memory")["used_memory"])
    assert pool.put(B, b"b" * MIB) is False
    assert counted(pool, "puts", "refused_puts", "errors") == (1, 1, 1)
    assert "maxmemory" in pool.last_error
    assert bytes(pool.take([A]).data) == b"window"


def test_a_killed_server_is_a_miss_until_it_is_back(pool, server, clock):
    pool.put(A, b"window")
    lease = pool.take([A])
    server.kill()
    assert pool.take([A]) is None
    assert counted(pool, "misses", "errors") == (1, 1)
    assert "ConnectionError" in pool.last_error
    assert pool.put(B, b"b") is False
    assert pool.drop(A) is False
    assert pool.server_counts() == {}
    assert counted(pool, "refused_puts", "errors") == (1, 1), "asked again before the time was up"
    assert bytes(lease.data) == b"window"
    clock.now += RETRY_S
    assert pool.take([A]) is None
    assert pool.counters["errors"] == 2
    server.start()
    clock.now += RETRY_S
    assert pool.take([A]) is None
    assert pool.put(A, b"anew")
    assert bytes(pool.take([A]).data) == b"anew"
    assert pool.counters["errors"] == 2


def test_a_server_that_was_restarted_costs_no_error(pool, server):
    pool.put(A, b"window")
    server.kill()
    server.start()
    assert pool.put(A, b"anew")
    assert bytes(pool.take([A]).data) == b"anew"
    assert pool.counters["errors"] == 0


def test_a_hung_server_is_asked_once(pool, server, clock):
    pool.put(A, b"window")
    server.hang()
    assert pool.take([A, B]) is None
    assert pool.take([A]) is None
    assert pool.put(B, b"b") is False
    assert counted(pool, "misses", "refused_puts", "errors") == (2, 1, 1)
    assert "TimeoutError" in pool.last_error
    server.resume()
    clock.now += RETRY_S
    # The late reply to the first question is not taken for the answer to this one.
    assert pool.take([B]) is None
    assert bytes(pool.take([A]).data) == b"window"


def cut(value):
    return value[:-1]


def flipped_window(value):
    return value[:-1] + bytes([value[-1] ^ 1])


def flipped_digest(value):
    return value[:20] + bytes([value[20] ^ 1]) + value[21:]


def other_format(value):
    return b"X" + value[1:]


def only_a_header(value):
    return value[:40]


def nothing(value):
    return b""


def foreign(value):
    return b"somebody else's"


@pytest.mark.parametrize(
    "harm",
    [cut, flipped_window, flipped_digest, other_format, only_a_header, nothing, foreign],
    ids=lambda h: h.__name__,
)
def test_a_damaged_window_is_removed_and_the_next_one_taken(pool, admin, harm):
    pool.put(A, b"window a")
    pool.put(B, b"window b")
    admin.set(redis_name(A), harm(admin.get(redis_name(A))))
    assert pool.take([A, B]).key == B
    assert not admin.exists(redis_name(A))
    assert counted(pool, "damaged", "hits", "errors") == (1, 1, 0)


def test_a_window_under_another_key_is_not_given_out(pool, admin):
    pool.put(A, b"window of A")
    admin.rename(redis_name(A), redis_name(B))
    assert pool.take([B]) is None
    assert counted(pool, "damaged", "hits", "misses") == (1, 0, 1)


def test_a_key_of_another_type_is_removed(pool, admin):
    admin.rpush(redis_name(A), "a list")
    pool.put(B, b"window b")
    assert pool.take([A, B]).key == B
    assert counted(pool, "damaged", "errors") == (1, 0)
    admin.rpush(redis_name(A), "a list")
    assert pool.put(A, b"window a")
    assert bytes(pool.take([A]).data) == b"window a"


def test_rights_that_lack_a_command_are_errors_not_exceptions(server, admin):
    admin.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-set", "-get", "-config")
    with RedisWindowPool(f"{server.url}?username=reader&password=pw") as pool:
        assert pool.put(A, b"window") is False
        assert pool.take([A]) is None
        assert counted(pool, "refused_puts", "misses", "errors") == (1, 1, 2)
        assert "NoPermission" in pool.last_error
        with pytest.raises(
            WindowPoolError, match=r"socket does not let itself be configured .*set maxmemory 1048576 and"
        ):
            pool.configure(MIB)
