"""``ds41 generate --image`` as a user meets it."""

import pytest
import tiny_parts
import torch
from PIL import Image

from ds41.checkpoint import load_checkpoint
from ds41.cli import main
from ds41.generation import generate
from ds41.tokenizer import byte_tokenizer
from ds41.vision import expand_images, load_image, load_vision, patches_of

OPTIONS = ("--device", "cpu", "--temperature", "0", "--max-new-tokens", "8")
BEGIN, PLACE = tiny_parts.CONFIG.bos_token_id, tiny_parts.CONFIG.image_token_id


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_parts.save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two pictures of different sizes and colours."""
    paths = [tmp_path_factory.mktemp("pictures") / name for name in ("red.png", "blue.png")]
    Image.new("RGB", (90, 84), "red").save(paths[0])
    Image.new("RGB", (84, 170), "blue").save(paths[1])
    return [str(path) for path in paths]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["generate", *arguments, *OPTIONS])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def expected(folder: str, ids: list[int], pictures: list[str]) -> str:
    """By the library: placeholders in ``ids``."""
    model, vision = load_checkpoint(folder, dtype=torch.float32), load_vision(folder, torch.float32)
    seen = [patches_of(load_image(path), model.config.vision) for path in pictures]
    prompt = expand_images(ids, [plan for _, plan in seen], PLACE).ids
    with torch.no_grad():
        vectors = torch.cat(vision(seen))
    drawn = list(generate(model, prompt, 8, temperature=0, image_vectors=vectors))
    return byte_tokenizer().decode(drawn, skip_special_tokens=False) + "\n"


def test_pictures_stand_before_the_prompt_in_their_order(capsys, folder, pictures):
    text = byte_tokenizer().encode("What?").ids
    for chosen in (pictures, pictures[::-1], pictures[:1]):
        options = [word for path in chosen for word in ("--image", path)]
        status, out, err = run(capsys, folder, "What?", *options)
        assert (status, err) == (0, "")
        assert out == expected(folder, [BEGIN, *[PLACE] * len(chosen), *text], chosen)


def test_a_placeholder_in_the_prompt_is_where_a_picture_stands(capsys, folder, pictures):
    status, out, _ = run(capsys, folder, "In <|image|>: what?", "--image", pictures[0])
    ids = [BEGIN, *byte_tokenizer().encode("In ").ids, PLACE, *byte_tokenizer().encode(": what?").ids]
    assert (status, out) == (0, expected(folder, ids, pictures[:1]))
    status, out, err = run(capsys, folder, "<|image|>", "--image", pictures[0], "--image", pictures[1])
    assert (status, out) == (2, "")
    assert err == f"ds41: the prompt has 1 image placeholders (id {PLACE}); expected 2, one for each image\n"


def test_what_a_picture_becomes_is_told(capsys, folder, pictures):
    _, _, err = run(capsys, folder, "What?", "--image", pictures[0], "--verbose")
    assert f"ds41: {pictures[0]}: 90 x 84 pixels, 7 x 6 patches, 3 x 2 image tokens in a span of 10\n" in err
    assert "prompt of 16 tokens" in err


def test_drafts_do_not_change_what_is_said_of_a_picture(capsys, folder, pictures):
    plain = run(capsys, folder, "What?", "--image", pictures[1])
    assert plain[0] == 0
    assert run(capsys, folder, "What?", "--image", pictures[1], "--draft") == plain


def test_a_picture_that_cannot_be_read_is_one_line_before_the_model_is(capsys, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    for path, message in ((bad, "is not an image; expected PNG"), (tmp_path / "none.png", "cannot be opened")):
        status, out, err = run(capsys, "/no/such/folder", "What?", "--image", str(path))
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"ds41: image '{path}'")
        assert message in err


def test_a_picture_of_no_possible_size_is_one_line(capsys, folder, tmp_path):
    Image.new("RGB", (60000, 1)).save(tmp_path / "strip.png")
    status, out, err = run(capsys, folder, "What?", "--image", str(tmp_path / "strip.png"))
    assert (status, out) == (2, "")
    assert err.startswith("ds41: image of width 60000 and height 1: ")


def test_a_checkpoint_without_a_vision_part_is_one_line(capsys, tmp_path, pictures):
    blind = tiny_parts.save(tmp_path / "blind", parts=("drafter",))
    status, out, err = run(capsys, blind, "What?", "--image", pictures[0])
    assert (status, out, err) == (2, "", f"ds41: {blind}/model.safetensors holds no vision part\n")


def test_a_prompt_that_pictures_make_too_long_is_one_line(capsys, folder, pictures):
    status, out, err = run(capsys, folder, "x" * 1010, "--image", pictures[0])
    assert (status, out) == (2, "")
    assert "a prompt of 1,021 tokens and max_new_tokens 8 are more than the model's 1,024 positions" in err
