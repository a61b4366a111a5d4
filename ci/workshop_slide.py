"""What a deck is made of: slides with their parts, and what it has to know of its chapter."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """What stands on a slide: "text" or "answer" (Markdown), "figure" (HTML), "code", "print" or "solution"."""

    kind: str
    source: str


@dataclass
class Slide:
    """One slide.

    Attributes:
        kind: what it is, for its style: "title", "goals", "section", "figure", "printed", "exercises" and so on.
        heading: Markdown of its heading.
        kicker: the small line above the heading.
        parts: what stands under the heading.
        notes: Markdown for the speaker.
        below: whether it belongs to the column of the slide before it.
    """

    kind: str
    heading: str
    kicker: str = ""
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    below: bool = True


@dataclass(frozen=True)
class Chapter:
    """What a deck has to know beside the notebook.

    Attributes:
        name: "04-fp4".
        address: where the book has this chapter.
        link: the address of a link's target on slides, None for mere words.
        goals: what a listener will be able to do; Markdown.
        minutes: how long it takes to teach, 0 where that is not said.
        following: name and question of the next chapter, None after the last.
    """

    name: str
    address: str
    link: Callable[[str], str | None]
    goals: Sequence[str] = ()
    minutes: int = 0
    following: tuple[str, str] | None = None

    @property
    def number(self) -> str:
        """ "04" of "04-fp4"; "" of a page without a number."""
        found = re.match(r"\d+", self.name)
        return found[0] if found else ""
