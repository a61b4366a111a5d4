"""Checkpoints: the inventory, the golden files read and written, what stays on disk, and the memory it takes."""

import dataclasses
import json
import logging
import math
from importlib import resources

import golden_io
import golden_model
import pytest
import torch
from hypothesis import given, settings
from safetensors import safe_open
from small_configs import plans
from torch.utils._python_dispatch import TorchDispatchMode

from ds41 import ModelConfig, weights
from ds41.checkpoint import (
    PARTS,
    CheckpointError,
    TensorInfo,
    inspect_checkpoint,
    inventory,
    load_checkpoint,
    memory,
    pieces,
    save_checkpoint,
)
from ds41.checkpoint.inventory import weights as all_weights
from ds41.checkpoint.memory import available_bytes, model_bytes
from ds41.checkpoint.names import module_weights
from ds41.config_files import config_to_json
from ds41.engram.prefetch import PrefetchingTable
from ds41.linear import Linear
from ds41.model import Model
from ds41.moe import Experts

MODELS = golden_io.MODELS
TINY = golden_io.FOLDER / "tinyC"


def header(path) -> dict[str, TensorInfo]:
    with safe_open(path, "pt") as file:
        entries = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: TensorInfo(tuple(e.get_shape()), e.get_dtype()) for name, e in entries.items()}


