"""Checks for the chapters' exercises. Right answers are computed by the library, never stored.

``check("04.1", answer)`` tells a reader where an answer stands, ``hint("04.1")`` helps on without giving it away;
``verify`` raises unless an answer is right, so that the printed solutions are themselves tested whenever a chapter
runs.

Source: ds41's own.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Complex, Real

from ds41.language import say

Judge = Callable[[object], "str | None"]
"""Looks at an answer: None if it is right, else a remark on it that does not give the right one away."""

# The most characters of a remark that are shown.
_MOST = 600
LEVELS = ("easy", "medium", "hard")
"""How hard an exercise is: read it off or one formula; several steps; an idea of one's own, or a program."""


@dataclass(frozen=True)
class Exercise:
    """An exercise of a chapter.

    Attributes:
        name: "04.1" is the first of chapter 04.
        level: one of :data:`LEVELS`.
        minutes: what a reader who has just read the chapter needs.
        hints: the first says where to look, the later ones how to go about it.
        judge: looks at an answer.
    """

    name: str
    level: str
    minutes: int
    hints: tuple[str, ...]
    judge: Judge


@dataclass(frozen=True)
class Result:
    """Outcome of a check; true if the answer is right. Shows itself as one line."""

    name: str
    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        mark = "✓" if self.passed else "·"
        return say("{mark} Exercise {name}: {message}", mark=mark, name=self.name, message=self.message)


@dataclass(frozen=True)
class Hint:
    """One hint of an exercise. Shows itself as one line, which says how to get the next."""

    name: str
    number: int
    count: int
    text: str

    def __repr__(self) -> str:
        line = say("Hint {number} of {count}: {text}", number=self.number, count=self.count, text=self.text)
        if self.number < self.count:
            line += " " + say('(The next one: hint("{name}", {next}))', name=self.name, next=self.number + 1)
        return line


_exercises: dict[str, Exercise] = {}


def exercise(name: str, *, level: str, minutes: int, hints: Sequence[str]) -> Callable[[Judge], Judge]:
    """Register the judge of exercise ``name``; the arguments are those of :class:`Exercise`.

    Raises:
        ValueError: an unknown level, no minutes, or no hint.
    """
    if level not in LEVELS:
        raise ValueError(f"level of exercise {name} is {level!r}; expected one of {', '.join(LEVELS)}")
    if minutes < 1 or not hints:
        raise ValueError(f"exercise {name} has {minutes} minutes and {len(hints)} hints; expected at least one of each")

    def register(judge: Judge) -> Judge:
        _exercises[name] = Exercise(name, level, minutes, tuple(hints), judge)
        return judge

    return register


def find(name: str) -> Exercise:
    """The exercise ``name``.

    Raises:
        KeyError: there is no such exercise; the message lists those of the chapter.
    """
    _load(name)
    return _exercises[name]


def of_chapter(chapter: str) -> list[Exercise]:
    """The exercises of a chapter, such as "04", in their order.

    Raises:
        KeyError: the chapter has none.
    """
    _load_chapter(chapter)
    return [_exercises[name] for name in sorted(_exercises) if name.startswith(f"{chapter}.")]


def check(name: str, answer: object) -> Result:
    """Say whether ``answer`` solves exercise ``name``; ``None`` or ``...`` count as not answered yet.

    Raises:
        KeyError: there is no such exercise; the message lists those of the chapter.
    """
    judge = find(name).judge
    if answer is None or answer is ...:
        return Result(name, False, say("not answered yet"))
    remark = judge(answer)
    if remark is None:
        return Result(name, True, say("right"))
    said = say(remark)
    # A remark may quote what the answer gave, whatever its length.
    shown = said if len(said) <= _MOST else f"{said[:_MOST]} …"
    return Result(name, False, say("not yet. {remark}", remark=shown))


def hint(name: str, number: int = 1) -> Hint:
    """Hint ``number`` of exercise ``name``, from 1: each goes further than the one before.

    Raises:
        KeyError: no such exercise. ValueError: no such hint.
    """
    hints = find(name).hints
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(hints):
        raise ValueError(f"number is {number!r}; exercise {name} has hints 1 to {len(hints)}")
    return Hint(name, number, len(hints), say(hints[number - 1]))


def verify(name: str, answer: object) -> Result:
    """Like :func:`check`, but strict.

    Raises:
        AssertionError: a wrong answer. KeyError: no such exercise.
    """
    result = check(name, answer)
    if not result:
        raise AssertionError(repr(result))
    return result


def close(answer: object, expected: float, tolerance: float = 0.005) -> bool:
    """Whether ``answer`` is a real number within a relative ``tolerance`` of ``expected``."""
    value = number(answer)
    return value is not None and abs(value - expected) <= tolerance * abs(expected)


def number(answer: object) -> float | None:
    """``answer`` as a float if it is one real number, of Python or a scalar of NumPy or PyTorch; None if it is not."""
    try:
        # Arrays of one text, truth value or complex number would pass through float().
        plain = answer.item() if hasattr(answer, "item") else answer
        if isinstance(plain, (bool, str, bytes)) or (isinstance(plain, Complex) and not isinstance(plain, Real)):
            return None
        return float(plain)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def no_number(answer: object) -> str | None:
    """A remark on an answer that is not one finite number; None if it is one."""
    if isinstance(answer, (str, bytes)):
        return "Give a number, without quotes."
    if callable(answer):
        return "Give the number itself, not a function."
    value = number(answer)
    if value is None or not math.isfinite(value):
        return "Give one finite number."
    return None


def _load(name: str) -> None:
    if not isinstance(name, str):
        raise KeyError(f"no exercise {name!r}; expected chapter and number as a string, such as '04.1'")
    chapter = name.split(".", 1)[0]
    _load_chapter(chapter)
    if name not in _exercises:
        known = ", ".join(sorted(key for key in _exercises if key.startswith(chapter)))
        raise KeyError(f"no exercise {name!r}; chapter {chapter} has {known}")


def _load_chapter(chapter: str) -> None:
    try:
        importlib.import_module(f"ds41.exercises.chapter_{chapter}")
    except ModuleNotFoundError as error:
        if error.name != f"ds41.exercises.chapter_{chapter}":
            raise
        modules = [module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("chapter_")]
        first, last = (name.removeprefix("chapter_") for name in (min(modules), max(modules)))
        raise KeyError(f"no exercises for chapter {chapter!r}; chapters are called {first!r} to {last!r}") from None
