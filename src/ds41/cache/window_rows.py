"""The windows of every sequence: for each layer the newest rows, in a ring.

Source: report sections 2.3 and 3.2.1 for what a window holds; the rings are ds41's own.
"""

from __future__ import annotations

import torch

from ds41.cache.checks import check_index, check_shape, check_vector
from ds41.cache.errors import CacheError
from ds41.cache.plane import zero_rows
from ds41.cache.progress import Progress
from ds41.cache.ring import Ring
from ds41.cache.storage import RowCodec, Storage
from ds41.config import ModelConfig
from ds41.formats import WINDOW_KV, Packed


class WindowRows:
    """Window rows of the model's layers, and after them of ``draft_layers`` layers of a drafter."""

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        *,
        storage: Storage,
        rollback: int,
        progress: Progress,
        dtype: torch.dtype,
        device: torch.device,
        draft_layers: int,
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self._progress = progress
        self.draft_layers = draft_layers
        self.window_layers = config.num_hidden_layers + draft_layers
        # Read on the host at every layer, so it lives there.
        self.window_start = torch.zeros(self.window_layers, batch, dtype=torch.int64)
        self.window_kept = torch.zeros(self.window_layers, batch, dtype=torch.int64)
        self._window_codec = RowCodec(WINDOW_KV, config.head_dim, storage, dtype)
        self._windows = Ring(
            self.window_layers, batch, config.sliding_window + rollback, self._window_codec.parts, device=device
        )

    @property
    def window_bytes(self) -> int:
        """Bytes of all windows, room for taking tokens back included."""
        return self._windows.nbytes

    def write_window(
        self, layer: int, sequence: torch.Tensor, position: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """Store window rows [M, head_dim] (rotated) and give them back as stored, in the cache's type.

        Of more rows than the ring holds the newest stay; the values of all come back. Rows that are kept
        (``window_kept``) are not written: what the ring has of them comes back.

        Raises:
            CacheError: shapes that do not fit. ValueError: a value that is not finite, on a CPU.
        """
        count = self._check_window(layer, sequence, position)
        check_shape("rows", rows, (count, self.config.head_dim))
        self._progress.note_write()
        stored = self._window_codec.store(rows)
        if self.keeps_windows(layer):
            stored = self.with_kept_rows(layer, sequence, position, stored)
        self._windows.write(layer, sequence, position, stored)
        return self._window_codec.load(stored, self.dtype)

    def keeps_windows(self, layer: int) -> bool:
        """Whether the next step of some sequence may feed tokens again whose window rows are kept."""
        lengths = self._progress.lengths
        return any(kept > length for kept, length in zip(self.window_kept[layer].tolist(), lengths, strict=True))

    def with_kept_rows(
        self, layer: int, sequence: torch.Tensor, position: torch.Tensor, stored: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """The ``stored`` rows, one tensor [M, width] a part, with the ring's own in place of those that it keeps."""
        kept = position < self.window_kept[layer].to(position.device)[sequence]
        held = self._windows.read(layer, sequence, position)
        return tuple(torch.where(kept[:, None], own, part) for part, own in zip(stored, held, strict=True))

    def read_window(self, layer: int, sequence: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Window rows [M, head_dim] in the cache's type; zeros for position -1.

        Raises:
            CacheError: no such layer, or shapes that do not fit.
        """
        self._check_window(layer, sequence, position)
        values = self._window_codec.load(self._windows.read(layer, sequence, position), self.dtype)
        return zero_rows(values, position < 0)

    def window_plane(self, layer: int) -> Packed | torch.Tensor:
        """All window rows of ``layer``, views of the ring: Packed of [rows, bytes], or [rows, head_dim].

        Who writes to it reports it to :meth:`note_window_write` first.
        """
        parts = tuple(part[layer] for part in self._windows.parts)
        return Packed(*parts) if self._window_codec.storage == "packed" else parts[0]

    def window_slots(self, sequence: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The rows of :meth:`window_plane` in which positions lie or go, int64 [...], in the shape of the arguments."""
        return self._windows.slots_of(sequence, position)

    def keep_window(self, layer: int, sequence: torch.Tensor, position: torch.Tensor, rows: Packed) -> None:
        """Put stored rows, Packed of [M, bytes], into their slots; of more than the ring holds the newest stay."""
        self._windows.write(layer, sequence, position, tuple(rows))

    def note_window_write(self) -> None:
        """Window rows of the current step are about to be written by other means than :meth:`write_window`."""
        self._progress.note_write()

    def _check_window(self, layer: int, sequence: torch.Tensor, position: torch.Tensor) -> int:
        if not 0 <= layer < self.window_layers:
            raise CacheError(f"layer {layer} has no window; there are layers 0 to {self.window_layers - 1}")
        count = check_vector("sequence", sequence)
        check_index("position", position, (count,))
        return count
