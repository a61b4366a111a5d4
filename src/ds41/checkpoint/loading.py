"""From an official checkpoint to a model, tensor by tensor.

Source: the released checkpoint's names, shapes and types (:mod:`ds41.checkpoint.inventory`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ds41.checkpoint.files import CONFIG_FILE, TOKENIZER_FILE, CheckpointError, TensorFiles
from ds41.checkpoint.inspection import inspect, require_loadable
from ds41.checkpoint.inventory import Part, Weight, weights
from ds41.checkpoint.memory import available_bytes, model_bytes
from ds41.checkpoint.names import module_weights
from ds41.checkpoint.pieces import row_pieces, rows_per_scale
from ds41.config import ModelConfig
from ds41.engram import EngramTable
from ds41.engram.prefetch import PrefetchingTable
from ds41.formats import Packed
from ds41.linear import Quantization
from ds41.model import Model
from ds41.tokenizer import compression_map, load_tokenizer
from ds41.weight_formats import as_bytes

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_log = logging.getLogger(__name__)


def load_checkpoint(
    folder: str | Path,
    quantization: Quantization = "cache",
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    engram: Literal["memory", "disk"] = "memory",
    memory_limit: int | None = None,
) -> Model:
    """Read backbone and Engram of a checkpoint under the official names.

    The folder holds ``config.json`` (either published form), safetensors files (one, or shards with their index) and,
    for a model with Engram, ``tokenizer.json``. Weights are decoded from the mapped files straight into the model, so
    memory holds the model and one piece of one tensor. Drafter and vision tensors are not read:
    :func:`ds41.dspark.load_drafter` and :func:`ds41.vision.load_vision` do that.

    Args:
        quantization: as of :class:`ds41.model.Model`.
        dtype: of the model. float32 and bfloat16 hold every stored value exactly; float16 rounds, and is refused
            for a weight beyond 65,504.
        engram: "disk" leaves the Engram tables in their files, mapped and unread, and decodes the rows that are
            looked up.
        memory_limit: bytes that the model may take; default: what ``device`` has free now.

    Raises:
        CheckpointError: the files are damaged, do not fit the configuration, or hold NaN or infinity; or the model
            does not fit into memory, of which none has been taken then. ConfigError: ``config.json`` is unusable.
        RuntimeError: a weight of the model that no checkpoint holds, or in another shape.
    """
    device = _checked_device(dtype, device)
    if engram not in ("memory", "disk"):
        raise CheckpointError(f"engram is {engram!r}; expected 'memory' or 'disk'")
    files = TensorFiles(folder)
    found = inspect(files)
    require_loadable(found)
    token_map = _token_map(files.folder, found.config)
    with torch.device("meta"), _Undrawn():
        model = Model(found.config, quantization, dtype, token_map)
    if engram == "disk":
        _leave_tables_on_disk(model, files, dtype)
    _require_memory(model, files.folder, dtype, device, memory_limit)
    _fill_module(model, "model", found.config, files, device)
    return model


def load_part(
    folder: str | Path,
    part: Part,
    build: Callable[[ModelConfig], nn.Module],
    dtype: torch.dtype,
    device: torch.device | str,
    memory_limit: int | None = None,
) -> nn.Module:
    """Read another part of a checkpoint into the module that ``build`` makes for its configuration.

    Raises:
        CheckpointError, ConfigError: as :func:`load_checkpoint`, or the folder does not hold the part.
        RuntimeError: a weight of the module that no checkpoint holds, or in another shape.
    """
    device = _checked_device(dtype, device)
    files = TensorFiles(folder)
    found = inspect(files, part)
    require_loadable(found)
    with torch.device("meta"), _Undrawn():
        module = build(found.config)
    _require_memory(module, files.folder, dtype, device, memory_limit)
    _fill_module(module, part, found.config, files, device)
    return module


class _Undrawn(TorchFunctionMode):
    """Leaves out the random start of weights: on the meta device it draws nothing, and imports torch's compiler."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def _checked_device(dtype: torch.dtype, device: torch.device | str) -> torch.device:
    if dtype not in _DTYPES:
        raise CheckpointError(f"dtype is {dtype}; expected one of {', '.join(map(str, _DTYPES))}")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise CheckpointError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None


