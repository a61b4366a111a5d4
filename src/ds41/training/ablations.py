"""What each axis costs and buys: a small model that has learnt to look back, without one of them, adapted and measured.

Every variant begins from the same weights, those of a nano run that was stopped half-way, and is trained on with the
same rows for the same few steps; parts that a variant adds begin as copies of those that it shared before. So the table
says what a change costs a model that can adapt to it a little, not what it would cost one that grew up with it. Twins
grow up: the design and a window-only model, each from nothing, on equal rows.

Source: ds41's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import torch

from ds41.config import ModelConfig
from ds41.ledger import Storage, bytes_per_token
from ds41.model import Model
from ds41.probes.estimates import Estimate, estimate_mean
from ds41.training.corpus import Corpus
from ds41.training.evaluation import far_enough, retrieval, row_losses, tail_losses, text_loss
from ds41.training.recipe import Recipe, Stage, later_mix, preset_recipe
from ds41.training.run_state import STATE
from ds41.training.serving_conditions import stored_weights
from ds41.training.tasks import Kind
from ds41.training.trainer import Progress, train

START = 500
"""The step of the nano run that variants begin from."""
# They are adapted on rows whose needles lie behind window and top-k, then on serving conditions.
_LENGTH, _ROWS = 192, 8
# A twin's rows, and more of the shortest: looking back has to begin within a few hundred steps.
_LENGTHS = (64, 96, 128, 192, 192)
_SHARES = (0.42, 0.14, 0.19, 0.14, 0.11)
_PART = re.compile(r"layers\.(\d+)\.attn\.(compressor|indexer)\.(.*)")


@dataclass(frozen=True)
class Variant:
    """A change. overrides: of the configuration. settings: of the recipe."""

    name: str
    says: str
    overrides: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One row of the table. bytes_per_token: of global KV. text, planted: nats a byte on held-out source, and on such
    rows with needles and queries in them. answers: share with both bytes right, far back. answer_loss: nats a byte of
    them. bounded: loss of the tokens after a bounded prefill less that after a full one."""

    variant: str
    bytes_per_token: float
    parameters: int
    steps: int
    text: Estimate
    planted: Estimate
    answers: Estimate
    answer_loss: float
    bounded: Estimate


def variants(config: ModelConfig, longest: int = _LENGTH) -> tuple[Variant, ...]:
    """The base first. longest: tokens of the longest row, all of which the dense variant selects."""
    every = tuple(plan.index for plan in config.layers if plan.ratio)
    ones = tuple(min(ratio, 1) for ratio in config.compress_ratios)
    no_pool = {"candidate_source_layer_id": -1}
    alone = {"kv_source_layer_ids": every, "index_source_layer_ids": every, **no_pool}
    return (
        Variant("base", "the design"),
        Variant("no sharing", "every global layer is Full", alone),
        Variant(
            "no Reindex",
            "a source's one selection serves all its layers",
            {"index_source_layer_ids": config.kv_source_layer_ids},
        ),
        Variant("m = 1", "an entry for every token in both halves", {"compress_ratios": ones}),
        Variant("dense", "every entry is selected", {"index_topk": longest, **no_pool}),
        Variant("no FP4", "caches and weights stay as they are", settings={"rounds": False}),
        Variant("no replay in training", "decoder windows never begin anew", settings={"replayed": 0.0}),
        Variant(
            "indexer taught by selected",
            "teacher and student see selected entries only",
            settings={"legal": "selected"},
        ),
    )


def window_only(config: ModelConfig) -> Variant:
    """The twin without global KV."""
    nothing = {"kv_source_layer_ids": (), "index_source_layer_ids": (), "candidate_source_layer_id": -1}
    return Variant("window only", "no global KV", {"compress_ratios": (0,) * config.num_hidden_layers, **nothing})


def adaptation_recipe(steps: int = 80, seed: int = 0) -> Recipe:
    """Three quarters of the steps as in the nano run's longer stages, the rest under serving conditions."""
    serving = max(1, steps // 4)
    return Recipe(
        "nano",
        (
            Stage("adaptation", steps - serving, _LENGTH, _ROWS, later_mix()),
            Stage("post-training", serving, _LENGTH, _ROWS, later_mix(), serving=True),
        ),
        seed=seed,
        warm_up=min(20, steps // 4),
    )


def twin_recipe(steps: int = 300, seed: int = 0) -> Recipe:
    """The nano recipe on rows of up to 192 tokens."""
    return preset_recipe("nano", steps, seed=seed, lengths=_LENGTHS, shares=_SHARES, tokens=1536)


def start_weights(corpus: Corpus, folder: Path, seed: int = 0, progress: Progress | None = None) -> dict:
    """The state of a nano run at step :data:`START`, trained in ``folder`` unless it is there."""
    train(preset_recipe("nano", seed=seed), corpus, folder, progress=progress, stop_at=START)
    return torch.load(folder / STATE, weights_only=True)["model"]


def adapted_weights(weights: Mapping[str, torch.Tensor], old: ModelConfig, new: ModelConfig) -> dict:
    """The weights that a model of configuration ``new`` begins with.

    What both have is taken over. A layer that becomes a source, or makes its own selection, begins with copies of what
    it borrowed; what a variant has no use for is dropped.
    """
    with torch.device("meta"):
        wanted = Model(new).state_dict()
    found = {}
    for name in wanted:
        part = _PART.fullmatch(name)
        if name in weights or part is None:
            found[name] = weights[name]
            continue
        plan = old.layers[int(part[1])]
        borrowed_keys = part[2] == "compressor" or part[3].startswith("keys.")
        source = plan.kv_source if borrowed_keys else plan.index_source
        found[name] = weights[f"layers.{source}.attn.{part[2]}.{part[3]}"]
    return found


def run_variant(
    variant: Variant,
    recipe: Recipe,
    corpus: Corpus,
    folder: Path,
    start: Mapping[str, torch.Tensor] | None = None,
    progress: Progress | None = None,
) -> Model:
    """Train a variant in ``folder / name``, from ``start`` or from nothing; a stopped run goes on."""
    changed = replace(recipe, overrides={**recipe.overrides, **variant.overrides}, **variant.settings)
    initial = None if start is None else adapted_weights(start, recipe.config(), changed.config())
    return train(changed, corpus, folder / folder_name(variant), progress=progress, initial=initial)


def folder_name(variant: Variant) -> str:
    """The name of a variant as that of a folder: no spaces and no equals sign."""
    return variant.name.replace(" ", "-").replace("=", "is")


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
            text_loss(served, corpus, length, rows, kind="planted"),
            found.answers_right,
            found.loss,
            tail_losses(served, corpus, length, rows),
        )


def twin_difference(
    first: Model, second: Model, recipe: Recipe, corpus: Corpus, kind: Kind, rows: int = 200
) -> Estimate:
    """Nats a byte by which the second model's loss lies above the first's, on the same held-out rows."""
    length, found = recipe.stages[-1].length, []
    for model in (first, second):
        with stored_weights(model):
            found.append(row_losses(model, corpus, length, rows, kind=kind))
    return estimate_mean([b - a for a, b in zip(*found, strict=True)])


def _unrounded(model: Model) -> Model:
    plain = Model(model.config, "none").to(model.device)
    plain.load_state_dict(model.state_dict())
    return plain


def _bytes(config: ModelConfig, rounds: bool) -> Fraction:
    return bytes_per_token(config, Storage.published(config) if rounds else Storage.bf16(config))


def _distance(recipe: Recipe) -> int:
    """The same for all variants: what the base's window and latest entries do not reach."""
    return far_enough(replace(recipe, overrides={}).config())
