"""Pools in one process on the tiny model with its parts, requests for them, and a gate at which a worker is lost."""

from __future__ import annotations

import io
import threading
import time
from contextlib import contextmanager
from functools import cache
from itertools import count

import tiny_parts
import torch
from PIL import Image

from ds41.serving import Engine
from ds41.serving.pools import EngineOptions, PoolSizes, Request
from ds41.serving.pools import local as local_pools

OPTIONS = EngineOptions(max_tokens=400, step_tokens=32)
IMAGE = tiny_parts.CONFIG.image_token_id


def ids_of(count: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(16, 272, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def request(count=40, seed=0, tokens=12, **options) -> Request:
    options = {"tenant": "a", "stop_ids": frozenset(), "seed": seed} | options
    return Request(ids=ids_of(count, seed), max_new_tokens=tokens, **options)


def alone(parts, one: Request, vectors=None) -> list[int]:
    with Engine(parts.model, max_tokens=400, step_tokens=32, fingerprint=parts.fingerprint) as engine:
        return list(say(engine, one, vectors))


def say(engine: Engine, one: Request, vectors=None):
    return engine.open(one.tenant).say(
        one.ids, one.max_new_tokens, one.temperature, one.top_p, one.seed, one.stop_ids, vectors
    )


@cache
def of_one_engine(parts, requests: tuple[Request, ...]) -> list[list[int]]:
    """The answers of an engine without pools that has all requests at once."""
    with Engine(
        parts.model, max_tokens=400, rows=len(requests), step_tokens=512, fingerprint=parts.fingerprint
    ) as engine:
        return [list(stream) for stream in [say(engine, one) for one in requests]]


class Gate:
    """Holds the first worker of a pool that comes to its n-th step there, to lose it."""

    def __init__(self, pool: str, step: int) -> None:
        self.pool, self.step = pool, step
        self.reached, self._opened = threading.Event(), threading.Event()
        self.worker = None

    def watch(self, worker):
        if worker.name.startswith(self.pool):
            engine, steps = worker._driver.engine, count()
            step = engine.step

            def gated():
                if next(steps) == self.step and not self.reached.is_set():
                    self.worker = worker
                    self.reached.set()
                    self._opened.wait(20)
                return step()

            engine.step = gated
        return worker

    def open(self) -> None:
        self._opened.set()

    def lose(self) -> None:
        assert self.reached.wait(20), "no worker came that far"
        closing = threading.Thread(target=self.worker.close)
        closing.start()
        while self.worker._driver.alive:
            time.sleep(0.001)
        self.open()
        closing.join()


@contextmanager
def cluster_of(parts, sizes=None, gate=None, monkeypatch=None, **options):
    if gate is not None:
        for name in ("PrefillWorker", "DecodeWorker"):
            made = getattr(local_pools, name)
            monkeypatch.setattr(local_pools, name, lambda *given, made=made: gate.watch(made(*given)))
    options = {"vision": parts.vision, "fingerprint": parts.fingerprint} | options
    with local_pools.local_cluster(
        parts.model, options.pop("engine", OPTIONS), sizes or PoolSizes(rows=3), **options
    ) as cluster:
        yield cluster


def picture(seed: int) -> bytes:
    pixels = torch.randint(0, 256, (84, 84, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return file.getvalue()
