"""``ds41 evaluate``: what a model has learnt, on held-out files and retrieval tasks; the numbers of a model card."""

from __future__ import annotations

import argparse
import json

from ds41.cli_model import run_command

_LENGTH, _LONGER, _ROWS = 384, (512, 768, 1024), 200


def add_evaluate_command(commands: argparse._SubParsersAction) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="what a small model over bytes has learnt",
        description="Measures a model over bytes on the standard library's held-out files: loss, answers to queries of "
        "needles that lie beyond its window and its latest top-k entries, the attention that it selects. With --part "
        "the drafter beside it, by the drafts that are accepted, or the vision tower, by questions about pictures.",
    )
    evaluate.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="checkpoint in the official format (default: the shipped nano)"
    )
    evaluate.add_argument("--part", choices=("drafter", "vision"), help="measure this, not the model")
    evaluate.add_argument(
        "--length", type=int, metavar="T", help=f"training length ({_LENGTH}), or of a drafter's prompts (256)"
    )
    evaluate.add_argument(
        "--longer",
        type=int,
        nargs="*",
        metavar="T",
        help=f"further lengths, perhaps none ({' '.join(map(str, _LONGER))})",
    )
    evaluate.add_argument(
        "--rows", type=int, metavar="N", help=f"of each measurement ({_ROWS}); prompts of a drafter (20)"
    )
    evaluate.add_argument("--quantization", choices=("none", "cache", "full"), default="cache", help="default: cache")
    evaluate.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(options: argparse.Namespace) -> int:
    return run_command(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    # Imported here: --help and errors of usage should not wait for torch.
    import torch

    from ds41 import environment
    from ds41.checkpoint import load_checkpoint
    from ds41.cli_tables import print_measured
    from ds41.probes.estimates import plain_values
    from ds41.trained import trained_folder
    from ds41.training.card import card_rows, measure_card
    from ds41.training.corpus import standard_library

    if options.rows is not None and options.rows < 1:
        raise ValueError(f"--rows is {options.rows}; expected 1 or more")
    if options.part is not None:
        from ds41.cli_evaluate_part import measure_part

        return measure_part(options)
    length = _LENGTH if options.length is None else options.length
    longer = _LONGER if options.longer is None else options.longer
    found = environment.prepare(options.device)
    folder = trained_folder() if options.folder is None else options.folder
    model = load_checkpoint(folder, options.quantization, torch.float32, found.device).requires_grad_(False)
    corpus = standard_library("held-out")
    card = measure_card(model, corpus, length, longer, _ROWS if options.rows is None else options.rows)
    if options.json:
        print(
            json.dumps(
                {"environment": found.report(), "held_out_sha256": corpus.digest, **plain_values(card)}, indent=1
            )
        )
        return 0
    print_measured(found.report(), card_rows(card))
    return 0
