"""From an image's width and height to its span in the prompt: each step of the arithmetic, and the tokens to scale.

``js/sizes.js`` does the same for any size that a reader types; a test holds the two to the same plans and HTML.

Source: the released ``inference/image_processor.py``; :mod:`ds41.vision.sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ds41 import ledger
from ds41.config import ModelConfig, VisionConfig
from ds41.records import exact
from ds41.vision.sizes import ImagePlan, plan_image
from ds41.viz.diagram import Diagram, table

EXAMPLES = ((544, 544), (640, 480), (1920, 1080), (336, 448), (1344, 1344), (20000, 200))
# Of more tokens in a row or a column the lines between them would be all that is seen.
_MOST_LINES = 64


def image_sizes(
    config: ModelConfig | None = None,
    examples: Sequence[tuple[int, int]] = EXAMPLES,
    width: int = 1920,
    height: int = 1080,
) -> Diagram:
    """The arithmetic of image sizes for ``config`` (default: the published one), first for ``width`` x ``height``.

    Args:
        examples: sizes in pixels, (width, height), for the buttons and the table.

    Raises:
        ValueError: ``config`` has no vision tower, or there are no examples. ImageError: an example or the first size
            is one that the model cannot take.
    """
    config = config or ModelConfig.flash()
    if config.vision is None:
        raise ValueError("vision is None: this configuration takes no images")
    if not examples:
        raise ValueError("examples is empty; expected one size or more")
    vision, per_token = config.vision, exact(ledger.bytes_per_token(config))
    plan = plan_image(width, height, vision)
    return Diagram(
        kind="sizes",
        title=f"Whatever its size, an image takes no more than {vision.max_image_tokens:,} tokens of the prompt",
        body=f'<div class="ds-picture">{picture(plan, vision, per_token)}</div>{_controls(examples, plan)}',
        caption=overview(plan, vision),
        table=_table(examples, vision, per_token),
        table_title="The examples as a table",
        data={
            "vision": {
                "patch": vision.patch_size,
                "ratio": vision.downsample_ratio,
                "mostTokens": vision.max_image_tokens,
                "leastPixels": vision.min_pixels,
                "mostWide": vision.max_wh_ratio,
                "mostWideText": _ratio(vision),
            },
            "bytesPerToken": per_token,
            "mostLines": _MOST_LINES,
        },
    )


def before_patches(plan: ImagePlan, vision: VisionConfig) -> tuple[int, int]:
    """Width and height once the ratio is capped and too few pixels are enlarged, before whole patches are counted."""
    across, down = plan.width, plan.height
    if plan.capped:
        across = max(1, int(down * vision.max_wh_ratio))
    if plan.enlarged:
        scale = math.sqrt(vision.min_pixels / (across * down))
        across, down = int(across * scale), int(down * scale)
    return across, down


def picture(plan: ImagePlan, vision: VisionConfig, per_token: int | float) -> str:
    """The steps, the image's outlines, and its tokens."""
    return _steps(plan, vision, per_token) + _outlines(plan, vision) + _tokens(plan) + _limit(plan, vision)


def _steps(plan: ImagePlan, vision: VisionConfig, per_token: int | float) -> str:
    patch, ratio = vision.patch_size, vision.downsample_ratio
    fitted = "shrunk until the span fits" if plan.reduced else "rounded up to whole patches"
    steps = (
        ("given", _size(plan.width, plan.height), "pixels"),
        ("enough pixels", _size(*before_patches(plan, vision)), _ruling(plan, vision)),
        ("whole patches", _size(plan.resized_width, plan.resized_height), fitted),
        ("patches", _size(plan.patches_across, plan.patches_down), f"of {patch} × {patch} pixels"),
        ("tokens", _size(plan.tokens_across, plan.tokens_down), f"of {ratio} × {ratio} patches"),
        ("global KV", f"{nbytes(plan, per_token):,} B", f"{plan.span_tokens:,} × {per_token:,} B"),
    )
    return "<dl>" + "".join(
        f'<div><dt>{name}</dt><dd>{value}</dd><dd class="ds-fine">{note}</dd></div>' for name, value, note in steps
    ) + "</dl>"  # fmt: skip


def nbytes(plan: ImagePlan, per_token: int | float) -> int:
    """Global KV of a span, halves up, as the script rounds."""
    return math.floor(plan.span_tokens * per_token + 0.5)


def _ruling(plan: ImagePlan, vision: VisionConfig) -> str:
    capped = f"squeezed to {_ratio(vision)} : 1; " if plan.capped else ""
    acted = "enlarged to about" if plan.enlarged else "at least"
    return f"{capped}{acted} {vision.min_pixels:,}"


