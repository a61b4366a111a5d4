#!/usr/bin/env python3
"""What each axis costs and buys: small models without one of them, adapted on the same rows and measured alike.

    python benchmarks/ablations.py runs/ablations                      every variant and the twins; stopped runs go on
    python benchmarks/ablations.py runs/ablations --only base,dense    some
    python benchmarks/ablations.py runs/ablations --write              and src/ds41/data/measured/ablations.json

The variants begin from a nano run of 500 steps, which is made in FOLDER/start if it is not there (a third of an hour
of one CPU core); each then takes about four minutes, a twin ten.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from ds41 import environment
from ds41.checkpoint import save_checkpoint
from ds41.model import Model
from ds41.training.ablations import (
    Result,
    Variant,
    adaptation_recipe,
    folder_name,
    measure,
    run_variant,
    start_weights,
    twin_difference,
    twin_recipe,
    variants,
    window_only,
)
from ds41.training.corpus import standard_library
from ds41.training.recipe import Recipe

MEASURED = Path(__file__).parents[1] / "src" / "ds41" / "data" / "measured" / "ablations.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the runs, one folder each")
    parser.add_argument("--steps", type=int, default=80, help="of a variant's adaptation (default: 80)")
    parser.add_argument("--twin-steps", type=int, default=300, help="of a twin's run from nothing (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=200, help="of each measurement (default: 200)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="names of variants, with commas")
    parser.add_argument("--write", action="store_true", help="keep the results for the book")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = environment.prepare("cpu")
    train_text, held_out = standard_library("train"), standard_library("held-out")
    adapted, grown = adaptation_recipe(options.steps, options.seed), twin_recipe(options.twin_steps, options.seed)
    config = adapted.config()
    every = variants(config)
    wanted = options.only.split(",") if options.only else [one.name for one in every]
    unknown = sorted(set(wanted) - {one.name for one in every})
    if unknown:
        parser.error(f"--only names {', '.join(unknown)}; expected some of {', '.join(one.name for one in every)}")
    if options.write and options.only:
        parser.error("--write keeps the whole table; it does not go with --only")
    start = start_weights(train_text, options.folder / "start", options.seed)
    made = {
        "environment": found.report(),
        "adaptation": adapted.to_dict(),
        "twins": grown.to_dict(),
        "train_sha256": train_text.digest,
        "held_out_sha256": held_out.digest,
        "says": {one.name: one.says for one in (*every, window_only(config))},
        "results": [],
        "twin_results": [],
    }

    def run(variant: Variant, recipe: Recipe, folder: Path, kept: list, begin: dict | None) -> Model:
        model = run_variant(variant, recipe, train_text, folder, begin)
        result = measure(variant, model, recipe, held_out, options.rows)
        kept.append(asdict(result))
        print(line(result), flush=True)
        # For `ds41 probe --model`.
        save_checkpoint(model, folder / folder_name(variant) / "model", overwrite=True)
        return model

    for variant in every:
        if variant.name in wanted:
            run(variant, adapted, options.folder / "adapted", made["results"], start)
    if not options.only:
        twins = [
            run(variant, grown, options.folder / "twins", made["twin_results"], None)
            for variant in (every[0], window_only(config))
        ]
        made["twin_differences"] = {
            kind: asdict(twin_difference(*twins, grown, held_out, kind, options.rows))
            for kind in ("source", "planted", "stream", "recall")
        }
        print({kind: round(one["mean"], 3) for kind, one in made["twin_differences"].items()})
    if options.write:
        MEASURED.parent.mkdir(parents=True, exist_ok=True)
        MEASURED.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


def line(result: Result) -> str:
    return (
        f"{result.variant:28} {result.bytes_per_token:7g} B/token  text {result.text.text()}  "
        f"planted {result.planted.mean:.3f}  answers {result.answers.text()}  "
        f"answer loss {result.answer_loss:.3f}  bounded {result.bounded.text(4)}"
    )


if __name__ == "__main__":
    sys.exit(main())
