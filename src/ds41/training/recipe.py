"""What a training run does: its stages, learning rates and losses. The published recipe, scaled.

Published and kept: sparse attention from the first step, with no dense warm-up; Muon for matrices; a learning rate
that is held, falls as a cosine to a tenth between 62 % and 89 % of the run, and is held again; context extended late;
router biases moved by 0.001, a sequence loss of 1e-4; candidate pool, rounding and simulated replay in post-training
only; Engram tables at five times the learning rate and without weight decay. Chosen here, since it is not published
or has no sense at this size: the data, the lengths, AdamW for embedding, head and tables, the indexer's signal.

Source: report sections 2.1, 2.4, 2.5, 3.2, 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace

from ds41.config import ModelConfig
from ds41.training.alignment import Legal
from ds41.training.tasks import KINDS, LINE, Kind

_HELD, _FALLEN, _FLOOR = 0.62, 0.89, 0.1


@dataclass(frozen=True)
class Stage:
    """Steps alike. length: tokens of a row. rows: of a step, over all workers. serving: with pool, rounding, replay."""

    name: str
    steps: int
    length: int
    rows: int
    mix: Mapping[Kind, float]
    serving: bool = False


@dataclass(frozen=True)
class Recipe:
    """A run. Two runs with equal recipes on equal text and machines give equal models.

    seed: of weights and rows, below 2^16. matrix_rate, other_rate: learning rates of Muon and AdamW. weight_decay: of
    matrices. warm_up: steps. clip: largest norm of all gradients together. alignment: weight of the indexer's loss,
    of ``aligned`` queries a row; legal: over which entries. bias_speed: of router biases. balance: weight of the
    sequence loss. replayed: share of rows of a serving stage whose decoder windows begin anew. rounds: whether such
    a stage rounds weights, caches and queries. overrides: of the preset's configuration.

    Raises:
        ValueError: names the setting, its value and what was expected.
    """

    preset: str
    stages: tuple[Stage, ...]
    seed: int = 0
    matrix_rate: float = 8e-3
    other_rate: float = 3e-3
    weight_decay: float = 0.1
    warm_up: int = 20
    clip: float = 1.0
    alignment: float = 0.1
    aligned: int = 64
    legal: Legal = "visible"
    bias_speed: float = 0.001
    balance: float = 1e-4
    replayed: float = 0.5
    rounds: bool = True
    overrides: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @property
    def steps(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    @property
    def tokens(self) -> int:
        """Tokens of all rows of all steps."""
        return sum(stage.steps * stage.rows * stage.length for stage in self.stages)

    def config(self) -> ModelConfig:
        """The preset's configuration with the run's overrides."""
        return replace(PRESETS[self.preset].config(), **self.overrides)

    def at(self, step: int) -> Stage:
        """The stage of a step, counted from 0.

        Raises:
            ValueError: the recipe has fewer steps.
        """
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        raise ValueError(f"the recipe has {self.steps} steps; there is none beyond")

    def rate(self, step: int) -> float:
        """Factor on both learning rates: a short rise, held, a cosine to a tenth, held."""
        rise = min(1.0, (step + 1) / self.warm_up) if self.warm_up else 1.0
        place = min(1.0, max(0.0, (step / self.steps - _HELD) / (_FALLEN - _HELD)))
        return rise * (_FLOOR + (1 - _FLOOR) * (1 + math.cos(math.pi * place)) / 2)

    def to_dict(self) -> dict:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Preset:
    """How a preset's run is cut. steps: of the whole run. tokens: of a step, at most; pass_tokens: of a pass, whose
    gradients a step sums. lengths: of a row, by stage."""

    config: Callable[[], ModelConfig]
    steps: int
    tokens: int
    pass_tokens: int
    lengths: tuple[int, ...]


PRESETS = {
    # Window 32, top-k 32: at 384 tokens a needle lies up to eleven windows back among up to 40 others.
    "nano": Preset(ModelConfig.nano, 1500, 1536, 1536, (64, 128, 256, 384)),
    # Window 128, top-k 128. A pass keeps 5.9 MB a token for its backward, so that 1,024 fit beside 6 GB of weights,
    # gradients and momentum on a GPU of 15 GB.
    "mini": Preset(ModelConfig.mini, 450, 8192, 1024, (256, 512, 768, 1024)),
}
"""Recipes by preset: configuration, steps, tokens of a batch, rows' lengths by stage."""
_NAMES = ("short", "longer", "long", "extended", "post-training")
_SHARES = (0.15, 0.15, 0.34, 0.25, 0.11)
_FIRST: Mapping[Kind, float] = {"stream": 0.7, "recall": 0.2, "source": 0.1}
_LATER: Mapping[Kind, float] = {"stream": 0.3, "recall": 0.25, "planted": 0.2, "source": 0.2, "copy": 0.05}


