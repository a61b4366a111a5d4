#!/usr/bin/env python3
"""What the drafter is worth: drafts accepted by place, calibration, tokens per second with and without, by load.

    ds41 train runs/drafter --part drafter
    python benchmarks/drafting.py runs/drafter/model --write

Every speed is that of one run in which the policies take turns; what counts is its ratio to drafting nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ds41 import environment
from ds41.checkpoint import load_checkpoint
from ds41.dspark import Always, Calibration, Drafter, Drafting, Never, Optimum, Policy, Threshold, load_drafter
from ds41.dspark.calibration import reliability
from ds41.dspark.profile import profile_drafts, profile_steps
from ds41.generation import generate
from ds41.model import Model
from ds41.probes.estimates import plain_values
from ds41.serving import Engine
from ds41.training.corpus import Corpus, standard_library
from ds41.training.draft_evaluation import Rounds, calibrate, draft_rounds, prompts
from ds41.training.tasks import Kind

CASES: tuple[tuple[Kind, float], ...] = (("source", 0.0), ("source", 1.0), ("planted", 1.0))
# Confidences are made for sampling at temperature 1, and fitted there, on prompts of their own.
FITTED_ON: tuple[Kind, float] = ("source", 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="checkpoint that holds a drafter")
    parser.add_argument("--prompts", type=int, default=40, help="of each case (default: 40)")
    parser.add_argument("--context", type=int, default=256, help="tokens of a prompt (default: 256)")
    parser.add_argument("--new-tokens", type=int, default=96, help="of a timed answer (default: 96)")
    parser.add_argument("--repeats", type=int, default=5, help="of each timing (default: 5)")
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 2, 4, 8], help="answered together (1 2 4 8)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="also write drafting.json into the folder")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = environment.prepare("cpu")
    model = load_checkpoint(options.folder, "cache", torch.float32).requires_grad_(False)
    drafter = load_drafter(options.folder, "cache", torch.float32).requires_grad_(False)
    corpus = standard_library("held-out")
    accepted = accepted_drafts(model, drafter, corpus, options)
    calibration, calibrated = calibrated_drafts(model, drafter, corpus, options)
    step = profile_steps(model, drafter, options.context, requests=max(options.requests))
    draft = profile_drafts(model, drafter, options.context)
    policies: dict[str, Policy] = {
        "never": Never(),
        "always five": Always(drafter.config.dspark_block_size),
        "threshold 0.5": Threshold(0.5),
        "optimum": Optimum(step, draft),
    }
    measured = {
        "environment": found.report(),
        "command": "benchmarks/drafting.py "
        + " ".join(
            f"--{name.replace('_', '-')} {' '.join(map(str, value)) if isinstance(value, list) else value}"
            for name, value in vars(options).items()
            if name not in ("folder", "write")
        ),
        "held_out_sha256": corpus.digest,
        "parameters": sum(parameter.numel() for parameter in drafter.parameters()),
        "accepted": accepted,
        "calibration": calibration.to_dict(),
        "calibrated": calibrated,
        "step_curve": step.to_dict(),
        "draft_curve": draft.to_dict(),
        "single": single_stream(model, drafter, calibration, corpus, policies, options),
        "loaded": loaded_engine(model, drafter, calibration, corpus, policies, options),
    }
    show(measured)
    if options.write:
        (options.folder / "drafting.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return 0


def accepted_drafts(model: Model, drafter: Drafter, corpus: Corpus, options: argparse.Namespace) -> list[dict]:
    """Accepted drafts by place, every block verified whole."""
    rows = []
    for kind, temperature in CASES:
        rounds = draft_rounds(model, drafter, corpus, options.prompts, kind, temperature, options.context)
        rows.append(
            {
                "kind": kind,
                "temperature": temperature,
                "rounds": len(rounds.accepted),
                "tokens_a_round": plain_values(rounds.tokens()),
                "by_place": [plain_values(share) for share in rounds.by_place()],
                "conditional": rounds.conditional(),
            }
        )
    return rows


def calibrated_drafts(
    model: Model, drafter: Drafter, corpus: Corpus, options: argparse.Namespace
) -> tuple[Calibration, dict]:
    """Temperatures fitted on some prompts, and the error before and after on others."""

    def rounds(seed: str) -> Rounds:
        return draft_rounds(model, drafter, corpus, options.prompts, *FITTED_ON, options.context, seed=seed)

    fitted, tested = rounds("fitted"), rounds("tested")
    calibration = calibrate(fitted)
    survived = calibration.probabilities(tested.logits).cumprod(-1)
    bins = [
        [vars(one) for one in reliability(probability, outcome)]
        for probability, outcome in zip(survived.unbind(1), tested.prefixes.unbind(1), strict=True)
    ]
    return calibration, {
        "rounds": len(tested.accepted),
        "errors_before": tested.errors(),
        "errors_after": tested.errors(calibration),
        "reliability": bins,
    }


def single_stream(
    model: Model,
    drafter: Drafter,
    calibration: Calibration,
    corpus: Corpus,
    policies: dict[str, Policy],
    options: argparse.Namespace,
) -> list[dict]:
    """Tokens per second of one answer at a time, at temperature 0; all policies on each prompt in turn."""
    every = list(prompts(corpus, "source", options.repeats, options.context, "timed"))
    drafted = {name: Drafting(drafter, policy, calibration) for name, policy in policies.items()}

    def answer(name: str, number: int) -> Callable[[], list[int]]:
        drafting = None if name == "never" else drafted[name]
        return lambda: list(
            generate(model, every[number], options.new_tokens, 0, stop_ids=(), decoder="bounded", drafting=drafting)
        )

    seconds, answers = _in_turn(policies, answer, len(every))
    same = {name: answers[name] == answers["never"] for name in policies}
    tokens = options.new_tokens * len(every)
    rows = _speeds(seconds, tokens)
    for row in rows:
        row["same_tokens"] = same[row["policy"]]
        row["tokens_a_round"] = drafted[row["policy"]].counts.tokens_a_round
    return rows


def loaded_engine(
    model: Model,
    drafter: Drafter,
    calibration: Calibration,
    corpus: Corpus,
    policies: dict[str, Policy],
    options: argparse.Namespace,
) -> list[dict]:
    """Tokens per second of several answers at once, prompts read before the clock starts."""
    rows = []
    for requests in options.requests:
        every = list(prompts(corpus, "source", requests, options.context, f"loaded {requests}"))

        def answer(name: str, number: int, every: list = every, requests: int = requests) -> Callable[[], list]:
            drafting = None if name == "never" else Drafting(drafter, policies[name], calibration)
            tokens = options.context + options.new_tokens + 8
            engine = Engine(model, max_tokens=tokens, rows=requests, drafting=drafting)
            streams = [engine.open().say(prompt, options.new_tokens, stop_ids=()) for prompt in every]
            first = [next(stream) for stream in streams]

            def finish() -> list:
                with engine:
                    return [[token, *stream] for token, stream in zip(first, streams, strict=True)]

            return finish

        seconds, _ = _in_turn(policies, answer, options.repeats)
        made = (options.new_tokens - 1) * requests * options.repeats
        rows += [{"requests": requests} | row for row in _speeds(seconds, made)]
    return rows


def _in_turn(
    policies: dict[str, Policy], prepare: Callable[[str, int], Callable[[], list]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, list]]:
    """Seconds and results of each policy, which take turns; what ``prepare`` does is not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in policies}
    results: dict[str, list] = {name: [] for name in policies}
    for number in range(repeats):
        for name in policies:
            run = prepare(name, number)
            began = time.perf_counter()
            results[name].append(run())
            seconds[name].append(time.perf_counter() - began)
    return seconds, results


