"""The simulator beside the engine that it imitates, on a clock that both share: the same to the token."""

import random
from dataclasses import fields, replace

import engine_reference
import pytest
from engine_load import run_engine

from ds41.serving.simulation import EngineSpec, Line, MeasuredCosts, Pauses, TierSpec, sessions_of, simulate

COSTS = MeasuredCosts(
    Line({"constant": 0.5, "reading": 0.02, "answering": 0.1}),
    Line({"constant": 0.2, "read_bytes": 1e-5}),
    Line({"constant": 0.3}),
    live_start=0.05,
)
# The engine's windows come as files, with more in them than windows.
NOT_THE_LEDGERS = {"window_bytes", "kept_window_bytes"}
SWEEPING = TierSpec(window_lifetime_s=30.0, store_guaranteed_s=30.0, store_expires_s=500.0, store_sweeps=False)


def load(seed: int, shared: int):
    source = random.Random(seed)
    turns = [
        [(source.randint(2, 30) + shared * (turn == 0), source.randint(1, 4)) for turn in range(3)] for _ in range(6)
    ]
    return sessions_of(turns, [0.4 * n * n for n in range(6)], Pauses(20.0, 1.5, 0.15, 1000.0), seed, shared)


@pytest.mark.parametrize(
    ("shared", "tiers", "page_tokens"),
    [
        (40, SWEEPING, 16),
        (0, replace(SWEEPING, windows=False), 16),
        # An engine without a store has pages of this size.
        (70, replace(SWEEPING, store=False), 64),
        (21, replace(SWEEPING, share_tenants=True, store_expires_s=None), 16),
    ],
    ids=["both tiers", "no pool", "no store", "one store for all"],
)
def test_every_turn_is_the_engines(shared, tiers, page_tokens, tmp_path):
    model = engine_reference.small_model()
    plans = load(3, shared)
    if tiers.share_tenants:
        plans = [replace(plan, tenant=f"tenant {number % 2}") for number, plan in enumerate(plans)]
    spec = EngineSpec(
        model.config, max_tokens=192, rows=2, pages=320 // page_tokens, page_tokens=page_tokens, step_tokens=32
    )
    ours = simulate(plans, spec, COSTS, tiers)
    real, _, held = run_engine(model, plans, spec, tiers, tmp_path, COSTS)
    found = {(turn.session, turn.turn): turn for turn in real.turns}
    assert len(found) == len(ours.turns) == 18
    for turn in ours.turns:
        other = found[turn.session, turn.turn]
        for name in {field.name for field in fields(turn)} - NOT_THE_LEDGERS:
            mine, theirs = getattr(turn, name), getattr(other, name)
            assert mine == (pytest.approx(theirs) if isinstance(theirs, float) else theirs), (turn, name, theirs)
    assert ours.seconds == pytest.approx(real.seconds)
    assert ours.pools[0].busy_s == pytest.approx(real.pools[0].busy_s)
    assert ours.pools[0].steps == real.pools[0].steps
    if tiers.store:
        assert ours.levels["store"].points[-1][1] == held
    # The load has to have asked for what the tiers do.
    windows = ours.windows()
    assert windows["live"]
    assert windows["replayed"]
    assert windows["restored"] or not (tiers.windows and tiers.store)
