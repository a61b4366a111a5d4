"""Files that hold no image, half of one or too much: each must be refused, and none may hang."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from image_bytes import encoded, noise, png
from PIL import Image
from small_vision import TINY

from ds41.vision import ImageError, load_image, patches_of


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_truncated_files(kind):
    data = encoded(noise(64, 64), kind)
    load_image(data)
    with pytest.raises(ImageError, match=r"cannot be (read|decoded)|is not an image"):
        load_image(data[: len(data) // 2])


@pytest.mark.parametrize("data", [b"", b"no image at all", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_bytes_that_are_no_image(data):
    with pytest.raises(ImageError, match=rf"\({len(data)} bytes\) is not an image; expected PNG"):
        load_image(data)


def test_formats_outside_the_list_are_refused():
    with pytest.raises(ImageError, match="is not an image"):
        load_image(encoded(noise(8, 8), "TIFF"))


def test_large_headers_are_refused_before_decoding():
    before = Image.MAX_IMAGE_PIXELS
    # There is nothing to decode in these files: only the header can have been judged.
    with pytest.raises(ImageError, match="has 8200 x 8200 pixels; expected at most 67108864"):
        load_image(png(8200, 8200, 8, 2))
    with pytest.raises(ImageError, match=r"3600000000 pixels.*expected at most 67108864"):
        load_image(png(60000, 60000, 8, 2))
    with pytest.raises(ImageError, match="has 11 x 10 pixels; expected at most 109"):
        load_image(noise(11, 10), max_pixels=109)
    assert load_image(noise(11, 10), max_pixels=110).size == (11, 10)
    assert before == Image.MAX_IMAGE_PIXELS


# PIL warns of sizes between its limit and twice that; the refusal says it better.
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_sizes_that_pil_only_warns_of():
    with pytest.raises(ImageError, match="has 10000 x 10000 pixels"):
        load_image(png(10000, 10000, 8, 2))


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_warnings_as_errors():
    with pytest.raises(ImageError, match=r"100000000 pixels.*expected at most 67108864"):
        load_image(png(10000, 10000, 8, 2))


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_sides_of_zero(size):
    with pytest.raises(ImageError, match=f"has width {size[0]} and height {size[1]}"):
        load_image(Image.new("RGB", size))
    with pytest.raises(ImageError):
        load_image(png(*size, 8, 2))
    with pytest.raises(ImageError, match=f"width {size[0]} and height {size[1]}"):
        patches_of(Image.new("RGB", size), TINY)


def test_too_many_bytes(tmp_path):
    data = encoded(noise(20, 20), "PNG")
    path = tmp_path / "image.png"
    path.write_bytes(data)
    for source in (data, path):
        assert load_image(source, max_bytes=len(data)).size == (20, 20)
        with pytest.raises(ImageError, match=f"has more than {len(data) - 1} bytes"):
            load_image(source, max_bytes=len(data) - 1)


def test_jpeg_with_endless_scans():
    data = encoded(noise(64, 64), "JPEG", progressive=True)
    start = data.rindex(b"\xff\xda")
    # The file has ten scans of its own.
    assert load_image(data[:start] + data[start:-2] * 41 + data[-2:]).size == (64, 64)
    with pytest.raises(ImageError, match="is a JPEG of more than 50 scans"):
        load_image(data[:start] + data[start:-2] * 42 + data[-2:])


def test_jpeg_with_endless_segments():
    data = encoded(noise(64, 64), "JPEG")
    assert load_image(data[:2] + b"\xff\xfe\0\2" * 1000 + data[2:]).size == (64, 64)
    with pytest.raises(ImageError, match="is a JPEG of more than 1024 segments"):
        load_image(data[:2] + b"\xff\xfe\0\2" * 1024 + data[2:])


def test_what_only_looks_like_a_jpeg_scan():
    data = encoded(noise(64, 64), "JPEG")
    comment = b"\xff\xfe" + struct.pack(">H", 402) + b"\xff\xda" * 200
    assert load_image(data[:2] + comment + data[2:] + b"\xff\xda\0\2" * 200).size == (64, 64)


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(ImageError, match=r"absent.png' cannot be opened: .*No such file"):
        load_image(tmp_path / "absent.png")
    with pytest.raises(ImageError, match="is not a regular file"):
        load_image(tmp_path)
    with pytest.raises(ImageError, match=r"cannot be opened: .*null"):
        load_image("a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageError, match="is not a regular file"):
        load_image(tmp_path / "pipe")


def test_modes_without_a_range():
    with pytest.raises(ImageError, match="mode F, whose range is not known"):
        load_image(Image.new("F", (4, 4)))


def test_other_types():
    with pytest.raises(TypeError, match="source is a list; expected bytes, a path or a PIL image"):
        load_image([1, 2])


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_damaged_files_give_an_image_or_an_image_error(kind):
    """Whatever bytes are changed, nothing but ImageError comes out."""
    intact, random = encoded(noise(24, 24), kind), np.random.default_rng(7)
    refused = 0
    for _ in range(300):
        data = bytearray(intact)
        for _ in range(random.integers(1, 6)):
            data[random.integers(0, min(len(data), random.choice([48, len(data)])))] = random.integers(0, 256)
        try:
            loaded = load_image(bytes(data), max_pixels=2**16)
        except ImageError:
            refused += 1
        else:
            assert loaded.mode == "RGB"
    assert refused > 0
