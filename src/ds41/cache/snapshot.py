"""What a sequence keeps to itself, taken out of a cache as bytes and put back: the other half beside the pages.

Windows live minutes in a pool where global pages live days on disk.

Source: report section 3.2.1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ds41.cache.errors import CacheError

_FORMAT = "ds41 windows 1"


@dataclass(frozen=True, eq=False)
class WindowSnapshot:
    """The private rows of a sequence at ``length`` tokens.

    layers: whose windows it holds. starts: for each of them the first position whose row is valid, at most one
    window before ``length``. windows: the parts of those rows, each [layers, sliding_window, width], the newest row
    last. open_groups: float32 [2, waiting, head_dim], values and gates, of each layer that pools and has a group
    open. history: compressed ids before ``length``, int64
    [engram_max_ngram_size - 1], the newest first.
    """

    length: int
    layers: tuple[int, ...]
    starts: tuple[int, ...]
    windows: tuple[torch.Tensor, ...]
    open_groups: dict[int, torch.Tensor]
    history: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, without what names them."""
        return sum(tensor.nbytes for tensor in (*self.windows, *self.open_groups.values(), self.history))

    def to_bytes(self) -> bytes:
        """As one safetensors file."""
        tensors = {f"window.{number}": part.cpu().contiguous() for number, part in enumerate(self.windows)}
        tensors |= {f"open.{layer}": rows.cpu().contiguous() for layer, rows in self.open_groups.items()}
        tensors["history"] = self.history.cpu().contiguous()
        plan = {"length": self.length, "layers": self.layers, "starts": self.starts}
        return save(tensors, {"format": _FORMAT, "plan": json.dumps(plan)})

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> WindowSnapshot:
        """What :meth:`to_bytes` gave.

        Raises:
            CacheError: it is no snapshot.
        """
        data = bytes(data)
        try:
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
            if header["format"] != _FORMAT:
                raise CacheError(f"the snapshot's format is {header['format']!r}; expected {_FORMAT!r}")
            plan = json.loads(header["plan"])
            windows = sorted((name for name in tensors if name.startswith("window.")), key=lambda n: int(n[7:]))
            return cls(
                plan["length"],
                tuple(plan["layers"]),
                tuple(plan["starts"]),
                tuple(tensors[name] for name in windows),
                {int(name[5:]): rows for name, rows in tensors.items() if name.startswith("open.")},
                tensors["history"],
            )
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise error if isinstance(error, CacheError) else CacheError(f"no snapshot of windows: {error}") from error


def check_layers(layers: Iterable[int] | None, count: int) -> tuple[int, ...]:
    """Layer numbers, ascending; all ``count`` of them for None.

    Raises:
        CacheError: there is no such layer.
    """
    layers = tuple(range(count)) if layers is None else tuple(sorted(set(layers)))
    for layer in layers:
        if not 0 <= layer < count:
            raise CacheError(f"layer {layer} has no window; there are layers 0 to {count - 1}")
    return layers
