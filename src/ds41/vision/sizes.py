"""From an image's size to its patches, its tokens and its span in the prompt.

A token is a square of ``downsample_ratio`` x ``downsample_ratio`` patches. The span of an image holds its tokens, one
newline after each row of them, and two delimiters; all of these count toward ``max_image_tokens``.

Source: the released ``inference/image_processor.py``; ``vision_config``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

from ds41.config import ConfigError, VisionConfig

# START and END.
_DELIMITERS = 2
# One row of one token: START, the token, NEWLINE, END.
_SHORTEST_SPAN = 4
# What the file formats can say, and far below what a double can.
_LONGEST_SIDE = 2**31 - 1


class ImageError(ValueError):
    """An image that the model cannot take; the message names the thing, its value and what was expected."""


@dataclass(frozen=True)
class ImagePlan:
    """What becomes of an image of one size. Lengths in pixels, grids in patches and in tokens.

    enlarged: it had fewer than ``min_pixels``. reduced: rounded up, its span would exceed ``max_image_tokens``.
    capped: it was wider than ``max_wh_ratio`` allows, so it is squeezed and not padded.
    """

    width: int
    height: int
    resized_width: int
    resized_height: int
    patches_across: int
    patches_down: int
    tokens_across: int
    tokens_down: int
    enlarged: bool
    reduced: bool
    capped: bool

    @property
    def patches(self) -> int:
        """Patches of the image, P."""
        return self.patches_down * self.patches_across

    @property
    def image_tokens(self) -> int:
        """Positions of the prompt that take one of its vectors each; separators not counted."""
        return self.tokens_down * self.tokens_across

    @property
    def span_tokens(self) -> int:
        """Prompt positions: image tokens, one newline a row, both delimiters."""
        return _span(self.tokens_across, self.tokens_down)


def plan_image(width: int, height: int, vision: VisionConfig) -> ImagePlan:
    """The plan of an image of ``width`` x ``height`` pixels.

    In this order: a width above ``max_wh_ratio`` times the height is cut to it; an image of fewer than ``min_pixels``
    is enlarged; both sides are rounded up to whole patches; if the span is then too long, both sides shrink by one
    factor and are rounded down. A strip too thin for that becomes one row or one column of tokens, as long as fits.
    The arithmetic is that of doubles, as in the released code, so rounding may cost a shrunk side one patch.

    Raises:
        ImageError: a side is no positive integer, or the image is so long and thin that padding it to its grid would
            leave none of it.
        ConfigError: no grid follows from ``vision``.
    """
    check_grid(vision)
    for name, side in (("width", width), ("height", height)):
        if not isinstance(side, Integral) or isinstance(side, bool) or not 0 < side <= _LONGEST_SIDE:
            raise ImageError(
                f"image of width {width!r} and height {height!r}: {name} is {side!r}; "
                f"expected an integer from 1 to {_LONGEST_SIDE}"
            )
    patch, unit = vision.patch_size, vision.patch_size * vision.downsample_ratio
    across, down = int(width), int(height)
    capped = vision.max_wh_ratio is not None and across > down * vision.max_wh_ratio
    if capped:
        across = max(1, int(down * vision.max_wh_ratio))
    enlarged = across * down < vision.min_pixels
    if enlarged:
        scale = math.sqrt(vision.min_pixels / (across * down))
        across, down = int(across * scale), int(down * scale)
    columns, rows = _whole(across, patch), _whole(down, patch)
    reduced = _span(_whole(across, unit), _whole(down, unit)) > vision.max_image_tokens
    if reduced:
        columns, rows = _largest_grid(across, down, vision)
    plan = ImagePlan(
        width=int(width),
        height=int(height),
        resized_width=columns * patch,
        resized_height=rows * patch,
        patches_across=columns,
        patches_down=rows,
        tokens_across=_whole(columns, vision.downsample_ratio),
        tokens_down=_whole(rows, vision.downsample_ratio),
        enlarged=enlarged,
        reduced=reduced,
        capped=capped,
    )
    if not capped:
        _check_visible(plan)
    return plan


def check_grid(vision: VisionConfig) -> None:
    """Refuse sizes from which no grid of patches and tokens follows.

    Raises:
        ConfigError: the first fault found.
    """
    for name, least in (("patch_size", 1), ("downsample_ratio", 1), ("max_image_tokens", _SHORTEST_SPAN)):
        value = getattr(vision, name)
        if value < least:
            raise ConfigError(f"vision.{name} is {value}; expected {least} or more")
    if vision.max_wh_ratio is not None and not 0 < vision.max_wh_ratio < math.inf:
        raise ConfigError(f"vision.max_wh_ratio is {vision.max_wh_ratio}; expected a positive number, or None")


def _span(tokens_across: int, tokens_down: int) -> int:
    return tokens_down * (tokens_across + 1) + _DELIMITERS


def _whole(length: int, unit: int) -> int:
    """How many units cover ``length``."""
    return -(-length // unit)


def _largest_grid(width: int, height: int, vision: VisionConfig) -> tuple[int, int]:
    """Patches across and down of the largest grid of this shape whose span fits."""
    ratio, patch = vision.downsample_ratio, vision.patch_size
    room = vision.max_image_tokens - _DELIMITERS
    shape = height / width
    # The positive root of shape * tokens * (tokens + 1) = room: rows times a row with its newline.
    tokens_across = math.sqrt(room / shape + 0.25) - 0.5
    tokens_down = shape * tokens_across
    if tokens_across < 1:
        return ratio, room // 2 * ratio
    if tokens_down < 1:
        return (room - 1) * ratio, ratio
    unit = patch * ratio
    scale = min(math.floor(tokens_across) * unit / width, math.floor(tokens_down) * unit / height)
    # At one patch a token, less than a patch may be left of the shorter side.
    return max(1, math.floor(width * scale / patch)), max(1, math.floor(height * scale / patch))


def _check_visible(plan: ImagePlan) -> None:
    """Refuse a strip whose short side vanishes when its long side is fitted into the grid."""
    short_side = min(
        round(plan.width / plan.height * plan.resized_height), round(plan.height / plan.width * plan.resized_width)
    )
    if short_side < 1:
        raise ImageError(
            f"image of width {plan.width} and height {plan.height}: resized into {plan.resized_width} x "
            f"{plan.resized_height} pixels its short side would be 0; expected a less extreme ratio of the sides"
        )
