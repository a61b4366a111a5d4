"""The files of a checkpoint folder, as memory-mapped tensors by name; nothing is read before it is asked for.

Source: ds41's own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ds41.checkpoint.inventory import TensorInfo

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
# What the only file of a small checkpoint is called, where there are other safetensors files beside it.
_SINGLE_NAMES = (SINGLE_FILE, "weights.safetensors")
# 100,000 tensors make about 10 MB; a device or a weight file never ends.
_LARGEST_INDEX = 2**30


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written; the message names the file and the tensor."""


class TensorFiles:
    """Every tensor that a folder's safetensors files hold, one file or the shards of an index.

    Raises:
        CheckpointError: the folder has no weights or several candidates, a shard is missing, or a file is no whole
            safetensors file.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not os.path.isdir(self.folder):
            raise CheckpointError(
                f"{self.folder} is not a folder; expected one with {CONFIG_FILE} and safetensors files"
            )
        index = self.folder / INDEX_FILE
        self._shards = _read_index(index) if os.path.isfile(index) else None
        self.paths = (
            [self.folder / name for name in sorted(set(self._shards.values()))]
            if self._shards
            else [_single_file(self.folder)]
        )
        self._files = {path: self._open(path) for path in self.paths}
        self._place = self._places()

    @property
    def names(self) -> list[str]:
        return list(self._place)

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def path(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._place[name]

    def info(self, name: str) -> TensorInfo:
        entry = self._files[self._place[name]].get_slice(name)
        return TensorInfo(tuple(entry.get_shape()), entry.get_dtype())

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor over the mapped file: its bytes are read when they are looked at, and are not to be written."""
        path = self._place[name]
        try:
            return self._files[path].get_tensor(name)
        except (SafetensorError, AttributeError, OSError) as error:
            # AttributeError: this torch lacks the tensor's type.
            raise CheckpointError(f"{path}: cannot read {name}: {error}") from error

    def _open(self, path: Path):
        if self._shards and not os.path.isfile(path):
            named = sum(name == path.name for name in self._shards.values())
            raise CheckpointError(f"{path} is missing; {INDEX_FILE} places {named} tensors in it")
        try:
            return safe_open(path, framework="pt", device="cpu")
        except SafetensorError as error:
            raise CheckpointError(
                f"{path} is no whole safetensors file of {path.stat().st_size:,} bytes: {error}"
            ) from error
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error

    def _places(self) -> dict[str, Path]:
        held = {path: set(file.keys()) for path, file in self._files.items()}
        if self._shards is None:
            (path,) = self.paths
            return dict.fromkeys(sorted(held[path]), path)
        places = {name: self.folder / shard for name, shard in self._shards.items()}
        for name, path in places.items():
            if name not in held[path]:
                raise CheckpointError(f"{path} lacks {name}, which {INDEX_FILE} places in it")
        return places


def _single_file(folder: Path) -> Path:
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error.strerror or error}") from error
    for name in _SINGLE_NAMES:
        if folder / name in found:
            return folder / name
    if len(found) == 1:
        return found[0]
    if not found:
        raise CheckpointError(f"{folder} has no safetensors files")
    names = ", ".join(path.name for path in found[:4]) + (", ..." if len(found) > 4 else "")
    raise CheckpointError(f"{folder} has {len(found)} safetensors files ({names}) and no {INDEX_FILE} to say which")


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    try:
        size = path.stat().st_size
        if size > _LARGEST_INDEX:
            raise CheckpointError(f"{path} has {size:,} bytes; expected an index, of {_LARGEST_INDEX:,} at most")
        index = json.loads(path.read_bytes().decode("utf-8"))
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{path} has no weight_map; expected one file name for each tensor")
    for name, shard in shards.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{path} places {name} in {shard!r}; expected a safetensors file beside it")
    return shards
