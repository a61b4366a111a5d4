"""A tower that learns through a frozen model: its losses by hand, where gradients go, and what counts as seen."""

from types import SimpleNamespace

import pytest
import seeing_model
import torch
from torch import nn

from ds41 import ConfigError, ModelConfig
from ds41.training import seeing
from ds41.training.digits import PLACES, QUESTIONS, encode, make_rows
from ds41.training.run_log import LOG, read_log
from ds41.training.seeing import Matcher, SeeingPlan, accuracy, answer_losses, see, train_vision, vision_recipe
from ds41.vision import Vision

CONFIG = seeing_model.CONFIG


@pytest.fixture(scope="module")
def model():
    return seeing_model.build()


def tower() -> Vision:
    torch.manual_seed(1)
    return Vision(CONFIG)


def test_a_row_is_seen_as_it_would_be_alone(model):
    vision, seen = tower(), make_rows(CONFIG, "train", "rows", 0, 4)
    with torch.no_grad():
        together = see(model, vision, seen)
        for row, image in enumerate(seen.images):
            alone = model(seen.ids[row : row + 1], image_vectors=vision([image])[0])[0]
            assert torch.allclose(together[row], alone, atol=1e-4)
            blind = model(seen.ids[row : row + 1], seen.ids[row : row + 1] == CONFIG.image_token_id)[0]
            last = max(asked.places[1] for asked in seen.asked[row])
            assert not torch.allclose(together[row, last], blind[last], atol=1e-3)


def test_losses_by_hand(model):
    vision, seen = tower(), make_rows(CONFIG, "train", "rows", 0, 3)
    with torch.no_grad():
        found = answer_losses(model, vision, seen)
        told = see(model, vision, seen).double().log_softmax(-1)
    for question in QUESTIONS:
        nats = []
        for row, every in enumerate(seen.asked):
            (asked,) = (each for each in every if each.question == question)
            nats += [-float(told[row, place - 1, seen.ids[row, place]]) for place in asked.places]
        assert float(found[question]) == pytest.approx(sum(nats) / len(nats), rel=1e-5)
    assert float(found["total"]) == pytest.approx(sum(float(found[each]) for each in QUESTIONS) / 2, rel=1e-6)


def test_gradients_reach_the_whole_tower_and_nothing_of_the_model(model):
    vision = tower()
    answer_losses(model, vision, make_rows(CONFIG, "train", "rows", 0, 3))["total"].backward()
    for name, parameter in vision.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    assert all(parameter.grad is None for parameter in model.parameters())


class Knowing:
    """Says the right next token of every row, but after ``unknown``, a character."""

    config, device = CONFIG, torch.device("cpu")

    def __init__(self, unknown=""):
        self.unknown = encode(unknown)

    def __call__(self, ids, image_vectors):
        after = torch.cat((ids[:, 1:], ids[:, :1]), 1)
        after[torch.isin(ids, torch.tensor(self.unknown, dtype=torch.int64))] = 0
        return nn.functional.one_hot(after, CONFIG.vocab_size).float()


def test_an_answer_counts_when_all_of_it_is_right():
    vision = tower()
    found = accuracy(Knowing(), vision, 40)
    assert {question: estimate.mean for question, estimate in found.items()} == dict.fromkeys(QUESTIONS, 1.0)
    assert all(estimate.samples == 40 for estimate in found.values())
    for unknown in "=-":
        assert all(estimate.mean == 0 for estimate in accuracy(Knowing(unknown), vision, 5).values())
    # What is no part of the answer does not count.
    assert all(estimate.mean == 1 for estimate in accuracy(Knowing("?\n"), vision, 5).values())
    with pytest.raises(ValueError, match="0 trials"):
        accuracy(Knowing(), vision, 0)


def test_accuracy_asks_each_question_alone_of_held_out_pictures(monkeypatch):
    asked = []

    def rows(config, split, seed, first, count, questions):
        asked.append((split, seed, first, count, questions))
        return make_rows(config, split, seed, first, count, questions)

    monkeypatch.setattr(seeing, "make_rows", rows)
    accuracy(Knowing(), tower(), 34)
    places = ((0, 32), (32, 2))
    assert asked == [("held-out", "seen", *place, (question,)) for question in QUESTIONS for place in places]


@torch.no_grad()
def test_a_matcher_by_hand():
    torch.manual_seed(2)
    matcher = Matcher(CONFIG, tower().vision)
    seen = make_rows(CONFIG, "train", "rows", 0, 5, ())
    logits = matcher(seen)
    assert logits.shape == (5, 10 * len(PLACES))
    total, right = 0.0, 0
    for row, scene in enumerate(seen.scenes):
        patches, plan = seen.images[row]
        picture = matcher.tower(patches, [(plan.patches_down, plan.patches_across)]).mean(0)
        values = []
        for text in range(10 * len(PLACES)):
            digit, place = divmod(text, len(PLACES))
            said = matcher.embed.weight[digit] + matcher.embed.weight[10 + place]
            near = torch.cosine_similarity(picture, said, dim=0)
            values.append(float(near * matcher.scale.exp() + matcher.bias))
            own = (digit, PLACES[place]) == (scene.digit, scene.place)
            total += float(nn.functional.softplus(torch.tensor(values[-1] * (-1 if own else 1))))
        assert logits[row].tolist() == pytest.approx(values, abs=1e-4)
        right += values.index(max(values)) == scene.digit * len(PLACES) + PLACES.index(scene.place)
    found = matcher.losses(seen)
    assert float(found["total"]) == pytest.approx(total / 5, rel=1e-4)
    assert float(found["right"]) == pytest.approx(right / 5)


def test_both_stages_lower_their_losses(model, tmp_path):
    recipe = vision_recipe(12, SeeingPlan(rows=4, matching=15, matched=6), warm_up=2)
    vision = train_vision(model, tmp_path, recipe)
    for folder, count in ((tmp_path / "matching", 15), (tmp_path, 12)):
        lines = read_log(folder / LOG)
        assert len(lines) == count
        first, last = (sum(line["total"] for line in part) / 3 for part in (lines[:3], lines[-3:]))
        assert last < first
    assert {line["stage"] for line in read_log(tmp_path / "matching" / LOG)} == {"full"}
    assert read_log(tmp_path / LOG)[-1]["stage"] == "rounded"
    assert vision.image_start.shape == (CONFIG.hidden_size,)


def test_a_model_without_eyes_trains_none(tmp_path):
    blind = SimpleNamespace(config=ModelConfig.mini(), dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match="vision is None"):
        train_vision(blind, tmp_path / "new", vision_recipe(3))
    assert not (tmp_path / "new").exists()
