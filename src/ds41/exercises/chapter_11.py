"""Exercises of chapter 11, vision."""

from __future__ import annotations

from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.vision import Role, plan_image, span_roles

_SIZE = (1280, 720)
_PLACE = 5000
_LETTERS = {Role.START: "S", Role.IMAGE: "I", Role.NEWLINE: "N", Role.END: "E"}


@exercise("11.1")
def positions_of_a_picture(answer: object) -> str | None:
    """Positions that a 1,280 x 720 image takes."""
    plan = plan_image(*_SIZE, ModelConfig.flash().vision)
    if close(answer, plan.span_tokens, 0):
        return None
    if close(answer, plan.image_tokens, 0):
        return "Those are the image tokens. Newlines and delimiters take positions, too."
    if close(answer, plan.span_tokens - 2, 0):
        return "Two positions are missing: the delimiters."
    if close(answer, plan.tokens_across * (plan.tokens_down + 1) + 2, 0):
        return "A newline follows each row, not each column."
    return "Round up twice: pixels to patches of 14, patches to tokens of 3. Then h(w+1) + 2."


@exercise("11.2")
def largest_grid(answer: object) -> str | None:
    """Columns and rows of the grid with the most image tokens within the limit."""
    limit = ModelConfig.flash().vision.max_image_tokens
    try:
        columns, rows = (int(one) for one in answer)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return "Give two whole numbers, columns and rows."
    if columns < 1 or rows < 1:
        return "Both are at least 1."
    span = rows * (columns + 1) + 2
    if span > limit:
        return f"That span has {span:,} positions."
    best = max(w * ((limit - 2) // (w + 1)) for w in range(1, limit))
    if columns * rows == best:
        return None
    if columns == rows:
        return "The best of the squares. Each row costs a newline; what if there were fewer rows?"
    return f"That holds {columns * rows:,} image tokens; there is a grid with more."


@exercise("11.3")
def roles_of_a_span(answer: object) -> str | None:
    """A function (columns, rows) -> a string of S, I, N and E."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    vision = ModelConfig.flash().vision
    for width, height in ((544, 544), (640, 490), (1920, 1080), (20000, 100)):
        plan = plan_image(width, height, vision)
        expected = "".join(_LETTERS[Role(role)] for role in span_roles(plan))
        try:
            got = answer(plan.tokens_across, plan.tokens_down)
        except TypeError:
            return "It is called with two numbers, columns and rows."
        if got != expected:
            where = f"For {plan.tokens_across} columns and {plan.tokens_down} rows"
            if not isinstance(got, str):
                return f"{where} it gives a {type(got).__name__}; a string is wanted."
            if len(got) != len(expected):
                return f"{where} it gives {len(got)} letters; the span has {len(expected)} positions."
            return f"{where} the length is right and the order is not."
    return None


@exercise("11.4")
def place_in_the_square(answer: object) -> str | None:
    """Channel, row and column of one of the aligner's inputs."""
    ratio = int(ModelConfig.flash().vision.downsample_ratio)
    channel, within = divmod(_PLACE, ratio**2)
    try:
        given = tuple(int(one) for one in answer)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return "Give three whole numbers: channel, row, column."
    if given == (channel, *divmod(within, ratio)):
        return None
    width = ModelConfig.flash().vision.hidden_size
    if given == (_PLACE % width, *divmod(_PLACE // width, ratio)):
        return "That lays whole patches side by side. The order is channel-major: nine values of one channel first."
    if given == (channel, within % ratio, within // ratio):
        return "The channel is right. Within the nine, rows come before columns."
    return "Index = channel × 9 + row × 3 + column."
