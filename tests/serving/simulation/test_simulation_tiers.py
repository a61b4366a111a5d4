"""The simulated tiers: beside the real pool and the real store under random calls, and at their limits."""

import random
from itertools import pairwise

import numpy as np
import pytest
from small_loads import CONFIG, Plain, session, spec

from ds41.cache import PageLayout
from ds41.serving import HostWindowPool, PrefixStore, StoreFull
from ds41.serving.simulation import Pauses, TierSpec, sessions_of, simulate
from ds41.serving.simulation.store_tier import Content, StoreTier
from ds41.serving.simulation.tiers import Level, WindowTier

LAYOUT = PageLayout.of(CONFIG, 16)
FINGERPRINT = b"model and formats"


class Now:
    value = 0.0

    def __call__(self) -> float:
        return self.value


def test_windows_come_and_go_as_in_the_real_pool():
    source, now = random.Random(2), Now()
    pool, tier = HostWindowPool(1000, 50.0, now), WindowTier(now, 50.0, 1000)
    lengths, hits = {}, 0
    for _ in range(3000):
        now.value += source.choice((0.0, 1.0, 3.0, 30.0))
        name = f"s{source.randrange(12)}"
        if source.random() < 0.5:
            length, nbytes = lengths.get(name, 0) + source.randint(1, 9), source.randint(50, 400)
            old = f"{name} {lengths.get(name)}".encode()
            stored = pool.put(f"{name} {length}".encode(), bytes(nbytes))
            pool.drop(old)
            assert tier.put(name, length, nbytes) == stored
            lengths[name] = length
        elif name in lengths:
            lease = pool.take([f"{name} {lengths[name]}".encode()])
            taken = tier.take(name, lengths[name], 8)
            assert taken == (None if lease is None else (lengths[name], lease.data.nbytes))
            hits += taken is not None
            if lease is not None:
                lease.release()
        tier.put("nobody", 1, 2000)
        assert tier.level.points[-1][1] == pool.usage().held_bytes if tier.level.points else True
    assert hits > 100
    assert tier.counts["evicted"] == pool.counters["evicted"] > 50
    assert tier.counts["expired"] == pool.counters["expired"] > 50


def test_bytes_end_when_they_expire_and_not_when_somebody_looks():
    now, ended = Now(), []
    windows = WindowTier(now, 10.0, on_end=lambda *end: ended.append(end))
    store = StoreTier(now, LAYOUT, None, 5.0, 20.0, on_end=lambda *end: ended.append(end))
    windows.put("a", 40, 300)
    written = store.put(Content("a"), 40)
    now.value = 1000.0
    assert windows.take("a", 40, 8) is None
    assert store.find(Content("a"), 40) == 0
    for tier, nbytes, lifetime in ((windows, 300, 10.0), (store, written, 20.0)):
        tier.close()
        assert tier.level.byte_seconds == nbytes * lifetime
        assert tier.level.to_come == 0
    assert ended == [("a", "expired", 10.0), ("a", 20.0)]


def test_windows_a_little_before_the_end_are_found():
    tier = WindowTier(Now(), 10.0)
    tier.put("a", 100, 5)
    assert [tier.take("a", tokens, 8) is not None for tokens in (99, 100, 107, 108)] == [False, True, True, False]


# Where the preamble ends within a page, others' hits of that page lengthen its life alone, which is not followed.
@pytest.mark.parametrize(("shared", "expires"), [(40, None), (48, 60.0)])
def test_pages_are_stored_and_found_as_in_the_real_store(shared, expires, tmp_path):
    source, now = random.Random(5), Now()
    preamble = [7] * shared
    contents = {
        f"s{n}": (Content(f"s{n}", *(("p", shared) if n % 2 else ())), preamble * (n % 2) + [100 + n] * 130)
        for n in range(6)
    }
    options = {"guaranteed_s": 20.0, "expires_s": expires}
    tier = StoreTier(now, LAYOUT, sweeps=False, **options)
    page, found = np.zeros(LAYOUT.nbytes, np.uint8), 0
    with PrefixStore(tmp_path, LAYOUT, FINGERPRINT, budget_bytes=2**40, clock=now, **options) as store:
        lengths = dict.fromkeys(contents, 55)
        for _ in range(150):
            now.value += source.choice((0.0, 1.0, 10.0, 45.0))
            name = source.choice(list(contents))
            content, ids = contents[name]
            ids = ids[: lengths[name]]
            with store.find(None, ids) as prefix:
                assert tier.find(content, len(ids)) == prefix.tokens
                found += prefix.tokens > 0
                first = prefix.tokens // LAYOUT.page_tokens
            count = LAYOUT.pages_for(len(ids)) - first
            assert store.put(None, ids, [page] * count, first_page=first).bytes == tier.put(content, len(ids))
            lengths[name] = min(lengths[name] + source.randint(0, 20), 130)
            assert tier.level.points[-1][1] == store.usage().page_bytes
        assert found > 50
        assert (tier.counts["expired"] > 5) == (expires is not None)


