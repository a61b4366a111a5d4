"""The span of an image in a prompt: one placeholder becomes START, rows of IMAGE and NEWLINE, END.

Every position of a span carries the same token id; its role is kept beside the ids.

Source: the released ``inference/image_processor.py`` and ``inference/model.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ds41.vision.sizes import ImageError, ImagePlan


class Role(IntEnum):
    """What one position of a span stands for. IMAGE takes a vector of the image, the others a learned one."""

    START = 0
    IMAGE = 1
    NEWLINE = 2
    END = 3


class ExpandedPrompt(NamedTuple):
    """A prompt with room for its images.

    ids: one for each position. mask: true at every position of a span, delimiters and newlines too.
    spans: positions of each image, in order.
    """

    ids: list[int]
    mask: list[bool]
    spans: list[range]


def span_roles(plan: ImagePlan) -> np.ndarray:
    """The :class:`Role` of every position of an image's span, int8 [span_tokens]."""
    row = [Role.IMAGE] * plan.tokens_across + [Role.NEWLINE]
    return np.array([Role.START, *row * plan.tokens_down, Role.END], dtype=np.int8)


def expand_images(ids: Sequence[int], plans: Sequence[ImagePlan], image_token_id: int) -> ExpandedPrompt:
    """Make room for images: each placeholder becomes as many of its own id as the next image's span has positions.

    Args:
        ids: a prompt with one ``image_token_id`` for each image. plans: of the images, in the prompt's order.

    Raises:
        ImageError: there are more placeholders than images, or fewer.
    """
    ids = [int(token) for token in ids]
    placeholders = ids.count(image_token_id)
    if placeholders != len(plans):
        raise ImageError(
            f"the prompt has {placeholders} image placeholders (id {image_token_id}); "
            f"expected {len(plans)}, one for each image"
        )
    expanded = ExpandedPrompt([], [], [])
    images = iter(plans)
    for token in ids:
        is_image = token == image_token_id
        count = next(images).span_tokens if is_image else 1
        if is_image:
            expanded.spans.append(range(len(expanded.ids), len(expanded.ids) + count))
        expanded.ids.extend([token] * count)
        expanded.mask.extend([is_image] * count)
    return expanded
