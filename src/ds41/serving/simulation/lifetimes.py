"""What the 72 hours and the minutes are worth: the same load with every lifetime, and what each second of it saves.

A node of ``devices`` serves the load alone. What is saved is against a tier that keeps nothing; what it costs is the
bytes that it holds, in gigabyte-hours over the whole run and until the last of them has expired.

Source: report section 3.2.1 for the lifetimes; the comparison is ds41's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from ds41.economics import PRICES
from ds41.serving.simulation.cluster import TierSpec, simulate
from ds41.serving.simulation.costs import RooflineCosts
from ds41.serving.simulation.jobs import EngineSpec
from ds41.serving.simulation.report import Report
from ds41.serving.simulation.sensitivity import Sensitivity, one_at_a_time
from ds41.serving.simulation.workload import SessionPlan
from ds41.serving.store import GUARANTEED_S
from ds41.serving.windows import LIFETIME_S

_HOUR = 3600.0
STORE_LIFETIMES = (0.0, _HOUR, 6 * _HOUR, 24 * _HOUR, 72 * _HOUR, 168 * _HOUR)
"""Seconds that pages are kept, as compared."""
WINDOW_LIFETIMES = (0.0, 60.0, 300.0, 600.0, 3600.0)
"""Seconds that windows are kept, as compared."""


@dataclass(frozen=True)
class Lifetime:
    """One lifetime of one tier.

    computed_tokens, replayed_tokens: fed in all. busy_s: of all devices together. saved_s: of these, against no
    lifetime. gb_hours: held, from the first byte to when the last expires. saved_price: what the saved tokens cost more
    as misses than as hits, by the vendor's list, in ``currency``.
    """

    lifetime_s: float
    turns: int
    hit_tokens: int
    computed_tokens: int
    replayed_tokens: int
    cold: int
    replayed: int
    busy_s: float
    saved_s: float
    gb_hours: float
    peak_bytes: int
    saved_price: float
    currency: str

    @property
    def saved_s_per_gb_hour(self) -> float:
        """Device-seconds saved for each gigabyte-hour of the tier; 0 where it held nothing."""
        return self.saved_s / self.gb_hours if self.gb_hours else 0.0

    @property
    def saved_price_per_gb_hour(self) -> float:
        """What a gigabyte kept for an hour has saved, in the currency of the prices."""
        return self.saved_price / self.gb_hours if self.gb_hours else 0.0

    def to_dict(self) -> dict:
        """All fields and both ratios, for JSON."""
        return asdict(self) | {
            "saved_s_per_gb_hour": self.saved_s_per_gb_hour,
            "saved_price_per_gb_hour": self.saved_price_per_gb_hour,
        }


def store_lifetimes(
    sessions: Sequence[SessionPlan],
    spec: EngineSpec,
    costs: RooflineCosts,
    lifetimes_s: Sequence[float] = STORE_LIFETIMES,
    tiers: TierSpec | None = None,
    currency: str = "CNY",
) -> list[Lifetime]:
    """The prefix store with each lifetime since the last use, 0 for none at all. A token not found costs the miss."""
    prices, base = PRICES[currency], tiers or TierSpec()

    def run(lifetime_s: float) -> Report:
        return simulate(sessions, spec, costs, _stored(base, lifetime_s), watch=0)

    worth = _Worth("store", "hit_tokens", 1, float(prices.miss - prices.hit) / 1e6, currency)
    return _compare(run, lifetimes_s, costs, worth)


def window_lifetimes(
    sessions: Sequence[SessionPlan],
    spec: EngineSpec,
    costs: RooflineCosts,
    lifetimes_s: Sequence[float] = WINDOW_LIFETIMES,
    tiers: TierSpec | None = None,
    currency: str = "CNY",
) -> list[Lifetime]:
    """The window pool with each lifetime. A token that is replayed counts as a miss, though nobody is billed for it."""
    prices, base = PRICES[currency], tiers or TierSpec()

    def run(lifetime_s: float) -> Report:
        return simulate(sessions, spec, costs, replace(base, window_lifetime_s=lifetime_s), watch=0)

    worth = _Worth("windows", "replayed_tokens", -1, float(prices.miss) / 1e6, currency)
    return _compare(run, lifetimes_s, costs, worth)


def lifetime_sensitivity(
    sessions: Sequence[SessionPlan],
    spec: EngineSpec,
    costs: RooflineCosts,
    tier: Literal["store", "windows"] = "store",
    lifetime_s: float | None = None,
) -> list[Sensitivity]:
    """What each assumption does to the device-seconds that a gigabyte-hour of a tier saves.

    pause_factor: of every pause. rows: of the node, in which sessions may wait. efficiency: of the costs.
    lifetime_s: 72 hours for the store and ten minutes for windows, if None.
    """
    sweep = store_lifetimes if tier == "store" else window_lifetimes
    if lifetime_s is None:
        lifetime_s = GUARANTEED_S if tier == "store" else LIFETIME_S

    def saved(pause_factor: float, rows: int, efficiency: float) -> float:
        stretched = [
            replace(plan, turns=tuple(replace(turn, pause_s=turn.pause_s * pause_factor) for turn in plan.turns))
            for plan in sessions
        ]
        pages = None if spec.pages is None else spec.pages * rows // spec.rows
        changed, slower = replace(spec, rows=rows, pages=pages), replace(costs, efficiency=efficiency)
        return sweep(stretched, changed, slower, [lifetime_s])[0].saved_s_per_gb_hour

    base = {"pause_factor": 1.0, "rows": spec.rows, "efficiency": costs.efficiency}
    changes = {
        "pause_factor": (0.25, 4.0),
        "rows": (max(1, spec.rows // 2), spec.rows * 4),
        "efficiency": (costs.efficiency / 2, min(1.0, costs.efficiency * 2)),
    }
    return one_at_a_time(saved, base, changes)


def _stored(tiers: TierSpec, lifetime_s: float) -> TierSpec:
    if not lifetime_s:
        return replace(tiers, store=False)
    return replace(tiers, store=True, store_guaranteed_s=lifetime_s, store_expires_s=lifetime_s)


@dataclass(frozen=True)
class _Worth:
    """How a tier's saving is priced: ``count`` of a report, more of it (sign 1) or less (-1), at ``rate`` a token."""

    tier: str
    count: str
    sign: int
    rate: float
    currency: str


