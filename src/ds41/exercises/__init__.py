"""Checks for the chapters' exercises. Right answers are computed by the library, never stored.

``check("04.1", answer)`` tells a reader where an answer stands; ``verify`` raises unless it is right, so that the
printed solutions are themselves tested whenever a chapter runs.

Source: ds41's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

Exercise = Callable[[object], "str | None"]
"""Looks at an answer: None if it is right, else a hint that does not give it away."""
_exercises: dict[str, Exercise] = {}


@dataclass(frozen=True)
class Result:
    """Outcome of a check; true if the answer is right. Shows itself as one line."""

    name: str
    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"{'✓' if self.passed else '·'} Exercise {self.name}: {self.message}"


def exercise(name: str) -> Callable[[Exercise], Exercise]:
    """Register the check of exercise ``name`` ("04.1" is the first of chapter 04)."""

    def register(function: Exercise) -> Exercise:
        _exercises[name] = function
        return function

    return register


def check(name: str, answer: object) -> Result:
    """Say whether ``answer`` solves exercise ``name``; ``None`` or ``...`` count as not answered yet.

    Raises:
        KeyError: there is no such exercise; the message lists those of the chapter.
    """
    _load(name)
    if answer is None or answer is ...:
        return Result(name, False, "not answered yet")
    hint = _exercises[name](answer)
    return Result(name, hint is None, "right" if hint is None else f"not yet. {hint}")


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
    """Whether ``answer`` is a number within a relative ``tolerance`` of ``expected``."""
    if isinstance(answer, bool):
        return False
    try:
        value = float(answer)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return abs(value - expected) <= tolerance * abs(expected)


def _load(name: str) -> None:
    chapter = name.split(".", 1)[0]
    try:
        importlib.import_module(f"ds41.exercises.chapter_{chapter}")
    except ModuleNotFoundError as error:
        if error.name != f"ds41.exercises.chapter_{chapter}":
            raise
        raise KeyError(f"no exercises for chapter {chapter!r}") from None
    if name not in _exercises:
        known = ", ".join(sorted(key for key in _exercises if key.startswith(chapter)))
        raise KeyError(f"no exercise {name!r}; chapter {chapter} has {known}")