def _fill_module(module: nn.Module, part: Part, config: ModelConfig, files: TensorFiles, device: torch.device) -> None:
    """Give a module on the meta device memory, and its weights."""
    module.to_empty(device=device)
    targets = module_weights(module)
    for weight in weights(config, part):
        # Tables that stay on disk have no place in memory.
        if weight.name in targets:
            _fill(targets.pop(weight.name), weight, files)
    if targets:
        raise RuntimeError(f"the {part} has weights that no checkpoint holds: {', '.join(targets)}")


def _token_map(folder: Path, config: ModelConfig) -> torch.Tensor | None:
    if not config.engram_layer_ids:
        return None
    try:
        return compression_map(load_tokenizer(folder), config.vocab_size)
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {TOKENIZER_FILE}; {CONFIG_FILE} names Engram layers, whose rows depend on the tokenizer"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{folder / TOKENIZER_FILE}: {error}") from error


def _leave_tables_on_disk(model: Model, files: TensorFiles, dtype: torch.dtype) -> None:
    for layer in model.config.engram_layer_ids:
        prefix = f"layers.{layer}.engram.embed"
        codes, scales = (as_bytes(files.tensor(f"{prefix}.{part}")) for part in ("weight", "scale"))
        model.layers[layer].engram.embed = PrefetchingTable.from_stored(codes, scales, dtype=dtype)


def _require_memory(
    model: nn.Module, folder: Path, dtype: torch.dtype, device: torch.device, memory_limit: int | None
) -> None:
    needed = model_bytes(model)
    available = available_bytes(device) if memory_limit is None else memory_limit
    kind = str(dtype).removeprefix("torch.")
    source = "are available" if memory_limit is None else "are allowed"
    _log.info("%s takes %s bytes in %s on %s; available: %s", folder, f"{needed:,}", kind, device, available)
    if available is None or needed <= available:
        return
    tables = sum(table.weight.numel() * table.weight.element_size() for table in _tables_in_memory(model))
    hint = f"; Engram tables left on disk would spare {tables:,} of them" if tables else ""
    raise CheckpointError(
        f"{folder} takes {needed:,} bytes ({needed / 2**30:.1f} GiB) as a model in {kind} on {device}, and "
        f"{available:,} ({available / 2**30:.1f} GiB) {source}{hint}"
    )


def _tables_in_memory(model: nn.Module) -> Iterator[EngramTable]:
    return (each for each in model.modules() if isinstance(each, EngramTable) and each.weight is not None)


def _fill(target: torch.Tensor, weight: Weight, files: TensorFiles) -> None:
    """Decode one weight into the model's memory, piece by piece."""
    if tuple(target.shape) != weight.shape:
        raise RuntimeError(f"{weight.name} is {list(target.shape)} in the model; its shape is {list(weight.shape)}")
    step = rows_per_scale(weight)
    is_plain = isinstance(weight.stored, str)
    stored = files.tensor(weight.name)
    scales = None if is_plain else as_bytes(files.tensor(weight.scale_name))
    for rows in row_pieces(weight.shape, step):
        if is_plain:
            target[rows].copy_(stored[rows])
        else:
            scale_rows = slice(rows.start // step, -(-rows.stop // step))
            packed = Packed(as_bytes(stored[rows]).to(target.device), scales[scale_rows].to(target.device))
            target[rows] = weight.stored.decode(packed, target.dtype)
        _require_finite(target[rows], weight, files)


def _require_finite(values: torch.Tensor, weight: Weight, files: TensorFiles) -> None:
    if not values.numel():
        return
    low, high = torch.aminmax(values)
    # What does not fit the type saturates in decoding and overflows in copying.
    if max(-low, high) < torch.finfo(values.dtype).max:
        return
    where = f"{files.path(weight.name)}: {weight.name}"
    if not isinstance(weight.stored, str) and bool((as_bytes(files.tensor(weight.scale_name)) == 0xFF).any()):
        raise CheckpointError(f"{files.path(weight.scale_name)}: {weight.scale_name} holds a scale that is NaN")
    if bool(torch.isnan(low)):
        raise CheckpointError(f"{where} holds NaN")
    raise CheckpointError(f"{where} holds values beyond {values.dtype}: {low.item():g} to {high.item():g}")