def preset_recipe(
    preset: str,
    steps: int | None = None,
    lengths: Sequence[int] | None = None,
    shares: Sequence[float] = _SHARES,
    tokens: int | None = None,
    **settings: object,
) -> Recipe:
    """The recipe of a preset, its stages scaled to ``steps`` steps; settings as in :class:`Recipe`.

    Args:
        lengths: of the five stages' rows, shares: of the steps, tokens: of a step, where they are not the preset's.

    Raises:
        ValueError: an unknown preset or setting, or a value outside of its range.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; expected one of {', '.join(map(repr, PRESETS))}")
    known = {one.name for one in fields(Recipe)} - {"preset", "stages"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(f"unknown settings {', '.join(unknown)}; expected some of {', '.join(sorted(known))}")
    found = PRESETS[preset]
    total = found.steps if steps is None else steps
    if total < len(_NAMES):
        raise ValueError(f"steps is {total}; expected {len(_NAMES)} or more, one for each stage")
    lengths = (*found.lengths, found.lengths[-1]) if lengths is None else lengths
    ends = [max(number, round(total * sum(shares[:number]))) for number in range(1, len(_NAMES))] + [total]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    stages = [
        Stage(
            name,
            count,
            length,
            max(1, (tokens or found.tokens) // length),
            _FIRST if number == 0 else _LATER,
            serving=number == len(_NAMES) - 1,
        )
        for number, (name, count, length) in enumerate(zip(_NAMES, counts, lengths, strict=True))
    ]
    return Recipe(preset, tuple(stages), **settings)


def later_mix() -> dict[Kind, float]:
    """The mix of all stages but the first."""
    return dict(_LATER)


def check(recipe: Recipe) -> None:
    """Refuse a run that could not work, before its first step.

    Raises:
        ValueError: names the setting, its value and what was expected.
    """
    if recipe.preset not in PRESETS:
        raise ValueError(f"preset is {recipe.preset!r}; expected one of {', '.join(map(repr, PRESETS))}")
    # A step's seed is made of this one, the worker's rank and the step, in 64 bits.
    _need("seed", recipe.seed, 0, 2**16 - 1)
    for name in ("matrix_rate", "other_rate", "clip"):
        _need(name, getattr(recipe, name), 0, open_below=True)
    for name in ("weight_decay", "warm_up", "alignment", "bias_speed", "balance"):
        _need(name, getattr(recipe, name), 0)
    _need("aligned", recipe.aligned, 1)
    _need("replayed", recipe.replayed, 0, 1)
    if recipe.legal not in ("visible", "selected"):
        raise ValueError(f"legal is {recipe.legal!r}; expected 'visible' or 'selected'")
    if not recipe.stages:
        raise ValueError("stages is empty; expected one or more")
    unknown = sorted(set(recipe.overrides) - {one.name for one in fields(ModelConfig)})
    if unknown:
        raise ValueError(f"unknown overrides {', '.join(unknown)}; expected fields of a ModelConfig")
    longest = recipe.config().max_position_embeddings
    for stage in recipe.stages:
        _need(f"steps of stage {stage.name!r}", stage.steps, 1)
        _need(f"rows of stage {stage.name!r}", stage.rows, 1)
        _need(f"length of stage {stage.name!r}", stage.length, 2 + 2 * LINE, longest)
        unknown = sorted(set(stage.mix) - set(KINDS))
        if unknown or not stage.mix or min(stage.mix.values()) < 0 or sum(stage.mix.values()) <= 0:
            raise ValueError(
                f"mix of stage {stage.name!r} is {dict(stage.mix)}; expected weights of zero or more, not all zero, "
                f"for {', '.join(KINDS)}"
            )


def _need(name: str, value: float, least: float, most: float = math.inf, open_below: bool = False) -> None:
    inside = least < value <= most if open_below else least <= value <= most
    if not (math.isfinite(value) and inside):
        above = "more than" if open_below else "at least"
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise ValueError(f"{name} is {value}; expected {above} {least:g}{upper}")
