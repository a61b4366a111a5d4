"""What the queries of a draft block see: the newest context rows of their sequence, and the whole block.

Not causal within the block, and no window of its own for each query.

Source: released ``DSparkBlock``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ds41.attention import KernelMemory
from ds41.attention.kernel_memory import WindowPlane
from ds41.attention.memory import RoundTrip
from ds41.cache import Cache
from ds41.formats import Packed
from ds41.step import Step


class BlockMemory:
    """What a draft block sees: rows of the context and its own, which are rounded and kept nowhere.

    Args:
        context: gives the context rows [M, head_dim] of a draft layer. choice: int64 [N, K], what each query sees,
            counted from the first context row on and then over the block's own tokens; -1 for none. rounding: the
            format that rows are rounded to, or None.
    """

    def __init__(
        self, context: Callable[[int], torch.Tensor], choice: torch.Tensor, rounding: RoundTrip | None
    ) -> None:
        self._context, self._choice, self._rounding = context, choice, rounding

    def window(self, layer: int, step: Step, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`ds41.attention.Memory.window`: the context's rows, then the block's own."""
        own = rows if self._rounding is None else self._rounding.fake_quantize(rows)
        return torch.cat((self._context(layer).to(own.dtype), own)), self._choice


class KernelBlockMemory(KernelMemory):
    """The same over a packed cache on a device that runs kernels: context rows are copied as bytes, never decoded.

    Args:
        sequence, position: int64 [M], of the context rows; position -1 for one that no query sees.
    """

    def __init__(self, cache: Cache, sequence: torch.Tensor, position: torch.Tensor, choice: torch.Tensor) -> None:
        super().__init__(cache)
        self._slots = cache.window_slots(sequence, position.clamp(min=0))
        self._seen = choice

    @contextmanager
    def window_plane(self, layer: int, step: Step) -> Iterator[WindowPlane]:
        """The context rows, and after them room for the block's own, which end with the step."""
        before = len(self._slots)
        plane = self.cache.window_plane(layer)
        rows = Packed(*(part.new_empty(before + step.tokens, part.shape[1]) for part in plane))
        for part, stored in zip(rows, plane, strict=True):
            torch.index_select(stored, 0, self._slots, out=part[:before])
        yield WindowPlane(rows, torch.arange(before, before + step.tokens, device=self._slots.device), self._seen)


def block_choice(seen: torch.Tensor, size: int, context: int | None = None) -> torch.Tensor:
    """What the queries of blocks see: each one the context rows of its block, and all of the block itself.

    Args:
        seen: int64 [R, K], the context rows of each block, -1 for none. size: tokens of a block. context: how many
            context rows there are; those of ``seen`` if None.

    Returns:
        int64 [R * size, K + size].
    """
    blocks = len(seen)
    own = torch.arange(blocks * size, device=seen.device).view(blocks, size)
    own = own + (seen.numel() if context is None else context)
    return torch.cat((seen, own), 1).repeat_interleave(size, 0)
