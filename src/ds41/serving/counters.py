"""Plain counters of what a store or a pool has done, and a table of several side by side.

Source: ds41's own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping


class Counters:
    """Named counts that only ever grow, safe to add to from several threads.

    ``names`` are all the names there are: any other is refused with a ``KeyError``, so that a misspelt
    name cannot count in silence. All start at 0.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._counts = dict.fromkeys(names, 0)
        # Re-entrant, because the finaliser of something counted here may run, and count, within a snapshot.
        self._lock = threading.RLock()

    @property
    def names(self) -> tuple[str, ...]:
        """The declared names, in their order."""
        return tuple(self._counts)

    def add(self, name: str, n: int = 1) -> None:
        """Count ``n`` more of ``name``.

        Raises:
            KeyError: no such counter. ValueError: a negative ``n``.
        """
        if n < 0:
            raise ValueError(f"counter {name!r} cannot go down by {-n}; expected 0 or more")
        with self._lock:
            self._counts[self._known(name)] += n

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[self._known(name)]

    def snapshot(self) -> dict[str, int]:
        """All counts as they stood at one moment, in the declared order."""
        with self._lock:
            return dict(self._counts)

    def _known(self, name: str) -> str:
        if name not in self._counts:
            raise KeyError(f"no counter named {name!r}; expected one of {', '.join(self._counts)}")
        return name

    def __repr__(self) -> str:
        return f"Counters({self.snapshot()})"


def table(title: str, **tiers: Counters | Mapping[str, int]) -> str:
    """The counts of several tiers side by side, as lines of plain text without a trailing newline.

    ``tiers`` gives each column its heading: ``table("Tiers", store=store.counters, pool=pool.counters)``;
    a column may also be a snapshot, or the difference of two. One row for each name that any of them has,
    in the order of first mention; "-" where a tier does not count it.
    """
    columns = {
        heading: counts.snapshot() if isinstance(counts, Counters) else counts for heading, counts in tiers.items()
    }
    names = list(dict.fromkeys(name for counts in columns.values() for name in counts))
    cells = [["", *columns]]
    cells += [
        [name.replace("_", " "), *(f"{counts[name]:,}" if name in counts else "-" for counts in columns.values())]
        for name in names
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [title]
    for first, *others in cells:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join(["", first.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)
