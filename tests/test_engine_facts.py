"""Facts about engines: complete, sourced, and what was measured beside what the ledger says."""

import pytest

from ds41 import ModelConfig, weights
from ds41.counterfactuals import engines
from ds41.deployment import spread
from ds41.engine_facts import facts, flags, live_cost, live_use, recorded_logs, stored_by_engines
from ds41.engine_logs import read_lines
from ds41.engine_storages import stored_ways
from ds41.systems import system

FLASH = ModelConfig.flash()


def test_every_engine_of_the_ledger_has_its_reason():
    rows = stored_by_engines(FLASH)
    assert [one.row for one in rows] == list(engines(FLASH))
    assert [one["engine"] for one in facts()["stored"]] == [row.name for row in engines(FLASH)]
    assert all(one.why for one in rows)


def test_storages_weigh_what_the_ledger_says_of_their_engines():
    ways = {way.name: way.bytes_per_token for way in stored_ways(FLASH)}
    named = [one for one in stored_by_engines(FLASH) if one.storage]
    assert len(named) == 6
    for one in named:
        assert ways[one.storage] == one.row.bytes, one.row.name


def test_flags_are_sourced_and_single():
    found = flags()
    assert all(one.source.startswith("https://") and one.does and one.topic for one in found)
    assert len({(one.engine, one.flag) for one in found}) == len(found)
    assert {one.engine for one in found} == {"vLLM", "SGLang"}
    assert flags("vLLM") + flags("SGLang") == found


def test_recorded_logs_name_systems():
    for log in recorded_logs().values():
        assert system(log.model).key == log.model
        assert log.read().tokens is not None
        # What the lines say counts; the source fills in the rest.
        assert {**read_lines(log.lines).found(), **log.known} == log.read().found(), log.key


@pytest.mark.parametrize(
    ("model", "storage"), [("deepseek-v4.1-flash", "v4-fp8keys"), ("deepseek-v4-flash", "v4-fp8keys")]
)
def test_a_running_servers_bytes_are_the_ledgers_within_a_few_percent(model, storage):
    cost = live_cost(model)
    (way,) = (way for way in stored_ways(system(model)) if way.name == storage)
    assert cost.rate == pytest.approx(float(way.bytes_per_token), rel=0.03)
    # No other storage comes as near.
    nearest = min(stored_ways(system(model)), key=lambda one: abs(float(one.bytes_per_token) - cost.rate))
    assert nearest.name == storage
    # Pages that are not yet full come on top of the windows.
    assert cost.fixed > way.window_bytes


def test_the_line_meets_the_points_it_is_drawn_through():
    for model in ("deepseek-v4.1-flash", "deepseek-v4-flash"):
        cost = live_cost(model)
        for one in live_use(model):
            if one.tokens / one.sequences > 10_000:
                line = one.sequences * cost.fixed + cost.rate * one.tokens
                assert line == pytest.approx(one.nbytes, rel=0.02)


def test_the_loaded_weights_of_a_real_server():
    loaded = facts()["loaded"]
    held = spread(FLASH, loaded["gpus"], drafter=False)
    # Copies of norms and routers, and buffers, come on top of what the checkpoint stores.
    assert 1.0 < loaded["weights_gib"] / (held.nbytes / 2**30) < 1.06
    tables = loaded["tables"] * loaded["gpus"] * loaded["engram_gib"]
    assert tables == pytest.approx(weights.engram_table(FLASH).nbytes / 2**30, abs=0.1)


def test_the_recipes_memory_is_the_checkpoint_with_headroom():
    assert facts()["recipe"]["gigabytes"] / facts()["checkpoint"]["gigabytes"] == pytest.approx(1.2, rel=0.005)


def test_the_files_of_the_released_checkpoint():
    parts = weights.backbone(FLASH) + weights.engram(FLASH) + weights.drafter(FLASH) + weights.vision(FLASH)
    assert parts.parameters == 763_205_315_794
    assert parts.nbytes / 1e9 == pytest.approx(facts()["checkpoint"]["gigabytes"], rel=1e-4)
