"""The tokens of one forward pass: all sequences of a batch flat, one after the other, with no padding.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ds41.rope import turns


@dataclass(frozen=True, eq=False)
class Step:
    """Which sequence and position each of N tokens has.

    counts: tokens of each sequence in this step, 0 where it has none. firsts: position of each one's first token.
    sequence, position: int64 [N], ascending. image: bool [N], or None where no token belongs to an image.
    """

    counts: tuple[int, ...]
    firsts: tuple[int, ...]
    sequence: torch.Tensor
    position: torch.Tensor
    image: torch.Tensor | None = None
    _turns: dict = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        counts: Sequence[int],
        firsts: Sequence[int],
        device: torch.device | str = "cpu",
        image: torch.Tensor | None = None,
    ) -> Step:
        """The step of sequences that have ``firsts`` tokens and get ``counts`` more; image bool [N] or None."""
        if len(counts) == 1:
            sequence = torch.zeros(counts[0], dtype=torch.int64, device=device)
            position = torch.arange(firsts[0], firsts[0] + counts[0], device=device)
        else:
            sequence = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(device)
            position = torch.cat([torch.arange(f, f + c) for f, c in zip(firsts, counts, strict=True)]).to(device)
        return cls(tuple(counts), tuple(firsts), sequence, position, image)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences together, N."""
        return self.position.shape[0]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Flat index of each sequence's first token, and N at the end."""
        offsets = [0]
        for count in self.counts:
            offsets.append(offsets[-1] + count)
        return tuple(offsets)

    @cached_property
    def first_position(self) -> torch.Tensor:
        """Position of each sequence's first token in this step, int64 [sequences]."""
        return torch.tensor(self.firsts, device=self.position.device)

    @cached_property
    def longest(self) -> int:
        """The largest number of tokens that any sequence of this step has after it."""
        return max((first + count for first, count in zip(self.firsts, self.counts, strict=True) if count), default=0)

    def last_tokens(self) -> torch.Tensor:
        """Flat index of each sequence's last token [sequences]; that of a sequence without tokens means nothing."""
        return torch.tensor(self.offsets[1:], device=self.position.device) - 1

    def turn(self, frequencies: torch.Tensor) -> torch.Tensor:
        """The rotation of every token, complex64 [N, R/2]; computed once for each table of frequencies."""
        # The table is kept beside its turns, so that its id stays its own.
        return self._turned(frequencies)[1]

    def cos_and_sin(self, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as two contiguous float32 tensors [N, R/2]; ``frequencies`` float32 [R/2]."""
        return self._turned(frequencies)[2:]

    def _turned(self, frequencies: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if id(frequencies) not in self._turns:
            turn = turns(self.position, frequencies)
            self._turns[id(frequencies)] = (frequencies, turn, turn.real.contiguous(), turn.imag.contiguous())
        return self._turns[id(frequencies)]

    def from_position(self, starts: Sequence[int]) -> tuple[Step, torch.Tensor]:
        """The tokens at or after ``starts`` (one for each sequence), and their flat indices in this step."""
        # A sequence without tokens stays where it is: what lies before a later position was perhaps never written.
        firsts = [
            max(first, start) if count else first
            for first, count, start in zip(self.firsts, self.counts, starts, strict=True)
        ]
        counts = [
            max(0, first + count - kept) for first, count, kept in zip(self.firsts, self.counts, firsts, strict=True)
        ]
        limits = torch.tensor(starts, device=self.position.device)
        kept = torch.nonzero(self.position >= limits[self.sequence]).squeeze(1)
        image = None if self.image is None else self.image[kept]
        return Step(tuple(counts), tuple(firsts), self.sequence[kept], self.position[kept], image), kept