def _compare(
    run: Callable[[float], Report], lifetimes_s: Sequence[float], costs: RooflineCosts, worth: _Worth
) -> list[Lifetime]:
    """A row for each lifetime, against a tier that keeps nothing."""
    without = run(0.0)
    return [_row(run(lifetime), without, costs, lifetime, worth) for lifetime in lifetimes_s]


def _row(report: Report, without: Report, costs: RooflineCosts, lifetime_s: float, worth: _Worth) -> Lifetime:
    def busy(one: Report) -> float:
        return costs.devices * sum(pool.busy_s for pool in one.pools)

    level, windows = report.levels.get(worth.tier), report.windows()
    return Lifetime(
        lifetime_s=lifetime_s,
        turns=len(report.served),
        hit_tokens=report.total("hit_tokens"),
        computed_tokens=report.total("computed_tokens"),
        replayed_tokens=report.total("replayed_tokens"),
        cold=windows["cold"],
        replayed=windows["replayed"],
        busy_s=busy(report),
        saved_s=busy(without) - busy(report),
        gb_hours=(level.byte_seconds + level.to_come) / 1e9 / _HOUR if level else 0.0,
        peak_bytes=level.peak if level else 0,
        saved_price=worth.sign * (report.total(worth.count) - without.total(worth.count)) * worth.rate,
        currency=worth.currency,
    )
