"""Drafter and vision part beside a model: counted, written together, read one by one, damaged and left out."""

import dataclasses
import json
import math
import shutil

import golden_io
import pytest
import torch
from safetensors.torch import load_file, save_file

from ds41 import ModelConfig, weights
from ds41.checkpoint import (
    CheckpointError,
    inspect_checkpoint,
    inventory,
    load_checkpoint,
    load_part,
    save_checkpoint,
)
from ds41.checkpoint.inventory import weights as all_weights
from ds41.checkpoint.names import module_weights
from ds41.checkpoint.rounding import rounded_weights
from ds41.config_files import config_to_json
from ds41.dspark import Drafter, load_drafter
from ds41.tokenizer import load_tokenizer
from ds41.vision import Vision, load_vision

TINY = golden_io.FOLDER / "tinyC"
TOKENIZER = load_tokenizer(TINY)
PUBLISHED = {"drafter": 14_225_362_530, "vision": 485_268_480}
BUILD = {"drafter": Drafter, "vision": Vision}
LOAD = {"drafter": load_drafter, "vision": load_vision}


@pytest.mark.parametrize("part", PUBLISHED)
@pytest.mark.parametrize("preset", ["flash", "mini", "nano"])
def test_the_inventory_adds_up_to_the_weights_ledger(preset, part):
    config = getattr(ModelConfig, preset)()
    counted = getattr(weights, part)(config)
    assert counted.nbytes == sum(info.nbytes for info in inventory(config, part).values())
    assert counted.parameters == sum(math.prod(weight.shape) for weight in all_weights(config, part))
    if preset == "flash":
        assert counted.parameters == PUBLISHED[part]


@pytest.mark.parametrize("change", [{"expert_dtype": "fp8"}, {"n_shared_experts": 0}, {"dspark_n_routed_experts": 3}])
def test_the_ledger_follows_the_configuration(change):
    config = dataclasses.replace(ModelConfig.nano(), **change)
    assert weights.drafter(config).nbytes == sum(info.nbytes for info in inventory(config, "drafter").values())
    assert weights.drafter(config) != weights.drafter(ModelConfig.nano())


def test_what_a_configuration_lacks_weighs_nothing():
    nano = ModelConfig.nano()
    ratios = nano.compress_ratios[: nano.num_hidden_layers]
    config = dataclasses.replace(nano, vision=None, num_nextn_predict_layers=0, compress_ratios=ratios)
    assert weights.drafter(config) == weights.vision(config) == weights.Weights()
    everything = weights.backbone(ModelConfig.flash()) + weights.engram(ModelConfig.flash())
    everything += weights.drafter(ModelConfig.flash()) + weights.vision(ModelConfig.flash())
    assert everything.parameters == 763_205_315_794
    assert everything.nbytes == sum(info.nbytes for info in inventory(ModelConfig.flash()).values())


@pytest.mark.parametrize("part", BUILD)
@pytest.mark.parametrize("preset", ["flash", "nano"])
def test_a_part_on_the_meta_device_has_the_names_and_shapes_of_the_inventory(preset, part):
    config = getattr(ModelConfig, preset)()
    with torch.device("meta"):
        module = BUILD[part](config)
    found = {name: tuple(tensor.shape) for name, tensor in module_weights(module).items()}
    assert found == {weight.name: weight.shape for weight in all_weights(config, part)}
    if preset == "flash":
        assert sum(parameter.numel() for parameter in module.parameters()) == PUBLISHED[part]


@pytest.fixture(scope="module")
def modules() -> dict:
    """The reference model, which has no tower, with one; drafter and tower have random weights, full precision."""
    model = load_checkpoint(TINY, "none", torch.float32)
    model.config = dataclasses.replace(
        model.config, vision=dataclasses.replace(model.config.vision, num_hidden_layers=2)
    )
    torch.manual_seed(0)
    return {"model": model, "drafter": Drafter(model.config, "none"), "vision": Vision(model.config)}


