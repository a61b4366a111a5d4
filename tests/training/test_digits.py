"""Pictures of digits and questions about them: what is asked is true of the picture, and where it has to stand."""

import random
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from ds41 import ModelConfig
from ds41.tokenizer import FIRST_BYTE
from ds41.training import digits
from ds41.training.digits import PLACES, QUESTIONS, digit_pictures, encode, make_rows, make_scene, question_text
from ds41.training.tasks import BEGIN, LINE

CONFIG = ModelConfig.nano()
NAMES = [f"scene {number}" for number in range(60)]


def ink(image: Image.Image) -> np.ndarray:
    """What stands on the ground, which is most of the picture: [height, width], zero elsewhere."""
    grey = np.asarray(image.convert("L"), dtype=np.float64)
    return grey - np.median(grey)


def box(picture: np.ndarray) -> np.ndarray:
    """The part of a picture that holds its ink, 8 x 8, of the largest value one."""
    marked = picture > 0.25 * picture.max()
    rows, columns = np.flatnonzero(marked.any(1)), np.flatnonzero(marked.any(0))
    part = picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] / picture.max()
    return np.asarray(Image.fromarray(part.astype(np.float32)).resize((8, 8), Image.Resampling.BOX))


def text_of(ids: list[int]) -> str:
    return bytes(token - FIRST_BYTE for token in ids).decode()


def test_a_fifth_is_held_out_and_nothing_is_in_both():
    trained, held_out = (digit_pictures(split) for split in ("train", "held-out"))
    assert len(trained[0]) + len(held_out[0]) == 1797
    assert len(held_out[0]) == -(-1797 // 5)
    seen = {picture.tobytes() for picture in trained[0]}
    assert not any(picture.tobytes() in seen for picture in held_out[0])
    for pictures, labels in (trained, held_out):
        assert pictures.shape == (len(labels), 8, 8)
        assert pictures.dtype == np.uint8
        assert pictures.max() == 255
        assert set(labels.tolist()) == set(range(10))


def test_a_scene_follows_from_its_split_and_name():
    for split in ("train", "held-out"):
        first, second = make_scene(split, "one"), make_scene(split, "one")
        assert first.image.tobytes() == second.image.tobytes()
        assert (first.digit, first.place) == (second.digit, second.place)
    state = random.getstate()
    assert make_scene("train", "one").image.tobytes() != make_scene("held-out", "one").image.tobytes()
    assert make_scene("train", "one").image.tobytes() != make_scene("train", "two").image.tobytes()
    assert random.getstate() == state


def test_the_place_is_where_the_ink_is():
    found = set()
    for name in NAMES:
        scene = make_scene("train", name)
        picture, (width, height) = ink(scene.image), scene.image.size
        assert scene.image.mode == "RGB"
        assert min(width, height) >= 84
        assert max(width, height) <= 168
        assert picture.min() == 0
        assert picture.max() > 100
        y, x = (picture.sum(1 - axis) @ np.arange(size) / picture.sum() for axis, size in ((0, height), (1, width)))
        assert scene.place == ("t" if y < (height - 1) / 2 else "b") + ("l" if x < (width - 1) / 2 else "r")
        # Not only its centre: no stroke crosses a middle line.
        rows, columns = np.nonzero(picture)
        for places, size, far in ((rows, height, scene.place[0] == "b"), (columns, width, scene.place[1] == "r")):
            assert (places >= size - size // 2).all() if far else (places < size // 2).all()
        found.add(scene.place)
    assert found == set(PLACES)


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_the_digit_is_the_one_that_is_shown(split):
    """The nearest of the split's own pictures, found by the ink alone, has the same label."""
    pictures, labels = digit_pictures(split)
    known = np.stack([box(picture.astype(np.float64)) for picture in pictures])
    scenes = [make_scene(split, name) for name in NAMES]
    nearest = [int(labels[np.abs(known - box(ink(scene.image))).sum((1, 2)).argmin()]) for scene in scenes]
    right = sum(said == scene.digit for said, scene in zip(nearest, scenes, strict=True))
    assert right >= 0.95 * len(scenes)
    assert len({scene.digit for scene in scenes}) == 10


def test_rows_show_a_picture_and_ask():
    seen = make_rows(CONFIG, "train", "rows", 0, 12)
    orders = set()
    for number, (ids, (patches, plan), asked, scene) in enumerate(
        zip(seen.ids.tolist(), seen.images, seen.asked, seen.scenes, strict=True)
    ):
        made = make_scene("train", f"rows {number}")
        assert scene.image.tobytes() == made.image.tobytes()
        assert ids[0] == BEGIN
        span = plan.span_tokens
        assert ids[1 : 1 + span] == [CONFIG.image_token_id] * span
        assert CONFIG.image_token_id not in ids[1 + span :]
        assert patches.shape == (plan.patches, 3 * CONFIG.vision.patch_size**2)
        rest = text_of(ids[1 + span :])
        orders.add(tuple(each.question for each in asked))
        for each in asked:
            assert text_of([ids[place] for place in each.places]) == made.answer(each.question).replace("-", "")
            start = each.places[0] - 4
            assert start % 2 == 1
            line = text_of(ids[start : start + LINE])
            assert line == f"{question_text(each.question)}{made.answer(each.question)}\n"
            rest = rest.replace(line, "")
        # Between the lines, and behind them, there are ends of lines alone.
        assert set(rest) <= {"\n"}
        assert all(0 < each.places[0] < each.places[1] < len(ids) for each in asked)
    assert orders == {QUESTIONS, QUESTIONS[::-1]}


def test_shorter_rows_are_padded_on_the_right():
    seen = make_rows(CONFIG, "train", "rows", 0, 12)
    lengths = [1 + plan.span_tokens for _, plan in seen.images]
    ends = [max(each.places[1] for each in asked) + 2 for asked in seen.asked]
    assert len(set(lengths)) > 1
    assert max(ends) == seen.ids.shape[1]
    for row, end in zip(seen.ids, ends, strict=True):
        assert (row[end:] == encode("\n")[0]).all()


def test_a_stream_may_be_read_in_any_pieces():
    whole = make_rows(CONFIG, "train", "rows", 0, 5)
    part = make_rows(CONFIG, "train", "rows", 3, 2)
    for number in (3, 4):
        ids = part.ids[number - 3]
        assert torch.equal(whole.ids[number, : len(ids)], ids)
        assert torch.equal(whole.images[number][0], part.images[number - 3][0])
        assert whole.asked[number] == part.asked[number - 3]
    other = make_rows(CONFIG, "held-out", "rows", 3, 2)
    assert not torch.equal(part.images[0][0], other.images[0][0])


@pytest.mark.parametrize("questions", [("digit",), ("place", "digit"), ()])
def test_questions_may_be_chosen(questions):
    seen = make_rows(CONFIG, "train", "rows", 0, 3, questions)
    assert [tuple(each.question for each in asked) for asked in seen.asked] == [questions] * 3


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    digit_pictures.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"the digits are scikit-learn's: install it.*extra 'train'"):
        make_scene("train", "one")
    monkeypatch.undo()
    assert digits.make_scene("train", "one").digit in range(10)
