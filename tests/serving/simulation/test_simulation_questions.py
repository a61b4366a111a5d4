"""The questions: each answer beside what the byte ledger and the roofline say of it, and what its assumptions do."""

from dataclasses import replace

import pytest
from small_loads import CONFIG, spec

from ds41 import ModelConfig, economics, ledger, roofline
from ds41.roofline import DEVICES
from ds41.serving.simulation import Pauses, RooflineCosts, sessions_of
from ds41.serving.simulation.break_even import (
    ReplayPrices,
    break_even,
    break_even_sensitivity,
    by_pause,
    load_curve,
    replay_seconds,
    v4_replay_tokens,
)
from ds41.serving.simulation.lifetimes import lifetime_sensitivity, store_lifetimes, window_lifetimes
from ds41.serving.simulation.nodes import OURS, NodeQuestion, node_sensitivity, sessions_per_node, step_seconds
from ds41.serving.simulation.sensitivity import one_at_a_time
from ds41.systems import system

FLASH = ModelConfig.flash()


def test_sessions_by_memory_are_the_ledgers():
    question = NodeQuestion(reserve=0.0)
    (ours,) = sessions_per_node([OURS], question=question)
    pool = economics.node_pool_bytes(FLASH, DEVICES["H200"])
    each = ledger.global_bytes(FLASH, question.tokens) + ledger.window_bytes(FLASH)
    assert ours.pool_bytes == pool
    assert ours.by_memory == pool // each
    assert ours.to_dict()["answering"] == min(ours.by_memory, ours.by_speed, ours.by_loading)


def test_sessions_by_speed_are_the_most_that_keep_it():
    question = NodeQuestion(tokens_per_s=30.0, efficiency=0.4)
    for row in sessions_per_node(question=question):
        device = DEVICES[row.device]
        fits, too_many = (step_seconds(row.system, device, row.by_speed + more, question) for more in (0, 1))
        assert fits <= 1 / 30 < too_many
    ours = roofline.decode_step(FLASH, question.tokens, DEVICES["H200"], batch=7, devices=8)
    assert step_seconds(system(OURS), DEVICES["H200"], 7, question) == pytest.approx(ours.seconds / 0.4)


def test_fewer_bytes_are_more_sessions():
    ours, v4, v32 = sessions_per_node()
    assert ours.answering > v4.answering > v32.answering > 0
    assert ours.open == int(ours.answering / 0.1)
    assert ours.parked_bytes == (ours.open - ours.answering) * ours.session_bytes
    # Where the weights alone do not fit, nobody is served.
    (none,) = sessions_per_node(["deepseek-v3.2"], ["A100-80"])
    assert (none.answering, none.open, none.bound, none.step_s) == (0, 0, "memory", None)
    with pytest.raises(ValueError, match="llama-70b"):
        sessions_per_node(["llama-70b"])


def test_each_tier_can_be_the_bound():
    assert sessions_per_node([OURS], question=NodeQuestion(reserve=0.3))[0].bound == "memory"
    assert sessions_per_node([OURS], question=NodeQuestion(tokens_per_s=150.0))[0].bound == "speed"
    assert sessions_per_node([OURS], question=NodeQuestion(load_bytes_per_s=1e9))[0].bound == "loading"
    (crowded,) = sessions_per_node([OURS], question=NodeQuestion(host_bytes=0.0))
    assert crowded.answering <= crowded.open <= crowded.by_memory
    assert crowded.open < sessions_per_node([OURS])[0].open


def test_assumptions_change_one_at_a_time():
    rows = node_sensitivity("deepseek-v3.2")
    assert rows[0].ratio == 1
    assert {row.argument for row in rows} >= {"tokens", "duty", "efficiency", "parameter_bytes"}
    halved = next(row for row in rows if row.argument == "duty" and row.value == 0.05)
    assert halved.ratio == pytest.approx(2, rel=0.1)
    assert [row.result for row in one_at_a_time(lambda a, b: a * b, {"a": 2, "b": 3}, {"a": [4], "b": [1]})] == [
        6,
        12,
        2,
    ]
    with pytest.raises(ValueError, match="no argument c"):
        one_at_a_time(lambda a: a, {"a": 1}, {"c": [1]})


@pytest.mark.parametrize(
    ("field", "value"), [("duty", 0.0), ("efficiency", 2.0), ("reserve", 1.0), ("tokens", 0), ("host_bytes", -1.0)]
)
def test_node_questions_that_cannot_be_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        NodeQuestion(**{field: value})


def returning_load():
    """One row, two sessions in turn: whoever pauses loses it; pauses of a minute, and of an hour."""
    plans = sessions_of([[(200, 4)] * 6] * 2, [0.0, 5.0], Pauses(1.0, 0.0, 0.0))
    paused = [60.0, 60.0, 3600.0, 60.0, 3600.0, 0.0]
    return [
        replace(plan, turns=tuple(replace(turn, pause_s=pause) for turn, pause in zip(plan.turns, paused, strict=True)))
        for plan in plans
    ]


