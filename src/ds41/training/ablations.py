"""What each axis costs and buys: the same small model without one of them, trained on the same rows.

Runs are short, so differences between them are those of an early phase; all get the same steps, rows and seed. What
changes only in post-training branches off the base's run where post-training begins.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import torch

from ds41.config import ModelConfig
from ds41.ledger import Storage, bytes_per_token
from ds41.model import Model
from ds41.probes.estimates import Estimate
from ds41.training.corpus import Corpus
from ds41.training.evaluation import far_enough, retrieval, tail_losses, text_loss
from ds41.training.recipe import Recipe, preset_recipe
from ds41.training.serving_conditions import stored_weights
from ds41.training.trainer import STATE, Progress, train

# Shorter rows than the shipped model's, and more of the shortest: retrieval has to begin within a few hundred steps.
_LENGTHS = (64, 96, 128, 192, 192)
_SHARES = (0.42, 0.14, 0.19, 0.14, 0.11)
_TOKENS = 1536


@dataclass(frozen=True)
class Variant:
    """A change. overrides: of the configuration. settings: of the recipe. branches: whether they act in post-training
    alone, so that the run can begin there."""

    name: str
    says: str
    overrides: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    branches: bool = False


@dataclass(frozen=True)
class Result:
    """One row of the table. bytes_per_token: of global KV. text: nats a byte on held-out source. answers: share with
    both bytes right, far back. answer_loss: nats a byte of them. bounded: loss of the tokens after a bounded prefill
    less that after a full one."""

    variant: str
    bytes_per_token: float
    parameters: int
    steps: int
    text: Estimate
    answers: Estimate
    answer_loss: float
    bounded: Estimate


def variants(config: ModelConfig, longest: int) -> tuple[Variant, ...]:
    """The base first. longest: tokens of the longest row, all of which the dense variant selects."""
    every = tuple(plan.index for plan in config.layers if plan.ratio)
    layers = config.num_hidden_layers
    ones = tuple(min(ratio, 1) for ratio in config.compress_ratios)
    no_pool = {"candidate_source_layer_id": -1}
    alone = {"kv_source_layer_ids": every, "index_source_layer_ids": every, **no_pool}
    windows = {"kv_source_layer_ids": (), "index_source_layer_ids": (), **no_pool}
    return (
        Variant("base", "the design"),
        Variant("window only", "no global KV", {"compress_ratios": (0,) * layers, **windows}),
        Variant("dense", "every entry is selected", {"index_topk": longest, **no_pool}),
        Variant("no sharing", "every global layer is Full", alone),
        Variant("m = 1", "an entry for every token in both halves", {"compress_ratios": ones}),
        Variant(
            "no Reindex",
            "a source's one selection serves all its layers",
            {"index_source_layer_ids": config.kv_source_layer_ids},
        ),
        Variant("no FP4", "caches and weights stay as they are", settings={"rounds": False}, branches=True),
        Variant("no replay in training", "decoder windows never begin anew", settings={"replayed": 0.0}, branches=True),
        Variant(
            "indexer taught by selected",
            "teacher and student see selected entries only",
            settings={"legal": "selected"},
        ),
    )


def ablation_recipe(steps: int = 300, seed: int = 0, **settings: object) -> Recipe:
    """The nano recipe on rows of up to 192 tokens."""
    return preset_recipe("nano", steps, seed=seed, lengths=_LENGTHS, shares=_SHARES, tokens=_TOKENS, **settings)


def run_variant(
    variant: Variant, recipe: Recipe, corpus: Corpus, folder: Path, progress: Progress | None = None
) -> Model:
    """Train a variant in ``folder / name``, from where an earlier call was stopped."""
    changed = replace(recipe, overrides={**recipe.overrides, **variant.overrides}, **variant.settings)
    own = folder / variant.name.replace(" ", "-").replace("=", "is")
    if variant.branches and not (own / STATE).exists():
        start = sum(stage.steps for stage in recipe.stages if not stage.serving)
        trunk = folder / "trunk"
        train(recipe, corpus, trunk, save_every=start, progress=progress, stop_at=start)
        branch(trunk, own, changed)
    return train(changed, corpus, own, progress=progress)


def branch(trunk: Path, folder: Path, recipe: Recipe) -> None:
    """Let a run under ``recipe`` go on from where another one stands."""
    folder.mkdir(parents=True, exist_ok=True)
    state = torch.load(trunk / STATE, weights_only=True)
    torch.save(state | {"recipe": json.loads(json.dumps(recipe.to_dict()))}, folder / STATE)
    shutil.copy(trunk / "log.jsonl", folder / "log.jsonl")


def measure(variant: Variant, model: Model, recipe: Recipe, corpus: Corpus, rows: int = 200) -> Result:
    """Quality on held-out rows as the model would serve, its weights as a checkpoint keeps them."""
    length, config = recipe.stages[-1].length, model.config
    rounds = bool(variant.settings.get("rounds", True))
    served = model if rounds else _unrounded(model)
    with stored_weights(served, rounds):
        found = retrieval(served, corpus, length, rows, least_distance=_distance(recipe))
        return Result(
            variant.name,
            float(_bytes(config, rounds)),
            sum(parameter.numel() for parameter in model.parameters()),
            recipe.steps,
            text_loss(served, corpus, length, rows),
            found.answers_right,
            found.loss,
            tail_losses(served, corpus, length, rows),
        )


def _unrounded(model: Model) -> Model:
    plain = Model(model.config, "none").to(model.device)
    plain.load_state_dict(model.state_dict())
    return plain


def _bytes(config: ModelConfig, rounds: bool) -> Fraction:
    return bytes_per_token(config, Storage.published(config) if rounds else Storage.bf16(config))


def _distance(recipe: Recipe) -> int:
    """The same for all variants: what the base's window and latest entries do not reach."""
    return far_enough(replace(recipe, overrides={}).config())
