"""Training a part beside a frozen model: the drafter, or the vision tower. Steps, checkpoints, a log.

Both are trained in stages of their own, without gradients into the backbone (report sections 2.4.3 and 4.2.2).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from ds41.expert_balance import expert_load, update_bias
from ds41.model import Model
from ds41.moe import Router
from ds41.training.optimizers import Optimizers, clip_gradients
from ds41.training.run_log import RunLog
from ds41.training.run_state import STATE, ResumeError, digest, read_state, write_state
from ds41.training.serving_conditions import stored_weights
from ds41.training.trainer import Progress

# From the number of a step to its losses, scalars by name; "total" is minimised.
StepLosses = Callable[[int], Mapping[str, torch.Tensor]]
_HELD, _FLOOR = 0.5, 0.05


@dataclass(frozen=True)
class PartRecipe:
    """How a part is trained. matrix_rate: of Muon. other_rate: of AdamW. rounded: from this share of the run on the
    weights have the values that a checkpoint keeps. settings: what else makes the run what it is.

    Raises:
        ValueError: names the setting, its value and what was expected.
    """

    part: Literal["drafter", "vision"]
    steps: int
    seed: int = 0
    matrix_rate: float = 8e-3
    other_rate: float = 3e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    warm_up: int = 20
    bias_speed: float = 0.001
    rounded: float = 0.8
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("steps", "matrix_rate", "other_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        # A step's seed is made of this one and the step, in 63 bits.
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed is {self.seed}; expected 0 to 2^31 - 1")
        for name in ("weight_decay", "warm_up", "bias_speed", "rounded"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")

    def rate(self, step: int) -> float:
        """Factor on both learning rates: a short rise, held, and a cosine to a twentieth over the second half."""
        rise = min(1.0, (step + 1) / self.warm_up) if self.warm_up else 1.0
        place = max(0.0, (step / self.steps - _HELD) / (1 - _HELD))
        return rise * (_FLOOR + (1 - _FLOOR) * (1 + math.cos(math.pi * place)) / 2)

    def to_dict(self) -> dict:
        """Plain values, for JSON."""
        return json.loads(json.dumps(asdict(self)))


class Balance:
    """Moves the biases of routers after a step, by the load of one modality that passed through them.

    Args:
        routers: those to watch. images: whether ``bias_vl`` moves, by the image positions alone; else ``bias``, by all.
    """

    def __init__(self, routers: list[Router], images: bool = False) -> None:
        self.routers, self.images = routers, images
        self._loads: list[torch.Tensor | None] = [None] * len(routers)
        self._hooks = [
            router.register_forward_hook(lambda _, given, routing, number=number: self._count(number, given, routing))
            for number, router in enumerate(routers)
        ]

    @property
    def biases(self) -> list[torch.Tensor]:
        return [router.bias_vl if self.images else router.bias for router in self.routers]

    def close(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def update(self, speed: float) -> None:
        """Move every bias by ``speed`` and forget the loads."""
        for number, (bias, load) in enumerate(zip(self.biases, self._loads, strict=True)):
            if load is not None:
                update_bias(bias, load, speed)
            self._loads[number] = None

    def _count(self, number: int, given: tuple, routing) -> None:
        indices = routing.indices
        if self.images:
            mask = given[1] if len(given) > 1 else None
            indices = indices[:0] if mask is None else indices[mask]
        load = expert_load(indices, len(self.routers[number].bias))
        self._loads[number] = load if self._loads[number] is None else self._loads[number] + load


def train_part(
    module: nn.Module,
    losses: StepLosses,
    balance: Balance,
    recipe: PartRecipe,
    identity: Mapping[str, object],
    folder: str | Path,
    save_every: int = 50,
    progress: Progress | None = None,
    stop_at: int | None = None,
) -> None:
    """Train ``module`` to the end of its recipe, from the checkpoint in ``folder`` if there is one.

    Args:
        losses: runs a step and gives its losses. balance: of the routers whose load it makes. identity: what the run
            depends on beside its recipe; a checkpoint of another one is refused.
        folder, save_every, progress, stop_at: as in :func:`ds41.training.trainer.train`.

    Raises:
        ResumeError: the checkpoint belongs to another run, or cannot be read. FloatingPointError: a loss is not
            finite; the last checkpoint stands.
    """
    if save_every < 1:
        raise ValueError(f"save_every is {save_every}; expected 1 or more")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    known = _known(recipe, identity)
    optimizers = Optimizers(module, recipe)
    start = _restore(folder / STATE, known, module, balance, optimizers)
    last = recipe.steps if stop_at is None else min(stop_at, recipe.steps)
    with RunLog(folder, start) as log:
        for step in range(start, last):
            began = time.perf_counter()
            rounds = step >= recipe.rounded * recipe.steps
            with stored_weights(module, rounds):
                found = losses(step)
                found["total"].backward()
            norm = clip_gradients(module, recipe.clip)
            line = {"step": step, "stage": "rounded" if rounds else "full", "rate": recipe.rate(step)}
            line |= {"gradient_norm": norm} | {name: float(value.detach()) for name, value in found.items()}
            if not math.isfinite(line["total"] + norm):
                raise FloatingPointError(
                    f"step {step}: loss {line['total']}, gradient norm {norm}; the last checkpoint stands"
                )
            optimizers.step(line["rate"])
            balance.update(recipe.bias_speed)
            line["seconds"] = time.perf_counter() - began
            log.write(line)
            if progress is not None:
                progress(line)
            if (step + 1) % save_every == 0 or step + 1 == last:
                _save(folder / STATE, known, module, balance, optimizers, step + 1)


def check_resumable(folder: str | Path, recipe: PartRecipe, identity: Mapping[str, object]) -> None:
    """Refuse a folder whose checkpoint :func:`train_part` would refuse, before anything else is done (ResumeError)."""
    read_state(Path(folder) / STATE, _known(recipe, identity))


def model_digest(model: Model, without: str = "") -> str:
    """SHA-256 of a model's configuration and its weights, but for those whose names end with ``without``."""
    kept = {name: value for name, value in model.state_dict().items() if not (without and name.endswith(without))}
    return hashlib.sha256(f"{asdict(model.config)} {digest(kept)}".encode()).hexdigest()


def _known(recipe: PartRecipe, identity: Mapping[str, object]) -> dict:
    """What a checkpoint has to agree with, as plain values."""
    return {"recipe": recipe.to_dict(), **json.loads(json.dumps(dict(identity)))}


def _save(path: Path, known: dict, module: nn.Module, balance: Balance, optimizers: Optimizers, step: int) -> None:
    states = [each.state_dict() for each in optimizers.each]
    biases = [bias.detach() for bias in balance.biases]
    write_state(path, {"module": module.state_dict(), "biases": biases, "optimizers": states, "step": step, **known})


def _restore(path: Path, known: dict, module: nn.Module, balance: Balance, optimizers: Optimizers) -> int:
    """The step to go on with."""
    state = read_state(path, known)
    if state is None:
        return 0
    try:
        module.load_state_dict(state["module"])
        with torch.no_grad():
            for bias, saved in zip(balance.biases, state["biases"], strict=True):
                bias.copy_(saved)
        for optimizer, saved in zip(optimizers.each, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return state["step"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        fault = str(error).splitlines()[0]
        raise ResumeError(f"{path} does not fit a {known['recipe']['part']} of this configuration: {fault}") from error
