#!/usr/bin/env python3
"""Measure a trained checkpoint and write its card: card.json, README.md and the curve of its run, log.json.

    ds41 train runs/nano --preset nano --seed 0 --threads 1
    python benchmarks/model_card.py runs/nano

The numbers come from the checkpoint as it is stored, on the standard library's held-out files.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from ds41 import environment
from ds41.checkpoint import load_checkpoint
from ds41.probes.estimates import plain_values
from ds41.training.card import card_rows, measure_card
from ds41.training.corpus import standard_library
from ds41.training.run_log import LOG, read_log
from ds41.training.run_state import STATE

_CURVE = ("text", "answers", "alignment", "rate", "seconds", "tokens")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of ds41 train; with --readme, of a checkpoint")
    parser.add_argument(
        "--readme", action="store_true", help="measure nothing: write README.md anew from what lies in the folder"
    )
    parser.add_argument("--rows", type=int, default=200, help="of each measurement (default: 200)")
    parser.add_argument("--longer", type=int, nargs="*", default=[512, 768, 1024], help="lengths beyond the training's")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.readme:
        made = json.loads((options.run / "card.json").read_text(encoding="utf-8"))
        (options.run / "README.md").write_text(markdown(made, made["rows"], options.run), encoding="utf-8")
        return 0
    torch.set_num_threads(options.threads)
    found = environment.prepare("cpu")
    state = torch.load(options.run / STATE, weights_only=True)
    recipe, folder = state["recipe"], options.run / "model"
    model = load_checkpoint(folder, "cache", torch.float32).requires_grad_(False)
    corpus = standard_library("held-out")
    length = max(stage["length"] for stage in recipe["stages"])
    card = measure_card(model, corpus, length, options.longer, options.rows)
    lines = read_log(options.run / LOG)
    made = {
        "environment": found.report(),
        "recipe": recipe,
        "train_sha256": state["text"],
        "held_out_sha256": corpus.digest,
        "command": f"benchmarks/model_card.py --rows {options.rows} --longer {' '.join(map(str, options.longer))}",
        "stored_bytes": sum(path.stat().st_size for path in folder.glob("*.safetensors")),
        "training_seconds": round(sum(line["seconds"] for line in lines)),
        "training_tokens": sum(line["tokens"] for line in lines),
        "card": plain_values(card),
        "rows": card_rows(card),
    }
    (folder / "card.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    (folder / "log.json").write_text(json.dumps(curve(lines)) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(markdown(made, card_rows(card), folder), encoding="utf-8")
    print((folder / "README.md").read_text(encoding="utf-8"))
    return 0


def curve(lines: list[dict]) -> dict[str, list]:
    """The log by column, rounded: steps, stages, losses."""
    found = {"step": [line["step"] for line in lines], "stage": [line["stage"] for line in lines]}
    for name in _CURVE:
        values = [line[name] for line in lines]
        found[name] = [None if value is None or value != value else round(value, 4) for value in values]
    return found


def interval(share: dict, digits: int = 3) -> str:
    return f"{share['mean']:.{digits}f} [{share['low']:.{digits}f}, {share['high']:.{digits}f}]"


def beside(folder: Path) -> str:
    """What lies beside the model: a drafter, a vision tower."""
    parts = []
    if (folder / "drafting.json").exists():
        made = json.loads((folder / "drafting.json").read_text(encoding="utf-8"))
        rows = "\n".join(
            f"| {row['kind']}, temperature {row['temperature']:g} | {interval(row['tokens_a_round'], 2)} | "
            + " | ".join(f"{share['mean']:.2f}" for share in row["by_place"])
            + " |"
            for row in made["accepted"]
        )
        places = len(made["accepted"][0]["by_place"])
        fastest = max((row for row in made["single"] if row["policy"] != "never"), key=lambda row: row["ratio"])
        parts.append(f"""
## The drafter

`ds41 train FOLDER --part drafter`, {made["parameters"]:,} parameters. Held-out text, every block verified whole:

| text | tokens a round | {" | ".join(f"draft {n}" for n in range(1, places + 1))} |
|---|---|{"---|" * places}
{rows}

One greedy stream: {fastest["ratio"]:.2f} times the tokens per second of plain decoding with the policy
"{fastest["policy"]}". By `{made["command"]}`; more in `drafting.json`.
""")
    if (folder / "seeing.json").exists():
        made = json.loads((folder / "seeing.json").read_text(encoding="utf-8"))
        rows = "\n".join(f"| {question} | {interval(share)} |" for question, share in made["accuracy"].items())
        parts.append(f"""
## The vision tower

`ds41 train FOLDER --part vision`, {made["parameters"]:,} parameters. {made["rows"]:,} pictures with held-out digits of
scikit-learn, asked through the language model, whose own weights are those above but for `gate.bias_vl`:

| question | answered right |
|---|---|
{rows}

By `{made["command"]}`.
""")
    return "".join(parts)


def markdown(made: dict, rows: list[tuple[str, str, str]], folder: Path) -> str:
    recipe = made["recipe"]
    stages = "\n".join(
        f"| {stage['name']} | {stage['steps']} | {stage['rows']} × {stage['length']} | {', '.join(stage['mix'])} |"
        for stage in recipe["stages"]
    )
    table = "\n".join(f"| {what} | {number} | {on} |" for what, number, on in rows)
    return f"""# {recipe["preset"]}: a small model of the DeepSeek-V4.1 architecture

Bytes in, bytes out. Trained from nothing on the sources of Python's standard library and on retrieval tasks; it knows
that text and can find needles, and nothing else. Weights as a released checkpoint keeps them (FP8 tiles, FP4 experts),
{made["stored_bytes"]:,} bytes without what was trained beside it.

    ds41 train FOLDER --preset {recipe["preset"]} --seed {recipe["seed"]} --threads 1

{made["training_tokens"]:,} tokens in {made["training_seconds"] / 60:.0f} minutes; {made["environment"]}.
SHA-256 of the training text `{made["train_sha256"][:16]}…`, of the held-out text `{made["held_out_sha256"][:16]}…`.
The text is that of the running Python, so another version of Python trains another model.

| stage | steps | rows × tokens | kinds of rows |
|---|---|---|---|
{stages}

## Measured

On held-out files. An answer is two bytes, right if both are the likeliest; its needle lies at least
{made["card"]["least_distance"]} tokens back, beyond the window and the latest top-k entries of every source.
Intervals are 95 %.

| measured | result | on |
|---|---|---|
{table}

By `{made["command"]}`; `ds41 evaluate` prints the same table. The curve of the run is in `log.json`, everything else in
`card.json`.
{beside(folder)}"""


if __name__ == "__main__":
    sys.exit(main())
