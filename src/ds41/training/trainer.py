"""One training run: steps, checkpoints that a killed run continues from, and its log.

Source: ds41's own.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ds41.expert_balance import expert_load, update_bias
from ds41.model import Model
from ds41.training.corpus import Corpus
from ds41.training.distributed import Workers
from ds41.training.losses import Losses, step_losses
from ds41.training.optimizers import Optimizers, clip_gradients
from ds41.training.recipe import PRESETS, Recipe
from ds41.training.run_log import RunLog
from ds41.training.run_state import STATE, digest, read_state, write_state
from ds41.training.serving_conditions import set_conditions, stored_weights
from ds41.training.signals import Signals
from ds41.training.stream import make_batch

Progress = Callable[[dict], None]
"""Called after every step with its line of the log."""


def train(
    recipe: Recipe,
    corpus: Corpus,
    folder: str | Path,
    workers: Workers | None = None,
    save_every: int = 50,
    progress: Progress | None = None,
    stop_at: int | None = None,
    initial: Mapping[str, torch.Tensor] | None = None,
) -> Model:
    """Run a recipe to its end, from the checkpoint in ``folder`` if there is one.

    Args:
        folder: gets ``state.pt`` (model, optimisers, step; replaced as a whole) and ``log.jsonl`` (a line a step).
        workers: who shares the work; None for this process alone, on the CPU.
        save_every: steps between checkpoints. progress: called after every step with its line of the log.
        stop_at: leave after this step, with a checkpoint; what an interruption does.
        initial: weights to begin with, in place of random ones.

    Returns:
        The model, in float32, its full weights.

    Raises:
        ValueError: ``save_every`` below 1, or rows that do not divide among the workers; nothing is written then.
        ResumeError: the checkpoint belongs to another recipe or text, or cannot be read.
        FloatingPointError: a loss is not finite; the last checkpoint stands.
    """
    if save_every < 1:
        raise ValueError(f"save_every is {save_every}; expected 1 or more")
    folder, workers = Path(folder), workers or Workers()
    for stage in recipe.stages:
        workers.rows(stage.rows)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    model = Model(recipe.config(), "cache")
    identity = {"recipe": json.loads(json.dumps(recipe.to_dict())), "text": corpus.digest, "initial": digest(initial)}
    if initial is not None:
        model.load_state_dict(initial)
    model.to(workers.device)
    workers.shard(model)
    optimizers = Optimizers(model, recipe)
    start = _restore(folder / STATE, identity, model, optimizers, workers)
    last = recipe.steps if stop_at is None else min(stop_at, recipe.steps)
    with Signals(model) as signals, RunLog(folder, start, writes=workers.rank == 0) as log:
        for step in range(start, last):
            line = _step(model, signals, optimizers, recipe, corpus, workers, step)
            log.write(line)
            if progress is not None:
                progress(line)
            if (step + 1) % save_every == 0 or step + 1 == last:
                _save(folder / STATE, identity, model, optimizers, workers, step + 1)
    set_conditions(model, serving=True)
    return model if workers.count == 1 else _gathered(model, recipe, workers)


def _step(
    model: Model,
    signals: Signals,
    optimizers: Optimizers,
    recipe: Recipe,
    corpus: Corpus,
    workers: Workers,
    step: int,
) -> dict:
    began = time.perf_counter()
    stage = recipe.at(step)
    set_conditions(model, stage.serving, recipe.rounds)
    with stored_weights(model, stage.serving and recipe.rounds):
        losses, loads = _gradients(model, signals, recipe, corpus, workers, step)
    norm = clip_gradients(model, recipe.clip)
    line = {"step": step, "stage": stage.name, "rate": recipe.rate(step), "gradient_norm": norm}
    line |= {name: float(value) for name, value in losses._asdict().items()}
    if not math.isfinite(line["total"] + norm):
        raise FloatingPointError(f"step {step}: loss {line['total']}, gradient norm {norm}; the last checkpoint stands")
    optimizers.step(line["rate"])
    for layer, load in loads.items():
        update_bias(model.layers[layer].ffn.gate.bias, workers.total(load), recipe.bias_speed)
    return line | {"seconds": time.perf_counter() - began, "tokens": stage.rows * stage.length}


def _gradients(
    model: Model, signals: Signals, recipe: Recipe, corpus: Corpus, workers: Workers, step: int
) -> tuple[Losses, dict[int, torch.Tensor]]:
    """Leave this worker's gradients of a step in the model, pass by pass; the mean losses of all
    workers, each a mean over its passes, and each layer's load here."""
    stage = recipe.at(step)
    first, count = workers.rows(stage.rows)
    each = max(1, PRESETS[recipe.preset].pass_tokens // stage.length)
    found, answers, loads = [], [], {}
    for start in range(0, count, each):
        rows = min(each, count - start)
        name = f"train {recipe.seed} {step}"
        batch = make_batch(corpus, stage.mix, rows, stage.length, name, first + start).to(workers.device)
        seed = (recipe.seed * 2**16 + workers.rank) * 2**32 + start * 2**24 + step
        losses = step_losses(model, signals, batch, stage, recipe, seed)
        (losses.total * (rows / count)).backward()
        answered = sum(len(row) for row in batch.asked)
        # A pass without answers has no loss of them.
        answers.append((float(losses.answers) * answered if answered else 0.0, answered))
        found.append(torch.stack([value.detach() for value in losses[:-1]]) * (rows / count))
        for layer, routing in signals.routing.items():
            load = expert_load(routing.indices, len(model.layers[layer].ffn.gate.bias))
            loads[layer] = loads[layer] + load if layer in loads else load
    told = workers.total(torch.tensor(answers, dtype=torch.float64, device=workers.device).sum(0))
    return Losses(*workers.mean(torch.stack(found).sum(0)), told[0] / told[1]), loads


def _gathered(model: Model, recipe: Recipe, workers: Workers) -> Model:
    """A model of its own with the whole weights, on the first worker; elsewhere the shards."""
    whole, _ = workers.state(model, ())
    if workers.rank:
        return model
    gathered = Model(recipe.config(), "cache")
    gathered.load_state_dict(whole)
    return gathered


def _save(path: Path, identity: dict, model: Model, optimizers: Optimizers, workers: Workers, step: int) -> None:
    whole, states = workers.state(model, optimizers.each)
    if workers.rank:
        return
    write_state(path, {"model": whole, "optimizers": states, "step": step, **identity})


def _restore(path: Path, identity: dict, model: Model, optimizers: Optimizers, workers: Workers) -> int:
    """The step to go on with."""
    state = read_state(path, identity)
    if state is None:
        return 0
    workers.restore(model, optimizers.each, state["model"], state["optimizers"])
    return state["step"]
