"""Training the vision tower through a frozen language model: it learns what to say so that the model answers right.

Stated by the report (section 4.2.2): the tower first learns to match pictures with texts, as SigLIP does, then with a
language model behind it; router biases for image positions follow their own load. Chosen here: a frozen model, the
task, and for the texts of the first stage a table of them in place of an encoder.

Source: report section 4.2.2; ds41's own task.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from ds41.config import ModelConfig
from ds41.expert_balance import expert_load
from ds41.model import Model
from ds41.probes.estimates import Estimate, estimate_share
from ds41.training.corpus import Split
from ds41.training.digits import PLACES, QUESTIONS, Question, Seen, make_rows
from ds41.training.parts import Balance, PartRecipe, check_resumable, model_digest, train_part
from ds41.training.trainer import Progress
from ds41.vision import Vision, VisionTower


@dataclass(frozen=True)
class SeeingPlan:
    """rows: pictures of a step. matching: steps of the first stage, matched: pictures of one of them."""

    rows: int = 16
    matching: int = 1600
    matched: int = 48


class Matcher(nn.Module):
    """The first stage: pictures and texts as unit vectors, each pair judged alone by a sigmoid (arXiv 2303.15343).

    Only ``tower`` is kept; the aligner first learns in the second stage, where it has to speak to the model. A text
    says what is shown and where; it is the sum of two rows of a table.
    """

    def __init__(self, config: ModelConfig, tower: VisionTower) -> None:
        super().__init__()
        self.config, self.tower = config, tower
        width = config.vision.hidden_size
        self.embed = nn.Embedding(10 + len(PLACES), width)
        self.scale = nn.Parameter(torch.tensor(2.3))
        self.bias = nn.Parameter(torch.tensor(-4.0))

    def forward(self, seen: Seen) -> torch.Tensor:
        """Logits of every picture with every text, [B, 10 * places]."""
        weight = self.tower.patch_embed.proj.weight
        patches = torch.cat([patches for patches, _ in seen.images]).to(weight)
        grids = [(plan.patches_down, plan.patches_across) for _, plan in seen.images]
        counts = [plan.patches for _, plan in seen.images]
        pooled = [features.mean(0) for features in self.tower(patches, grids).split(counts)]
        pictures = nn.functional.normalize(torch.stack(pooled).to(torch.float32), dim=-1)
        digits, places = self.embed.weight.split((10, len(PLACES)))
        texts = nn.functional.normalize((digits[:, None] + places).flatten(0, 1), dim=-1)
        return pictures @ texts.T * self.scale.exp() + self.bias

    def losses(self, seen: Seen) -> dict[str, torch.Tensor]:
        """Nats a picture, over all of its pairs; right: the share of pictures whose own text is the likeliest."""
        logits = self(seen)
        texts = torch.tensor([scene.digit * len(PLACES) + PLACES.index(scene.place) for scene in seen.scenes])
        texts = texts.to(logits.device)
        signs = 2 * nn.functional.one_hot(texts, logits.shape[1]) - 1
        total = -nn.functional.logsigmoid(signs * logits).sum(1).mean()
        return {"total": total, "right": (logits.argmax(1) == texts).float().mean()}


def vision_recipe(steps: int = 1400, plan: SeeingPlan | None = None, **settings: object) -> PartRecipe:
    """The recipe of nano's tower, ``steps`` of them with the model behind it; settings as in :class:`PartRecipe`."""
    plan = plan or SeeingPlan(matching=matching_steps(steps))
    return PartRecipe("vision", steps, settings=asdict(plan), **settings)


def matching_steps(steps: int) -> int:
    """Steps of the first stage that go with so many of the second: eight to seven."""
    return max(1, round(steps * 8 / 7))


