"""``ds41 evaluate``: what a model has learnt, on held-out files and retrieval tasks; the numbers of a model card."""

from __future__ import annotations

import argparse
import json

from ds41.cli_model import run_command


def add_evaluate_command(commands: argparse._SubParsersAction) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="what a small model over bytes has learnt",
        description="Measures a model over bytes on the standard library's held-out files: loss, answers to queries of "
        "needles that lie beyond its window and its latest top-k entries, the attention that it selects.",
    )
    evaluate.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="checkpoint in the official format (default: the shipped nano)"
    )
    evaluate.add_argument("--length", type=int, default=384, metavar="T", help="training length (default: 384)")
    evaluate.add_argument(
        "--longer",
        type=int,
        nargs="*",
        default=[512, 768, 1024],
        metavar="T",
        help="further lengths, perhaps none (512 768 1024)",
    )
    evaluate.add_argument("--rows", type=int, default=200, metavar="N", help="of each measurement (default: 200)")
    evaluate.add_argument("--quantization", choices=("none", "cache", "full"), default="cache", help="default: cache")
    evaluate.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(options: argparse.Namespace) -> int:
    return run_command(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    # Imported here: --help and errors of usage should not wait for torch.
    import torch
    from rich.console import Console

    from ds41 import environment
    from ds41.checkpoint import load_checkpoint
    from ds41.cli_tables import Column, Sheet
    from ds41.probes.estimates import plain_values
    from ds41.trained import trained_folder
    from ds41.training.card import card_rows, measure_card
    from ds41.training.corpus import standard_library

    if options.rows < 1:
        raise ValueError(f"--rows is {options.rows}; expected 1 or more")
    found = environment.prepare(options.device)
    folder = trained_folder() if options.folder is None else options.folder
    model = load_checkpoint(folder, options.quantization, torch.float32, found.device).requires_grad_(False)
    corpus = standard_library("held-out")
    card = measure_card(model, corpus, options.length, options.longer, options.rows)
    if options.json:
        print(
            json.dumps(
                {"environment": found.report(), "held_out_sha256": corpus.digest, **plain_values(card)}, indent=1
            )
        )
        return 0
    columns = (Column("measured", prose=True), Column("result"), Column("on", optional=1))
    Sheet(found.report(), columns, card_rows(card)).render(Console())
    return 0
