"""``ds41 evaluate --part``: what a drafter saves on held-out text, what a vision tower sees in held-out pictures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ds41.cli_draft import load_calibration

if TYPE_CHECKING:
    from ds41.model import Model

# Kinds of held-out text and temperatures; the calibration is measured on the second.
_CASES = (("source", 0.0), ("source", 1.0), ("planted", 1.0))
_CALIBRATED = ("source", 1.0)
_LENGTH, _PROMPTS, _PICTURES = 256, 20, 200
# From the measurement to its result and what it was made on.
Row = tuple[str, str, str]


def measure_part(options: argparse.Namespace) -> int:
    """Measure the part that the options name and print it."""
    import torch

    from ds41 import environment
    from ds41.checkpoint import load_checkpoint
    from ds41.cli_tables import print_measured
    from ds41.trained import trained_folder

    _check(options)
    found = environment.prepare(options.device)
    folder = trained_folder() if options.folder is None else Path(options.folder)
    model = load_checkpoint(folder, options.quantization, torch.float32, found.device).requires_grad_(False)
    measure = _measure_drafter if options.part == "drafter" else _measure_vision
    measured, rows = measure(options, folder, model)
    if options.json:
        print(json.dumps({"environment": found.report(), "part": options.part, **measured}, indent=1))
        return 0
    print_measured(found.report(), rows)
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.longer is not None:
        raise ValueError("--longer is for the model; a part is measured without")
    if options.length is not None and options.part == "vision":
        raise ValueError(f"--length is {options.length}; the pictures of --part vision have sizes of their own")
    if options.length is not None and options.length < 1:
        raise ValueError(f"--length is {options.length}; expected 1 or more")


def _measure_drafter(options: argparse.Namespace, folder: Path, model: Model) -> tuple[dict, list[Row]]:
    from ds41.dspark import load_drafter
    from ds41.probes.estimates import plain_values
    from ds41.training.corpus import standard_library
    from ds41.training.draft_evaluation import draft_rounds

    drafter = load_drafter(folder, model.quantization, model.dtype, model.device).requires_grad_(False)
    calibration = load_calibration(folder)
    corpus = standard_library("held-out")
    prompts, length = options.rows or _PROMPTS, options.length or _LENGTH
    cases, rows, errors = [], [], {}
    for kind, temperature in _CASES:
        rounds = draft_rounds(model, drafter, corpus, prompts, kind, temperature, length)
        tokens, places, count = rounds.tokens(), rounds.by_place(), len(rounds.accepted)
        case = {"kind": kind, "temperature": temperature, "rounds": count, "tokens_a_round": plain_values(tokens)}
        cases.append(case | {"by_place": [plain_values(place) for place in places]})
        where, on = f"{kind} at temperature {temperature:g}", f"{count} rounds of {prompts} prompts"
        rows.append((f"tokens a round, {where}", tokens.text(2), on))
        for number, share in enumerate(places, start=1):
            rows.append((f"accepted up to draft {number}, {where}", share.text(), on))
        if (kind, temperature) == _CALIBRATED:
            errors["as_they_are"] = rounds.errors()
            if calibration is not None:
                errors["calibrated"] = rounds.errors(calibration)
            for name, values in errors.items():
                means = ", ".join(f"{value:.3f}" for value in values)
                rows.append((f"calibration error of confidences, {name.replace('_', ' ')}, by place", means, on))
    return {"held_out_sha256": corpus.digest, "cases": cases, "calibration_errors": errors}, rows


def _measure_vision(options: argparse.Namespace, folder: Path, model: Model) -> tuple[dict, list[Row]]:
    from ds41.probes.estimates import plain_values
    from ds41.training.seeing import accuracy
    from ds41.vision import load_vision

    vision = load_vision(folder, model.dtype, model.device).requires_grad_(False)
    pictures = options.rows or _PICTURES
    try:
        found = accuracy(model, vision, pictures)
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    rows = [
        (f"answers right, {question}", share.text(), f"{share.samples} pictures") for question, share in found.items()
    ]
    return {"accuracy": {question: plain_values(share) for question, share in found.items()}}, rows
