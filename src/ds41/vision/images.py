"""Images from outside, checked before they are decoded, and their patches.

Source: the released ``inference/image_processor.py`` for size, padding and normalisation. What becomes of
transparency, 16-bit samples, animation and EXIF orientation is chosen here: see :func:`load_image`.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from ds41.config import VisionConfig
from ds41.vision.sizes import ImageError, ImagePlan, plan_image

# A 50-megapixel photograph fits. Decoding an image of this size takes from 0.3 to 1.5 GB, by its format.
MAX_PIXELS = 2**26
# A file of nothing but empty chunks costs half a second for each megabyte.
MAX_BYTES = 2**25
# Formats that are decoded in this process, by a bounded amount of work for each byte and pixel.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# A progressive JPEG has about ten scans. Each is a pass over the whole image, and a hostile one costs a few bytes.
_MAX_JPEG_SCANS = 50
# Full segments of a file of MAX_BYTES, twice.
_MAX_JPEG_SEGMENTS = 1024
# Stuffed zeros, restarts and fill bytes follow 0xFF inside a scan; every other byte makes it a marker.
_JPEG_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
# What PIL's decoders raise for damaged data.
_DECODER_ERRORS = (OSError, SyntaxError, ValueError, EOFError, OverflowError, IndexError, TypeError, struct.error)
_PADDING = (127, 127, 127)
_MEAN = _STD = 0.5


def load_image(
    source: bytes | str | os.PathLike | Image.Image, max_pixels: int = MAX_PIXELS, max_bytes: int = MAX_BYTES
) -> Image.Image:
    """An RGB image from a file, from a file's bytes, or from a PIL image, which is left as it is.

    Transparent parts show white, whatever colour is stored under them. 16-bit samples keep their upper byte.
    An animation gives its first frame; a PIL image gives the frame that it stands at. EXIF orientation is not applied
    and colour profiles are not read: the pixels are taken as stored, since the source says nothing of either.

    Args:
        source: bytes or a path hold one of :data:`FORMATS`. max_pixels: the largest width times height, read from the
            header before anything is decoded; PIL's own, larger limit stays in force. max_bytes: the largest file.

    Raises:
        ImageError: not a readable image, a truncated one, too many bytes or pixels, a side of zero, or a mode
            without a known range of values.
        TypeError: ``source`` is of another type.
    """
    if isinstance(source, Image.Image):
        return _as_rgb(source, "the PIL image", max_pixels)
    if isinstance(source, bytes):
        data, name = source, "the image bytes"
    elif isinstance(source, (str, os.PathLike)):
        name = f"image {os.fspath(source)!r}"
        data = _read(Path(os.fsdecode(source)), name, max_bytes)
    else:
        raise TypeError(f"source is a {type(source).__name__}; expected bytes, a path or a PIL image")
    _check_bytes(data, name, max_bytes)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{name}: {error}; expected at most {max_pixels} pixels") from None
    except Image.UnidentifiedImageError:
        raise ImageError(f"{name} ({len(data)} bytes) is not an image; expected {', '.join(FORMATS)}") from None
    except _DECODER_ERRORS as error:
        raise ImageError(f"{name} cannot be read: {error}; expected an intact image") from None
    with image:
        return _as_rgb(image, name, max_pixels)


def patches_of(image: Image.Image, vision: VisionConfig) -> tuple[torch.Tensor, ImagePlan]:
    """The patches of an RGB image, float32 [patches, 3 * patch_size^2] from -1 to 1, and its plan.

    The image keeps its aspect and is padded with grey to the plan's size; only one that ``max_wh_ratio`` caps is
    squeezed. Patches are in reading order; in a patch, channel * patch_size^2 + y * patch_size + x.

    Raises:
        ImageError: the image is not RGB (:func:`load_image` makes it so), or :func:`plan_image` refuses its size.
    """
    if image.mode != "RGB":
        raise ImageError(f"the image's mode is {image.mode}; expected RGB, which load_image gives")
    plan = plan_image(*image.size, vision)
    size = (plan.resized_width, plan.resized_height)
    resized = image.resize(size) if plan.capped else ImageOps.pad(image, size, color=_PADDING)
    pixels = (np.asarray(resized, dtype=np.float32) / 255 - _MEAN) / _STD
    side = vision.patch_size
    grid = pixels.reshape(plan.patches_down, side, plan.patches_across, side, 3)
    patches = grid.transpose(0, 2, 4, 1, 3).reshape(plan.patches, 3 * side * side)
    return torch.from_numpy(np.ascontiguousarray(patches)), plan


def _read(path: Path, name: str, max_bytes: int) -> bytes:
    """The bytes of a regular file; a device or a pipe might never end."""
    try:
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                return file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise ImageError(f"{name} cannot be opened: {error}; expected an image file") from None
    raise ImageError(f"{name} is not a regular file; expected an image file")


def _check_bytes(data: bytes, name: str, max_bytes: int) -> None:
    if len(data) > max_bytes:
        raise ImageError(f"{name} has more than {max_bytes} bytes; expected at most that many")
    if data.startswith(b"\xff\xd8"):
        _check_jpeg(data, name)


def _check_jpeg(data: bytes, name: str) -> None:
    """Count segments and scans up to the end marker; what lies inside a segment, a thumbnail say, is passed over."""
    segments, scans, position = 0, 0, 2
    while found := _JPEG_MARKER.search(data, position):
        kind = data[found.end() - 1]
        if kind == _JPEG_END:
            break
        segments, scans = segments + 1, scans + (kind == _JPEG_SCAN)
        if segments > _MAX_JPEG_SEGMENTS:
            raise ImageError(f"{name} is a JPEG of more than {_MAX_JPEG_SEGMENTS} segments; expected at most that many")
        if scans > _MAX_JPEG_SCANS:
            raise ImageError(f"{name} is a JPEG of more than {_MAX_JPEG_SCANS} scans; expected at most that many")
        # Every segment that can stand here says its length, which counts its own two bytes.
        position = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))


def _as_rgb(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(f"{name} has width {width} and height {height}; expected at least one pixel")
    if width * height > max_pixels:
        raise ImageError(f"{name} has {width} x {height} pixels; expected at most {max_pixels}")
    try:
        image.load()
        if image.mode.startswith("I"):
            return _upper_bytes(image)
        if image.mode == "F":
            raise ImageError(f"{name} has mode F, whose range is not known; expected integer samples")
        if image.has_transparency_data:
            with_alpha = image.convert("RGBA")
            background = Image.new("RGB", image.size, "white")
            background.paste(with_alpha, mask=with_alpha.getchannel("A"))
            return background
        return image.convert("RGB")
    except ImageError:
        raise
    except _DECODER_ERRORS as error:
        raise ImageError(f"{name} ({width} x {height}, mode {image.mode}) cannot be decoded: {error}") from None


def _upper_bytes(image: Image.Image) -> Image.Image:
    """RGB from 16-bit grey samples, which PIL would clip at 255."""
    samples = np.asarray(image)
    grey = (samples.clip(0, 65535) >> 8).astype(np.uint8)
    if "transparency" in image.info:
        grey[samples == image.info["transparency"]] = 255
    return Image.fromarray(grey).convert("RGB")
