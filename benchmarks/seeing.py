#!/usr/bin/env python3
"""What a trained vision tower sees: held-out digits, asked through the language model.

ds41 train runs/vision --part vision
python benchmarks/seeing.py runs/vision/model --write
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ds41 import environment
from ds41.checkpoint import load_checkpoint
from ds41.probes.estimates import plain_values
from ds41.training.seeing import accuracy
from ds41.vision import load_vision


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="checkpoint that holds a vision part")
    parser.add_argument("--rows", type=int, default=1000, help="pictures of each question (default: 1000)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="also write seeing.json into the folder")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = environment.prepare("cpu")
    model = load_checkpoint(options.folder, "cache", torch.float32).requires_grad_(False)
    vision = load_vision(options.folder, torch.float32).requires_grad_(False)
    shares = {split: accuracy(model, vision, options.rows, split, seed="measured") for split in ("held-out", "train")}
    measured = {
        "environment": found.report(),
        "command": f"benchmarks/seeing.py --rows {options.rows}",
        "parameters": sum(parameter.numel() for parameter in vision.parameters()),
        "rows": options.rows,
        "accuracy": {question: plain_values(share) for question, share in shares["held-out"].items()},
        "accuracy_on_training_digits": {question: plain_values(share) for question, share in shares["train"].items()},
    }
    table = Table("question", "held-out digits", "digits of the training")
    for question in shares["train"]:
        table.add_row(question, *[shares[split][question].text() for split in ("held-out", "train")])
    console = Console()
    console.print(measured["environment"])
    console.print(table)
    if options.write:
        (options.folder / "seeing.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