def train_vision(
    model: Model,
    folder: str | Path,
    recipe: PartRecipe,
    save_every: int = 50,
    progress: Progress | None = None,
    stop_at: int | None = None,
) -> Vision:
    """A tower for a model; arguments as in :func:`ds41.training.parts.train_part`, of both stages.

    The first stage runs in the folder ``matching`` within ``folder``. ``stop_at`` counts the second stage's steps. Of
    the model only ``gate.bias_vl`` changes, in place: the routers' biases for image positions.

    Raises:
        ResumeError: the checkpoint in ``folder`` belongs to another recipe or model, or cannot be read.
    """
    torch.manual_seed(recipe.seed)
    vision = Vision(model.config, model.dtype).to(model.device)
    plan = SeeingPlan(**recipe.settings)
    model.requires_grad_(False)
    # The image biases move with the run.
    identity = {"task": "digits", "model": model_digest(model, without="bias_vl")}
    check_resumable(folder, recipe, identity)

    def matched(step: int) -> dict[str, torch.Tensor]:
        name = f"matching {recipe.seed}"
        return matcher.losses(make_rows(model.config, "train", name, step * plan.matched, plan.matched))

    def losses(step: int) -> dict[str, torch.Tensor]:
        seen = make_rows(model.config, "train", f"vision {recipe.seed}", step * plan.rows, plan.rows)
        return answer_losses(model, vision, seen)

    if plan.matching:
        matcher = Matcher(model.config, vision.vision).to(model.device)
        first = replace(recipe, steps=plan.matching, rounded=1.0)
        matched_in = Path(folder) / "matching"
        tower = {"task": "digits", "vision": asdict(model.config.vision)}
        train_part(matcher, matched, Balance([]), first, tower, matched_in, save_every, progress)
    balance = Balance([block.ffn.gate for block in model.layers], images=True)
    try:
        train_part(vision, losses, balance, recipe, identity, folder, save_every, progress, stop_at)
    finally:
        balance.close()
    return vision


def see(model: Model, vision: Vision, seen: Seen) -> torch.Tensor:
    """Logits of rows with pictures, float32 [B, T, vocab]; differentiable in the vision part."""
    images = [(patches.to(model.device), plan) for patches, plan in seen.images]
    return model(seen.ids.to(model.device), image_vectors=torch.cat(vision(images)))


def answer_losses(model: Model, vision: Vision, seen: Seen) -> dict[str, torch.Tensor]:
    """Nats an answer token, and for each question alone."""
    logits = see(model, vision, seen)
    found: dict[str, list[torch.Tensor]] = {question: [] for question in QUESTIONS}
    for row, every in enumerate(seen.asked):
        for asked in every:
            places = torch.tensor(asked.places)
            told = logits[row, places - 1]
            found[asked.question].append(nn.functional.cross_entropy(told, seen.ids[row, places].to(told.device)))
    means = {question: torch.stack(losses).mean() for question, losses in found.items() if losses}
    return {"total": torch.stack(list(means.values())).mean()} | means


@torch.no_grad()
def accuracy(
    model: Model, vision: Vision, rows: int, split: Split = "held-out", seed: str = "seen"
) -> dict[Question, Estimate]:
    """Share of questions whose whole answer is the likeliest, each asked alone right after its picture."""
    found: dict[Question, Estimate] = {}
    for question in QUESTIONS:
        right = 0
        for first in range(0, rows, 32):
            seen = make_rows(model.config, split, seed, first, min(32, rows - first), (question,))
            likeliest = see(model, vision, seen).argmax(-1).cpu()
            for row, every in enumerate(seen.asked):
                places = torch.tensor(every[0].places)
                right += bool((likeliest[row, places - 1] == seen.ids[row, places]).all())
        found[question] = estimate_share(right, rows)
    return found


@torch.no_grad()
def expert_loads(model: Model, vision: Vision, seen: Seen) -> dict[str, torch.Tensor]:
    """How many tokens of "text" and of the "image" chose each expert of each layer, int64 [layers, experts] each."""
    found: dict[str, list[torch.Tensor]] = {"text": [], "image": []}
    experts = model.config.n_routed_experts

    def count(_, given: tuple, routing) -> None:
        mask = given[1]
        found["text"].append(expert_load(routing.indices[~mask], experts))
        found["image"].append(expert_load(routing.indices[mask], experts))

    hooks = [block.ffn.gate.register_forward_hook(count) for block in model.layers]
    try:
        # Where a gradient is wanted the router runs as a module, which hooks can watch.
        with torch.enable_grad():
            see(model, vision, seen)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.stack(loads) for name, loads in found.items()}