def stored_bytes(folder) -> dict[str, bytes]:
    """Every stored tensor of a folder written by save_checkpoint, by the safetensors library."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                found[name] = file.get_tensor(name).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return found


def assert_same_weights(model: Model, other: Model) -> None:
    first, second = dict(model.named_parameters()), dict(other.named_parameters())
    assert first.keys() == second.keys()
    for name, parameter in first.items():
        assert parameter.dtype == second[name].dtype, name
        assert torch.equal(parameter, second[name]), name


def test_the_inventory_of_the_published_model_has_its_96085_tensors():
    config = ModelConfig.flash()
    tensors = inventory(config)
    assert {part: len(inventory(config, part)) for part in PARTS} == {"model": 93_418, "drafter": 2_401, "vision": 266}
    assert len(tensors) == 96_085
    assert sum(math.prod(weight.shape) for weight in all_weights(config)) == 763_205_315_794
    assert tensors["layers.0.ffn.experts.383.w2.weight"] == TensorInfo((5120, 1152), "I8")
    assert tensors["layers.14.engram.wkv.scale"] == TensorInfo((800, 192), "F8_E8M0")


@pytest.mark.parametrize("preset", ["flash", "mini", "nano"])
def test_the_inventory_adds_up_to_the_weights_ledger(preset):
    config = getattr(ModelConfig, preset)()
    tensors = inventory(config, "model")
    engram = sum(info.nbytes for name, info in tensors.items() if ".engram." in name)
    assert engram == weights.engram(config).nbytes
    assert sum(info.nbytes for info in tensors.values()) - engram == weights.backbone(config).nbytes


@pytest.mark.parametrize("model", MODELS)
def test_the_inventory_is_the_header_of_the_reference_files(model):
    config = ModelConfig.from_json(golden_io.FOLDER / model / "config.json")
    found = header(golden_io.FOLDER / model / "weights.safetensors")
    # These files have no vision parts, though their configurations describe some.
    assert found == inventory(config, ("model", "drafter"))


def test_the_published_model_on_the_meta_device_has_the_published_parameters():
    config = ModelConfig.flash()
    token_map = torch.arange(config.vocab_size) % config.engram_compressed_vocab_size
    with torch.device("meta"):
        model = Model(config, token_map=token_map)
    assert {name: tuple(tensor.shape) for name, tensor in module_weights(model).items()} == {
        weight.name: weight.shape for weight in all_weights(config, "model")
    }
    counts = {True: 0, False: 0}
    for name, parameter in model.named_parameters():
        counts[".engram." in name] += parameter.numel()
    assert counts == {False: 551_566_180_464, True: 196_928_504_320}


def test_modules_know_the_types_that_the_inventory_gives():
    config = ModelConfig.nano()
    with torch.device("meta"):
        model = Model(config)
    names = {"F8_E4M3": "fp8", "I8": "fp4", "BF16": "bf16"}
    expected = {name: names[info.dtype] for name, info in inventory(config, "model").items() if info.dtype in names}
    told = {}
    for path, module in model.named_modules():
        if isinstance(module, Linear):
            parts = [part for part in path.split(".") if part not in ("query", "window", "keys", "output")]
            told[".".join(parts) + ".weight"] = module.storage
        elif isinstance(module, Experts):
            told[f"{path}.0.w1.weight"] = module.storage
    assert len(told) > 100
    assert {name: expected[name] for name in told} == told


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_reference_checkpoint_loads_exactly(model, dtype):
    loaded = load_checkpoint(golden_io.FOLDER / model, quantization="none", dtype=dtype)
    expected = golden_model.build(model, "fp32")
    for (name, parameter), reference in zip(loaded.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(parameter.float(), reference), name
    assert torch.equal(loaded.hasher.token_map, expected.hasher.token_map)
    assert loaded.embed.weight.dtype == loaded.layers[0].ffn.experts.w1.dtype == dtype
    assert loaded.layers[0].hc_attn.fn.dtype == loaded.head.weight.dtype == torch.float32


@pytest.mark.parametrize("model", MODELS)
def test_a_reference_checkpoint_is_written_as_it_was(model, tmp_path):
    folder = golden_io.FOLDER / model
    loaded = load_checkpoint(folder)
    save_checkpoint(loaded, tmp_path, folder / "tokenizer.json")
    assert header(tmp_path / "model.safetensors") == inventory(loaded.config, "model")
    assert_same_weights(load_checkpoint(tmp_path), loaded)
    before, after = stored_bytes(folder), stored_bytes(tmp_path)
    differing = [name for name, raw in after.items() if raw != before[name]]
    # Where a scale is larger than the values need, the smallest one is written, and codes to match.
    assert all(inventory(loaded.config, "model")[name].dtype in ("I8", "F8_E4M3", "F8_E8M0") for name in differing)
    # Written again, nothing changes any more.
    save_checkpoint(load_checkpoint(tmp_path), tmp_path / "again", tmp_path)
    assert stored_bytes(tmp_path / "again") == after


def test_shards_and_their_index(tmp_path):
    loaded = load_checkpoint(TINY)
    written = save_checkpoint(loaded, tmp_path, TINY, shard_bytes=400_000)
    shards = sorted(path.name for path in written if path.suffix == ".safetensors")
    assert shards == [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    assert len(shards) > 3
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(info.nbytes for info in inventory(loaded.config, "model").values())
    for shard in shards:
        held = header(tmp_path / shard)
        assert sum(info.nbytes for info in held.values()) <= 400_000
        assert {name for name, place in index["weight_map"].items() if place == shard} == set(held)
    assert_same_weights(load_checkpoint(tmp_path), loaded)


def test_random_weights_are_rounded_once(tmp_path):
    config = dataclasses.replace(ModelConfig.nano(), n_routed_experts=4)
    torch.manual_seed(0)
    save_checkpoint(Model(config), tmp_path / "first")
    once = load_checkpoint(tmp_path / "first", dtype=torch.float32)
    assert once.config == config
    save_checkpoint(once, tmp_path / "second")
    assert_same_weights(load_checkpoint(tmp_path / "second", dtype=torch.float32), once)
    assert (tmp_path / "first" / "tokenizer.json").read_bytes() == (tmp_path / "second/tokenizer.json").read_bytes()


def test_engram_tables_may_stay_on_disk(tmp_path):
    in_memory, on_disk = load_checkpoint(TINY), load_checkpoint(TINY, engram="disk")
    tables = [name for name, _ in in_memory.named_parameters() if name.endswith("engram.embed.weight")]
    assert len(tables) == 2
    assert not [name for name, _ in on_disk.named_parameters() if name.endswith("engram.embed.weight")]
    rows = sum(in_memory.config.engram_num_embeddings)
    assert model_bytes(in_memory) - model_bytes(on_disk) == rows * in_memory.config.engram_head_dim * 2
    ids = torch.arange(3, 8)[None]
    with torch.no_grad():
        assert torch.equal(in_memory(ids), on_disk(ids))
    save_checkpoint(on_disk, tmp_path, TINY)
    before, after = stored_bytes(TINY), stored_bytes(tmp_path)
    for name in tables:
        for part in (name, name.replace("weight", "scale")):
            assert after[part] == before[part]


def test_rows_of_tables_on_disk_set_out_before_the_first_layer_runs(monkeypatch):
    model = load_checkpoint(TINY, engram="disk", dtype=torch.float32)
    events = []
    prefetch = PrefetchingTable.prefetch
    monkeypatch.setattr(
        PrefetchingTable, "prefetch", lambda table, rows: events.append("prefetch") or prefetch(table, rows)
    )
    model.layers[0].register_forward_pre_hook(lambda *_: events.append("first layer"))
    model.prefill(torch.arange(3, 9), model.new_cache(8))
    assert events == ["prefetch"] * len(model.config.engram_layer_ids) + ["first layer"]
    assert not any(model.layers[layer].engram.embed._pending for layer in model.config.engram_layer_ids)


def test_weights_come_and_go_in_pieces(tmp_path, monkeypatch):
    whole = load_checkpoint(TINY)
    save_checkpoint(whole, tmp_path / "whole", TINY)
    # Below a matrix: pieces of one row of tiles, and short ones at the end.
    monkeypatch.setattr(pieces, "_PIECE", 1500)
    assert [piece.stop for piece in pieces.row_pieces((70, 64), 32)] == [32, 64, 70]
    assert [piece.stop for piece in pieces.row_pieces((32, 64), 1)] == [23, 32]
    assert_same_weights(load_checkpoint(TINY), whole)
    save_checkpoint(whole, tmp_path / "pieces", TINY)
    assert stored_bytes(tmp_path / "pieces") == stored_bytes(tmp_path / "whole")


def test_an_inspection_lists_what_is_left_out():
    found = inspect_checkpoint(TINY)
    assert set(found.left_out) == set(inventory(found.config, "drafter"))
    assert found.tensors == inventory(found.config, "model")
    assert (found.missing, found.unexpected, found.misfits, found.faults) == ((), (), (), [])
    assert found.nbytes == sum(info.nbytes for info in found.tensors.values())


def test_a_model_larger_than_memory_is_refused_before_it_is_made(monkeypatch, caplog):
    needed = model_bytes(load_checkpoint(TINY))
    monkeypatch.setattr(Model, "to_empty", lambda *_, **__: pytest.fail("memory was taken"))
    with (
        caplog.at_level(logging.INFO, "ds41.checkpoint"),
        pytest.raises(
            CheckpointError, match=rf"takes {needed:,} bytes .* in bfloat16 on cpu, and 1,000 .*left on disk"
        ),
    ):
        load_checkpoint(TINY, memory_limit=1000)
    assert f"{needed:,} bytes" in caplog.text


def test_the_limit_is_the_bytes_that_the_model_takes():
    needed = model_bytes(load_checkpoint(TINY))
    load_checkpoint(TINY, memory_limit=needed)
    load_checkpoint(TINY, memory_limit=needed - 1, engram="disk")
    with pytest.raises(CheckpointError, match="are allowed"):
        load_checkpoint(TINY, memory_limit=needed - 1)


def test_available_memory_is_the_smaller_of_machine_and_container(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    monkeypatch.setattr(memory, "_MEMORY_FILE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    cpu = torch.device("cpu")
    assert available_bytes(cpu) == 5000 * 1024
    for name, text in (("max", "max\n"), ("current", "700000\n"), ("stat", "anon 400000\nfile 300000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert available_bytes(cpu) == 5000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    assert available_bytes(cpu) == 1_000_000 - 700_000 + 300_000
    monkeypatch.setattr(memory, "_MEMORY_FILE", tmp_path / "none")
    assert available_bytes(cpu) == 600_000
    (tmp_path / "memory.max").unlink()
    assert available_bytes(cpu) > 2**30
    assert available_bytes(torch.device("meta")) is None


@pytest.mark.parametrize("preset", ["flash", "mini", "nano"])
def test_a_configuration_is_written_in_the_published_form(preset):
    config = getattr(ModelConfig, preset)()
    written = config_to_json(config)
    assert ModelConfig.from_dict(json.loads(json.dumps(written))) == config
    if preset == "flash":
        published = json.loads(resources.files("ds41").joinpath("data/flash_config.json").read_text())
        del published["transformers_version"]
        assert written == published


@settings(max_examples=30)
@given(plans())
def test_every_configuration_is_read_back_equal(config):
    assert ModelConfig.from_dict(json.loads(json.dumps(config_to_json(config)))) == config


class Drawn(TorchDispatchMode):
    """Counts how often weights are drawn at random."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "normal" in str(function)
        return function(*args, **(kwargs or {}))


def test_weights_that_are_read_are_not_drawn_before():
    with Drawn() as loading:
        model = load_checkpoint(TINY, dtype=torch.float32)
    with Drawn() as building, torch.device("meta"):
        Model(model.config)
    assert (loading.count, building.count > 10) == (0, True)
