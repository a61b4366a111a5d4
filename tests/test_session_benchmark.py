"""The arithmetic of ``benchmarks/sessions.py``: what is counted, and that each turn starts from where it should."""

import first_tokens
import pytest
import sessions
import torch

from ds41 import ModelConfig, ledger
from ds41.agent_workload import TurnTokens
from ds41.model import Model


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model(ModelConfig.nano(), "cache", torch.float32)


def test_every_way_serves_the_same_turn_from_its_own_tier(model, tmp_path):
    context, new, window = 192, 32, model.config.sliding_window
    rows = {row.way: row for row in first_tokens.first_tokens(model, context, new, 1, tmp_path)}
    assert {way: (row.hit, row.replayed, row.fed) for way, row in rows.items()} == {
        "cold": (0, 0, context + new),
        "pages and windows": (context, 0, new),
        "pages and replay": (context, window, window + new),
        "live row": (context - 1, 0, new + 1),
    }
    assert all(row.seconds > 0 for row in rows.values())
    work = [rows[way].operations for way in ("cold", "pages and replay", "pages and windows")]
    assert work == sorted(work, reverse=True)
    # The store is as the first turn left it, whatever was served from it.
    kept = sessions.persisted("nano", tmp_path, model.config, [context], 1)
    assert kept.page_file_bytes == kept.ledger_bytes == ledger.global_bytes(model.config, context)


def test_fed_tokens_cost_what_a_prefill_of_them_costs(model):
    whole = first_tokens.fed_operations(model.config, 500, 500)
    last = first_tokens.fed_operations(model.config, 500, 100)
    assert 0 < last < whole
    assert first_tokens.fed_operations(model.config, 500, 132) > last


def test_turns_persist_what_the_ledger_says_and_little_more(tmp_path):
    turns, history = [], 0
    for prompt, answer in ((700, 31), (200, 40), (1500, 5)):
        turns.append(TurnTokens(history, prompt, answer))
        history += prompt + answer
    kept = sessions.persist_turns("session", turns, tmp_path)
    config = ModelConfig.flash()
    assert (kept.tokens, kept.turns) == (history, 3)
    assert kept.ledger_bytes == kept.page_file_bytes == ledger.global_bytes(config, history)
    assert kept.all_file_bytes > kept.page_file_bytes
    assert 0 < kept.overhead < sessions.GOAL_OVERHEAD


def test_checkpoints_are_two_windows_a_turn():
    # Long enough turns that every window is full: two copies of all windows over the tokens between.
    turns = [TurnTokens(history, 900, 100) for history in range(0, 10_000, 1000)]
    v4 = sessions.checkpoints({"one": turns})
    assert (v4["new_tokens"], v4["turns"]) == (10_000, 10)
    windows = sessions.window_persistence.system("deepseek-v4-flash").window_bytes
    assert v4["v4_windows"] == pytest.approx(2 * windows / 1000)
    assert v4["ours"] == pytest.approx(890)
    assert v4["times"] == pytest.approx((v4["v4_global"] + v4["v4_windows"]) / v4["ours"])


def test_a_frozen_pool_gives_and_does_not_take():
    pool = first_tokens.FrozenPool(10**6)
    assert pool.put(b"k", b"window")
    pool.frozen = True
    assert not pool.put(b"l", b"window")
    with pool.take([b"l", b"k"]) as lease:
        assert lease.key == b"k"


def test_agent_text_is_bytes_of_one_session():
    ids = first_tokens.agent_ids(3000)
    assert len(ids) == 3000
    assert first_tokens.agent_ids(100) == ids[:100]
    assert all(16 <= one < 272 for one in ids)