def test_what_is_guaranteed_stays_and_the_rest_makes_room(tmp_path):
    now, page = Now(), LAYOUT.nbytes
    tier = StoreTier(now, LAYOUT, budget_bytes=5 * page, guaranteed_s=100.0)
    assert tier.put(Content("a"), 48) == 3 * page
    now.value = 50.0
    assert tier.put(Content("b"), 32) == 2 * page
    assert tier.put(Content("c"), 16) is None
    now.value = 101.0
    # The guarantee of a is over, that of b is not.
    assert tier.put(Content("c"), 16) == page
    assert (tier.find(Content("a"), 48), tier.find(Content("b"), 32), tier.find(Content("c"), 16)) == (0, 32, 16)
    assert tier.counts["refused"] == 1
    assert tier.counts["evicted_bytes"] == 3 * page
    # The real store says no at the same place.
    layout = PageLayout.of(CONFIG, 4096)
    data = np.zeros(layout.nbytes, np.uint8)
    budget = int(5.5 * layout.nbytes)
    with PrefixStore(tmp_path, layout, FINGERPRINT, budget_bytes=budget, guaranteed_s=100.0, clock=now) as store:
        store.put(None, [1] * (3 * 4096), [data] * 3)
        now.value += 50
        store.put(None, [2] * (2 * 4096), [data] * 2)
        with pytest.raises(StoreFull):
            store.put(None, [3] * 4096, [data])
        now.value += 51
        assert store.put(None, [3] * 4096, [data]).pages == 1


def waiting_sessions():
    """Three sessions on one row: whoever comes back has lost it."""
    return [session(f"s{n}", 0.1 * n, (100, 3, 5.0), (40, 3, 5.0), (40, 3, 0.0)) for n in range(3)]


@pytest.mark.parametrize(
    ("tiers", "first", "later"),
    [
        (TierSpec(), "cold", "restored"),
        (TierSpec(window_lifetime_s=0.0), "cold", "replayed"),
        (TierSpec(window_lifetime_s=4.0), "cold", "replayed"),
        (TierSpec(window_budget_bytes=0), "cold", "replayed"),
    ],
    ids=["no limits", "no lifetime", "too short", "no room"],
)
def test_limits_of_the_window_pool(tiers, first, later):
    report = simulate(waiting_sessions(), spec(rows=1), Plain(constant=0.01), tiers)
    assert {turn.windows for turn in report.turns if turn.turn == 0} == {first}
    assert {turn.windows for turn in report.turns if turn.turn} == {later}
    window = CONFIG.sliding_window
    assert report.total("replayed_tokens") == (6 * window if later == "replayed" else 0)


def test_limits_of_the_store():
    few = spec(rows=1, pages=4, max_tokens=240)

    def hits(**tiers):
        report = simulate(waiting_sessions(), few, Plain(constant=0.01), TierSpec(**tiers))
        return report.total("hit_tokens"), report.total("computed_tokens")

    # With room for everything, all that was there before a turn is a hit; with none, little is left in memory.
    everything = 3 * (102 + 145)
    assert hits() == (everything, 3 * 188)
    none = hits(store=False)
    assert none[0] < everything / 2
    assert sum(none) == everything + 3 * 188
    assert hits(store_budget_bytes=0) == none
    assert hits(store_guaranteed_s=0.0, store_expires_s=0.5) == none
    between = hits(store_budget_bytes=30_000)
    assert none[0] < between[0] < everything


def test_bytes_over_time_add_up():
    now = Now()
    level = Level(now)
    for when, nbytes in ((0, 5), (2, 10), (2, 20), (5, 0)):
        now.value = when
        level.set(nbytes)
    now.value = 9
    level.close()
    assert level.byte_seconds == 2 * 5 + 3 * 20
    assert level.peak == 20


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: WindowTier(Now(), -1.0), "lifetime_s"),
        (lambda: WindowTier(Now(), 1.0, -1), "budget_bytes"),
        (lambda: StoreTier(Now(), LAYOUT, -1), "budget_bytes"),
        (lambda: StoreTier(Now(), LAYOUT, None, -1.0), "guaranteed_s"),
        (lambda: StoreTier(Now(), LAYOUT, None, 5.0, 4.0), "expires_s"),
    ],
)
def test_limits_that_cannot_be_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_timeline_says_who_was_where():
    plans = sessions_of([[(80, 4), (30, 4)]] * 3, [0.0, 5.0, 10.0], Pauses(700.0, 0.0, 0.0))
    report = simulate(plans, spec(rows=1), Plain(constant=0.1), watch=2)
    spans = report.timeline()
    assert {span.session for span in spans} == {"s0", "s1"}
    for name in ("s0", "s1"):
        own = [span for span in spans if span.session == name]
        busy = [span for span in own if span.where in ("queue", "engine")]
        assert all(one.end_s <= other.begin_s + 1e-9 for one, other in pairwise(busy))
        turns = [turn for turn in report.turns if turn.session == name]
        worked = sum(span.end_s - span.begin_s for span in busy)
        assert worked == pytest.approx(sum(turn.seconds for turn in turns))
        # Windows live ten minutes, the pause lasts longer.
        kept = [span for span in own if span.where == "windows"]
        assert kept[0].end_s - kept[0].begin_s == pytest.approx(600.0)
    row = next(span for span in spans if span.where == "row" and span.session == "s0")
    taken = next(span for span in spans if span.where == "engine" and span.session == "s1")
    assert row.end_s == pytest.approx(taken.begin_s)
