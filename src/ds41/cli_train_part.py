"""``ds41 train --part``: the drafter or the vision tower of a model, which stays frozen beside it."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from typing import TYPE_CHECKING

from ds41.cli_train import progress, recipe_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenizers import Tokenizer
    from torch import nn

    from ds41.model import Model
    from ds41.training.parts import PartRecipe

# What a line of the log holds beside losses.
_NO_LOSSES = ("step", "stage", "rate", "gradient_norm", "seconds")
_MOST_SEED = 2**31 - 1


def train_beside(options: argparse.Namespace) -> int:
    """Train a part, and write it with its model and the other part that this has."""
    import torch

    from ds41 import environment
    from ds41.checkpoint import load_checkpoint, save_checkpoint
    from ds41.trained import trained_folder

    _check(options)
    recipe = _recipe(options)
    source = trained_folder() if options.model is None else options.model
    found = environment.prepare(options.device)
    model = load_checkpoint(source, "cache", torch.float32, found.device)
    tokenizer = _byte_tokenizer(source)
    other = _other_part(options, source, model)
    trained = _train(options, model, recipe)
    parts = {options.part: trained, **other}
    for path in save_checkpoint(model, f"{options.folder}/model", tokenizer, overwrite=True, **parts):
        print(path)
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.preset is not None:
        raise ValueError(
            f"--preset is {options.preset!r}, a model from nothing; a part is trained beside a checkpoint: give that "
            "with --model"
        )
    if options.part == "vision" and options.text is not None:
        raise ValueError(f"--text is {options.text!r}; vision is trained on pictures, a drafter on text")
    if not 0 <= options.seed <= _MOST_SEED:
        raise ValueError(f"--seed is {options.seed}; expected 0 to {_MOST_SEED}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}; a part is trained by one process, without torchrun"
        )


def _recipe(options: argparse.Namespace) -> PartRecipe:
    from ds41.training.drafting import DraftPlan, draft_recipe
    from ds41.training.parts import PartRecipe
    from ds41.training.seeing import SeeingPlan, matching_steps, vision_recipe

    make, plan = {"drafter": (draft_recipe, DraftPlan), "vision": (vision_recipe, SeeingPlan)}[options.part]
    settings = recipe_settings(options.set, PartRecipe, plan)
    sizes = {one.name: settings.pop(one.name) for one in fields(plan) if one.name in settings}
    for name, value in sizes.items():
        if value < (name != "matching"):
            raise ValueError(f"--set {name} is {value}; expected {int(name != 'matching')} or more")
    if options.steps is not None:
        settings["steps"] = options.steps
        if options.part == "vision":
            sizes.setdefault("matching", matching_steps(options.steps))
    return make(plan=plan(**sizes), seed=options.seed, **settings)


def _byte_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a model whose tokens are bytes: rows for training are made of them."""
    from ds41.tokenizer import byte_tokenizer, load_tokenizer

    found = load_tokenizer(source)
    if found.get_vocab() != byte_tokenizer().get_vocab():
        raise ValueError(
            f"the tokenizer of {source} is not that of the presets; a part is trained for a model over bytes"
        )
    return found


def _other_part(options: argparse.Namespace, source: str | Path, model: Model) -> dict[str, nn.Module]:
    """The part that is not trained, by name; nothing if the checkpoint has none."""
    import torch

    from ds41.checkpoint import inspect_checkpoint
    from ds41.dspark import load_drafter
    from ds41.vision import load_vision

    name = "vision" if options.part == "drafter" else "drafter"
    if not inspect_checkpoint(source, name).tensors:
        return {}
    load = {"drafter": load_drafter, "vision": load_vision}[name]
    return {name: load(source, dtype=torch.float32, device=model.device)}


def _train(options: argparse.Namespace, model: Model, recipe: PartRecipe) -> nn.Module:
    from ds41.training.corpus import standard_library
    from ds41.training.digits import digit_pictures
    from ds41.training.drafting import train_drafter
    from ds41.training.seeing import train_vision

    rest = (options.folder, recipe, options.save_every, _progress(recipe))
    if options.part == "drafter":
        return train_drafter(model, standard_library("train", options.text), *rest)
    try:
        digit_pictures("train")
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    return train_vision(model, *rest)


def _progress(recipe: PartRecipe) -> Callable[[dict], None]:
    """Of both stages, where there are two."""
    main = progress(recipe.steps, _losses)
    matching = progress(recipe.settings.get("matching", 0), _losses)

    def tell(line: dict) -> None:
        # Only the first stage of vision says which pictures have found their texts.
        if "right" in line:
            matching(line | {"stage": "matching"})
        else:
            main(line)

    return tell


def _losses(line: dict) -> str:
    losses = ", ".join(f"{name} {value:.3f}" for name, value in line.items() if name not in _NO_LOSSES)
    return f"{losses}, {line['seconds']:.2f} s a step"
