"""One claim of the source article, its verdict, and when two numbers agree.

The article (a check of the 890 bytes, in eight sections with four code cells) started this book. A claim with a
number is compared at the precision at which the article prints it; a claim in words is put to the library as a
question with the answer yes or no; what only the report can answer says so. Quoted is at most a phrase.

Source: the article; the values are this library's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

Verdict = Literal["right", "imprecise", "wrong", "not decidable"]
"""What is said of a claim."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""All verdicts, the best first."""
MARGIN = Fraction(5, 100)
"""How far a number may lie from the printed one and still be called imprecise: the article's own margin."""
SECTIONS = {
    "0": "Introduction",
    "1": "Why KV bytes price agents",
    "2": "The split",
    "3": "Sparse attention",
    "4": "FP4 and the ledger",
    "5": "Bounded replay",
    "6": "The supporting cast",
    "7": "What could break",
    "8": "The verdict",
}
"""The article's sections by number, 0 for what stands before the first, and what they are about."""
_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")


@dataclass(frozen=True)
class Claim:
    """One claim of the article.

    key: unique, starts with the section. section: a key of :data:`SECTIONS`. says: the claim in this book's words.
    because: why the verdict is what it is; may be empty where a printed figure is simply right.
    chapter, anchor: where the book shows it at length, such as "05-ledger" and the id of a cell of that notebook.
    article_value: the figure as the article prints it, or as its words amount to, without its unit; None for a claim
        without a number.
    computed: gives what the library finds: a number to compare with article_value; else whether the claim holds, or
        a number that goes with it. None where nothing can be computed and the source is the report.
    redone: the article's own arithmetic, done again with the library; None where there is none.
    unit: of both values. cell, line: which printed line of which code cell, lines with text counted from 1.

    Raises:
        ValueError: an unknown verdict or section, a printed figure that is no number, or one without anything to
            compare it with.
    """

    key: str
    section: str
    says: str
    verdict: Verdict
    because: str
    chapter: str
    anchor: str
    article_value: str | None = None
    computed: Callable[[], object] | None = None
    unit: str = ""
    redone: Callable[[], object] | None = None
    cell: int | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"claim {self.key}: verdict is {self.verdict!r}; expected one of {', '.join(VERDICTS)}")
        if self.section not in SECTIONS:
            raise ValueError(f"claim {self.key}: section is {self.section!r}; expected one of {', '.join(SECTIONS)}")
        if self.article_value is not None and not _NUMBER.fullmatch(self.article_value):
            raise ValueError(f"claim {self.key}: article_value is {self.article_value!r}; expected a printed number")
        if self.article_value is not None and self.computed is None:
            raise ValueError(f"claim {self.key}: it has an article_value and nothing computed to compare with")

    @cached_property
    def value(self) -> object:
        """What :attr:`computed` gives; None without it."""
        return None if self.computed is None else self.computed()

    @property
    def redone_value(self) -> object:
        """What :attr:`redone` gives; None without it."""
        return None if self.redone is None else self.redone()

    @property
    def supported(self) -> tuple[Verdict, ...]:
        """The verdicts that the computed value leaves open; all of them where nothing was computed."""
        if self.article_value is not None:
            return numeric_verdicts(self.article_value, self.value)
        if isinstance(self.value, bool):
            return ("right",) if self.value else ("imprecise", "wrong")
        return VERDICTS


def as_printed(printed: str, value: object) -> str:
    """``value`` with as many decimals, and with commas and a sign where ``printed`` has them.

    Raises:
        ValueError: ``printed`` is no number. TypeError: ``value`` is none.
    """
    match = _NUMBER.fullmatch(printed)
    if match is None:
        raise ValueError(f"printed is {printed!r}; expected a number such as 4,096, -38.2 or +3.0")
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        raise TypeError(f"value is {value!r}; expected a number")
    decimals = len((match[3] or ".")[1:])
    sign, commas = "+" if printed[0] in "+-" else "", "," if match[2] else ""
    number = value if isinstance(value, int) else float(value)
    return format(number, f"{sign}{commas}.{decimals}f")


def agrees(printed: str, value: object) -> bool:
    """Whether ``value``, rounded to the decimals of ``printed``, is the number that ``printed`` shows."""
    return _number(as_printed(printed, value)) == _number(printed)


def numeric_verdicts(printed: str, value: object) -> tuple[Verdict, ...]:
    """What may be said of a printed number: "right" if and only if it agrees; "imprecise" only within 5 %."""
    if agrees(printed, value):
        return ("right",)
    near = abs(_number(printed) - Fraction(value)) <= MARGIN * abs(Fraction(value))
    return ("imprecise", "wrong") if near else ("wrong",)


def _number(printed: str) -> Fraction:
    return Fraction(printed.replace(",", "").removeprefix("+"))
