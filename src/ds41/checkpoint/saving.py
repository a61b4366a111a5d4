"""From a model to an official checkpoint.

Source: the released checkpoint's names, shapes and types (:mod:`ds41.checkpoint.inventory`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn

from ds41.checkpoint.files import CONFIG_FILE, INDEX_FILE, SINGLE_FILE, TOKENIZER_FILE, CheckpointError
from ds41.checkpoint.inventory import Part, Weight, weights
from ds41.checkpoint.names import module_weights
from ds41.checkpoint.pieces import row_pieces, rows_per_scale
from ds41.checkpoint.writer import write_safetensors, write_text
from ds41.config_files import config_to_json
from ds41.model import Model
from ds41.tokenizer import byte_tokenizer, compression_map, load_tokenizer

_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")


def save_checkpoint(
    model: Model,
    folder: str | Path,
    tokenizer: Tokenizer | str | Path | None = None,
    shard_bytes: int = 5 * 2**30,
    overwrite: bool = False,
    drafter: nn.Module | None = None,
    vision: nn.Module | None = None,
) -> list[Path]:
    """Write a model under the official names, in the official types; :func:`load_checkpoint` reads it back.

    Weights are rounded to the types of the checkpoint. Those that came from one keep their values exactly; their bytes
    may differ, since the smallest scale that holds the values is chosen anew. All files are written beside the final
    place and renamed when they are complete, ``config.json`` last.

    Args:
        tokenizer: a tokenizer or its ``tokenizer.json``; None stands for the byte vocabulary of the presets. A model
            with Engram needs the one that its rows were hashed with.
        shard_bytes: largest file of weights; more than one gives shards and an index.
        overwrite: replace a checkpoint in ``folder``, with all that it holds.
        drafter, vision: a :class:`ds41.dspark.Drafter` and a :class:`ds41.vision.Vision` of the model's configuration,
            written beside it.

    Returns:
        The files written.

    Raises:
        CheckpointError: ``folder`` holds a checkpoint already, the tokenizer is not the model's, a weight is not
            finite, or the disk refuses; the folder is then as it was.
    """
    if shard_bytes < 1:
        raise CheckpointError(f"shard_bytes is {shard_bytes}; expected 1 or more")
    if not str(folder):
        raise CheckpointError("folder is empty; expected the path of a folder to write")
    folder = Path(folder)
    modules: dict[Part, nn.Module] = {"model": model}
    modules |= {part: each for part, each in (("drafter", drafter), ("vision", vision)) if each is not None}
    for part, module in modules.items():
        if module.config != model.config:
            raise CheckpointError(f"the {part} has another configuration than the model")
        if part != "model":
            _require_weights(part, module)
    shards = _shards(list(weights(model.config, tuple(modules))), shard_bytes)
    texts = _texts(model, tokenizer, shards)
    existed = os.path.isdir(folder)
    try:
        old = _old_files(folder)
        if old and not overwrite:
            raise CheckpointError(f"{folder} holds {old[0].name} already; overwrite=True replaces a checkpoint")
        folder.mkdir(parents=True, exist_ok=True)
        _require_space(folder, shards)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
            targets = {name: memory for module in modules.values() for name, memory in module_weights(module).items()}
            for name, shard in shards.items():
                write_safetensors(Path(partial, name), shard, lambda weight: _encoded(weight, model, targets))
            for name, text in texts.items():
                write_text(Path(partial, name), text)
            return _publish(Path(partial), folder, [*shards, *texts], old)
    except OSError as error:
        raise CheckpointError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        if not existed and os.path.isdir(folder) and not os.listdir(folder):
            folder.rmdir()


def _require_weights(part: Part, module: nn.Module) -> None:
    lacks = {weight.name for weight in weights(module.config, part)} - module_weights(module).keys()
    if lacks:
        raise CheckpointError(f"what is given as the {part} is a {type(module).__name__} and lacks {min(lacks)}")


def _texts(model: Model, tokenizer: Tokenizer | str | Path | None, shards: dict[str, list[Weight]]) -> dict[str, str]:
    """The files beside the weights, by name."""
    texts = {CONFIG_FILE: json.dumps(config_to_json(model.config), indent=2) + "\n"}
    tokenizer_text = _tokenizer_text(model, tokenizer)
    if tokenizer_text is not None:
        texts[TOKENIZER_FILE] = tokenizer_text
    if len(shards) > 1:
        texts[INDEX_FILE] = _index(shards)
    return texts


def _publish(partial: Path, folder: Path, names: list[str], old: list[Path]) -> list[Path]:
    """Move the written files to their place; those of an old checkpoint that have no successor go."""
    # Without config.json a folder is no checkpoint: what an interruption leaves half replaced cannot be loaded.
    (folder / CONFIG_FILE).unlink(missing_ok=True)
    written = [name for name in names if name != CONFIG_FILE]
    for name in written:
        os.replace(partial / name, folder / name)
    for path in old:
        if path.name not in written:
            path.unlink(missing_ok=True)
    os.replace(partial / CONFIG_FILE, folder / CONFIG_FILE)
    return [folder / name for name in (*written, CONFIG_FILE)]


def _old_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that stands in the folder."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    own = (CONFIG_FILE, TOKENIZER_FILE, INDEX_FILE, SINGLE_FILE)
    return sorted(path for path in folder.iterdir() if path.name in own or _SHARD.fullmatch(path.name))


def _tokenizer_text(model: Model, tokenizer: Tokenizer | str | Path | None) -> str | None:
    if tokenizer is None:
        if model.hasher is None:
            return None
        tokenizer, name = byte_tokenizer(), "the byte vocabulary"
    else:
        name = "the tokenizer"
        try:
            tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
        except (OSError, ValueError) as error:
            raise CheckpointError(str(error)) from error
    if model.hasher is not None and not _hashes_alike(model, tokenizer):
        raise CheckpointError(f"{name} gives other Engram ids than the model's; save it with the model's tokenizer")
    return tokenizer.to_str(pretty=True)


def _hashes_alike(model: Model, tokenizer: Tokenizer) -> bool:
    token_map = model.hasher.token_map
    try:
        return token_map is None or torch.equal(token_map.cpu(), compression_map(tokenizer, model.config.vocab_size))
    except ValueError:
        return False


def _shards(all_weights: list[Weight], shard_bytes: int) -> dict[str, list[Weight]]:
    """Neighbours in files of up to ``shard_bytes``, a larger weight alone, by file name."""
    groups: list[list[Weight]] = [[]]
    filled = 0
    for weight in all_weights:
        size = _stored_bytes(weight)
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(weight)
        filled += size
    if len(groups) == 1:
        return {SINGLE_FILE: groups[0]}
    return {f"model-{n:05d}-of-{len(groups):05d}.safetensors": group for n, group in enumerate(groups, start=1)}


def _index(shards: dict[str, list[Weight]]) -> str:
    total = sum(_stored_bytes(weight) for shard in shards.values() for weight in shard)
    places = {name: file for file, shard in shards.items() for weight in shard for name in weight.tensors()}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2) + "\n"


def _stored_bytes(weight: Weight) -> int:
    return sum(info.nbytes for info in weight.tensors().values())


def _require_space(folder: Path, shards: dict[str, list[Weight]]) -> None:
    needed = sum(_stored_bytes(weight) for shard in shards.values() for weight in shard)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"cannot write {folder}: the weights take {needed:,} bytes and its disk has {free:,} free"
        )


def _encoded(weight: Weight, model: Model, targets: dict[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    """The stored tensors of a weight, in pieces."""
    if weight.name not in targets:
        # An Engram table that was left on disk is its stored bytes.
        layer = int(weight.name.split(".")[1])
        stored = model.layers[layer].engram.embed.stored
        yield from (torch.as_tensor(part) for part in (stored.codes, stored.scales))
        return
    values, scales = targets[weight.name], []
    for rows in row_pieces(weight.shape, rows_per_scale(weight)):
        piece = values[rows]
        if isinstance(weight.stored, str):
            _require_finite(piece, weight.name)
            yield piece.to(torch.float32 if weight.stored == "F32" else torch.bfloat16)
            continue
        try:
            packed = weight.stored.encode(piece)
        except ValueError as error:
            raise CheckpointError(f"{weight.name}: {error}") from error
        yield packed.codes
        scales.append(packed.scales)
    yield from scales


def _require_finite(values: torch.Tensor, name: str) -> None:
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(f"{name} holds NaN or infinity; a checkpoint holds finite numbers")
