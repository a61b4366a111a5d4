"""One assumption at a time: what a result becomes when one argument changes and all others stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sensitivity:
    """A result with one argument changed. ratio: to the result with all as they were; 0 where that was 0."""

    argument: str
    value: object
    result: float
    ratio: float


def one_at_a_time(
    result: Callable[..., float], base: Mapping[str, object], changes: Mapping[str, Iterable[object]]
) -> list[Sensitivity]:
    """``result(**base)``, then the same with each of the changes alone; the first row is the base.

    Raises:
        ValueError: a change of something that is no argument of the base.
    """
    if unknown := set(changes) - set(base):
        raise ValueError(f"no argument {', '.join(sorted(unknown))} to change; expected some of {', '.join(base)}")
    start = result(**base)
    rows = [Sensitivity("as stated", "", start, 1.0)]
    for name, values in changes.items():
        for value in values:
            found = result(**{**base, name: value})
            rows.append(Sensitivity(name, value, found, found / start if start else 0.0))
    return rows