def _outlines(plan: ImagePlan, vision: VisionConfig) -> str:
    """Given, enlarged and fitted size, one over the other, to one scale."""
    enough = before_patches(plan, vision)
    fitted = (plan.resized_width, plan.resized_height)
    sizes = (("fitted", fitted), ("enough", enough), ("given", (plan.width, plan.height)))
    widest, tallest = (max(size[side] for _, size in sizes) for side in (0, 1))
    rects = "".join(f'<rect class="ds-{name}" width="{w}" height="{h}"></rect>' for name, (w, h) in sizes)
    return (
        f'<div class="ds-part"><svg class="ds-outlines" viewBox="0 0 {widest} {tallest}" '
        f'preserveAspectRatio="xMinYMin" aria-hidden="true">{rects}</svg>'
        '<ul class="ds-legend" aria-hidden="true"><li><i class="ds-key ds-given"></i>given</li>'
        '<li><i class="ds-key ds-enough"></i>enough pixels</li>'
        '<li><i class="ds-key ds-fitted"></i>whole patches</li></ul></div>'
    )


def _tokens(plan: ImagePlan) -> str:
    """The span as it is read, row by row: START, image tokens with a newline after each row, END."""
    across, down = plan.tokens_across, plan.tokens_down
    lines = ""
    if max(across, down) <= _MOST_LINES:
        # START has the first column, so that image tokens begin at 1; the newlines' column is cut up with them.
        lines = "".join(f"M{column} 0V{down}" for column in range(2, across + 1))
        lines += "".join(f"M1 {row}H{across + 2}" for row in range(1, down))
    return (
        f'<div class="ds-part"><svg class="ds-tokens" viewBox="0 0 {across + 3} {down}" '
        f'preserveAspectRatio="xMinYMin" aria-hidden="true">'
        f'<rect class="ds-end" width="1" height="1"></rect><rect class="ds-image" x="1" width="{across}" '
        f'height="{down}"></rect><rect class="ds-newline" x="{across + 1}" width="1" height="{down}"></rect>'
        f'<rect class="ds-end" x="{across + 2}" y="{down - 1}" width="1" height="1"></rect>'
        f'<path d="{lines}"></path></svg>'
        '<ul class="ds-legend" aria-hidden="true"><li><i class="ds-key ds-image"></i>image token</li>'
        '<li><i class="ds-key ds-newline"></i>newline</li><li><i class="ds-key ds-end"></i>START, END</li></ul></div>'
    )


def _limit(plan: ImagePlan, vision: VisionConfig) -> str:
    return (
        f'<p class="ds-span"><b>{plan.span_tokens:,}</b> of {vision.max_image_tokens:,} tokens: '
        f"{plan.image_tokens:,} of the image, {_count(plan.tokens_down, 'newline')}, 2 delimiters</p>"
        f'<div class="ds-limit" aria-hidden="true"><i class="ds-length" '
        f'style="width:calc(100% * {plan.span_tokens} / {vision.max_image_tokens})"></i></div>'
    )


def overview(plan: ImagePlan, vision: VisionConfig) -> str:
    """What happened to the image, in words."""
    acted = ""
    if plan.capped:
        acted += f" It is wider than {_ratio(vision)} times its height and is squeezed."
    if plan.enlarged:
        acted += f" It has fewer than {vision.min_pixels:,} pixels and is enlarged."
    if plan.reduced:
        acted += f" Rounded up, its span would exceed {vision.max_image_tokens:,} tokens, so it shrinks."
    return (
        f"<b>An image of {_size(plan.width, plan.height)} pixels takes {plan.span_tokens:,} tokens</b>, "
        f"{_count(plan.tokens_down, 'row')} of {plan.tokens_across:,}, a newline after each, and two delimiters.{acted}"
    )


def _ratio(vision: VisionConfig) -> str:
    return "" if vision.max_wh_ratio is None else f"{vision.max_wh_ratio:g}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _size(width: int, height: int) -> str:
    return f"{width:,} × {height:,}"


def _controls(examples: Sequence[tuple[int, int]], plan: ImagePlan) -> str:
    buttons = "".join(
        f'<button type="button" class="ds-button" data-width="{width}" data-height="{height}">{_size(width, height)}'
        "</button>"
        for width, height in examples
    )
    fields = "".join(
        f'<label class="ds-field"><span>{name.capitalize()}, pixels</span>'
        f'<input type="number" name="{name}" min="1" step="1" value="{value}"></label>'
        for name, value in (("width", plan.width), ("height", plan.height))
    )
    return (
        f'<form class="ds-controls">{fields}<div class="ds-presets" role="group" aria-label="Examples">{buttons}</div>'
        "</form>"
    )


def _table(examples: Sequence[tuple[int, int]], vision: VisionConfig, per_token: int | float) -> str:
    plans = [plan_image(width, height, vision) for width, height in examples]
    rows = [
        (
            _size(plan.width, plan.height),
            _size(*before_patches(plan, vision)),
            _size(plan.resized_width, plan.resized_height),
            _size(plan.patches_across, plan.patches_down),
            _size(plan.tokens_across, plan.tokens_down),
            f"{plan.span_tokens:,}",
            f"{nbytes(plan, per_token):,}",
        )
        for plan in plans
    ]
    header = ("given", "enough pixels", "whole patches", "patches", "tokens", "span", "bytes of global KV")
    return table(header, rows, numeric=tuple(range(len(header))))
