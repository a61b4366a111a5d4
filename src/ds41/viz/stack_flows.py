"""What works and what travels in the stack while one turn is served: the shapes, and what an arrow says of them.

:mod:`ds41.viz.stack_v41` and :mod:`ds41.viz.stack_v4` fill them.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ds41.viz.style import readable_bytes

PHASES = {"prefill": "Prefill", "decode": "Decode"}
CACHES = {"windows": "Hit with windows", "replay": "Hit without windows", "miss": "Miss"}
WORKS, RESTS, ABSENT = "works", "rests", "absent"
UNKNOWN = "not known here"
SETTLED = "Whether the prompt was found makes no difference any more: the prefill has settled it."


@dataclass(frozen=True)
class Travel:
    """What goes along one arrow.

    source, target: keys of parts. what: a word or two. nbytes: None where something else is counted; ``amount`` then
    says how much. kind: the palette's name of its colour. each: for what so much travels, "" for the whole phase.
    """

    source: str
    target: str
    what: str
    nbytes: int | float | None = None
    amount: str = ""
    kind: str = "neutral"
    each: str = ""

    @property
    def edge(self) -> str:
        return f"{self.source}-{self.target}"


@dataclass(frozen=True)
class State:
    """One combination. parts: whether each works, and a note; those left out rest. text: a sentence, as HTML."""

    parts: Mapping[str, tuple[str, str]]
    travels: tuple[Travel, ...]
    text: str


@dataclass(frozen=True)
class Turn:
    """The example: a prompt of ``context`` tokens, the last ``new`` of them new, a picture among those."""

    context: int
    new: int
    picture: tuple[int, int]

    @property
    def known(self) -> int:
        return self.context - self.new


def label(travels: Sequence[Travel]) -> tuple[str, str, str]:
    """Two lines beside an arrow, and the kind of what travels on it; several things share the arrow.

    Whatever goes at once is one sum; else each has its line.
    """
    first = travels[0]
    if any(one.each != first.each for one in travels):
        lines = [" ".join(filter(None, (_amount(one), one.each))) for one in travels]
        return lines[0], "+ " + lines[1], first.kind
    if len(travels) == 1:
        return _amount(first), first.each or first.what, first.kind
    return readable_bytes(sum(one.nbytes for one in travels)), " + ".join(one.what for one in travels), first.kind


def _amount(travel: Travel) -> str:
    return travel.amount if travel.nbytes is None else readable_bytes(travel.nbytes)
