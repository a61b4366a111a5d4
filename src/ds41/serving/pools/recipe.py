"""How a worker is made in a process of its own: from a checkpoint, by names and numbers that travel.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from ds41.cache.layout import PAGE_TOKENS, PageLayout
from ds41.checkpoint import load_checkpoint
from ds41.config import ModelConfig
from ds41.dspark import Drafting, load_drafter
from ds41.dspark.schedule import Policy
from ds41.linear import Quantization
from ds41.model import Model
from ds41.serving.engine import Engine
from ds41.serving.fingerprint import model_fingerprint
from ds41.serving.pools.local import EngineOptions
from ds41.serving.pools.workers import DecodeWorker, PrefillWorker, VisionWorker
from ds41.serving.redis_windows import RedisWindowPool
from ds41.serving.store import GUARANTEED_S, PrefixStore
from ds41.serving.windows import WindowPool
from ds41.vision import load_vision


@dataclass(frozen=True)
class StorePlace:
    """Where the prefix store lies: a folder that all workers of a machine share."""

    folder: str
    budget_bytes: int
    guaranteed_s: float = GUARANTEED_S
    page_tokens: int = PAGE_TOKENS


@dataclass(frozen=True)
class WorkerRecipe:
    """What every worker of a cluster is made from.

    folder: a checkpoint in the official format; every machine needs it. options, rows: of the engines. dtype: a name
    of torch's. store: None persists nothing. windows_url: of a Redis server, None replays after every hit. draft: how
    many drafts are verified, None drafts none. fingerprint: as :class:`ds41.serving.Engine` takes it.
    threads: that torch may use in a worker, None leaves its own choice.
    """

    folder: str
    options: EngineOptions
    rows: int = 8
    quantization: Quantization = "cache"
    dtype: str = "float32"
    device: str = "cpu"
    store: StorePlace | None = None
    windows_url: str | None = None
    draft: Policy | None = None
    fingerprint: bytes | None = None
    threads: int | None = None

    @cached_property
    def config(self) -> ModelConfig:
        """The checkpoint's."""
        return ModelConfig.from_json(f"{self.folder}/config.json")

    @property
    def page_tokens(self) -> int:
        """Tokens of a page in the workers' caches, the store's where there is one."""
        return PAGE_TOKENS if self.store is None else self.store.page_tokens

    def prefill(self, name: str) -> PrefillWorker:
        """A worker that reads prompts."""
        return PrefillWorker(name, self._engine())

    def decode(self, name: str, fetch: Callable[[object], torch.Tensor]) -> DecodeWorker:
        """A worker that answers; ``fetch`` as :class:`DecodeWorker` takes it."""
        return DecodeWorker(name, self._engine(), fetch)

    def vision(self, name: str) -> VisionWorker:
        """A worker that sees."""
        self._prepare()
        vision = load_vision(self.folder, getattr(torch, self.dtype), self.device)
        return VisionWorker(name, vision.requires_grad_(False))

    def _engine(self) -> Engine:
        self._prepare()
        dtype = getattr(torch, self.dtype)
        model = load_checkpoint(self.folder, self.quantization, dtype, self.device).requires_grad_(False)
        fingerprint = model_fingerprint(model) if self.fingerprint is None else self.fingerprint
        drafting = None
        if self.draft is not None:
            drafter = load_drafter(self.folder, self.quantization, dtype, self.device)
            drafting = Drafting(drafter.requires_grad_(False), self.draft)
        store = self._open_store(model, fingerprint)
        return self.options.engine(model, store, self._open_windows(), self.rows, fingerprint, drafting)

    def _prepare(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def _open_store(self, model: Model, fingerprint: bytes) -> PrefixStore | None:
        if self.store is None:
            return None
        layout = PageLayout.of(model.config, self.store.page_tokens)
        return PrefixStore(
            self.store.folder,
            layout,
            fingerprint,
            budget_bytes=self.store.budget_bytes,
            guaranteed_s=self.store.guaranteed_s,
        )

    def _open_windows(self) -> WindowPool | None:
        return None if self.windows_url is None else RedisWindowPool(self.windows_url)
