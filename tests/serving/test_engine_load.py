"""Many sessions on few rows for some seconds; benchmarks/session_load.py is the same for minutes."""

import pytest
import session_load


@pytest.fixture(scope="module")
def outcome():
    return session_load.measure(sessions=200, seconds=20.0, rows=6, clients=3, turns=160, seed=1)


def test_nothing_is_lost_mixed_up_or_leaked(outcome):
    assert outcome.errors == []
    assert outcome.lost == 0
    assert outcome.wrong_hits == 0
    assert outcome.damaged_pages == 0
    assert outcome.page_leak == 0
    assert outcome.good


def test_the_load_is_one(outcome):
    """However slow the machine is, every tier had something to do."""
    assert outcome.turns >= 20
    assert outcome.tokens_drawn > outcome.turns
    assert outcome.hit_memory + outcome.hit_store > 0
    assert outcome.windows["cold"] > 0


def test_a_hit_that_cannot_be_is_counted():
    load = session_load.Load.__new__(session_load.Load)
    load.outcome = session_load.Outcome()
    load.conversations = {"a": {0: [1, 2, 3, 4], 1: [1, 2, 9]}}
    load.hits = [("a", 0, [1, 2, 3, 4], 0, 2), ("a", 0, [1, 2, 3, 4], 3, 3)]
    load.check_hits()
    assert load.outcome.wrong_hits == 0
    load.hits.append(("a", 0, [1, 2, 3, 4], 1, 3))
    load.check_hits()
    assert load.outcome.wrong_hits == 1
    assert not load.outcome.good


def test_growth_compares_late_with_early_samples():
    outcome = session_load.Outcome(rss_mb=[0, 0, 10, 12, 20, 20, 20, 20, 31, 33])
    assert outcome.growth_mb == pytest.approx(21)
    assert session_load.Outcome(rss_mb=[1, 2]).growth_mb == 0


def test_a_table_says_what_was_lost():
    outcome = session_load.Outcome(sessions=3, seconds=1.0, lost=1)
    assert "lost sessions" in [str(cell) for cell in session_load.table(outcome).columns[0].cells]
    assert not outcome.good
