"""A safetensors file written one tensor after the other.

The safetensors library writes from a dictionary of all tensors, a second copy of the shard in memory. Here the header
comes first, from the known shapes, and each weight is encoded when its turn comes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ds41.checkpoint.inventory import Weight

_LENGTH_BYTES = 8
# Every tensor then begins at a multiple of its element size, since larger elements come first.
_ALIGNMENT = 8

Pieces = Iterator[torch.Tensor]


def write_safetensors(path: Path, weights: Sequence[Weight], pieces: Callable[[Weight], Pieces]) -> None:
    """Write the stored tensors of ``weights``; their order in the file is by element size.

    Args:
        pieces: gives the tensors of a weight, in the order of :meth:`Weight.tensors`, in consecutive pieces of the
            stored types.

    Raises:
        OSError: the file cannot be written.
    """
    ordered = sorted(weights, key=lambda weight: 0 if weight.stored == "F32" else 1 if weight.stored == "BF16" else 2)
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in ordered:
        for name, info in weight.tensors().items():
            begin, end = end, end + info.nbytes
            header[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded)
        for weight in ordered:
            for piece in pieces(weight):
                file.write(memoryview(_raw(piece)))
        size = _LENGTH_BYTES + len(encoded) + end
        if file.tell() != size:
            raise RuntimeError(f"{path.name} came out as {file.tell():,} bytes; its header describes {size:,}")
        flush_to_disk(file)


def write_text(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        flush_to_disk(file)


def flush_to_disk(file) -> None:
    """Before a file gets its final name its bytes are on the disk, or a crash could leave the name without them."""
    file.flush()
    os.fsync(file.fileno())


def _raw(piece: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor of any type."""
    return piece.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