def test_longer_lifetimes_save_more_and_hold_more():
    costs = RooflineCosts(CONFIG, DEVICES["T4"], 1, 0.1)
    few = spec(rows=1, pages=40, max_tokens=1300)
    rows = store_lifetimes(returning_load(), few, costs, (0.0, 300.0, 7200.0))
    assert [row.hit_tokens + row.computed_tokens for row in rows] == [rows[0].hit_tokens + rows[0].computed_tokens] * 3
    for name in ("hit_tokens", "gb_hours", "saved_s", "saved_price"):
        values = [getattr(row, name) for row in rows]
        assert values == sorted(values)
        assert values[0] < values[-1]
    assert rows[0].saved_s == rows[0].gb_hours == rows[0].saved_s_per_gb_hour == 0
    # Longer than any pause, a lifetime saves nothing more and holds more.
    (longest,) = store_lifetimes(returning_load(), few, costs, (72_000.0,))
    assert longest.saved_s == rows[2].saved_s
    assert longest.saved_s_per_gb_hour < rows[2].saved_s_per_gb_hour
    assert rows[2].to_dict()["saved_price_per_gb_hour"] == pytest.approx(rows[2].saved_price / rows[2].gb_hours)


def test_windows_that_live_longer_are_replayed_less():
    costs = RooflineCosts(CONFIG, DEVICES["T4"], 1, 0.1)
    few = spec(rows=1, pages=40, max_tokens=1300)
    rows = window_lifetimes(returning_load(), few, costs, (0.0, 300.0, 7200.0))
    assert [row.replayed for row in rows] == [10, 4, 0]
    assert [row.replayed_tokens for row in rows] == [10 * 32, 4 * 32, 0]
    assert rows[0].gb_hours == 0 < rows[1].gb_hours < rows[2].gb_hours
    sensitivity = lifetime_sensitivity(returning_load(), few, costs, "windows", 300.0)
    assert sensitivity[0].result == pytest.approx(rows[1].saved_s_per_gb_hour)
    assert {row.argument for row in sensitivity} == {"as stated", "pause_factor", "rows", "efficiency"}


def test_a_replay_in_a_step_costs_its_operations_and_alone_a_pass():
    rows = {(row.model, row.way): row for row in break_even()}
    alone, batched, shared = (rows["V4.1 bounded", way] for way in ("alone", "batched", "in a step"))
    assert alone.device_s > batched.device_s > shared.device_s > 0
    assert alone.pause_s > batched.pause_s > shared.pause_s
    exact = rows["V4.1 exact", "in a step"]
    # 40 windows of tokens through all layers, beside one through half of them.
    assert exact.device_s / shared.device_s == pytest.approx(80, rel=0.1)
    assert v4_replay_tokens() == rows["V4 exact", "alone"].tokens == 5632
    assert rows["V4 exact", "in a step"].device_s > 20 * shared.device_s


def test_at_the_break_even_both_cost_the_same():
    prices = ReplayPrices(dram_gb_hour=0.01, device_second=0.002, load=0.5)
    for row in break_even(prices):
        kept = row.window_bytes / 1e9 * row.pause_s / 3600 * prices.dram_gb_hour
        assert kept == pytest.approx(row.price) == row.device_s * prices.device_second * prices.load


def test_the_cheaper_way_changes_at_the_break_even():
    alone = break_even()[0]
    before, v4, after, _ = by_pause((0.9 * alone.pause_s, 1.1 * alone.pause_s))
    assert before.price < alone.price < after.price
    assert set(after.cheaper) - set(before.cheaper) == {"V4.1 bounded, alone"}
    assert v4.price / before.price == pytest.approx(3_214_336 / 2_703_360)


def test_prices_move_the_break_even_as_they_must():
    rows = {(row.argument, row.value): row.ratio for row in break_even_sensitivity("alone")}
    base = ReplayPrices()
    assert rows["dram_gb_hour", base.dram_gb_hour * 4] == pytest.approx(1 / 4)
    assert rows["device_second", base.device_second * 4] == pytest.approx(4)
    assert rows["efficiency", 1.0] == pytest.approx(base.efficiency)
    assert rows["batch", 1] == 1
    loads = load_curve((0.1, 0.5, 0.9))
    assert [row.pause_s / loads[0].pause_s for row in loads] == pytest.approx([1, 5, 9])
    assert loads[2].waits_s == pytest.approx(9 * loads[0].waits_s)
    one = replay_seconds(FLASH, 128, replace(base, batch=1), "batched", encoder=True)
    assert one == replay_seconds(FLASH, 128, base, "alone", encoder=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("dram_gb_hour", 0.0), ("device_second", -1.0), ("load", 1.0), ("efficiency", 0.0), ("batch", 0)],
)
def test_prices_that_cannot_be_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        ReplayPrices(**{field: value})
