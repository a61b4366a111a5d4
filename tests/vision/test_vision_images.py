"""Images from outside: patches by loops, and colours of every mode."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
import torch
from image_bytes import encoded, noise, png
from PIL import Image, ImageOps
from small_vision import FLASH, TINY

from ds41.vision import ImageError, load_image, patches_of

RED, BLUE = (255, 0, 0), (0, 0, 255)


def naive_patches(pixels: np.ndarray, side: int) -> np.ndarray:
    height, width, _ = pixels.shape
    out = np.zeros((height // side * (width // side), 3 * side * side))
    for y in range(height):
        for x in range(width):
            for channel in range(3):
                patch = y // side * (width // side) + x // side
                out[patch, channel * side * side + y % side * side + x % side] = pixels[y, x, channel] / 127.5 - 1
    return out


def test_patches_by_loops():
    image = noise(154, 112)
    patches, plan = patches_of(image, TINY)
    assert patches.dtype == torch.float32
    assert (plan.patches_across, plan.patches_down) == (11, 8)
    # The size is already whole: nothing is resampled.
    np.testing.assert_allclose(patches.numpy(), naive_patches(np.asarray(image), 14), atol=1e-6)


def test_padding_is_grey_and_keeps_the_aspect():
    image = noise(6, 2000)
    patches, plan = patches_of(image, TINY)
    size = (plan.resized_width, plan.resized_height)
    fitted = ImageOps.contain(image, size)
    left = (size[0] - fitted.width) // 2
    assert fitted.height == size[1]
    assert left == 19
    pixels = np.full((size[1], size[0], 3), 127)
    pixels[:, left : left + fitted.width] = np.asarray(fitted)
    np.testing.assert_allclose(patches.numpy(), naive_patches(pixels, 14), atol=1e-6)


def test_capped_image_is_squeezed():
    vision = dataclasses.replace(TINY, max_wh_ratio=1.5)
    image = noise(600, 100)
    patches, plan = patches_of(image, vision)
    resized = np.asarray(image.resize((plan.resized_width, plan.resized_height)))
    assert plan.capped
    np.testing.assert_allclose(patches.numpy(), naive_patches(resized, 14), atol=1e-6)


@pytest.mark.parametrize("size", [(1, 20000), (20000, 1), (1, 1), (3, 700)])
def test_extreme_images_have_their_patches(size):
    image = Image.new("RGB", size, RED)
    patches, plan = patches_of(image, FLASH)
    assert patches.shape == (plan.patches, 588)
    assert bool(((patches >= -1) & (patches <= 1)).all())
    # Something of the image itself is left: red has no blue, grey has.
    assert patches.min() == -1


def test_patches_need_rgb():
    with pytest.raises(ImageError, match="mode is L; expected RGB"):
        patches_of(Image.new("L", (50, 50)), TINY)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_bytes_path_and_image_agree(tmp_path, kind):
    image = noise(31, 17)
    data = encoded(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    path = tmp_path / "image"
    path.write_bytes(data)
    for source in (data, path, str(path), image):
        loaded = load_image(source)
        assert loaded.mode == "RGB"
        assert np.array_equal(np.asarray(loaded), np.asarray(image))


def test_the_given_image_is_left_as_it_is():
    image = noise(5, 5)
    load_image(image).putpixel((0, 0), RED)
    assert image.getpixel((0, 0)) == noise(5, 5).getpixel((0, 0))


def with_alpha(colour: tuple[int, int, int], alpha: int) -> Image.Image:
    return Image.new("RGBA", (4, 4), (*colour, alpha))


def palette_with_hole() -> bytes:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([*RED, *BLUE])
    return encoded(image, "PNG", transparency=1)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (with_alpha(RED, 255), RED),
        (with_alpha(RED, 0), (255, 255, 255)),
        (with_alpha((0, 0, 0), 51), (204, 204, 204)),
        (with_alpha(RED, 255).convert("RGBa"), RED),
        (Image.new("LA", (4, 4), (10, 0)), (255, 255, 255)),
        (encoded(with_alpha(BLUE, 0), "WEBP", lossless=True), (255, 255, 255)),
        (palette_with_hole(), (255, 255, 255)),
        (Image.new("L", (4, 4), 90), (90, 90, 90)),
        (Image.new("1", (4, 4), 1), (255, 255, 255)),
        (Image.new("CMYK", (4, 4), (0, 255, 255, 0)), RED),
        (Image.new("I;16", (4, 4), 0x8001), (128, 128, 128)),
        (Image.new("I;16B", (4, 4), 0x0102), (1, 1, 1)),
        (Image.new("I", (4, 4), 0xFFFF), (255, 255, 255)),
        (Image.new("I", (4, 4), -5), (0, 0, 0)),
        (png(1, 1, 16, 0, b"\0\x7f\xff"), (127, 127, 127)),
        (png(1, 1, 16, 0, b"\0\x7f\xff", transparent=b"\x7f\xff"), (255, 255, 255)),
        (png(1, 1, 16, 0, b"\0\x7f\xff", transparent=b"\x7f\xfe"), (127, 127, 127)),
        (png(1, 1, 8, 0, b"\0\x05", transparent=b"\x00\x05"), (255, 255, 255)),
        (png(1, 1, 8, 2, b"\0\x05\x06\x07", transparent=b"\0\x05\0\x06\0\x07"), (255, 255, 255)),
        (png(1, 1, 8, 2, b"\0\x05\x06\x07", transparent=b"\0\x05\0\x06\0\x08"), (5, 6, 7)),
        (png(1, 1, 16, 2, b"\0\x7f\xff\x01\x00\x02\x00"), (127, 1, 2)),
    ],
)
def test_modes(source, expected):
    assert load_image(source).getpixel((0, 0)) == expected


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animations_give_their_first_frame(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert load_image(data).getpixel((3, 3)) == RED
    opened = Image.open(io.BytesIO(data))
    assert opened.n_frames == 2
    opened.seek(1)
    assert load_image(opened).getpixel((3, 3)) == BLUE


def test_orientation_is_not_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert load_image(encoded(noise(20, 10), "JPEG", exif=exif)).size == (20, 10)