@pytest.fixture(scope="module")
def whole(modules, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    save_checkpoint(modules["model"], folder, TOKENIZER, drafter=modules["drafter"], vision=modules["vision"])
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def load(part, folder, **options):
    if part == "drafter":
        return load_drafter(folder, "none", torch.float32, **options)
    return load_vision(folder, torch.float32, **options)


def change(folder, function) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(function(tensors), folder / "model.safetensors")


def set_config(folder, **keys) -> None:
    """Change keys of the text model in ``config.json``."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= keys
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("part", BUILD)
def test_parts_come_back_as_they_were_stored(modules, whole, part):
    loaded, made = load(part, whole), modules[part]
    expected = dict(made.named_parameters()) | dict(rounded_weights(made.config, made.named_parameters()))
    found = dict(loaded.named_parameters())
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


def test_the_folder_holds_all_three(modules, whole):
    tensors = inventory(modules["model"].config)
    assert load_file(whole / "model.safetensors").keys() == tensors.keys()
    for part in ("model", "drafter", "vision"):
        found = inspect_checkpoint(whole, part)
        assert found.part == part
        assert found.faults == []
        assert found.tensors.keys() == inventory(modules["model"].config, part).keys()
        assert len(found.tensors) + len(found.left_out) == len(tensors)
    model = load_checkpoint(whole, "none", torch.float32)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, dict(modules["model"].named_parameters())[name]), name


def test_what_was_read_is_written_as_it_was(modules, whole, tmp_path):
    """In shards too, whose borders cut through the parts."""
    parts = {part: load(part, whole) for part in BUILD}
    save_checkpoint(modules["model"], tmp_path, TOKENIZER, shard_bytes=60_000, **parts)
    files = list(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 3
    written = {name: tensor for file in files for name, tensor in load_file(file).items()}
    before = load_file(whole / "model.safetensors")
    assert written.keys() == before.keys()
    for part in BUILD:
        again = dict(load(part, tmp_path).named_parameters())
        for name, parameter in parts[part].named_parameters():
            assert torch.equal(again[name], parameter), name


def test_a_folder_with_some_of_the_parts(modules, tmp_path):
    save_checkpoint(modules["model"], tmp_path, TOKENIZER, vision=modules["vision"])
    load("vision", tmp_path)
    load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"model.safetensors holds no drafter$"):
        load("drafter", tmp_path)
    assert inspect_checkpoint(tmp_path).left_out == tuple(sorted(inventory(modules["model"].config, "vision")))
    with pytest.raises(CheckpointError, match="overwrite=True"):
        save_checkpoint(modules["model"], tmp_path, TOKENIZER, drafter=modules["drafter"])
    load("vision", tmp_path)
    # A checkpoint is replaced with all that it holds.
    save_checkpoint(modules["model"], tmp_path, TOKENIZER, overwrite=True, drafter=modules["drafter"])
    load("drafter", tmp_path)
    with pytest.raises(CheckpointError, match=r"model.safetensors holds no vision part$"):
        load("vision", tmp_path)


DAMAGE = {
    "missing": ("drafter", lambda t: _without(t, "mtp.0.main_norm.weight"), r"lacks mtp\.0\.main_norm\.weight$"),
    "a layer missing": ("drafter", lambda t: _without(t, "mtp.1."), r"lacks mtp\.1\..* and \d+ more tensors"),
    "shape": (
        "drafter",
        lambda t: t | {"mtp.0.main_norm.weight": torch.ones(3).bfloat16()},
        r"mtp\.0\.main_norm\.weight is BF16 \[3\]; config\.json calls for BF16 \[64\]",
    ),
    "type": (
        "vision",
        lambda t: t | {"image_end": t["image_end"].float()},
        r"image_end is F32 \[64\]; config\.json calls for BF16 \[64\]",
    ),
    "unexpected": ("drafter", lambda t: t | {"mtp.0.more": torch.ones(1)}, r"holds mtp\.0\.more, which config\.json"),
    "an image vector too many": (
        "vision", lambda t: t | {"image_middle": torch.ones(1)}, r"holds image_middle, which config\.json"
    ),
    "NaN": ("vision", lambda t: t | {"image_end": t["image_end"] * torch.nan}, r"image_end holds NaN"),
    "infinite": (
        "drafter",
        lambda t: t | {"mtp.0.attn.attn_sink": t["mtp.0.attn.attn_sink"] - torch.inf},
        r"attn_sink holds values beyond torch\.float32",
    ),
    "nothing left": ("vision", lambda t: _without(t, "vision.", "aligner.", "image_"), r"holds no vision part$"),
}  # fmt: skip


def _without(tensors, *beginnings):
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(beginnings)}


@pytest.mark.parametrize(("part", "damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_part_is_refused_and_the_others_are_read(folder, part, damage, message):
    change(folder, damage)
    with pytest.raises(CheckpointError, match=message):
        load(part, folder)
    load("vision" if part == "drafter" else "drafter", folder)
    load_checkpoint(folder)


def test_a_damaged_model_leaves_its_parts_readable(folder):
    change(folder, lambda t: _without(t, "norm.weight"))
    with pytest.raises(CheckpointError, match=r"lacks norm\.weight"):
        load_checkpoint(folder)
    for part in BUILD:
        load(part, folder)


def test_tensors_of_a_part_that_the_configuration_does_not_know(folder):
    """The model is read without them; who asks for the part hears that it has no place, not that it is not there."""
    config = ModelConfig.from_json(folder / "config.json")
    ratios = config.compress_ratios[: config.num_hidden_layers]
    config = dataclasses.replace(config, vision=None, num_nextn_predict_layers=0, compress_ratios=ratios)
    (folder / "config.json").write_text(json.dumps(config_to_json(config)))
    load_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"holds aligner\.w1\.bias, .*, which config\.json has no place for"):
        load("vision", folder)
    with pytest.raises(CheckpointError, match=r"holds mtp\.0\..* more tensors, which config\.json has no place for"):
        load("drafter", folder)
    change(folder, lambda t: _without(t, "vision.", "aligner.", "image_", "mtp."))
    for part in BUILD:
        with pytest.raises(CheckpointError, match=rf"holds no {part}( part)?$"):
            load(part, folder)


def test_a_configuration_of_other_sizes(folder):
    set_config(folder, dspark_markov_rank=7)
    load_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"confidence_head\.proj\.weight is BF16 \[1, 96\]; .* BF16 \[1, 71\]"):
        load("drafter", folder)


def test_parts_of_another_configuration_are_not_written(modules, tmp_path):
    config = modules["model"].config
    other = Drafter(dataclasses.replace(config, dspark_markov_rank=7), "none")
    with pytest.raises(CheckpointError, match="the drafter has another configuration than the model"):
        save_checkpoint(modules["model"], tmp_path / "new", TOKENIZER, drafter=other)
    tower = Vision(dataclasses.replace(config, vision=dataclasses.replace(config.vision, max_image_tokens=32)))
    with pytest.raises(CheckpointError, match="the vision has another configuration than the model"):
        save_checkpoint(modules["model"], tmp_path / "new", TOKENIZER, vision=tower)
    assert not (tmp_path / "new").exists()


def test_parts_that_are_taken_for_each_other_are_not_written(modules, tmp_path):
    for swapped in ({"drafter": modules["vision"]}, {"vision": modules["drafter"]}, {"vision": modules["model"]}):
        (part,) = swapped
        with pytest.raises(CheckpointError, match=f"what is given as the {part} is a .* and lacks "):
            save_checkpoint(modules["model"], tmp_path / "new", TOKENIZER, **swapped)
    assert not (tmp_path / "new").exists()


def test_a_part_that_is_not_finite_leaves_the_old_checkpoint(modules, folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    broken = Vision(modules["model"].config)
    with torch.no_grad():
        broken.image_end[3] = torch.nan
    with pytest.raises(CheckpointError, match="image_end holds NaN or infinity"):
        save_checkpoint(modules["model"], folder, TOKENIZER, overwrite=True, vision=broken)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("part", BUILD)
def test_a_part_that_does_not_fit_into_memory_is_not_built(whole, part):
    with pytest.raises(CheckpointError, match=r"takes [\d,]+ bytes .* and 1,000 .* are allowed"):
        load(part, whole, memory_limit=1000)
    with pytest.raises(CheckpointError, match=r"dtype is torch\.int8"):
        LOAD[part](whole, dtype=torch.int8)


def test_a_module_with_weights_of_its_own_is_a_fault_of_the_program(whole):
    class More(Vision):
        def __init__(self, config):
            super().__init__(config)
            self.more = torch.nn.Parameter(torch.zeros(2))

    with pytest.raises(RuntimeError, match="the vision has weights that no checkpoint holds: more"):
        load_part(whole, "vision", More, torch.float32, "cpu")
    with pytest.raises(ValueError, match="part is 'tower'; expected one of 'model', 'drafter', 'vision'"):
        inspect_checkpoint(whole, "tower")
