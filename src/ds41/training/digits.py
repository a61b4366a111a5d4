"""A task for the eyes: handwritten digits, small, somewhere in larger pictures, and questions about them.

The digits are scikit-learn's, 1,797 pictures of 8 x 8 pixels; a fifth of them is held out. A prompt shows one picture
and asks what it shows and where, in the form in which a model of :mod:`ds41.training.tasks` is asked for a needle: so
the picture has to be what a needle is to it.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
through ``sklearn.datasets.load_digits``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from PIL import Image

from ds41.config import ModelConfig
from ds41.tokenizer import FIRST_BYTE
from ds41.training.corpus import Split
from ds41.training.tasks import BEGIN, VALUE
from ds41.vision import ImagePlan, expand_images, patches_of

Question = Literal["digit", "place"]
"""What may be asked about a scene."""
QUESTIONS: tuple[Question, ...] = get_args(Question)
"""All values of :data:`Question`."""
PLACES = ("tl", "tr", "bl", "br")
"""The four corners of a scene: top or bottom, left or right."""
# Every fifth picture is held out.
_HELD_OUT = 5
_SIDES = (84, 168)
_SCALES = (4, 8)


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture and what is true of it. image: RGB. digit: 0 to 9. place: its quarter, "tl", "tr", "bl" or "br"."""

    image: Image.Image
    digit: int
    place: str

    def answer(self, question: Question) -> str:
        """The right answer to a question, as text."""
        return f"{self.digit}-{self.digit}" if question == "digit" else "-".join(self.place)


class Asked(NamedTuple):
    """A question in a row: which one, and the positions of its answer's tokens."""

    question: Question
    places: tuple[int, ...]


class Seen(NamedTuple):
    """Rows of pictures and questions. ids: int64 [B, T]. images: patches and plan by row. asked, scenes: by row."""

    ids: torch.Tensor
    images: list[tuple[torch.Tensor, ImagePlan]]
    asked: list[tuple[Asked, ...]]
    scenes: list[Scene]


@cache
def digit_pictures(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 [N, 8, 8], white on black, and the digits int64 [N] that they show.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the digits are scikit-learn's: install it, or this package with its extra 'train'"
        ) from error
    found = load_digits()
    held_out = np.arange(len(found.target)) % _HELD_OUT == 0
    chosen = held_out if split == "held-out" else ~held_out
    return (found.images[chosen] * (255 / 16)).round().astype(np.uint8), found.target[chosen]


def make_scene(split: Split, name: str) -> Scene:
    """One picture, a function of its name: a digit of the split, four to eight times as large, wholly in one quarter.

    Sides of 84 to 168 pixels; the ground is darker than the strokes.
    """
    pictures, digits = digit_pictures(split)
    drawn = random.Random(name)
    number = drawn.randrange(len(digits))
    width, height = drawn.randint(*_SIDES), drawn.randint(*_SIDES)
    largest = min(_SCALES[1], width // 16, height // 16)
    side = 8 * drawn.randint(_SCALES[0], largest)
    right, below = drawn.random() < 0.5, drawn.random() < 0.5
    x = drawn.randint(*_span(width, side, right))
    y = drawn.randint(*_span(height, side, below))
    ground = drawn.randint(0, 80)
    canvas = np.full((height, width), ground, dtype=np.float32)
    large = Image.fromarray(pictures[number]).resize((side, side), Image.Resampling.BICUBIC)
    strokes = np.asarray(large, dtype=np.float32) / 255
    part = canvas[y : y + side, x : x + side]
    canvas[y : y + side, x : x + side] = part + (255 - part) * strokes
    image = Image.fromarray(canvas.round().astype(np.uint8)).convert("RGB")
    return Scene(image, int(digits[number]), ("b" if below else "t") + ("r" if right else "l"))


def question_text(question: Question) -> str:
    """What stands before an answer; the key of a needle that no text holds."""
    return "?" + {"digit": "dg", "place": "at"}[question] + "="


def make_rows(
    config: ModelConfig, split: Split, seed: str, first: int, rows: int, questions: Sequence[Question] | None = None
) -> Seen:
    """Rows ``first`` to ``first + rows - 1`` of an endless stream: a picture, then its questions, answered.

    Args:
        questions: asked of every picture, in this order; None asks all in an order that is drawn.

    Returns:
        Rows of equal length, padded on the right with line ends.
    """
    ids, images, asked, scenes = [], [], [], []
    for number in range(first, first + rows):
        name = f"{seed} {number}"
        scene = make_scene(split, name)
        patches, plan = patches_of(scene.image, config.vision)
        order = questions
        if order is None:
            order = random.Random(f"order of {name}").sample(QUESTIONS, len(QUESTIONS))
        row = expand_images([BEGIN, config.image_token_id], [plan], config.image_token_id).ids
        found = []
        for question in order:
            # Lines begin at odd positions, as in the model's own training.
            row += encode("\n" * (1 - len(row) % 2))
            start = len(row)
            row += encode(question_text(question) + scene.answer(question) + "\n")
            found.append(Asked(question, tuple(start + place for place in VALUE)))
        ids.append(row)
        images.append((patches, plan))
        asked.append(tuple(found))
        scenes.append(scene)
    longest = max(map(len, ids))
    padded = [row + encode("\n") * (longest - len(row)) for row in ids]
    return Seen(torch.tensor(padded, dtype=torch.int64), images, asked, scenes)


def encode(text: str) -> list[int]:
    """Token ids of the byte vocabulary."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def _span(length: int, side: int, far: bool) -> tuple[int, int]:
    """First and last place of a square of ``side`` pixels that lies wholly in the near or the far half."""
    half = length // 2
    return (length - half, length - side) if far else (0, half - side)
