"""Private rows of every sequence: the newest ones, in a ring per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Ring:
    """The row of position p lies in slot ``p % slots`` of its sequence, until position ``p + slots`` takes it.

    Args:
        parts: width and type of each stored part; a row is one piece of each.
        spacing: the largest distance between neighbouring positions of one sequence in one write.

    A ring does not know which positions were written. Slots start as whatever memory held, and keep what an
    earlier sequence left in them; the cache sees to it that nobody asks for those.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        slots: int,
        parts: Sequence[tuple[int, torch.dtype]],
        *,
        device: torch.device,
        spacing: int = 1,
    ) -> None:
        self.slots = slots
        # A write of no more rows than this cannot put two of one sequence into the same slot.
        self._collision_free = slots // spacing
        self.parts = tuple(
            torch.empty(layers, batch * slots, width, dtype=dtype, device=device) for width, dtype in parts
        )

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def write(
        self, layer: int, sequence: torch.Tensor, position: torch.Tensor, values: tuple[torch.Tensor, ...]
    ) -> None:
        """Store rows: ``sequence`` and ``position`` int64 [M], one [M, width] tensor of ``values`` per part.

        Of rows that share a slot the one with the highest position stays.
        """
        flat = self.slots_of(sequence, position)
        if flat.numel() > self._collision_free:
            keeper = self._keepers(flat, position)
            values = tuple(value.index_select(0, keeper) for value in values)
        for part, value in zip(self.parts, values, strict=True):
            part[layer].index_copy_(0, flat, value)

    def read(self, layer: int, sequence: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the slots of ``position`` [M] hold, one [M, width] tensor per part."""
        flat = self.slots_of(sequence, position)
        return tuple(part[layer].index_select(0, flat) for part in self.parts)

    def copy(self, source: int, target: int) -> None:
        """Give sequence ``target`` the rows of sequence ``source``."""
        if not self.slots:
            return
        for part in self.parts:
            rows = part.unflatten(1, (-1, self.slots))
            rows[:, target] = rows[:, source]

    def fill(self, sequence: int, value: int) -> None:
        for part in self.parts:
            part[:, sequence * self.slots : (sequence + 1) * self.slots] = value

    def slots_of(self, sequence: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The slot of each position, among those of all sequences."""
        return sequence * self.slots + position % self.slots

    def _keepers(self, flat: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """For each row of a write, the row that ends up in its slot; found without waiting for the device.

        All rows of a slot then write the same bytes, so the order of writing does not matter.
        """
        count = flat.numel()
        order = position * count + torch.arange(count, device=flat.device)
        newest = torch.zeros(self.parts[0].shape[1], dtype=torch.int64, device=flat.device)
        return newest.scatter_reduce_(0, flat, order, "amax")[flat] % count
