"""The simulator beside the engine that it imitates, then what it says of clusters that nobody has here.

    python benchmarks/simulation.py [--runs 3] [--part engine nodes lifetimes replay] [--seed 1] [--write]

Engine: the trained nano serves one load while its steps, starts and finishes of turns are timed; lines through these
are the costs of a simulated engine. That predicts another load (other sessions, lengths, pauses, concurrency), which
the real engine serves several times, the two loads in turn. Seconds are the processor's for this process, so what else
the machine does counts little; --wall takes the clock on the wall. Pauses pass at once when nothing runs, so lifetimes
expire. Counts are also compared on a clock that both share, where they have to be the same to the token.

Nodes: how many sessions a node serves. Lifetimes: what the hours of the store and the minutes of the window pool save.
Replay: from which pause on keeping windows costs more than making them again. All from roofline bounds at a stated
efficiency; each table has rows that change one assumption at a time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from engine_load import Samples, run_engine
from rich.console import Console
from rich.table import Table
from timing import machine

from ds41 import ModelConfig
from ds41.agent_workspace import Workspace
from ds41.model import Model
from ds41.roofline import DEVICES
from ds41.serving.simulation import (
    EngineSpec,
    MeasuredCosts,
    Pauses,
    RooflineCosts,
    SessionPlan,
    TierSpec,
    agent_sessions,
    poisson_arrivals,
    sessions_of,
    simulate,
)
from ds41.serving.simulation.break_even import WAYS, break_even, break_even_sensitivity, by_pause, load_curve
from ds41.serving.simulation.lifetimes import lifetime_sensitivity, store_lifetimes, window_lifetimes
from ds41.serving.simulation.nodes import NODE_SYSTEMS, node_sensitivity, sessions_per_node
from ds41.trained import load_trained

RESULT = Path(__file__).parents[1] / "src" / "ds41" / "data" / "measured" / "simulation.json"
PARTS = ("engine", "nodes", "lifetimes", "replay")
TIMES = ("seconds", "engine_busy_s", "first_token_mean_s", "first_token_p95_s", "turn_mean_s", "tokens_per_s")
COUNTS = (
    "turns", "new_tokens", "hit_tokens", "live_tokens", "resident_tokens", "store_tokens", "replayed_tokens",
    "computed_tokens", "generated_tokens", "windows_live", "windows_restored", "windows_replayed", "windows_cold",
    "stored_bytes", "store_bytes_held", "kept_window_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """One quantity: what each real run gave, and what the simulation predicted.

    by_profile: predicted from each profile alone; simulated: from all of them together.
    shared: of the real engine once more, where its clock counts the fitted costs as the simulator's does.
    """

    name: str
    measured: tuple[float, ...]
    simulated: float
    by_profile: tuple[float, ...]
    shared: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.measured)

    @property
    def spread(self) -> float:
        """Half the range of the measured runs over their mean."""
        return _half_range(self.measured, self.mean)

    @property
    def profile_spread(self) -> float:
        """Half the range of what the profiles predict, over the prediction."""
        return _half_range(self.by_profile, self.simulated)

    @property
    def error(self) -> float:
        """Of the simulation, relative to the mean of what was measured."""
        return self.simulated / self.mean - 1 if self.mean else 0.0


def _half_range(values: tuple[float, ...], over: float) -> float:
    return (max(values) - min(values)) / 2 / over if over else 0.0


def load(seed: int, sessions: int, per_second: float, turns: int, pauses: Pauses, shared: int) -> list[SessionPlan]:
    """Sessions with random lengths, about those of short tool results."""
    source = random.Random(seed)
    lengths = []
    for _ in range(sessions):
        said = [(source.randint(16, 300), source.randint(4, 24)) for _ in range(turns)]
        said[0] = (said[0][0] + shared, said[0][1])
        lengths.append(said)
    return sessions_of(lengths, poisson_arrivals(sessions, per_second, source), pauses, seed, shared)


def specification(config: ModelConfig) -> EngineSpec:
    """The engine under test: fewer rows than sessions."""
    return EngineSpec(config, max_tokens=4096, rows=4, step_tokens=256)


# Windows live ten seconds, pages half an hour: a pause may outlast either.
TIERS = TierSpec(window_lifetime_s=10.0, store_guaranteed_s=600.0, store_expires_s=1800.0, store_sweeps=False)


def compare(runs: int, seed: int, source: Callable[[], float]) -> tuple[list[Compared], dict]:
    """Profile one load and run another, ``runs`` times in turn; predict the other, and run it on the shared clock."""
    model = load_trained("nano")
    spec = specification(model.config)
    profiled = load(seed, 10, 0.3, 4, Pauses(5.0, 1.5, 0.05, 2000.0), shared=100)
    plans = load(seed + 1000, 10, 0.8, 5, Pauses(4.0, 1.2, 0.08, 1500.0), shared=140)
    samples, measured, by_profile = Samples(), [], []
    for _ in range(runs):
        _, found = _real(model, profiled, spec, source)
        samples.add(found)
        by_profile.append(_predicted(plans, spec, found.costs()))
        measured.append(_real(model, plans, spec, source)[0])
    costs = samples.costs()
    predicted = _predicted(plans, spec, costs)
    shared, _ = _real(model, plans, spec, source, costs)
    rows = [
        Compared(
            name,
            tuple(one[name] for one in measured),
            predicted[name],
            tuple(one[name] for one in by_profile),
            shared[name],
        )
        for name in (*TIMES, *COUNTS)
    ]
    counts = {"steps": len(samples.steps), "starts": len(samples.starts), "finishes": len(samples.finishes)}
    return rows, {"costs": costs.to_dict(), "samples": counts}


def _predicted(plans: list[SessionPlan], spec: EngineSpec, costs: MeasuredCosts) -> dict[str, float]:
    report = simulate(plans, spec, costs, TIERS)
    return report.totals() | {"store_bytes_held": report.levels["store"].points[-1][1]}


def _real(
    model: Model,
    plans: list[SessionPlan],
    spec: EngineSpec,
    source: Callable[[], float],
    costs: MeasuredCosts | None = None,
) -> tuple[dict[str, float], Samples]:
    with tempfile.TemporaryDirectory() as folder:
        report, samples, held = run_engine(model, plans, spec, TIERS, Path(folder), costs, source)
    return report.totals() | {"store_bytes_held": held}, samples


def cluster_load(seed: int) -> tuple[list[SessionPlan], EngineSpec, RooflineCosts]:
    """Coding agents on one node of 8 × H200 with few rows: who pauses loses its row. Some come back next day."""
    files = Workspace.folder(sysconfig.get_paths()["stdlib"], most=40_000)
    sessions = agent_sessions(120, 1 / 15, Pauses(20.0, 1.2, 0.04), workspace=files, seed=seed)
    config = ModelConfig.flash()
    spec = EngineSpec(
        config, max_tokens=2**17, rows=4, pages=4 * 600, page_tokens=256, step_tokens=4096, steps_at_once=256
    )
    return sessions, spec, RooflineCosts(config, DEVICES["H200"], 8, 0.5, overhead_s=2e-3)


def questions(parts: list[str], seed: int) -> dict[str, list[dict]]:
    """The rows of every table that was asked for."""
    found: dict[str, list[dict]] = {}
    if "nodes" in parts:
        found["nodes"] = [row.to_dict() for row in sessions_per_node(devices=("A100-80", "H100", "H200", "B200"))]
        for key in NODE_SYSTEMS:
            found[f"nodes, {key}: sessions open"] = [asdict(row) for row in node_sensitivity(key)]
    if "lifetimes" in parts:
        sessions, spec, costs = cluster_load(seed)
        found["store lifetimes"] = [row.to_dict() for row in store_lifetimes(sessions, spec, costs)]
        found["window lifetimes"] = [row.to_dict() for row in window_lifetimes(sessions, spec, costs)]
        for tier, name in (("store", "store of 72 hours"), ("windows", "windows of 10 minutes")):
            rows = lifetime_sensitivity(sessions, spec, costs, tier)
            found[f"{name}: device-seconds saved a GB-hour"] = [asdict(row) for row in rows]
    if "replay" in parts:
        found["replay"] = [row.to_dict() for row in break_even()]
        found["replay by pause"] = [asdict(row) for row in by_pause((1.0, 60.0, 600.0, 3600.0, 36_000.0))]
        found["replay by load"] = [row.to_dict() for row in load_curve((0.1, 0.3, 0.5, 0.7, 0.9, 0.99))]
        for way in WAYS:
            found[f"replay {way}: pause in seconds"] = [asdict(row) for row in break_even_sensitivity(way)]
    return found


def print_comparison(console: Console, rows: list[Compared], runs: int) -> None:
    table = _table(
        f"A load on the real engine (nano, {runs} runs) and in the simulator; last, the real one on a shared clock",
        "quantity", "measured", "spread", "simulated", "by profile", "error", "shared clock", "the same",
    )  # fmt: skip
    for row in rows:
        digits = 3 if row.name in TIMES else 1
        same = abs(row.shared - row.simulated) <= 1e-6 * max(1.0, abs(row.simulated))
        table.add_row(
            row.name.replace("_", " "),
            f"{row.mean:,.{digits}f}",
            f"±{row.spread:.1%}",
            f"{row.simulated:,.{digits}f}",
            f"±{row.profile_spread:.1%}",
            f"{row.error:+.1%}",
            f"{row.shared:,.{digits}f}",
            "yes" if same else "no",
        )
    console.print(table)
    console.print(
        "Time is the machine's, so who has a row when another comes differs from run to run; on a shared clock it does "
        "not. Window bytes are the ledger's in the simulator; the engine's files hold open groups, the last ids and "
        "names as well."
    )


def print_rows(console: Console, title: str, rows: list[dict]) -> None:
    """A table of any rows that have the same fields."""
    table = _table(title, *(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)


def _cell(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return "; ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,}" if value < 10**8 else f"{value:.4g}"
    return str(value)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--runs", type=int, default=3, help="of the real engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="time the real engine by the clock on the wall")
    parser.add_argument("--write", action="store_true", help=f"put the parts that were run into {RESULT.name}")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs is {options.runs}; expected 1 or more")
    torch.set_num_threads(1)
    console = Console(width=170)
    console.print(machine(torch.device("cpu")))
    found: dict[str, object] = {}
    if "engine" in options.part:
        source = time.perf_counter if options.wall else time.process_time
        rows, profiled = compare(options.runs, options.seed, source)
        print_comparison(console, rows, options.runs)
        quantities = [
            asdict(row) | {name: getattr(row, name) for name in ("mean", "spread", "profile_spread", "error")}
            for row in rows
        ]
        clock = "wall" if options.wall else "processor"
        found["engine"] = {"runs": options.runs, "clock": clock, "quantities": quantities, **profiled}
        found["engine"] |= {"machine": machine(torch.device("cpu")), "load_average": os.getloadavg()[1]}
    for title, table in questions(options.part, options.seed).items():
        print_rows(console, title, table)
        found[title] = table
    if options.write:
        versions = {"machine": machine(torch.device("cpu")), "simpy": version("simpy")}
        versions["date"] = datetime.date.today().isoformat()
        before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        RESULT.write_text(json.dumps(before | versions | found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
