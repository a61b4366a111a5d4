"""``--image`` of ``ds41 generate``: pictures from files, and their place in the prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds41.cli_model import part_folder

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from ds41.model import Model
    from ds41.vision import ImagePlan


def add_image_option(command: argparse.ArgumentParser) -> None:
    """``--image``, once for each picture."""
    command.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="a picture that stands before the prompt, or at a placeholder of the tokenizer's in it; may be repeated",
    )


def read_images(paths: Sequence[str]) -> list[Image]:
    """The pictures in RGB.

    Raises:
        ImageError: one of them is no image that can be read.
    """
    if not paths:
        return []
    from ds41.vision import load_image

    return [load_image(path) for path in paths]


def place_images(
    options: argparse.Namespace, folder: str | None, model: Model, ids: list[int], images: Sequence[Image]
) -> tuple[list[int], torch.Tensor | None]:
    """A prompt with its pictures, by the vision part beside the model.

    Args:
        folder: of the checkpoint; None with a preset. ids: of the prompt, its begin token first. images: one for each
            of the options' files.

    Returns:
        The ids with a span for each picture, and the vectors [I, hidden] of all spans; None without pictures.

    Raises:
        ValueError: there is no vision part, a picture's size cannot be, or the prompt holds another number of
            placeholders than there are pictures.
    """
    if not images:
        if model.config.image_token_id in ids:
            raise ValueError("the prompt holds a placeholder of an image; name its file with --image")
        return ids, None
    import torch

    from ds41.vision import expand_images, load_vision, patches_of

    vision = load_vision(part_folder(options, folder, "vision part"), model.dtype, model.device)
    seen = [patches_of(image, model.config.vision) for image in images]
    plans = [plan for _, plan in seen]
    if options.verbose:
        for path, plan in zip(options.image, plans, strict=True):
            print(f"ds41: {path}: {_plan_line(plan)}", file=sys.stderr)
    placeholder = model.config.image_token_id
    if placeholder not in ids:
        ids = [*ids[:1], *[placeholder] * len(images), *ids[1:]]
    with torch.no_grad():
        vectors = torch.cat(vision([(patches.to(model.device), plan) for patches, plan in seen]))
    return expand_images(ids, plans, placeholder).ids, vectors


def _plan_line(plan: ImagePlan) -> str:
    return (
        f"{plan.width} x {plan.height} pixels, {plan.patches_across} x {plan.patches_down} patches, "
        f"{plan.tokens_across} x {plan.tokens_down} image tokens in a span of {plan.span_tokens}"
    )
