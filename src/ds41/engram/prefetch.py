"""Engram rows from host memory, fetched before their layer needs them.

Row numbers follow from token ids alone, so they are known before the first layer of a step runs. A worker thread
gathers the stored bytes; where the rows go to a CUDA device it does so into pinned memory, and a stream of its own
copies them while the layers below compute.

Source: report section 2.4.2.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch

from ds41.engram.table import Bytes, EngramTable
from ds41.formats import WINDOW_KV, Packed


class PendingRows:
    """Rows on their way, from :meth:`PrefetchingTable.prefetch`.

    It owns the fetched bytes: they stay until it is dropped, on the host and on the device, 264 a row as published.
    Dropping it before the wait gives the rows up; that is safe at any time.
    """

    def __init__(self, row_ids: torch.Tensor, dtype: torch.dtype, fetched: Future) -> None:
        self.row_ids = row_ids
        self._dtype = dtype
        self._fetched = fetched
        self._values: torch.Tensor | None = None

    def done(self) -> bool:
        """Whether the worker has finished, well or not; the copy to a device may still be running."""
        return self._fetched.done()

    def wait(self) -> torch.Tensor:
        """The rows side by side, [N, columns * head_dim], for use on the current stream; again, the same tensor.

        The host waits for the worker. For the copy only the current CUDA stream waits, and the host goes on.

        Raises:
            ValueError: a row does not exist. What else went wrong in the worker is raised here too.
        """
        if self._values is None:
            codes, scales, copied = self._fetched.result()
            if copied is not None:
                stream = torch.cuda.current_stream(codes.device)
                stream.wait_event(copied)
                # They were allocated for the copying stream; their memory must outlive their use on this one.
                codes.record_stream(stream)
                scales.record_stream(stream)
            values = WINDOW_KV.decode(Packed(codes, scales), self._dtype)
            self._values = values.view(*self.row_ids.shape, values.shape[-1]).flatten(1)
        return self._values


class PrefetchingTable(EngramTable):
    """An :class:`EngramTable` over stored bytes in host memory whose rows can be asked for ahead of time.

    Made with :meth:`EngramTable.from_stored`, and used like one. Called with the very tensor of row numbers that an
    earlier :meth:`prefetch` got, while its :class:`PendingRows` is still held, it gives those rows; called with
    another it fetches them now. So a step holds its pending rows until its last Engram layer has run::

        pending = [tables[layer].prefetch(row_ids) for layer, row_ids in hasher.rows(windows).items()]

    The worker thread starts with the first prefetch and ends with :meth:`close` or with the table. One thread uses a
    table at a time. A copy of a table has a worker of its own.
    """

    def __init__(self, rows: int, head_dim: int, *, dtype: torch.dtype, std: float = 0.02) -> None:
        super().__init__(rows, head_dim, dtype=dtype, std=std)
        self._closed = False
        self._start_empty()

    @classmethod
    def from_stored(cls, codes: Bytes, scales: Bytes, *, dtype: torch.dtype = torch.bfloat16) -> PrefetchingTable:
        """A table over bytes in host memory, memory maps too; see :class:`~ds41.engram.table.StoredRows`."""
        for name, array in (("codes", codes), ("scales", scales)):
            if isinstance(array, torch.Tensor) and array.device.type != "cpu":
                raise ValueError(f"{name} are on {array.device}; expected host memory: rows there need no fetching")
        return super().from_stored(codes, scales, dtype=dtype)

    def prefetch(self, row_ids: torch.Tensor, device: torch.device | str | None = None) -> PendingRows:
        """Start fetching; never waits, not for a device either.

        Args:
            row_ids: int64 [N, columns], on any device; not to be changed while its rows are pending.
            device: where the rows go; None for the device of ``row_ids``.

        Raises:
            ValueError: wrong type or shape. RuntimeError: the table holds no stored bytes, or is closed.
        """
        if row_ids.dtype != torch.int64 or row_ids.dim() != 2:
            raise ValueError(f"row_ids are {row_ids.dtype} {list(row_ids.shape)}; expected torch.int64 [N, columns]")
        if self.stored is None:
            raise RuntimeError("the table has a parameter and no stored bytes; make it with from_stored()")
        if self._closed:
            raise RuntimeError("the table is closed; its worker has ended")
        device = row_ids.device if device is None else torch.device(device)
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="engram-prefetch")
        wanted = self._to_host(row_ids.detach().flatten())
        stream = self._stream(device) if device.type == "cuda" else None
        fetched = self._worker.submit(_fetch, self.stored.codes, self.stored.scales, wanted, device, stream)
        pending = PendingRows(row_ids, self.stored.dtype, fetched)
        self._pending[id(row_ids)] = pending
        return pending

    def forward(self, row_ids: torch.Tensor) -> torch.Tensor:
        """Rows side by side, [N, columns * head_dim]: those prefetched with this tensor, or else fetched now.

        Raises:
            ValueError: the shape is wrong, or a row does not exist.
        """
        # A pending object keeps its row numbers alive, so their id belongs to no other tensor.
        pending = self._pending.get(id(row_ids))
        return super().forward(row_ids) if pending is None else pending.wait()

    def close(self) -> None:
        """End the worker, after what it has begun; rows not begun raise ``CancelledError`` when waited for."""
        self._closed = True
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._worker = None

    def __getstate__(self) -> dict:
        """Without what belongs to this process and this moment: worker, streams, pending rows."""
        own = ("_worker", "_streams", "_pending")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._start_empty()

    def _start_empty(self) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._pending: WeakValueDictionary[int, PendingRows] = WeakValueDictionary()

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def _to_host(self, row_ids: torch.Tensor) -> _RowNumbers:
        """Row numbers that nobody changes: a copy, and the event after which it holds them."""
        if row_ids.device.type != "cuda":
            return _RowNumbers(row_ids.to("cpu", copy=True), None)
        stream = self._stream(row_ids.device)
        stream.wait_stream(torch.cuda.current_stream(row_ids.device))
        with torch.cuda.stream(stream):
            copy = torch.empty(row_ids.shape, dtype=row_ids.dtype, pin_memory=True)
            copy.copy_(row_ids, non_blocking=True)
            row_ids.record_stream(stream)
            return _RowNumbers(copy, stream.record_event())


class _RowNumbers(NamedTuple):
    values: torch.Tensor
    arrived: torch.cuda.Event | None


def _fetch(
    codes: Bytes, scales: Bytes, wanted: _RowNumbers, device: torch.device, stream: torch.cuda.Stream | None
) -> tuple[torch.Tensor, torch.Tensor, torch.cuda.Event | None]:
    """The worker's task: codes and scales of the rows on ``device``, and the event after which they are there."""
    row_ids, arrived = wanted
    if arrived is not None:
        arrived.synchronize()
    outside = (row_ids < 0) | (row_ids >= len(codes))
    if bool(outside.any()):
        raise ValueError(f"row {int(row_ids[outside][0])} does not exist; the table has rows 0 to {len(codes) - 1}")
    parts = [_gather(stored, row_ids, pinned=stream is not None) for stored in (codes, scales)]
    if stream is None:
        return *(part.to(device) for part in parts), None
    with torch.cuda.stream(stream):
        # The allocator of pinned memory keeps what a copy still reads.
        return *(part.to(device, non_blocking=True) for part in parts), stream.record_event()


def _gather(stored: Bytes, row_ids: torch.Tensor, pinned: bool) -> torch.Tensor:
    rows = torch.empty((len(row_ids), stored.shape[1]), dtype=torch.uint8, pin_memory=pinned)
    if isinstance(stored, np.ndarray):
        # All rows exist; "clip" spares the copy that numpy makes so as to leave the output whole on an error.
        np.take(stored, row_ids.numpy(), axis=0, out=rows.numpy(), mode="clip")
    else:
        torch.index_select(stored, 0, row_ids, out=rows)
    return rows
