"""Capacity, persistence and prices, each against the article's and the report's figures."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_configs import with_plan

from ds41 import ModelConfig
from ds41.economics import (
    GIB,
    PRICES,
    TURNS,
    architecture_ratio,
    capacities,
    capacity,
    even_split_turn,
    node_pool_bytes,
    persistence,
    persistence_table,
    persistent_ratio,
    residencies,
    session,
    share_for_ratio,
)
from ds41.roofline import DEVICES
from ds41.systems import from_config, system

FLASH = ModelConfig.flash()
V4_PER_TOKEN = 21 * Fraction(652, 4) + 20 * Fraction(584, 128)
V4_WINDOWS = 43 * 128 * 584


def test_contexts_in_the_articles_pools():
    rows = {(row.pool_bytes // GIB, row.system.key): row for row in capacities(FLASH)}
    ours = [f"{float(rows[pool, 'this'].contexts):.1f}" for pool in (80, 60, 40)]
    assert ours == ["92.0", "69.0", "46.0"]
    assert f"{float(rows[80, 'deepseek-v4-flash'].contexts):.1f}" == "23.3"
    for (pool, key), row in rows.items():
        per_token = 890 if key == "this" else V4_PER_TOKEN
        assert row.contexts == Fraction(pool * 2**30, 1) / (per_token * 2**20)
    assert rows[80, "this"].live_contexts == Fraction(80 * 2**30, 890 * 2**20 + 40 * 128 * 528)
    assert f"{80 * GIB / (4 * 890 * 2**20):.1f}" == "23.0"  # the article's own 23 takes 4 × 890


def test_windows_matter_where_contexts_are_short():
    short = capacity(from_config(FLASH), 80 * GIB, tokens=3_000)
    assert float(short.contexts / short.live_contexts) == pytest.approx(2.01, abs=0.01)


def test_capacity_refuses_what_has_no_answer():
    with pytest.raises(ValueError, match="keeps no bytes for 0 tokens"):
        capacity(from_config(FLASH), GIB, tokens=0)
    with pytest.raises(ValueError, match="keeps no bytes"):
        capacity(from_config(with_plan([0], [])), GIB)
    with pytest.raises(ValueError, match="pool_bytes is -1"):
        capacity(from_config(FLASH), -1)


def test_what_weights_leave_on_a_node():
    left = node_pool_bytes(FLASH, DEVICES["H200"])
    assert left / 1e9 == pytest.approx(8 * 141 - 298.31, abs=0.01)
    assert left == node_pool_bytes(FLASH, DEVICES["H200"], devices=8)
    with pytest.raises(ValueError, match="8 × L4 hold 192 GB; the backbone needs 298 GB"):
        node_pool_bytes(FLASH, DEVICES["L4"])


def test_the_quarter_is_the_architecture():
    assert architecture_ratio(FLASH) == V4_PER_TOKEN / 890
    assert float(architecture_ratio(FLASH)) == pytest.approx(3.949, abs=5e-4)


def test_the_eighth_is_the_workload():
    table = {int(row.new_tokens): row for row in persistence_table(FLASH)}
    assert tuple(table) == (500, 1_000, 1_500, 1_829, 2_000, 3_000, 5_000, 10_000)
    shares = {n: f"{100 * float(row.window_share):.0f}" for n, row in table.items()}
    assert shares == {
        500: "79", 1_000: "65", 1_500: "55", 1_829: "50", 2_000: "48", 3_000: "38", 5_000: "27", 10_000: "15",
    }  # fmt: skip
    ratios = {n: f"{float(row.ratio):.1f}" for n, row in table.items()}
    assert ratios == {
        500: "18.4", 1_000: "11.2", 1_500: "8.8", 1_829: "7.9", 2_000: "7.6", 3_000: "6.4", 5_000: "5.4",
        10_000: "4.7",
    }  # fmt: skip


@pytest.mark.parametrize("turn", TURNS)
def test_persistence_by_hand(turn):
    row = persistence(FLASH, turn)
    assert row.baseline_global == turn * V4_PER_TOKEN
    assert row.baseline_windows == 2 * V4_WINDOWS
    assert row.ours == turn * 890
    assert persistence_table(FLASH, [turn]) == (row,)
    assert row.ratio == (turn * V4_PER_TOKEN + 2 * V4_WINDOWS) / (turn * 890)


def test_windows_fill_half_at_1829_new_tokens():
    turn = even_split_turn()
    assert turn == 2 * V4_WINDOWS / V4_PER_TOKEN
    assert int(turn) == 1_829
    assert persistence(FLASH, turn).window_share == Fraction(1, 2)
    assert even_split_turn(checkpoints=1) == turn / 2


@given(st.integers(1, 10**6), st.integers(0, 5))
def test_the_ratio_follows_from_the_share(turn, checkpoints):
    row = persistence(FLASH, turn, checkpoints)
    assert row.ratio == architecture_ratio(FLASH) / (1 - row.window_share)
    assert persistent_ratio(FLASH, row.window_share) == pytest.approx(float(row.ratio))
    assert row.ratio >= architecture_ratio(FLASH)


def test_shares_and_ratios():
    ratios = [round(persistent_ratio(FLASH, f), 2) for f in (0, 0.45, 0.48, 0.494, 0.5)]
    assert ratios == [3.95, 7.18, 7.59, 7.8, 7.9]
    assert share_for_ratio(FLASH, 8) == pytest.approx(0.506, abs=5e-4)
    assert persistent_ratio(FLASH, share_for_ratio(FLASH, 8)) == pytest.approx(8)
    for bad in (1, -0.1):
        with pytest.raises(ValueError, match="window_share is"):
            persistent_ratio(FLASH, bad)
    with pytest.raises(ValueError, match="new_tokens is 0"):
        persistence(FLASH, 0)


def test_one_checkpoint_weighs_as_much_as_915_tokens():
    v4 = system("deepseek-v4-flash")
    assert round(float(v4.window_bytes / v4.bytes_per_token)) == 915


def test_byte_hours():
    rows = {row.name: row for row in residencies(FLASH, new_tokens=2_000)}
    assert rows["V4-Flash windows"].byte_hours == 2 * V4_WINDOWS * 72
    assert rows["V4.1-Flash global KV"].byte_hours == 2_000 * 890 * 72
    assert rows["V4.1-Flash windows"].byte_hours == Fraction(40 * 128 * 528, 6)
    assert rows["V4.1-Flash windows"].medium == "host memory"
    hour = residencies(FLASH, 2_000, store_hours=1, window_minutes=60)
    assert {row.hours for row in hour} == {1}


def test_hit_to_miss_is_one_to_fifty_in_both_currencies():
    assert {prices.hit_to_miss for prices in PRICES.values()} == {50}


def test_a_session_counted_turn_by_turn():
    prices = PRICES["USD"]
    found = session(turns=3, first_prompt=1000, new_tokens=100, output_tokens=10, prices=prices)
    # Turn 2 finds 1000 + 10, turn 3 finds 1000 + 10 + 100 + 10.
    assert (found.hit_tokens, found.miss_tokens, found.output_tokens) == (1010 + 1120, 1200, 30)
    assert found.price == (2130 * prices.hit + 1200 * prices.miss + 30 * prices.output) / 10**6
    assert found.price_without_cache == (3330 * prices.miss + 30 * prices.output) / 10**6


@given(st.integers(1, 60), st.integers(1, 10**6), st.integers(0, 10**4), st.integers(0, 10**4))
def test_caching_never_costs_more(turns, first, new, output):
    found = session(turns, first, new, output, PRICES["CNY"])
    assert found.price <= found.price_without_cache
    assert (found.price == found.price_without_cache) == (turns == 1)
    assert found.miss_tokens == first + (turns - 1) * new
    assert 1 <= found.saving <= 50


def test_sessions_of_nothing_are_refused():
    with pytest.raises(ValueError, match="turns is 0"):
        session(0, 1, 1, 1, PRICES["USD"])
    with pytest.raises(ValueError, match="output_tokens is -1"):
        session(1, 1, 1, -1, PRICES["USD"])
