"""The window pool in host memory: within its budget always, never data after expiry, evicted by use."""

from __future__ import annotations

import gc
import random
import sys
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from window_pool_contract import CONTRACT, A, B, C, Clock

from ds41.serving import windows
from ds41.serving.windows import HostWindowPool, PoolUsage

BUDGET, LIFETIME = 100, 10.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pool(clock):
    return HostWindowPool(BUDGET, LIFETIME, clock)


def present(pool, *keys):
    return [key for key in keys if pool.take([key])]


@pytest.mark.parametrize("holds", CONTRACT, ids=lambda check: check.__name__)
def test_contract(holds):
    holds(HostWindowPool(2**20))


def test_an_expired_window_is_a_miss(clock):
    pool = HostWindowPool(BUDGET, 0.5, clock)
    pool.put(A, b"window")
    clock.now = 0.499
    assert bytes(pool.take([A]).data) == b"window"
    clock.now = 0.6
    assert pool.take([A]) is None
    assert pool.counters["expired"] == 1


def test_the_lifetime_ends_on_the_dot_and_a_take_does_not_prolong_it(pool, clock):
    pool.put(A, b"window")
    clock.now = 9.0
    pool.take([A]).release()
    clock.now = 10.0
    assert pool.take([A]) is None


def test_a_lease_outlives_expiry_and_its_room_is_not_given_away(pool, clock):
    pool.put(A, b"a" * 60)
    lease = pool.take([A])
    clock.now = 11.0
    assert not pool.put(B, b"b" * 60)
    assert pool.usage() == PoolUsage(0, held_bytes=60, leased_bytes=60, lingering_bytes=60, budget_bytes=BUDGET)
    assert bytes(lease.data) == b"a" * 60
    lease.release()
    assert pool.usage() == PoolUsage(0, 0, 0, 0, BUDGET)
    assert pool.put(B, b"b" * 60)


def test_the_window_unused_for_longest_makes_room(pool):
    for key in (A, B, C):
        pool.put(key, key)
    pool.take([A]).release()
    pool.put(b"D", b"d" * 30)
    assert present(pool, A, B, C, b"D") == [A, C, b"D"]
    assert pool.counters["evicted"] == 1


def test_a_window_under_lease_is_not_evicted(pool):
    pool.put(A, b"a" * 50)
    pool.put(B, b"b" * 50)
    with pool.take([A]):
        pool.put(C, b"c" * 50)
        assert present(pool, B) == []
    assert present(pool, A, C) == [A, C]


def test_what_cannot_fit_is_refused_and_evicts_nothing(pool):
    pool.put(A, b"a" * 50)
    pool.put(B, b"b" * 50)
    assert not pool.put(C, b"c" * 101)
    lease = pool.take([A])
    assert not pool.put(A, b"n" * 51)
    assert not pool.put(C, b"c" * 51)
    lease.release()
    assert bytes(pool.take([A]).data) == b"a" * 50
    assert present(pool, A, B, C) == [A, B]
    assert (pool.counters["refused_puts"], pool.counters["evicted"], pool.counters["recycled"]) == (3, 0, 0)
    assert pool.put(C, b"c" * 100)


def test_nothing_is_copied_and_what_goes_is_freed():
    pool = HostWindowPool(2**20)
    window = bytes(1000)
    alone = sys.getrefcount(window)
    pool.put(A, window)
    with pool.take([A]) as lease:
        assert lease.data.obj is window
        pool.drop(A)
    del lease
    assert sys.getrefcount(window) == alone


def test_an_abandoned_lease_comes_back(pool):
    pool.put(A, b"a" * 100)
    lease = pool.take([A])
    assert not pool.put(B, b"b" * 100)
    del lease
    assert pool.put(B, b"b" * 100)


def test_a_lease_may_die_in_the_middle_of_a_call():
    pool = HostWindowPool(BUDGET, LIFETIME, clock=lambda: gc.collect() * 0.0)
    pool.put(A, b"a" * 60)
    cycle = [pool.take([A])]
    cycle.append(cycle)
    del cycle
    done = threading.Thread(target=pool.usage, daemon=True)
    done.start()
    done.join(30)
    assert not done.is_alive(), "the finaliser waits for the lock that its own thread holds"
    assert pool.usage().leased_bytes == 0


def test_the_budget_is_a_tenth_of_the_memory(monkeypatch):
    monkeypatch.setattr(windows, "memory_bytes", lambda: 64 * 2**30 + 7)
    assert HostWindowPool().budget_bytes == (64 * 2**30 + 7) // 10
    assert HostWindowPool().lifetime_s == 600.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget_bytes": 0}, "budget_bytes is 0"),
        ({"budget_bytes": 1, "lifetime_s": 0}, "lifetime_s is 0"),
        ({"budget_bytes": 1, "lifetime_s": float("inf")}, "lifetime_s is inf"),
        ({"budget_bytes": 1, "lifetime_s": float("nan")}, "lifetime_s is nan"),
    ],
)
def test_wrong_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        HostWindowPool(**arguments)


