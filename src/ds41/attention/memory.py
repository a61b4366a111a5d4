"""What attention remembers: the same four questions, answered from a packed cache or from the sequence itself.

:class:`CacheMemory` serves prefill and decode. :class:`SequenceMemory` serves whole sequences from position 0 and
keeps everything differentiable. Rows and entries are rounded as the model's quantization says, once, when they are
written; what is read back is what a packed cache would give.

Source: report sections 2.3 and 2.4.4 for what is kept and rounded; the two memories are ds41's own.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Protocol

import torch

from ds41.attention.window import visible_rows
from ds41.config import ModelConfig
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.step import Step

if TYPE_CHECKING:
    from ds41.cache import Cache

# Float32 numbers of one source that may be held decoded during a step: 128 MB.
_DECODED = 2**25
# Those of one selection that may be held for the layers that share it: 16 MB.
_GATHERED = 2**22


class Memory(Protocol):
    """Keys of this step and of the steps before it."""

    def window(self, layer: int, step: Step, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a layer's window rows [N, C]; give all rows in reach [R, C] and each token's choice [N, window]."""
        ...

    def open_rows(
        self, layer: int, step: Step, value: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep ``value`` and ``gate``, float32 [N, C], of a pooling layer; give those just before the step, one a
        sequence, [S, C] each.
        """
        ...

    def append(
        self, layer: int, sequence: torch.Tensor, entry: torch.Tensor, main: torch.Tensor, index: torch.Tensor
    ) -> None:
        """Write closed entries: main [M, head_dim], index keys [M, index_head_dim]; ``sequence`` and ``entry`` int64
        [M].
        """
        ...

    def main_entries(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """Main entries, float32 [N, K, head_dim], for sequence [N] and entry [N, K]; -1 gives any finite row."""
        ...

    def index_keys(self, layer: int, sequence: int, start: int, stop: int) -> torch.Tensor:
        """Index keys of neighbouring entries, float32 [stop - start, index_head_dim]."""
        ...

    def index_entries(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """Index keys by ``entry`` int64 [N, K] of ``sequence`` int64 [N]: float32 [N, K, index_head_dim]."""
        ...


class RoundTrip(Protocol):
    """A format, for what it leaves of values."""

    def fake_quantize(self, x: torch.Tensor) -> torch.Tensor: ...


class CacheMemory:
    """A :class:`ds41.cache.Cache`: packed pages, window rings and open groups."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._choices: dict = {}
        self._befores: dict = {}
        self._held: dict[int, int] = {}
        self._decoded: dict[int, torch.Tensor] = {}
        self._gathers: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def window(self, layer: int, step: Step, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`Memory.window`, from the cache's rings."""
        cache, reach = self.cache, self.cache.config.sliding_window
        starts = tuple(cache.window_start[layer].tolist())
        older = 0 if all(f <= s for f, s in zip(step.firsts, starts, strict=True)) else reach - 1
        choice = self._choice(step, reach, older, starts)
        if older:
            before = self._before(step, older, starts)
            read = cache.read_window(layer, *before)
            return torch.cat((read, cache.write_window(layer, step.sequence, step.position, rows))), choice
        return cache.write_window(layer, step.sequence, step.position, rows), choice

    def open_rows(
        self, layer: int, step: Step, value: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`Memory.open_rows`, from the cache's open groups."""
        sequence = torch.arange(len(step.counts), device=value.device)
        waiting = self.cache.read_open(layer, sequence, step.first_position - 1)
        self.cache.write_open(layer, step.sequence, step.position, value, gate)
        return waiting

    def append(
        self, layer: int, sequence: torch.Tensor, entry: torch.Tensor, main: torch.Tensor, index: torch.Tensor
    ) -> None:
        """As :meth:`Memory.append`, into pages; entries that are stored already are left as they are."""
        new = self.not_stored(layer, sequence, entry)
        if new is not None:
            sequence, entry, main, index = sequence[new], entry[new], main[new], index[new]
        self.cache.write_entries(layer, sequence, entry, main, index)
        if self.cache.batch == 1 and entry.numel() and entry.device.type == "cpu":
            self._held[layer] = int(entry[-1]) + 1

    def not_stored(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor | None:
        """Which entries are to be written, bool [M] for ``sequence`` and ``entry`` int64 [M], in a step with tokens
        that are fed again; else None.

        One whose last token is new is written: its group was open when the tokens before it were stored.
        """
        lengths, stored = self.cache.lengths, self.cache.stored
        if all(map(operator.le, stored, lengths)):
            return None
        ratio = self.cache.config.layers[layer].ratio
        return (entry + 1) * ratio > torch.tensor(stored, device=entry.device)[sequence]

    def main_entries(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """As :meth:`Memory.main_entries`, decoded from pages."""
        decoded = self._decoded_entries(layer, entry.numel())
        if decoded is None:
            return self._gathered(layer, sequence, entry)
        return decoded.index_select(0, entry.clamp(min=0).flatten()).unflatten(0, entry.shape)

    def index_keys(self, layer: int, sequence: int, start: int, stop: int) -> torch.Tensor:
        """As :meth:`Memory.index_keys`, decoded from pages."""
        return self.cache.index_keys(layer, sequence, start, stop)

    def index_entries(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """As :meth:`Memory.index_entries`, decoded from pages."""
        return self.cache.gather_index(layer, sequence, entry)

    def _decoded_entries(self, layer: int, wanted: int) -> torch.Tensor | None:
        """All entries of a source, decoded once for a step on the CPU, where one tile wants more than there are.

        In a prefill neighbouring queries select the same entries, and a source's followers select them again.
        """
        held = self._held.get(layer, 0)
        if layer not in self._decoded and wanted > held > 0 and held * self.cache.config.head_dim <= _DECODED:
            every = torch.arange(held)[None]
            self._decoded[layer] = self.cache.gather_main(layer, every.new_zeros(1), every)[0].to(torch.float32)
        return self._decoded.get(layer)

    def _gathered(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """Entries by number; on a CPU those of the latest small selection are kept, for the layers that reuse it."""
        small = entry.device.type == "cpu" and entry.numel() * self.cache.config.head_dim <= _GATHERED
        latest = self._gathers.get(layer) if small else None
        if latest is not None and torch.equal(latest[0], entry) and torch.equal(latest[1], sequence):
            return latest[2]
        rows = self.cache.gather_main(layer, sequence, entry, torch.float32)
        if small:
            self._gathers[layer] = (entry, sequence, rows)
        return rows

    def _choice(self, step: Step, reach: int, older: int, starts: tuple[int, ...]) -> torch.Tensor:
        """Layers with the same first positions share one table of choices."""
        key = (step, older, starts)
        if key not in self._choices:
            self._choices[key] = visible_rows(step, reach, older, starts)
        return self._choices[key]

    def _before(self, step: Step, older: int, starts: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """The ``older`` positions before each first token, -1 where no row was written: such a slot may hold NaN."""
        key = (step, older, starts)
        if key not in self._befores:
            device = step.position.device
            back = torch.arange(-older, 0, device=device)
            positions = step.first_position[:, None] + back
            positions = torch.where(positions < torch.tensor(starts, device=device)[:, None], -1, positions).flatten()
            sequences = torch.arange(len(step.counts), device=device).repeat_interleave(older)
            self._befores[key] = (sequences, positions)
        return self._befores[key]


class SequenceMemory:
    """Whole sequences in one step: everything stays in the graph, gradients pass the rounding straight through.

    Args:
        rounds: round what is written, as the caches do. main_format: what rounds main entries then;
            :data:`ds41.formats.MAIN_KV`, or anything with its ``fake_quantize``.
    """

    def __init__(self, config: ModelConfig, step: Step, rounds: bool, main_format: RoundTrip = MAIN_KV) -> None:
        self.rounds, self.main_format = rounds, main_format
        self._sequences = torch.arange(len(step.counts), device=step.position.device)
        self._choice = visible_rows(step, config.sliding_window, 0, step.firsts)
        self._main: dict[int, torch.Tensor] = {}
        self._index: dict[int, torch.Tensor] = {}
        self._offsets: dict[int, torch.Tensor] = {}

    def window(self, layer: int, step: Step, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`Memory.window`: the step's own rows, rounded where the model rounds."""
        return WINDOW_KV.fake_quantize(rows) if self.rounds else rows, self._choice

    def open_rows(
        self, layer: int, step: Step, value: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`Memory.open_rows`: zeros, since every sequence begins in this step."""
        nothing = value.new_zeros(len(step.counts), value.shape[1])
        return nothing, nothing

    def append(
        self, layer: int, sequence: torch.Tensor, entry: torch.Tensor, main: torch.Tensor, index: torch.Tensor
    ) -> None:
        """As :meth:`Memory.append`: kept whole, rounded where the model rounds."""
        self._main[layer] = self.main_format.fake_quantize(main) if self.rounds else main
        self._index[layer] = INDEX_KEY.fake_quantize(index) if self.rounds else index
        # Entries lie one sequence after the other, each from its entry 0 on.
        self._offsets[layer] = torch.searchsorted(sequence, self._sequences)

    def main_entries(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """As :meth:`Memory.main_entries`."""
        return _rows(self._main[layer], self._offsets[layer], sequence, entry)

    def index_keys(self, layer: int, sequence: int, start: int, stop: int) -> torch.Tensor:
        """As :meth:`Memory.index_keys`."""
        offset = int(self._offsets[layer][sequence])
        return self._index[layer][offset + start : offset + stop].to(torch.float32)

    def index_entries(self, layer: int, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """As :meth:`Memory.index_entries`."""
        return _rows(self._index[layer], self._offsets[layer], sequence, entry)

    def written(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All entries of a source, one sequence after the other: main [M, head_dim], index [M, index_head_dim]."""
        return self._main[layer], self._index[layer]


def _rows(rows: torch.Tensor, offsets: torch.Tensor, sequence: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
    flat = (offsets[sequence, None] + entry.clamp(min=0)).clamp(max=rows.shape[0] - 1)
    return torch.index_select(rows, 0, flat.flatten()).unflatten(0, flat.shape).to(torch.float32)
