"""How many tokens each sequence holds, and how far it may be taken back."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from ds41.cache.errors import CacheError


class Progress:
    """Lengths of ``batch`` sequences and what bounds them.

    Private rows (windows, open groups, history) lie in rings that hold ``rollback`` positions more than are needed.
    Writing position p may overwrite one that was needed ``rollback`` tokens ago, so a sequence can go back to
    ``rollback`` tokens before the furthest position that was ever written, and no further; also not into a prefix
    that it adopted, whose private rows it never had.

    A rewound sequence is shorter than ``stored``, the tokens whose global entries it has: until its length gets
    there, it is fed tokens again that write private rows only.
    """

    def __init__(self, batch: int, rollback: int, max_tokens: int) -> None:
        self.rollback = rollback
        self.max_tokens = max_tokens
        self.lengths = [0] * batch
        self.stored = [0] * batch
        self._adopted = [0] * batch
        self._written = [0] * batch
        self._step_ends = [0] * batch
        self._step_begun = True

    def step(self, counts: Iterable[int]) -> list[int]:
        """Lengths after a step of ``counts`` tokens.

        Raises:
            CacheError: a length would exceed ``max_tokens``, or an earlier step was left half done.
        """
        counts = self._checked(counts)
        targets = []
        for row, (length, count) in enumerate(zip(self.lengths, counts, strict=True)):
            if length + count > self.max_tokens:
                raise CacheError(
                    f"row {row} holds {length} tokens and cannot take {count} more: max_tokens is {self.max_tokens}"
                )
            if count and self._written[row] - self.rollback > length:
                raise CacheError(
                    f"row {row} holds {length} tokens, but a step may have written as far as {self._written[row]} and "
                    f"only {self.rollback} can be taken back (rollback): its windows are overwritten; reset the row"
                )
            targets.append(length + count)
        return targets

    def begin(self, targets: list[int]) -> None:
        """A step up to lengths ``targets`` has its pages; the first private row written makes it count."""
        self._step_ends = targets
        self._step_begun = False

    def note_write(self) -> None:
        """Private rows are about to be overwritten, as far as the current step reaches."""
        if not self._step_begun:
            self._step_begun = True
            self._written = list(map(max, self._written, self._step_ends))

    def advance(self, counts: Iterable[int], room: list[int]) -> None:
        """Count the tokens of a step.

        Raises:
            CacheError: more tokens than there are pages for, ``room`` tokens in all for each sequence.
        """
        ends = [length + count for length, count in zip(self.lengths, self._checked(counts), strict=True)]
        for row, (end, limit) in enumerate(zip(ends, room, strict=True)):
            if end > limit:
                raise CacheError(f"row {row} would hold {end} tokens and has pages for {limit}: reserve them first")
        self.lengths = ends

    def earliest(self, row: int) -> int:
        """The smallest length that a sequence can be taken back to."""
        limit = max(self._adopted[row], self._written[row] - self.rollback)
        return min(limit, self.lengths[row])

    def take_back(self, row: int, length: int) -> None:
        """Shorten a sequence.

        Raises:
            CacheError: ``length`` is beyond the current one, or before :meth:`earliest`.
        """
        current, earliest = self.lengths[row], self.earliest(row)
        if not 0 <= length <= current:
            raise CacheError(f"row {row} holds {current} tokens; it cannot be cut to {length}")
        if length < earliest:
            adopted = f" and its first {self._adopted[row]} are adopted" if self._adopted[row] else ""
            raise CacheError(
                f"row {row} holds {current} tokens, was written as far as {self._written[row]}{adopted}: "
                f"it can be cut to {earliest} or more (rollback is {self.rollback}), not to {length}"
            )
        self.lengths[row] = self._step_ends[row] = length
        self.stored[row] = min(self.stored[row], length)

    def rewind(self, row: int, start: int) -> int:
        """Go back to ``start`` for the same tokens to come again; returns how far private rows were written.

        Raises:
            CacheError: ``start`` is beyond the current length.
        """
        current = self.lengths[row]
        if not 0 <= start <= current:
            raise CacheError(f"row {row} holds {current} tokens; it cannot be rewound to {start}")
        self.stored[row] = self._adopted[row] = max(self.stored[row], current)
        furthest = max(current, self._written[row])
        self.lengths[row] = self._written[row] = self._step_ends[row] = start
        return furthest

    def restart(self, row: int, adopted: int = 0) -> None:
        """Start a sequence anew, after ``adopted`` tokens whose private rows it does not have."""
        for values in self._all:
            values[row] = adopted

    def copy(self, source: int, target: int) -> None:
        for values in self._all:
            values[target] = values[source]

    @property
    def _all(self) -> tuple[list[int], ...]:
        return self.lengths, self.stored, self._adopted, self._written, self._step_ends

    def _checked(self, counts: Iterable[int]) -> list[int]:
        counts = [index(count) for count in counts]
        if len(counts) != len(self.lengths):
            raise CacheError(f"counts has {len(counts)} entries; expected one for each of {len(self.lengths)} rows")
        for row, count in enumerate(counts):
            if count < 0:
                raise CacheError(f"counts[{row}] is {count}; expected zero or more")
        return counts
