"""``ds41 train``: a small model from nothing, with checkpoints, a log, and a folder in the official format.

A part beside a model is :mod:`ds41.cli_train_part`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from ds41.cli_model import run_command


def add_train_command(commands: argparse._SubParsersAction) -> None:
    train = commands.add_parser(
        "train",
        help="train a small model of exactly this architecture, or a part beside it",
        description="Trains a preset on the standard library's sources and retrieval tasks, or with --part the drafter "
        "or the vision tower of a model that stays as it is, but for its router biases for pictures. A run that was "
        "stopped goes on from its folder's checkpoint. At the end FOLDER/model holds the model in the official format, "
        "with its parts.",
        epilog="Several GPUs: torchrun --nproc-per-node N -m ds41 train ... TensorBoard files are written where the "
        "package tensorboard is installed.",
    )
    train.add_argument("folder", metavar="FOLDER", help="for checkpoint, log and model; created if missing")
    train.add_argument("--preset", choices=("nano", "mini"), help="of a model from nothing (default: nano)")
    train.add_argument("--part", choices=("drafter", "vision"), help="train this beside a model, not a model")
    train.add_argument(
        "--model", metavar="CHECKPOINT", help="over bytes, that a part is trained for (default: the shipped nano)"
    )
    train.add_argument("--steps", type=int, metavar="N", help="length of the run; its stages scale (default: recipe's)")
    train.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and data (default: 0)")
    train.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    train.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)")
    train.add_argument(
        "--save-every", type=int, default=50, metavar="N", help="steps between checkpoints (default: 50)"
    )
    train.add_argument("--text", metavar="FOLDER", help="Python files to read (default: the standard library)")
    train.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another setting of the recipe, such as matrix_rate=0.004; may be repeated",
    )
    train.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    return run_command(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    # Imported here: --help and errors of usage should not wait for torch.
    _check(options)
    if options.part is not None:
        from ds41.cli_train_part import train_beside

        return train_beside(options)
    from ds41 import environment
    from ds41.checkpoint import save_checkpoint
    from ds41.training.corpus import standard_library
    from ds41.training.distributed import Workers
    from ds41.training.recipe import Recipe, preset_recipe
    from ds41.training.trainer import train

    recipe = preset_recipe(
        options.preset or "nano", options.steps, seed=options.seed, **recipe_settings(options.set, Recipe)
    )
    corpus = standard_library("train", options.text)
    found = environment.prepare(options.device)
    with Workers.of_environment(found.device) as workers:
        tell = progress(recipe.steps, _losses) if workers.rank == 0 else None
        model = train(recipe, corpus, options.folder, workers, options.save_every, tell)
        if workers.rank == 0:
            for path in save_checkpoint(model, f"{options.folder}/model", overwrite=True):
                print(path)
    return 0


def _check(options: argparse.Namespace) -> None:
    import torch

    if options.model is not None and options.part is None:
        raise ValueError(f"--model is {options.model!r}; only a --part is trained beside a model, others from nothing")
    if Path(options.folder).exists() and not Path(options.folder).is_dir():
        raise ValueError(f"FOLDER is {options.folder!r}, a file; expected a folder, or a path where none is yet")
    if options.save_every < 1:
        raise ValueError(f"--save-every is {options.save_every}; expected 1 or more")
    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"--threads is {options.threads}; expected 1 or more")
        torch.set_num_threads(options.threads)


def recipe_settings(pairs: list[str], *recipes: type) -> dict[str, object]:
    """NAME=VALUE as numbers where they are numbers.

    Args:
        recipes: the dataclasses whose fields can be set.

    Raises:
        ValueError: no such field, or no value of its kind.
    """
    # Seed and steps have options of their own; the others are no single values.
    simple = ("int", "float", "bool", "Legal")
    every = [one for recipe in recipes for one in fields(recipe) if one.name not in ("seed", "steps")]
    kinds = {one.name: one.type for one in every if one.type in simple}
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in kinds:
            raise ValueError(f"--set is {pair!r}; expected NAME=VALUE with one of {', '.join(sorted(kinds))}")
        try:
            found[name] = _value(kinds[name], text)
        except ValueError:
            expected = {"int": "a whole number", "float": "a number", "bool": "true or false"}[kinds[name]]
            raise ValueError(f"--set {name} is {text!r}; expected {expected}") from None
    return found


def _value(kind: str, text: str) -> object:
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    return {"int": int, "float": float, "Legal": str}[kind](text)


def progress(steps: int, losses: Callable[[dict], str]) -> Callable[[dict], None]:
    """Prints about once in two seconds, and the last step.

    Args:
        losses: what to say of a line of the log beside its step and the time left.
    """
    began, first, shown = 0.0, None, 0.0

    def tell(line: dict) -> None:
        nonlocal began, first, shown
        now, step = time.monotonic(), line["step"]
        if first is None:
            began, first = now - line["seconds"], step
        if now - shown < 2 and step + 1 < steps:
            return
        shown = now
        left = (now - began) / (step + 1 - first) * (steps - step - 1)
        print(
            f"step {step + 1}/{steps} {line['stage']}: {losses(line)}, {_duration(left)} left",
            file=sys.stderr,
            flush=True,
        )

    return tell


def _losses(line: dict) -> str:
    rate = line["tokens"] / line["seconds"]
    return f"loss {line['text']:.3f}, answers {line['answers']:.3f}, {rate:,.0f} tokens/s"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
