"""The window pool over Redis, against a real server that each test starts for itself, and may end."""

from __future__ import annotations

import mmap
import sys
import threading
import time

import pytest
import redis
from window_pool_contract import CONTRACT, A, B, C, counted, redis_name

from ds41.serving.redis_windows import RedisWindowPool, WindowPoolError
from ds41.serving.windows import Lease

MIB = 2**20


@pytest.fixture
def pool(server):
    with RedisWindowPool(server.url) as opened:
        yield opened


@pytest.mark.parametrize("holds", CONTRACT, ids=lambda check: check.__name__)
def test_contract(holds, pool):
    holds(pool)
    assert pool.counters["errors"] == 0


def test_the_server_expires_windows(server, admin):
    with RedisWindowPool(server.url, lifetime_s=0.5) as pool:
        pool.put(A, b"window")
        lease = pool.take([A])
        assert 0 < admin.pttl(redis_name(A)) <= 500
        time.sleep(0.6)
        assert pool.take([A]) is None
        assert bytes(lease.data) == b"window"
        assert pool.server_counts()["expired"] == 1


def test_a_take_does_not_prolong_a_window(pool, admin):
    pool.put(A, b"window")
    assert 599_000 < admin.pttl(redis_name(A)) <= 600_000
    admin.pexpire(redis_name(A), 1000)
    pool.take([A])
    assert admin.pttl(redis_name(A)) <= 1000


def test_one_that_expires_between_two_looks_is_passed_over(pool, admin, monkeypatch):
    for key in (B, C):
        pool.put(key, key)
    look = pool._look

    def look_and_lose(first, others):
        replies = look(first, others)
        admin.delete(redis_name(B))
        return replies

    monkeypatch.setattr(pool, "_look", look_and_lose)
    assert pool.take([A, B, C]).key == C
    pool.put(B, B)
    assert pool.take([A, B]) is None
    assert counted(pool, "lookups", "hits", "misses", "errors") == (2, 1, 1, 0)


def test_only_the_window_taken_is_transferred(pool, admin):
    for key in (A, B, C):
        pool.put(key, key * 10_000)
    before = admin.info("stats")["total_net_output_bytes"]
    pool.take([b"none", A, B, C]).release()
    assert admin.info("stats")["total_net_output_bytes"] - before < 1.1 * len(A) * 10_000


def test_a_take_costs_one_exchange_or_two(pool, monkeypatch):
    exchanges, look = [], pool._look
    monkeypatch.setattr(pool, "_look", lambda *keys: exchanges.append(keys) or look(*keys))
    pool.put(C, C)
    for keys, found, cost in (([A, b"none", B], None, 1), ([C, A, B], C, 1), ([A, b"none", B, C], C, 2)):
        exchanges.clear()
        lease = pool.take(keys)
        assert (lease and lease.key, len(exchanges)) == (found, cost)


def test_two_clients_share_windows(server, pool):
    with RedisWindowPool(server.url) as other:
        pool.put(A, b"window")
        assert bytes(other.take([A]).data) == b"window"
        other.drop(A)
        assert pool.take([A]) is None
    with RedisWindowPool(server.url, prefix="another:") as apart:
        pool.put(A, b"window")
        assert apart.take([A]) is None


def test_threads_share_a_pool(pool):
    keys, faults = [bytes([number]) * 32 for number in range(1, 6)], []

    def work(number):
        try:
            for step in range(100):
                key = keys[(number + step) % len(keys)]
                assert pool.put(key, key * (1 + 17 * step))
                lease = pool.take([keys[(number + 2 * step) % len(keys)], key])
                assert lease is None or set(bytes(lease.data)) == {lease.key[0]}
                if step % 7 == 0:
                    pool.drop(key)
        except BaseException as error:
            faults.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert counted(pool, "puts", "lookups", "damaged", "errors") == (400, 400, 0, 0)


def test_the_server_makes_room_and_what_is_left_is_right(pool):
    pool.configure(pool.server_counts()["held_bytes"] + 2 * MIB)
    keys = [bytes([number]) * 32 for number in range(1, 101)]
    for key in keys:
        assert pool.put(key, key * 3000)
    left = [key for key in keys if pool.take([key])]
    assert keys[-1] in left
    assert 5 <= len(left) < 25
    counts = pool.server_counts()
    assert counts["entries"] == len(left)
    assert counts["evicted"] == 100 - len(left)
    assert counts["held_bytes"] <= counts["budget_bytes"] + MIB // 2
    assert counted(pool, "damaged", "errors", "refused_puts") == (0, 0, 0)


def test_what_no_server_takes_is_refused_before_it_is_sent(pool):
    with mmap.mmap(-1, 512 * MIB) as huge:
        assert pool.put(A, huge) is False
    assert counted(pool, "refused_puts", "errors", "bytes_written") == (1, 0, 0)


def test_no_server_is_a_clear_error():
    with pytest.raises(WindowPoolError, match=r"127\.0\.0\.1:1 does not answer .*HostWindowPool") as caught:
        RedisWindowPool("redis://user:secret@127.0.0.1:1/0")
    assert "secret" not in str(caught.value)


def test_a_refused_login_is_a_clear_error(server, admin):
    admin.execute_command("ACL", "SETUSER", "default", "on", ">right", "~*", "+@all")
    with pytest.raises(WindowPoolError, match=r"refuses the login: .*in the URL"):
        RedisWindowPool(server.url)
    with pytest.raises(WindowPoolError, match="refuses the login: invalid username-password") as caught:
        RedisWindowPool(f"{server.url}?password=wrongsecret")
    assert "wrongsecret" not in str(caught.value)
    with RedisWindowPool(f"{server.url}?password=right") as pool:
        assert pool.put(A, b"window")


def test_a_wrong_url_or_client_is_a_clear_error(server):
    with pytest.raises(WindowPoolError, match="URL is wrong"):
        RedisWindowPool("http://localhost")
    with pytest.raises(TypeError, match="server is int; expected a URL"):
        RedisWindowPool(6379)
    with (
        redis.Redis.from_url(server.url, decode_responses=True) as client,
        pytest.raises(WindowPoolError, match="decode_responses=False"),
    ):
        RedisWindowPool(client)
    with pytest.raises(ValueError, match="lifetime_s is -1"):
        RedisWindowPool(server.url, lifetime_s=-1)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(WindowPoolError, match=r"pip install 'ds41\[redis\]'"):
        RedisWindowPool("redis://localhost")


def test_a_client_that_was_given_stays_open(admin):
    own = admin.client_id()
    with RedisWindowPool(admin) as pool:
        pool.put(A, b"window")
        assert isinstance(pool.take([A]), Lease)
    assert admin.client_id() == own


def test_a_pool_closes_the_connections_it_opened(server, admin):
    with RedisWindowPool(server.url) as pool:
        pool.put(A, b"window")
        assert len(admin.client_list()) == 2
    deadline = time.monotonic() + 10
    while len(admin.client_list()) > 1:
        assert time.monotonic() < deadline, "the connection is still open"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "budget_bytes is 0"), ((MIB, "noeviction"), "policy is 'noeviction'; expected one of volatile-lru")],
)
def test_a_configuration_that_cannot_work_is_refused(pool, arguments, message):
    with pytest.raises(ValueError, match=message):
        pool.configure(*arguments)
