"""The arithmetic of ``benchmarks/simulation.py``, and a load small enough to be run on a real engine's clock."""

import io

import engine_load
import pytest
import simulation
from engine_reference import small_model
from rich.console import Console
from small_loads import session

from ds41.serving.simulation import EngineSpec, TierSpec


def test_errors_and_spreads_are_relative_to_the_mean():
    row = simulation.Compared("seconds", (9.0, 11.0), 12.0, (11.0, 14.0), 12.0)
    assert (row.mean, row.spread, row.profile_spread, row.error) == pytest.approx((10.0, 0.1, 0.125, 0.2))
    nothing = simulation.Compared("windows_cold", (0, 0), 0, (0, 0), 0)
    assert (nothing.spread, nothing.error) == (0, 0)


def test_tables_show_every_row():
    console = Console(width=120, file=io.StringIO())
    simulation.print_comparison(console, [simulation.Compared("turns", (50, 50), 50, (50, 50), 50)], 2)
    simulation.print_rows(console, "some", [{"a_b": 12345.6, "kinds": ["x", "y"]}, {"a_b": 0.5, "kinds": ()}])
    text = console.file.getvalue()
    for part in ("turns", "50.0", "yes", "a b", "12,346", "x; y", "0.5", "none"):
        assert part in text


def test_a_real_run_is_timed_in_its_parts(tmp_path):
    model = small_model()
    plans = [session("a", 0.0, (20, 3, 1000.0), (5, 2, 0.0)), session("b", 0.0, (30, 2, 0.0))]
    spec = EngineSpec(model.config, max_tokens=128, rows=2, page_tokens=16, step_tokens=16)
    report, samples, held = engine_load.run_engine(model, plans, spec, TierSpec(), tmp_path)
    assert len(report.served) == len(samples.starts) == len(samples.finishes) == 3
    assert held > 0
    # The pause passed at once: its seconds are in the run and not in the work.
    assert report.seconds > 1000 > report.pools[0].busy_s
    inside = sum(seconds for part in (samples.steps, samples.starts, samples.finishes) for _, seconds in part)
    assert inside + sum(samples.between) == pytest.approx(report.pools[0].busy_s, rel=0.2)
    assert all(0 <= turn.waited_s <= turn.first_token_s <= turn.seconds for turn in report.turns)
    fed = sum(work.reading + work.answering for work, _ in samples.steps)
    assert fed == report.total("computed_tokens") + report.total("replayed_tokens")


def test_pages_that_no_engine_has_are_refused(tmp_path):
    spec = EngineSpec(small_model().config, max_tokens=128, page_tokens=16)
    with pytest.raises(ValueError, match="page_tokens is 16"):
        engine_load.run_engine(small_model(), [session("a", 0.0, (5, 1, 0))], spec, TierSpec(store=False), tmp_path)
