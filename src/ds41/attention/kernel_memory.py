"""A packed cache as the kernels read and write it: planes of bytes, and where in them each row lies.

Source: the layout of pages and rings is ds41's own (:mod:`ds41.cache.layout`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ds41.attention.memory import CacheMemory
from ds41.formats import Packed
from ds41.ops import choose_backend
from ds41.step import Step


class WindowPlane(NamedTuple):
    """Window rows of one layer during one step.

    rows: Packed of [R, bytes]. place: int64 [N], the row in which each new token's goes. choice: int64 [N, window],
    the rows that each token sees, -1 for none.
    """

    rows: Packed
    place: torch.Tensor
    choice: torch.Tensor


class KernelMemory(CacheMemory):
    """A packed cache on a device that runs kernels: nothing is decoded on the way to the attention kernel.

    A short step writes its window rows where they belong, into the ring, and reads there too: a ring holds
    ``rollback`` rows more than a window. A longer one would overwrite rows that its own first tokens see; it works
    in a buffer and fills the ring afterwards. So does one with tokens whose rows are kept.
    """

    @staticmethod
    def suits(cache) -> bool:
        """Whether this cache's layers can run on kernels here."""
        return cache.storage == "packed" and choose_backend(cache.device).name == "triton"

    @contextmanager
    def window_plane(self, layer: int, step: Step) -> Iterator[WindowPlane]:
        """The plane of a layer; what is written to it by the end of the block is what the ring keeps."""
        cache = self.cache
        starts = tuple(cache.window_start[layer].tolist())
        cache.note_window_write()
        keeps = cache.keeps_windows(layer)
        if max(step.counts) <= cache.rollback + 1 and not keeps:
            place, choice = self._ring_rows(step, starts)
            yield WindowPlane(cache.window_plane(layer), place, choice)
            return
        reach = cache.config.sliding_window
        older = 0 if all(f <= s for f, s in zip(step.firsts, starts, strict=True)) else reach - 1
        choice = self._choice(step, reach, older, starts)
        plane = cache.window_plane(layer)
        before = len(step.counts) * older
        rows = Packed(*(part.new_empty(before + step.tokens, part.shape[1]) for part in plane))
        if older:
            slots = cache.window_slots(*self._before(step, older, starts))
            for part, stored in zip(rows, plane, strict=True):
                torch.index_select(stored, 0, slots, out=part[:before])
        place = torch.arange(before, before + step.tokens, device=step.position.device)
        yield WindowPlane(rows, place, choice)
        written = Packed(*(part[before:] for part in rows))
        if keeps:
            kept = cache.with_kept_rows(layer, step.sequence, step.position, tuple(written))
            for part, own in zip(written, kept, strict=True):
                part.copy_(own)
        cache.keep_window(layer, step.sequence, step.position, written)

    def _ring_rows(self, step: Step, starts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        key = (step, "ring", starts)
        if key not in self._choices:
            back = torch.arange(self.cache.config.sliding_window - 1, -1, -1, device=step.position.device)
            position = step.position[:, None] - back
            first = torch.tensor(starts, device=position.device)[step.sequence, None]
            slots = self.cache.window_slots(step.sequence[:, None], position)
            place = self.cache.window_slots(step.sequence, step.position)
            self._choices[key] = (place, torch.where(position >= first, slots, -1))
        return self._choices[key]
