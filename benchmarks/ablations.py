#!/usr/bin/env python3
"""What each axis costs and buys: small models without one of them, trained on the same rows, measured alike.

    python benchmarks/ablations.py runs/ablations                      every variant; stopped runs go on
    python benchmarks/ablations.py runs/ablations --only base,dense    some, the results of the others kept
    python benchmarks/ablations.py runs/ablations --write              and src/ds41/data/measured/ablations.json

Prints a line a variant as it is done. About ten minutes each on one CPU core.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from ds41 import environment
from ds41.training.ablations import Result, ablation_recipe, measure, run_variant, variants
from ds41.training.corpus import standard_library

MEASURED = Path(__file__).parents[1] / "src" / "ds41" / "data" / "measured" / "ablations.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the runs, one folder each")
    parser.add_argument("--steps", type=int, default=360, help="of every run (default: 360)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=200, help="of each measurement (default: 200)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="names of variants, with commas")
    parser.add_argument("--write", action="store_true", help="keep the results for the book")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = environment.prepare("cpu")
    recipe = ablation_recipe(options.steps, options.seed)
    train_text, held_out = standard_library("train"), standard_library("held-out")
    every = {one.name: one for one in variants(recipe.config(), recipe.stages[-1].length)}
    wanted = options.only.split(",") if options.only else list(every)
    unknown = sorted(set(wanted) - set(every))
    if unknown:
        parser.error(f"--only names {', '.join(unknown)}; expected some of {', '.join(every)}")
    results = []
    for name in wanted:
        model = run_variant(every[name], recipe, train_text, options.folder)
        results.append(measure(every[name], model, recipe, held_out, options.rows))
        print(line(results[-1]), flush=True)
    if options.write:
        made = {
            "environment": found.report(),
            "recipe": recipe.to_dict(),
            "train_sha256": train_text.digest,
            "held_out_sha256": held_out.digest,
            "says": {one.name: one.says for one in every.values()},
            "results": [asdict(result) for result in results],
        }
        MEASURED.parent.mkdir(parents=True, exist_ok=True)
        MEASURED.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


def line(result: Result) -> str:
    return (
        f"{result.variant:28} {result.bytes_per_token:7g} B/token  text {result.text.text()}  answers "
        f"{result.answers.text()}  answer loss {result.answer_loss:.3f}  bounded {result.bounded.text(4)}"
    )


if __name__ == "__main__":
    sys.exit(main())
