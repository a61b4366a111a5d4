"""Numbers in running text: taken out of it, so that one translation serves them all, and written the German way.

Source: ds41's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# A number that stands alone: no part of a name (E4M3, sm_75, GLM-4.5), of a version (2.13.0) or of a longer number.
# 04.1 is an exercise; 0.5x is a number, and 4x a name for the format of a table.
_NUMBER = re.compile(
    r"(?<![\w.,^])(?<![A-Za-z]-)(?!0\d)"
    r"(\d+\.\d+(?=x\b)|\d(?:\.\d+)?e[+-]?\d+\b|(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?!\w|\.\d|,\d))"
)
# After these a point parts no decimals: "section 2.3", "Python 3.11".
_NAMES = re.compile(
    r"(?:\b(?:[Ss]ections?|[Cc]hapters?|[Ee]xercises?|[Vv]ersions?|PCIe|Python|torch|[Tt]riton|CUDA|Llama|Report"
    r"|GLM-\d\.\d /|Terminal-Bench|[Vv]ersions? \d+\.\d+ and)|§) ?$"
)
_LISTED = re.compile(r"\},(?= [+−-]?\{)")
_QUOTES = str.maketrans("“”", "„“")
_PLACE = re.compile(r"\{(0|[1-9]\d*)\}")


def take_out(text: str) -> tuple[str, list[str]]:
    """The text with ``{1}``, ``{2}``, ... in the places of its numbers, and the numbers as they stood."""
    numbers: list[str] = []

    def place(match: re.Match) -> str:
        if "." in match[0] and _NAMES.search(text, 0, match.start()):
            return match[0]
        numbers.append(match[0])
        return f"{{{len(numbers)}}}"

    return _NUMBER.sub(place, text), numbers


def put_in(text: str, numbers: list[str], write: Callable[[str], str]) -> str:
    """Fill the places of a text with numbers, each as ``write`` writes it.

    Raises:
        ValueError: a place beyond the numbers there are.
    """

    def fill(match: re.Match) -> str:
        index = int(match[1])
        if not 1 <= index <= len(numbers):
            raise ValueError(f"{text!r} has a place {match[0]}; there are {len(numbers)} numbers")
        return write(numbers[index - 1])

    return _PLACE.sub(fill, text)


def german(number: str) -> str:
    """An English number with a decimal comma and points between thousands: 1,048,576.5 becomes 1.048.576,5."""
    return number.translate({ord(","): ".", ord("."): ","})


def localise(text: str) -> str:
    """A text without words, with its numbers and quotation marks written the German way; decimals are parted by
    semicolons."""
    template, numbers = take_out(text)
    if any("." in number for number in numbers):
        template = _LISTED.sub("};", template)
    return put_in(template.translate(_QUOTES), numbers, german)
