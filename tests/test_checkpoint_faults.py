"""Damaged, incomplete and ill-fitting checkpoints: every error names the file, and the tensor where it is one."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import golden_io
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

from ds41 import ConfigError
from ds41.checkpoint import CheckpointError, inspect_checkpoint, load_checkpoint, save_checkpoint
from ds41.model import Model

TINY = golden_io.FOLDER / "tinyC"
TILE = "layers.0.attn.wkv"
EXPERT = "layers.1.ffn.experts.3.w2"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    with safe_open(TINY / "weights.safetensors", "pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module")
def model() -> Model:
    return load_checkpoint(TINY)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of a reference checkpoint, under the name of the release."""
    shutil.copy(TINY / "config.json", tmp_path)
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    shutil.copy(TINY / "weights.safetensors", tmp_path / "model.safetensors")
    return tmp_path


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    for word in words:
        assert word in str(caught.value)


def with_byte(tensor: torch.Tensor, value: int) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(torch.uint8)[1, 1] = value
    return changed


def with_number(tensor: torch.Tensor, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[7] = value
    return changed


CHANGES: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "missing": (lambda t: {n: x for n, x in t.items() if n != f"{EXPERT}.scale"}, f"lacks {EXPERT}.scale"),
    "unexpected": (lambda t: t | {"layers.0.attn.bias": torch.zeros(4)}, "holds layers.0.attn.bias"),
    "shape": (lambda t: t | {"norm.weight": torch.ones(65).bfloat16()}, "norm.weight is BF16 [65]"),
    "float16 in place of BF16": (lambda t: t | {"norm.weight": t["norm.weight"].half()}, "calls for BF16 [64]"),
    "BF16 in place of FP8": (
        lambda t: t | {f"{TILE}.weight": t[f"{TILE}.weight"].bfloat16()},
        f"{TILE}.weight is BF16 [64, 64]; config.json calls for F8_E4M3 [64, 64]",
    ),
    "FP8 in place of FP4": (
        lambda t: t | {f"{EXPERT}.weight": t[f"{EXPERT}.weight"].view(torch.float8_e4m3fn)},
        "calls for I8 [64, 16]",
    ),
    "FP8 scale NaN": (lambda t: t | {f"{TILE}.scale": with_byte(t[f"{TILE}.scale"], 255)}, f"{TILE}.scale holds a sc"),
    "FP4 scale NaN": (
        lambda t: t | {f"{EXPERT}.scale": with_byte(t[f"{EXPERT}.scale"].repeat(1, 2), 255)[:, 1:].contiguous()},
        f"{EXPERT}.scale holds a scale that is NaN",
    ),
    "FP8 code NaN": (lambda t: t | {f"{TILE}.weight": with_byte(t[f"{TILE}.weight"], 127)}, f"{TILE}.weight holds NaN"),
    "BF16 NaN": (lambda t: t | {"norm.weight": with_number(t["norm.weight"], torch.nan)}, "norm.weight holds NaN"),
    "F32 infinite": (
        lambda t: t | {"layers.2.ffn.gate.bias": with_number(t["layers.2.ffn.gate.bias"], -torch.inf)},
        "layers.2.ffn.gate.bias holds values beyond torch.float32: -inf",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES.keys())
def test_tensors_that_are_not_as_they_should_be(tensors, folder, change, message):
    save_file(change(tensors), folder / "model.safetensors")
    refused(folder, str(folder / "model.safetensors"), message)


def test_several_faults_are_counted(tensors, folder):
    kept = {name: tensor for name, tensor in tensors.items() if ".gate." not in name}
    save_file(kept | {"norm.weight": torch.ones(1), "more": torch.ones(1)}, folder / "model.safetensors")
    refused(folder, "layers.0.ffn.gate.bias_vl", "and 27 more tensors", "(and 2 more faults)")
    assert len(inspect_checkpoint(folder).missing) == 30


@pytest.mark.parametrize("keep", [0, 5, 2000, -1])
def test_a_truncated_file(folder, keep):
    path = folder / "model.safetensors"
    content = path.read_bytes()[:keep]
    path.write_bytes(content)
    refused(folder, f"{path} is no whole safetensors file of {len(content):,} bytes")


def test_a_file_with_something_behind_its_end_and_a_file_of_noise(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"more")
    refused(folder, str(path))
    path.write_bytes(bytes(range(256)) * 64)
    refused(folder, str(path))


def test_values_that_float16_cannot_hold(tensors, folder):
    save_file(tensors | {"head.weight": with_number(tensors["head.weight"], 1e6)}, folder / "model.safetensors")
    assert load_checkpoint(folder, dtype=torch.float16).head.weight.max() > 99e4
    save_file(tensors | {"embed.weight": with_number(tensors["embed.weight"], 1e6)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embed\.weight holds values beyond torch\.float16"):
        load_checkpoint(folder, dtype=torch.float16)


@pytest.fixture
def sharded(model, tmp_path) -> Path:
    save_checkpoint(model, tmp_path / "sharded", TINY, shard_bytes=400_000)
    return tmp_path / "sharded"


def change_index(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(change(index["weight_map"]) or index))


def test_a_missing_shard(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    refused(sharded, f"{shard} is missing; model.safetensors.index.json places ")


def test_an_index_that_does_not_fit_its_shards(sharded):
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    change_index(sharded, lambda places: places.update({"embed.weight": second.name}))
    refused(sharded, f"{second} lacks embed.weight, which model.safetensors.index.json places in it")
    assert first.is_file()


@pytest.mark.parametrize("place", ["../elsewhere.safetensors", "/etc/passwd", "config.json", 3, None])
def test_an_index_that_points_out_of_the_folder(sharded, place):
    change_index(sharded, lambda places: places.update({"embed.weight": place}))
    refused(sharded, "index.json places embed.weight in", "expected a safetensors file beside it")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 1}', "\udcff"])
def test_an_index_that_is_none(sharded, text):
    path = sharded / "model.safetensors.index.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(sharded, str(path))


def test_folders_without_a_checkpoint(folder, tmp_path):
    refused(tmp_path / "nowhere", str(tmp_path / "nowhere"), "is not a folder")
    refused(folder / "config.json", "is not a folder")
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    load_checkpoint(folder)
    (folder / "model.safetensors").rename(folder / "third.safetensors")
    refused(folder, "has 2 safetensors files (other.safetensors, third.safetensors) and no model.safetensors.index")
    for path in folder.glob("*.safetensors"):
        path.unlink()
    refused(folder, f"{folder} has no safetensors files")


def test_a_folder_that_may_not_be_read(model, folder):
    if os.name != "posix" or os.geteuid():
        pytest.skip("only root can become another user")
    os.seteuid(65534)
    try:
        refused(folder, str(folder))
        with pytest.raises(CheckpointError, match="cannot write"):
            save_checkpoint(model, folder, TINY, overwrite=True)
    finally:
        os.seteuid(0)


def test_configuration_and_tokenizer_have_to_be_there(folder):
    (folder / "tokenizer.json").rename(folder / "kept.json")
    refused(folder, f"{folder} has no tokenizer.json")
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        load_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="cannot read configuration"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dtype": torch.int8}, "dtype is"), ({"engram": "tape"}, "engram is 'tape'"), ({"quantization": "q"}, "'q'")],
)
def test_options_that_do_not_exist(options, message):
    with pytest.raises(ValueError, match=message):
        load_checkpoint(TINY, **options)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_overwritten_unasked(model, folder):
    before = files_of(folder)
    with pytest.raises(CheckpointError, match=r"holds config\.json already"):
        save_checkpoint(model, folder, TINY)
    assert files_of(folder) == before


def test_overwriting_replaces_the_checkpoint_and_nothing_else(model, sharded):
    (sharded / "notes.txt").write_text("mine")
    save_checkpoint(model, sharded, TINY, overwrite=True)
    assert {path.name for path in sharded.iterdir()} == {
        "config.json", "model.safetensors", "notes.txt", "tokenizer.json",
    }  # fmt: skip
    load_checkpoint(sharded)


@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_leaves_the_folder_as_it_was(model, folder, tmp_path, monkeypatch, existing):
    target = folder if existing else tmp_path / "deep" / "new"
    before = files_of(folder)
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=rf"cannot write {re.escape(str(target))}: No space left on device"):
        save_checkpoint(model, target, TINY, shard_bytes=400_000, overwrite=True)
    assert files_of(folder) == before
    assert target.exists() == existing


def test_a_disk_that_is_too_small_is_not_begun(model, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(CheckpointError, match="its disk has 1 free"):
        save_checkpoint(model, tmp_path / "new", TINY)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("path", ["norm.weight", "layers.0.attn.query.wq_a.weight", "layers.3.ffn.experts.w1"])
def test_weights_that_are_not_finite_are_not_written(model, tmp_path, path):
    parameter = model.get_parameter(path).detach().view(-1)
    kept = parameter[3].item()
    parameter[3] = torch.nan
    try:
        with pytest.raises(CheckpointError, match=re.escape(path.split(".query.")[0].split(".w1")[0])):
            save_checkpoint(model, tmp_path / "new", TINY)
    finally:
        parameter[3] = kept
    assert not (tmp_path / "new").exists()


def other_tokenizer() -> Tokenizer:
    """The reference's with two tokens in each other's place, of which one shares its Engram id with a third."""
    data = json.loads((TINY / "tokenizer.json").read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["A"], vocabulary["!"] = vocabulary["!"], vocabulary["A"]
    return Tokenizer.from_str(json.dumps(data))


def test_a_checkpoint_needs_the_tokenizer_that_its_rows_were_hashed_with(model, tmp_path):
    with pytest.raises(CheckpointError, match="the byte vocabulary gives other Engram ids"):
        save_checkpoint(model, tmp_path / "new")
    with pytest.raises(CheckpointError, match="the tokenizer gives other Engram ids"):
        save_checkpoint(model, tmp_path / "new", other_tokenizer(), shard_bytes=1)
    with pytest.raises(CheckpointError, match="no tokenizer at"):
        save_checkpoint(model, tmp_path / "new", tmp_path)
    with pytest.raises(CheckpointError, match="shard_bytes is 0"):
        save_checkpoint(model, tmp_path / "new", TINY, shard_bytes=0)
    with pytest.raises(CheckpointError, match="cannot write"):
        save_checkpoint(model, TINY / "config.json" / "below", TINY)
    with pytest.raises(CheckpointError, match="is not a folder"):
        save_checkpoint(model, TINY / "config.json", TINY)