@dataclass(eq=False)
class Put:
    """What the model knows of one put that was accepted."""

    key: bytes
    data: bytes
    expires: float
    used: int
    leases: list = field(default_factory=list)
    present: bool = True


class PoolAgainstModel(RuleBasedStateMachine):
    """Every call on the pool beside a plain list of puts that is searched from end to end."""

    keys = st.sampled_from([bytes([letter]) for letter in b"abcdef"])

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.pool = HostWindowPool(BUDGET, LIFETIME, self.clock)
        self.puts: list[Put] = []
        self.leases: list[tuple] = []
        self.ended = dict.fromkeys(("evicted", "expired", "recycled"), 0)
        self.time = 0

    def tick(self):
        self.time += 1
        return self.time

    def present(self, key=None):
        return [put for put in self.puts if put.present and key in (None, put.key)]

    def end(self, put, reason):
        put.present = False
        self.ended[reason] += 1

    def held(self):
        return sum(len(put.data) for put in self.puts if put.present or put.leases)

    def settle(self):
        for put in self.present():
            if self.clock.now >= put.expires:
                self.end(put, "expired")

    @rule(key=keys, size=st.integers(1, 120), copied=st.booleans())
    def put(self, key, size, copied):
        data = random.Random(self.tick()).randbytes(size)
        accepted = self.pool.put(key, bytearray(data) if copied else data)
        self.settle()
        under_lease = sum(len(put.data) for put in self.puts if put.leases)
        assert accepted == (under_lease + size <= BUDGET)
        if not accepted:
            return
        for put in self.present(key):
            self.end(put, "recycled")
        while self.held() + size > BUDGET:
            self.end(min((put for put in self.present() if not put.leases), key=lambda put: put.used), "evicted")
        self.puts.append(Put(key, data, self.clock.now + LIFETIME, self.time))

    @rule(keys=st.lists(keys, max_size=3))
    def take(self, keys):
        lease = self.pool.take(keys)
        self.settle()
        found = next((put for key in keys for put in self.present(key)), None)
        assert (lease is None) == (found is None)
        if lease is not None:
            assert (lease.key, bytes(lease.data)) == (found.key, found.data)
            found.leases.append(self.tick())
            self.leases.append((lease, found))

    @rule(choice=st.integers(0, 10), abandoned=st.booleans())
    def release(self, choice, abandoned):
        if not self.leases:
            return
        lease, put = self.leases.pop(choice % len(self.leases))
        assert bytes(lease.data) == put.data
        if not abandoned:
            lease.release()
        del lease
        put.leases.pop()
        put.used = self.tick()
        self.settle()

    @rule(key=keys)
    def drop(self, key):
        dropped = self.pool.drop(key)
        self.settle()
        assert dropped == bool(self.present(key))
        for put in self.present(key):
            self.end(put, "recycled")

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds):
        self.clock.now += seconds

    @invariant()
    def the_books_agree(self):
        usage = self.pool.usage()
        self.settle()
        assert usage == PoolUsage(
            entries=len(self.present()),
            held_bytes=self.held(),
            leased_bytes=sum(len(put.data) for put in self.puts if put.leases),
            lingering_bytes=sum(len(put.data) for put in self.puts if put.leases and not put.present),
            budget_bytes=BUDGET,
        )
        assert usage.held_bytes <= BUDGET
        counts = self.pool.counters.snapshot()
        assert {name: counts[name] for name in self.ended} == self.ended
        assert counts["puts"] == usage.entries + sum(self.ended.values())
        assert counts["lookups"] == counts["hits"] + counts["misses"]
        for lease, put in self.leases:
            assert bytes(lease.data) == put.data


PoolAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_pool_against_model = PoolAgainstModel.TestCase


def test_threads_share_a_pool():
    """Each window tells its key and its length, so a mixed-up or reused one shows."""
    pool, faults = HostWindowPool(2000, lifetime_s=0.005), []
    keys = [bytes([number]) for number in range(1, 9)]

    def work(seed):
        draw = random.Random(seed)
        try:
            for _ in range(1500):
                key, size = draw.choice(keys), draw.randint(1, 700)
                pool.put(key, key * size)
                with pool.take(draw.sample(keys, 3)) or nullcontext() as lease:
                    if lease:
                        if draw.random() < 0.2:
                            pool.drop(lease.key)
                        assert set(bytes(lease.data)) == {lease.key[0]}
                assert pool.usage().held_bytes <= 2000
        except BaseException as error:
            faults.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    for key in keys:
        pool.drop(key)
    assert pool.usage() == PoolUsage(0, 0, 0, 0, 2000)
    counts = pool.counters
    assert counts["puts"] == counts["evicted"] + counts["expired"] + counts["recycled"]
    assert counts["puts"] + counts["refused_puts"] == 6000