def _speeds(seconds: dict[str, list[float]], tokens: int) -> list[dict]:
    rows = []
    for name, own in seconds.items():
        ratios = [plain / one for plain, one in zip(seconds["never"], own, strict=True)]
        rows.append(
            {
                "policy": name,
                "tokens_per_second": tokens / sum(own),
                "ratio": statistics.median(ratios),
                "ratios": ratios,
            }
        )
    return rows


def show(measured: dict) -> None:
    console = Console()
    console.print(measured["environment"])
    table = Table("text", "temperature", "rounds", "tokens a round", *[f"draft {n}" for n in range(1, 6)])
    for row in measured["accepted"]:
        shares = [f"{share['mean']:.3f}" for share in row["by_place"]]
        mean = row["tokens_a_round"]
        interval = f"{mean['mean']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]"
        table.add_row(row["kind"], f"{row['temperature']:g}", str(row["rounds"]), interval, *shares)
    console.print(table)
    table = Table("calibration error of the survival", *[f"draft {n}" for n in range(1, 6)])
    for name in ("before", "after"):
        table.add_row(name, *[f"{error:.3f}" for error in measured["calibrated"][f"errors_{name}"]])
    table.add_row("temperature", *[f"{one:.2f}" for one in measured["calibration"]["temperatures"]])
    console.print(table)
    table = Table("together", "policy", "tokens/s", "ratio to never", "lowest", "highest", "same tokens")
    for row in [{"requests": "one stream"} | row for row in measured["single"]] + measured["loaded"]:
        low, high = min(row["ratios"]), max(row["ratios"])
        numbers = (f"{row['tokens_per_second']:.1f}", f"{row['ratio']:.2f}", f"{low:.2f}", f"{high:.2f}")
        table.add_row(str(row["requests"]), row["policy"], *numbers, str(row.get("same_tokens", "")))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
