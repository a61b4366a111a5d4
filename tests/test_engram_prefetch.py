"""Rows fetched ahead of time are the rows of the table; errors surface at the wait; nothing outlives its handle."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch

from ds41 import ModelConfig
from ds41.engram import Engram, EngramTable, prefetch
from ds41.engram.prefetch import PendingRows, PrefetchingTable
from ds41.formats import WINDOW_KV

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else ["cpu"]
each_device = pytest.mark.parametrize("device", DEVICES)


def stored(rows: int = 50, width: int = 64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(WINDOW_KV.encode(torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))))


def some_rows(tokens: int = 6, columns: int = 4, seed: int = 0, rows: int = 50) -> torch.Tensor:
    return torch.randint(rows, (tokens, columns), generator=torch.Generator().manual_seed(seed))


class Gate:
    """Holds the worker at its next task until opened."""

    def __init__(self, monkeypatch) -> None:
        self.opened, self.calls, self.threads = threading.Event(), 0, set()
        fetch = prefetch._fetch

        def held(*arguments):
            assert self.opened.wait(30)
            self.calls += 1
            self.threads.add(threading.current_thread().name)
            return fetch(*arguments)

        monkeypatch.setattr(prefetch, "_fetch", held)


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["tensor", "array", "memory map"])
def test_the_rows_are_those_of_the_table(kind, dtype, device, tmp_path):
    parts = stored()
    if kind != "tensor":
        parts = [part.numpy() for part in parts]
    if kind == "memory map":
        for number, part in enumerate(parts):
            np.save(tmp_path / f"{number}.npy", part)
        parts = [np.load(tmp_path / f"{number}.npy", mmap_mode="r") for number in range(2)]
    expected = EngramTable.from_stored(*stored(), dtype=dtype)
    table = PrefetchingTable.from_stored(*parts, dtype=dtype)
    row_ids = some_rows().to(device)
    pending = table.prefetch(row_ids)
    rows = pending.wait()
    assert rows.dtype == dtype
    assert rows.device.type == device
    assert torch.equal(rows.cpu(), expected(some_rows()))
    assert pending.done()
    assert pending.wait() is rows


@each_device
def test_called_like_a_table(device, monkeypatch):
    table = PrefetchingTable.from_stored(*stored())
    gate = Gate(monkeypatch)
    row_ids, others = some_rows().to(device), some_rows(seed=1).to(device)
    pending = table.prefetch(row_ids)
    assert not pending.done()
    # Other rows do not wait for the worker.
    expected = EngramTable.from_stored(*stored())
    assert torch.equal(table(others), expected(others))
    gate.opened.set()
    assert torch.equal(table(row_ids), expected(row_ids))
    assert table(row_ids) is pending.wait()
    assert gate.calls == 1
    assert all(name.startswith("engram-prefetch") for name in gate.threads)


def test_equal_numbers_in_another_tensor_are_fetched_anew(monkeypatch):
    table = PrefetchingTable.from_stored(*stored())
    row_ids = some_rows()
    pending = table.prefetch(row_ids)
    assert table(row_ids.clone()) is not pending.wait()


def test_an_engram_layer_takes_it_as_its_table():
    config = ModelConfig.nano()
    engram = Engram(config, config.engram_layer_ids[0])
    width = config.engram_head_dim
    columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    row_ids = some_rows(5, columns)
    streams = torch.randn(5, config.hc_mult, config.hidden_size, generator=torch.Generator().manual_seed(2))
    outputs = []
    for table in (EngramTable, PrefetchingTable):
        engram.embed = table.from_stored(*stored(width=width), dtype=torch.float32)
        pending = engram.embed.prefetch(row_ids) if table is PrefetchingTable else None
        with torch.no_grad():
            outputs.append(engram(streams, row_ids))
    assert torch.equal(*outputs)
    assert pending.done()
    assert not list(engram.embed.parameters())
    assert repr(engram.embed) == "PrefetchingTable(50 rows of 32, stored bytes)"


def test_several_steps_ahead_come_back_in_any_order():
    table = PrefetchingTable.from_stored(*stored())
    expected = EngramTable.from_stored(*stored())
    ids = [some_rows(seed=seed) for seed in range(5)]
    pending = [table.prefetch(row_ids) for row_ids in ids]
    for place in (3, 0, 4, 2, 1):
        assert torch.equal(pending[place].wait(), expected(ids[place]))


def test_numbers_are_copied_before_the_worker_reads_them(monkeypatch):
    """A caller that breaks the rule and reuses its buffer gets old rows, never a mixture."""
    table = PrefetchingTable.from_stored(*stored())
    gate = Gate(monkeypatch)
    row_ids = some_rows()
    expected = EngramTable.from_stored(*stored())(row_ids)
    pending = table.prefetch(row_ids)
    row_ids.fill_(-1)
    gate.opened.set()
    assert torch.equal(pending.wait(), expected)


@each_device
@pytest.mark.parametrize("bad", [-1, 50])
def test_a_row_that_does_not_exist_is_named_at_the_wait(bad, device):
    table = PrefetchingTable.from_stored(*stored())
    row_ids = some_rows()
    row_ids[3, 2] = bad
    row_ids = row_ids.to(device)
    pending = table.prefetch(row_ids)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"row {bad} does not exist; the table has rows 0 to 49"):
            pending.wait()
    with pytest.raises(ValueError, match=f"row {bad} does not exist"):
        table(row_ids)
    # The worker lives on.
    good = some_rows(seed=3).to(device)
    assert torch.equal(table.prefetch(good).wait(), EngramTable.from_stored(*stored())(good))


def test_what_fails_while_reading_surfaces_at_the_wait(monkeypatch):
    def fails(*arguments, **options):
        raise OSError("disk gone")

    monkeypatch.setattr(prefetch, "_gather", fails)
    pending = PrefetchingTable.from_stored(*stored()).prefetch(some_rows())
    with pytest.raises(OSError, match="disk gone"):
        pending.wait()


def test_a_dropped_handle_gives_its_rows_up(monkeypatch):
    table = PrefetchingTable.from_stored(*stored())
    gate = Gate(monkeypatch)
    row_ids = some_rows()
    pending = weakref.ref(table.prefetch(row_ids))
    gc.collect()
    assert pending() is None
    gate.opened.set()
    assert torch.equal(table(row_ids), EngramTable.from_stored(*stored())(row_ids))


def test_closing_ends_the_worker(monkeypatch):
    table = PrefetchingTable.from_stored(*stored())
    gate = Gate(monkeypatch)
    begun, waiting = table.prefetch(some_rows()), table.prefetch(some_rows(seed=1))
    while not begun._fetched.running():
        threading.Event().wait(0.001)
    threading.Timer(0.05, gate.opened.set).start()
    table.close()
    assert begun.wait().shape == (6, 256)
    with pytest.raises(CancelledError):
        waiting.wait()
    with pytest.raises(RuntimeError, match="closed"):
        table.prefetch(some_rows())
    assert torch.equal(table(some_rows()), EngramTable.from_stored(*stored())(some_rows()))
    table.close()


def test_the_worker_ends_with_its_table():
    table = PrefetchingTable.from_stored(*stored())
    before = set(threading.enumerate())
    assert table.prefetch(some_rows()).wait() is not None
    (worker,) = set(threading.enumerate()) - before
    del table
    gc.collect()
    worker.join(30)
    assert not worker.is_alive()


def test_a_copy_has_a_worker_of_its_own():
    table = PrefetchingTable.from_stored(*stored())
    row_ids = some_rows()
    pending = table.prefetch(row_ids)
    other = copy.deepcopy(table)
    table.close()
    assert torch.equal(other.prefetch(row_ids).wait(), pending.wait())


@each_device
def test_no_rows(device):
    table = PrefetchingTable.from_stored(*stored())
    assert table.prefetch(torch.empty(0, 4, dtype=torch.int64, device=device)).wait().shape == (0, 256)
    assert isinstance(table.prefetch(some_rows(), device), PendingRows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_go_to_another_device_than_their_numbers():
    table = PrefetchingTable.from_stored(*stored())
    rows = table.prefetch(some_rows(), "cuda").wait()
    assert rows.is_cuda
    assert torch.equal(rows.cpu(), EngramTable.from_stored(*stored())(some_rows()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_are_whole_on_a_busy_device():
    """Copies of many steps in flight beside products on the compute stream, whose memory they could be given."""
    codes, scales = stored(20000, 256)
    table, expected = PrefetchingTable.from_stored(codes, scales), EngramTable.from_stored(codes, scales)
    busy = torch.randn(2048, 2048, device="cuda")
    ids = [some_rows(512, 24, seed, 20000).cuda() for seed in range(8)]
    pending = [table.prefetch(row_ids) for row_ids in ids]
    for row_ids, rows in zip(ids, pending, strict=True):
        busy = (busy @ busy).clamp(-1, 1)
        assert torch.equal(rows.wait().cpu(), expected(row_ids.cpu()))
    del pending


@pytest.mark.parametrize("row_ids", [torch.zeros(3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int32)])
def test_wrong_row_numbers_are_refused_at_once(row_ids):
    with pytest.raises(ValueError, match=r"expected torch.int64 \[N, columns\]"):
        PrefetchingTable.from_stored(*stored()).prefetch(row_ids)


def test_a_table_without_stored_bytes_has_nothing_to_fetch():
    with pytest.raises(RuntimeError, match="from_stored"):
        PrefetchingTable(5, 32, dtype=torch.float32).prefetch(torch.zeros(1, 1, dtype=torch.int64))


def test_bytes_outside_host_memory_are_refused():
    codes, scales = (part.to("meta") for part in stored())
    with pytest.raises(ValueError, match="codes are on meta"):
        PrefetchingTable.from_stored(codes, scales)
