"""What a stored page depends on: 32 bytes over a model's configuration, its weights, and how its pages are written.

Source: ds41's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from ds41.engram.table import StoredRows

if TYPE_CHECKING:
    from ds41.dspark import Drafter
    from ds41.model import Model

# Goes up when the bytes of a page come to mean something else: block formats, planes, or their order.
LAYOUT_VERSION = 1
_CHUNK = 2**22


def model_fingerprint(model: Model | Drafter) -> bytes:
    """SHA-256 over all that decides the bytes of a page, or of a drafter's windows, 32 bytes.

    That is :data:`LAYOUT_VERSION`, the configuration, the quantization and type the model computes in, and the name,
    shape, type and bytes of every parameter and buffer, the Engram token map among them, and of Engram tables that
    were left on disk. Tensors are read in pieces of a few MB wherever they are. Reading all of a large checkpoint
    takes minutes: who serves one may pass the store 32 bytes of his own instead, such as the hash of its files, as
    long as they change whenever any of this does.
    """
    digest = hashlib.sha256()
    config = sorted(asdict(model.config).items())
    settings = [LAYOUT_VERSION, model.quantization, str(model.dtype), config]
    _add(digest, repr(settings).encode())
    for name, tensor in sorted(_tensors(model)):
        _add(digest, f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        for piece in _pieces(tensor):
            digest.update(piece)
    return digest.digest()


def _tensors(model: Model | Drafter) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, those that a checkpoint leaves out too, and tables that stay in its files."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
    for name, module in model.named_modules(remove_duplicate=False):
        stored = getattr(module, "stored", None)
        if isinstance(stored, StoredRows):
            yield f"{name}.codes", torch.as_tensor(stored.codes)
            yield f"{name}.scales", torch.as_tensor(stored.scales)


def _pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in host memory, a few MB at a time."""
    flat = tensor.detach()
    flat = flat.reshape(-1) if flat.is_contiguous() else flat.contiguous().reshape(-1)
    step = max(1, _CHUNK // max(1, flat.element_size()))
    for start in range(0, flat.numel(), step):
        yield memoryview(flat[start : start + step].cpu().view(torch.uint8).numpy())


def _add(digest, part: bytes) -> None:
    """With its length before it, no part can run into the next."""
    digest.update(len(part).to_bytes(8, "little") + part)
