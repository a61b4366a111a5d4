"""What a sequence keeps to itself: windows, open groups and the Engram history, in rings; all of it as a snapshot.

Source: report sections 2.3, 2.4.2 and 3.2.1 for what is private; the rings are ds41's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ds41.cache.checks import check_index, check_shape, check_vector
from ds41.cache.errors import CacheError
from ds41.cache.plane import zero_rows
from ds41.cache.ring import Ring
from ds41.cache.snapshot import WindowSnapshot, check_layers
from ds41.cache.window_rows import WindowRows
from ds41.config import ModelConfig

DEAD = -1
"""A history entry without a token id: before the sequence, or blocked for n-grams."""


class PrivateRows(WindowRows):
    """The part of a cache that does not grow with the tokens and is never shared.

    Every ring holds ``rollback`` rows more than the model looks at, so that rejected tokens do not overwrite what
    their predecessors need.
    """

    def __init__(self, config: ModelConfig, batch: int, *, rollback: int, device: torch.device, **windows: Any) -> None:
        """``windows``: what else :class:`WindowRows` takes."""
        super().__init__(config, batch, rollback=rollback, device=device, **windows)
        value_and_gate = ((config.head_dim, torch.float32),) * 2
        self._open = {
            layer.index: Ring(
                1, batch, layer.ratio - 1 + rollback, value_and_gate, device=device, spacing=layer.ratio
            )
            for layer in config.layers
            if layer.owns_kv and layer.ratio > 1
        }  # fmt: skip
        self._look_back = config.engram_max_ngram_size - 1 if config.engram_layer_ids else 0
        ids = self._look_back + rollback if self._look_back else 0
        self._history = Ring(1, batch, ids, ((1, torch.int64),), device=device)
        for row in range(batch):
            self._history.fill(row, DEAD)

    @property
    def open_group_bytes(self) -> int:
        """Bytes of all open groups."""
        return sum(ring.nbytes for ring in self._open.values())

    @property
    def history_bytes(self) -> int:
        """Bytes of the Engram history."""
        return self._history.nbytes

    def write_open(
        self, layer: int, sequence: torch.Tensor, position: torch.Tensor, value: torch.Tensor, gate: torch.Tensor
    ) -> None:
        """Keep the ``value`` and ``gate`` rows, [M, head_dim], of tokens whose group is open; held in float32.

        Tokens of closed groups may be written too and do no harm.

        Raises:
            CacheError: shapes that do not fit, or a layer that pools nothing.
        """
        ring = self._open_ring(layer)
        count = check_vector("sequence", sequence)
        check_index("position", position, (count,))
        check_shape("value", value, (count, self.config.head_dim))
        check_shape("gate", gate, (count, self.config.head_dim))
        self._progress.note_write()
        ring.write(0, sequence, position, (value.detach().float(), gate.detach().float()))

    def read_open(
        self, layer: int, sequence: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Value and gate rows of waiting tokens, float32 [M, head_dim] each; zeros for position -1.

        Raises:
            CacheError: a layer that pools nothing, or shapes that do not fit.
        """
        ring = self._open_ring(layer)
        check_index("position", position, (check_vector("sequence", sequence),))
        value, gate = ring.read(0, sequence, position)
        absent = position < 0
        return zero_rows(value, absent), zero_rows(gate, absent)

    def write_history(self, sequence: torch.Tensor, position: torch.Tensor, ids: torch.Tensor) -> None:
        """Remember compressed ids, int64 [M]; DEAD for tokens that no n-gram may contain.

        Raises:
            CacheError: types or shapes that do not fit.
        """
        count = check_vector("sequence", sequence)
        check_index("position", position, (count,))
        check_index("ids", ids, (count,))
        if self._look_back:
            self._progress.note_write()
            self._history.write(0, sequence, position, (ids[:, None],))

    def history(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Compressed ids before the next position of each sequence, newest first.

        Args:
            rows: int64 [R], which sequences; all if None.

        Returns:
            int64 [R, engram_max_ngram_size - 1], DEAD where there is none; no columns in a model without Engram.

        Raises:
            CacheError: ``rows`` of another type or shape.
        """
        lengths = torch.tensor(self._progress.lengths, dtype=torch.int64, device=self.device)
        if rows is None:
            rows = torch.arange(len(lengths), device=self.device)
        count = check_vector("rows", rows)
        if not self._look_back:
            return rows.new_empty(count, 0)
        back = torch.arange(1, self._look_back + 1, device=self.device)
        position = lengths[rows][:, None] - back
        # Positions before the sequence find DEAD: the ring gets round to their slots when nobody asks for them.
        (ids,) = self._history.read(0, rows.repeat_interleave(self._look_back), position.flatten())
        return ids.view(count, self._look_back)

    def window_snapshot(self, row: int, layers: Iterable[int] | None = None) -> WindowSnapshot:
        """A copy of the private rows of one sequence, as they are now.

        Args:
            layers: whose windows to take, all if None. Open groups are taken of those that pool; the history always.

        Raises:
            CacheError: no such layer, or the sequence is being fed tokens again that it held before.
        """
        layers = check_layers(layers, self.window_layers)
        length = self._progress.lengths[row]
        if self._progress.stored[row] > length:
            raise CacheError(
                f"row {row} is rewound to {length} of {self._progress.stored[row]} tokens: its windows are incomplete"
            )
        starts = torch.clamp(self.window_start[:, row], min=length - self.config.sliding_window)[list(layers)]
        position = torch.arange(length - self.config.sliding_window, length, device=self.device)
        sequence = torch.full_like(position, row)
        rows = [self._windows.read(layer, sequence, position) for layer in layers]
        absent = position < starts.to(self.device)[:, None]
        windows = tuple(torch.stack(parts).masked_fill_(absent[..., None], 0) for parts in zip(*rows, strict=True))
        return WindowSnapshot(
            length, layers, tuple(starts.tolist()), windows, self._open_rows(row, layers), self._history_of(row)
        )

    def restore_windows(self, row: int, snapshot: WindowSnapshot) -> None:
        """Put private rows back into a sequence of the same length, whose tokens are the same.

        The layers that the snapshot does not hold keep what they have.

        Raises:
            CacheError: another length, layer, storage or configuration; then nothing has changed.
        """
        length = self._progress.lengths[row]
        if snapshot.length != length:
            raise CacheError(f"the snapshot is of {snapshot.length} tokens; row {row} holds {length}")
        layers = list(check_layers(snapshot.layers, self.window_layers))
        reach = self.config.sliding_window
        has = [(part.dtype, *part.shape) for part in snapshot.windows]
        expected = [(dtype, len(layers), reach, width) for width, dtype in self._window_codec.parts]
        if has != expected or len(snapshot.starts) != len(layers):
            raise CacheError(f"the snapshot holds {has} and {len(snapshot.starts)} starts; expected {expected}")
        check_shape("the snapshot's history", snapshot.history, (self._look_back,))
        waiting = {layer: length % self.config.layers[layer].ratio for layer in self._open if layer in layers}
        for layer, count in waiting.items():
            if count:
                rows = snapshot.open_groups.get(layer, torch.empty(0))
                check_shape(f"the snapshot's open group of layer {layer}", rows, (2, count, self.config.head_dim))
        self._progress.note_write()
        position = torch.arange(length - reach, length, device=self.device)
        sequence = torch.full_like(position, row)
        for place, layer in enumerate(layers):
            parts = tuple(part[place].to(self.device) for part in snapshot.windows)
            self._windows.write(layer, sequence, position, parts)
        self.window_start[layers, row] = torch.tensor(snapshot.starts, dtype=torch.int64)
        self.window_kept[layers, row] = length
        for layer, count in waiting.items():
            if count:
                value, gate = snapshot.open_groups[layer].to(self.device)
                self.write_open(layer, sequence[-count:], position[-count:], value, gate)
        if self._look_back:
            back = length - 1 - torch.arange(self._look_back, device=self.device)
            ids = snapshot.history.to(self.device)
            self._history.write(0, torch.full_like(back, row), back, (ids[:, None],))

    def _open_rows(self, row: int, layers: tuple[int, ...]) -> dict[int, torch.Tensor]:
        length, groups = self._progress.lengths[row], {}
        for layer in self._open:
            count = length % self.config.layers[layer].ratio
            if count and layer in layers:
                position = torch.arange(length - count, length, device=self.device)
                groups[layer] = torch.stack(self.read_open(layer, torch.full_like(position, row), position))
        return groups

    def _history_of(self, row: int) -> torch.Tensor:
        return self.history(torch.tensor([row], device=self.device))[0]

    def _restart_private(self, row: int, length: int) -> None:
        """Nothing of a former sequence may be looked at: windows start at ``length``, the history is empty."""
        self._progress.restart(row, length)
        self.window_start[:, row] = self.window_kept[:, row] = length
        self._history.fill(row, DEAD)

    def _rewind_private(self, row: int, start: int, furthest: int) -> None:
        # A ring holds the newest of the rows that were written, as far as ``furthest``. Those of tokens that were taken
        # back overwrote older ones, and are not kept themselves.
        newest = self.window_kept[:, row].clamp(min=furthest)
        kept = newest.clamp(max=self._progress.stored[row])
        first = torch.maximum(self.window_start[:, row], newest - self._windows.slots)
        keeps = first <= start
        self.window_start[:, row] = torch.where(keeps, first, start)
        self.window_kept[:, row] = torch.where(keeps, kept, start)
        self._history.fill(row, DEAD)

    def _copy_private(self, source: int, target: int) -> None:
        self._progress.copy(source, target)
        self.window_start[:, target] = self.window_start[:, source]
        self.window_kept[:, target] = self.window_kept[:, source]
        for ring in (self._windows, self._history, *self._open.values()):
            ring.copy(source, target)

    def _open_ring(self, layer: int) -> Ring:
        try:
            return self._open[layer]
        except KeyError:
            pooling = ", ".join(map(str, self._open)) or "none"
            raise CacheError(f"layer {layer} pools no groups; the layers that do: {pooling}") from None
