"""Exercises of chapter 11, vision."""

from __future__ import annotations

import numpy as np
import torch

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.exercises import close, exercise, number
from ds41.language import say
from ds41.vision import Role, plan_image, span_roles

_SIZE = (1280, 720)
_PLACE = 5000
_LETTERS = {Role.START: "S", Role.IMAGE: "I", Role.NEWLINE: "N", Role.END: "E"}


@exercise(
    "11.1",
    level="easy",
    minutes=5,
    hints=(
        'The rules of sizes are below the first figure, the formula of the span is in "Prediction: the span and its '
        'bytes".',
        "This image is neither enlarged nor reduced. Find the columns from its width and the rows from its height, in "
        "two steps each: pixels to patches, patches to tokens.",
    ),
)
def positions_of_a_picture(answer: object) -> str | None:
    """Positions that a 1,280 x 720 image takes."""
    config = ModelConfig.flash()
    vision = config.vision
    plan = plan_image(*_SIZE, vision)
    across, down = (side // vision.patch_size // vision.downsample_ratio for side in _SIZE)
    if close(answer, plan.span_tokens, 0):
        return None
    if close(answer, plan.image_tokens, 0):
        return "Those are the image tokens. Newlines and delimiters take positions, too."
    if close(answer, plan.image_tokens + 2, 0):
        return "The newlines are missing: one follows each row."
    if close(answer, plan.span_tokens - 2, 0):
        return "Two positions are missing: the delimiters."
    if close(answer, plan.span_tokens - 1, 0):
        return "One position is missing: there is a delimiter at both ends, and a newline after the last row, too."
    if close(answer, plan.tokens_across * (plan.tokens_down + 1) + 2, 0):
        return "A newline follows each row, not each column."
    if close(answer, down * (across + 1) + 2, 0):
        return "What does not fill a patch or a token still needs one: round up, not down."
    if close(answer, plan.patches, 0):
        return "Those are patches. Nine of them make a token."
    if close(answer, plan.span_tokens * ledger.bytes_per_token(config), 0):
        return "Those are the bytes of its global KV. The exercise asks for positions."
    return "Round up twice: pixels to patches of 14, patches to tokens of 3. Then h(w+1) + 2."


@exercise(
    "11.2",
    level="medium",
    minutes=7,
    hints=(
        'The formula of the span is in "Prediction: the span and its bytes". The grid need not be square.',
        "Try all grids by program, or ask which positions of a span hold no part of the image, and which side of the "
        "grid decides how many these are.",
    ),
)
def largest_grid(answer: object) -> str | None:
    """Columns and rows of the grid with the most image tokens within the limit."""
    limit = ModelConfig.flash().vision.max_image_tokens
    given = _whole_numbers(answer)
    if given is None or len(given) != 2:
        return "Give two whole numbers, columns and rows."
    columns, rows = given
    if columns < 1 or rows < 1:
        return "Both are at least 1."
    best = max(w * ((limit - 2) // (w + 1)) for w in range(1, limit))
    span = rows * (columns + 1) + 2
    if span <= limit and columns * rows == best:
        return None
    if span > limit and columns * (rows + 1) + 2 <= limit and columns * rows == best:
        return "Columns come first, then rows."
    if span > limit:
        return say(
            "That span has {span:,} positions: newlines and delimiters count toward the limit of {limit:,}.",
            span=span,
            limit=limit,
        )
    if columns == rows:
        return "The best of the squares. Each row costs a newline; what if there were fewer rows?"
    return say("That holds {tokens:,} image tokens; there is a grid with more.", tokens=columns * rows)


@exercise(
    "11.3",
    level="easy",
    minutes=5,
    hints=(
        'The cell in "The span in the prompt" prints such a span, with other signs.',
        "In Python a string times a number repeats it. Build one row with its newline, repeat it, and put the "
        "delimiters around the whole.",
    ),
)
def roles_of_a_span(answer: object) -> str | None:
    """A function (columns, rows) -> a string of S, I, N and E."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    vision = ModelConfig.flash().vision
    for width, height in ((544, 544), (640, 490), (1920, 1080), (20000, 100)):
        plan = plan_image(width, height, vision)
        expected = "".join(_LETTERS[Role(role)] for role in span_roles(plan))
        columns, rows = plan.tokens_across, plan.tokens_down
        try:
            got = answer(columns, rows)
        except TypeError as error:
            return say("It is called with two numbers, columns and rows, and raises {error}.", error=repr(error))
        except Exception as error:
            return say(
                "For {columns} columns and {rows} rows it raises {error}.",
                columns=columns,
                rows=rows,
                error=repr(error),
            )
        if got is None:
            return "It gives None. A function needs a return to give a value."
        if not isinstance(got, str):
            return say(
                "For {columns} columns and {rows} rows it gives a {kind}; a string is wanted.",
                columns=columns,
                rows=rows,
                kind=type(got).__name__,
            )
        if got != expected:
            return _remark_on_roles(got, expected, columns, rows)
    return None


@exercise(
    "11.4",
    level="medium",
    minutes=6,
    hints=(
        'The order is that of "The aligner: nine patches to a token"; its example has two channels.',
        "The nine values of a channel lie together. Divide the place by how many there are: quotient and remainder. "
        "Do the same once more with the remainder.",
    ),
)
def place_in_the_square(answer: object) -> str | None:
    """Channel, row and column of one of the aligner's inputs."""
    ratio = int(ModelConfig.flash().vision.downsample_ratio)
    channel, within = divmod(_PLACE, ratio**2)
    row, column = divmod(within, ratio)
    given = _whole_numbers(answer)
    if given is None or len(given) != 3:
        return "Give three whole numbers: channel, row, column."
    if given == [channel, row, column]:
        return None
    width = ModelConfig.flash().vision.hidden_size
    if given == [_PLACE % width, *divmod(_PLACE // width, ratio)]:
        return "That lays whole patches side by side. The order is channel-major: nine values of one channel first."
    if given == [channel, column, row]:
        return "The channel is right. Within the nine, rows come before columns."
    if given == [channel + 1, row + 1, column + 1]:
        return "Count from 0, all three."
    if given == [row, column, channel]:
        return "The channel comes first, then row and column."
    if given[0] == channel:
        return "The channel is right. Row and column follow from what is left over, three to a row."
    return "Index = channel × 9 + row × 3 + column."


def _remark_on_roles(got: str, expected: str, columns: int, rows: int) -> str:
    if set(got) - set(expected):
        return say(
            "The letters are S, I, N and E, as capitals; there is {other!r}.", other=min(set(got) - set(expected))
        )
    if got == expected[1:-1]:
        return "Start and end are missing: S stands before the first row and E behind the last."
    if got == "S" + ("I" * rows + "N") * columns + "E":
        return say(
            "For {columns} columns and {rows} rows it takes one for the other: a row has as many image tokens as "
            "there are columns.",
            columns=columns,
            rows=rows,
        )
    if len(got) != len(expected):
        return say(
            "For {columns} columns and {rows} rows it gives {given} letters; the span has {wanted} positions.",
            columns=columns,
            rows=rows,
            given=len(got),
            wanted=len(expected),
        )
    return say(
        "For {columns} columns and {rows} rows the length is right and the order is not.", columns=columns, rows=rows
    )


def _whole_numbers(answer: object) -> list[int] | None:
    """The members of a list, tuple or array as ints; None if it is nothing of that kind or one is not whole."""
    try:
        if isinstance(answer, (torch.Tensor, np.ndarray)):
            answer = answer.tolist()
    except RuntimeError:  # A tensor on the meta device, or a sparse one.
        return None
    numbers = [number(one) for one in answer] if isinstance(answer, (list, tuple)) else [None]
    return [int(one) for one in numbers] if all(one is not None and one.is_integer() for one in numbers) else None
