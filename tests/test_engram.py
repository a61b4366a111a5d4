"""The Engram layer and its table, against the reference's rows, keys, gates and streams."""

import dataclasses
import math

import golden_io
import numpy as np
import pytest
import torch
from safetensors import safe_open

from ds41 import ModelConfig, weights
from ds41.engram import Engram, EngramTable, engram_gate, link_speed, lookups

FLASH = ModelConfig.flash()
NANO = ModelConfig.nano()
# float32 sums in another order: a few roundings of 6e-8.
FP32 = 5e-7
PLACES = [("tinyA", 1), ("tinyA", 4), ("tinyC", 1), ("tinyC", 3)]
places = pytest.mark.parametrize(("model", "layer"), PLACES)


def golden_engram(model: str, layer: int, mode: str) -> Engram:
    config = ModelConfig.from_json(golden_io.FOLDER / model / "config.json")
    rounds = mode in ("fp32_fullq", "bf16_native")
    dtype = torch.bfloat16 if mode == "bf16_native" else torch.float32
    engram = Engram(config, layer, "full" if rounds else "cache", dtype)
    prefix = f"layers.{layer}.engram."
    tensors = {name: value for name, value in golden_io.weights(model).items() if name.startswith(prefix)}
    engram.load_state_dict({name.removeprefix(prefix): value for name, value in tensors.items()})
    return engram


def golden_inputs(model: str, layer: int, mode: str) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Streams and rows that enter an Engram layer, and the reference's tensors under their short names."""
    run = golden_io.load(model, mode)
    place = ModelConfig.from_json(golden_io.FOLDER / model / "config.json").engram_layer_ids.index(layer)
    prefix = f"layers.{layer}.engram."
    reference = {name.removeprefix(prefix): value for name, value in run.items() if name.startswith(prefix)}
    return run[f"layers.{layer - 1}.stream_out"], run["engram.row_ids"][:, place], reference


def distance(ours: torch.Tensor, reference: torch.Tensor) -> float:
    assert ours.dtype == reference.dtype
    assert ours.shape == reference.shape
    return float((ours.detach().double() - reference.double()).norm() / reference.double().norm())


def random_engram(seed: int = 0) -> Engram:
    """Nano's first Engram with weights that all matter."""
    torch.manual_seed(seed)
    engram = Engram(NANO, 1)
    with torch.no_grad():
        for parameter in engram.parameters():
            parameter.normal_()
    return engram


@places
@pytest.mark.parametrize("mode", golden_io.MODES)
def test_every_stage_of_the_reference(model, layer, mode):
    engram = golden_engram(model, layer, mode)
    streams, row_ids, reference = golden_inputs(model, layer, mode)
    assert torch.equal(engram.embed(row_ids), reference["rows"])
    keys, value = engram.keys_and_value(row_ids)
    gate = engram.gate(streams, keys)
    assert distance(gate, reference["gate"]) < FP32
    # The runs that only quantise more keep fewer tensors.
    assert ("kv" in reference) == ("stream_out" in reference) == (mode in ("fp32", "bf16_native"))
    if "kv" in reference:
        # The reference's bfloat16 run sums the product in blocks; one last bit of bfloat16 is 4e-3.
        product = 4e-3 if mode == "bf16_native" else FP32
        assert distance(torch.cat((keys.flatten(1), value), dim=1), reference["kv"]) < product
        assert distance(engram(streams, row_ids), reference["stream_out"]) < product


@places
def test_write_back_in_bfloat16_is_exact_from_the_reference_gate(model, layer):
    """The sum is taken in float32 and rounded once."""
    streams, row_ids, reference = golden_inputs(model, layer, "bf16_native")
    engram = golden_engram(model, layer, "bf16_native")
    value = reference["kv"].unflatten(1, (5, -1))
    engram.keys_and_value = lambda _: (value[:, :4], value[:, 4])
    engram.gate = lambda *_: reference["gate"]
    assert torch.equal(engram(streams, row_ids), reference["stream_out"])


def test_a_match_of_zero_keeps_its_sign():
    weight, zero = torch.ones(1, 2), torch.tensor([[[0.0, 1.0]]])
    assert engram_gate(zero, torch.tensor([[[1.0, 0.0]]]), weight).item() == pytest.approx(0.50025, abs=1e-7)
    # The product -1e-44 is still a number; the norms, 1e-5 together, leave -0.0 of it.
    below = engram_gate(torch.tensor([[[-1e-22, 1e15]]]), torch.tensor([[[1e-22, 0.0]]]), weight)
    assert below.item() == pytest.approx(0.49975, abs=1e-7)


def test_gate_by_hand():
    """Streams 3, 4 and key 1, 2 with weights 2, 0.5: product 10, over sqrt(12.5 * 2.5 * 2)."""
    match = (3 * 1 * 2 + 4 * 2 * 0.5) / math.sqrt(12.5) / math.sqrt(2.5) / math.sqrt(2)
    gate = engram_gate(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[1.0, 2.0]]]), torch.tensor([[2.0, 0.5]]))
    assert gate.item() == pytest.approx(1 / (1 + math.exp(-math.sqrt(match))), rel=1e-6)


def test_statistics_are_per_stream():
    torch.manual_seed(0)
    streams, keys, weight = torch.randn(5, 4, 64), torch.randn(5, 4, 64), torch.randn(4, 64)
    gate = engram_gate(streams, keys, weight)
    factors = torch.tensor([1.0, 10.0, 0.1, 1000.0])[:, None]
    assert torch.allclose(engram_gate(streams * factors, keys, weight), gate, rtol=1e-5)
    assert torch.allclose(engram_gate(streams, keys * factors, weight), gate, rtol=1e-5)
    assert torch.equal(
        engram_gate(streams, torch.zeros_like(keys), weight), torch.full((5, 4), gate.new_tensor(1e-3).sigmoid())
    )


def test_images_leave_the_streams_alone():
    engram, row_ids = random_engram(), torch.arange(18).view(3, 6)
    streams = torch.randn(3, 4, 128)
    image = torch.tensor([False, True, False])
    out = engram(streams, row_ids, image)
    assert torch.equal(out[1], streams[1])
    assert torch.equal(out[[0, 2]], engram(streams, row_ids)[[0, 2]])
    assert not torch.equal(out[0], streams[0])


def test_gradients_reach_everything():
    engram, row_ids = random_engram(), torch.arange(18).view(3, 6) * 1000
    streams = torch.randn(3, 4, 128, requires_grad=True)
    engram(streams, row_ids).square().sum().backward()
    for name, parameter in engram.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
        assert torch.isfinite(parameter.grad).all(), name
    read = engram.embed.weight.grad.abs().sum(1) > 0
    assert read.nonzero().flatten().tolist() == sorted(row_ids.flatten().tolist())
    # Away from the stream's own share, which the sum passes on unchanged.
    assert not torch.equal(streams.grad, 2 * engram(streams, row_ids))


def test_the_slope_of_the_gate():
    """d gate / d match = g (1 - g) / (2 sqrt |match|), and none below the smallest match."""
    scale = torch.tensor([0.4, -0.4, 1e-7], requires_grad=True)
    keys = torch.tensor([1.0, 1.0]).expand(3, 1, 2)
    streams = torch.tensor([1.0, 1.0]).expand(3, 1, 2)
    gate = torch.cat([engram_gate(streams[i : i + 1], keys[:1], scale[i].expand(1, 2)) for i in range(3)]).flatten()
    gate.sum().backward()
    match = scale.detach() * math.sqrt(2)
    expected = gate * (1 - gate) / (2 * match.abs().sqrt()) * math.sqrt(2)
    assert torch.allclose(scale.grad[:2], expected[:2], rtol=1e-5)
    assert scale.grad[2] == 0


@places
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stored_bytes_give_the_parameter_s_rows(model, layer, dtype, tmp_path):
    name = f"layers.{layer}.engram.embed"
    with safe_open(golden_io.FOLDER / model / "weights.safetensors", "pt") as file:
        codes, scales = (file.get_tensor(f"{name}.{part}").view(torch.uint8) for part in ("weight", "scale"))
    table = golden_engram(model, layer, "fp32").embed.to(dtype)
    row_ids = golden_inputs(model, layer, "fp32")[1]
    maps = []
    for part, tensor in (("codes", codes), ("scales", scales)):
        np.save(tmp_path / part, tensor.numpy())
        maps.append(np.load(tmp_path / f"{part}.npy", mmap_mode="r"))
    for stored in (EngramTable.from_stored(codes, scales, dtype=dtype), EngramTable.from_stored(*maps, dtype=dtype)):
        rows = stored(row_ids)
        assert rows.dtype == dtype
        assert torch.equal(rows, table(row_ids))
        assert stored.shape == table.shape
        assert not list(stored.parameters())


def test_only_the_rows_asked_for_are_read(tmp_path):
    """A table of 26 GB as a sparse file: reading it whole would need that much memory."""
    rows = 10**8
    with open(tmp_path / "codes", "wb") as codes, open(tmp_path / "scales", "wb") as scales:
        codes.truncate(rows * 256)
        scales.truncate(rows * 8)
        codes.seek((rows - 1) * 256)
        codes.write(bytes([0x38] * 256))
        scales.seek((rows - 1) * 8)
        scales.write(bytes([127, 128, 126, 127, 127, 127, 127, 127]))
    table = EngramTable.from_stored(
        np.memmap(tmp_path / "codes", np.uint8, "r", shape=(rows, 256)),
        np.memmap(tmp_path / "scales", np.uint8, "r", shape=(rows, 8)),
    )
    values = table(torch.tensor([[rows - 1, 5]]))
    assert values.dtype == torch.bfloat16
    assert values[0, ::32].tolist() == [1, 2, 0.5, 1, 1, 1, 1, 1] + [0] * 8


def test_rows_that_do_not_exist_are_named():
    codes, scales = torch.zeros(10, 32, dtype=torch.uint8), torch.zeros(10, 1, dtype=torch.uint8)
    arrays = EngramTable.from_stored(codes.numpy(), scales.numpy())
    for table in (EngramTable(10, 32, dtype=torch.float32), EngramTable.from_stored(codes, scales), arrays):
        for bad in (-1, 10):
            with pytest.raises(ValueError, match=f"row {bad} does not exist; the table has rows 0 to 9"):
                table(torch.tensor([[3, bad]]))
        with pytest.raises(ValueError, match=r"row_ids are torch.int32 \[1\]; expected torch.int64 \[N, columns\]"):
            table(torch.zeros(1, dtype=torch.int32))
        assert table(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 96)


@pytest.mark.parametrize(
    ("codes", "scales", "message"),
    [
        (torch.zeros(4, 64), torch.zeros(4, 2, dtype=torch.uint8), "codes are torch.float32"),
        (np.zeros((4, 48), np.uint8), np.zeros((4, 1), np.uint8), "codes have rows of 48"),
        (np.zeros((32, 64), np.uint8), np.zeros((1, 2), np.uint8), r"scales are \[1, 2\]; expected \[32, 2\]"),
    ],
)
def test_bytes_that_are_no_table_are_refused(codes, scales, message):
    with pytest.raises(ValueError, match=message):
        EngramTable.from_stored(codes, scales)


def test_shapes_that_would_broadcast_are_refused():
    engram, row_ids = random_engram(), torch.arange(18).view(3, 6)
    for shape in ((3, 1, 128), (1, 4, 128), (3, 128)):
        with pytest.raises(ValueError, match=r"expected \[3, 4, 128\], tokens as in row_ids"):
            engram(torch.zeros(shape), row_ids)
    with pytest.raises(ValueError, match=r"layer 2 has no Engram; engram_layer_ids is \[1, 3\]"):
        Engram(NANO, 2)


def test_parameters_of_the_released_layers():
    with torch.device("meta"):
        layers = [Engram(FLASH, layer, "full", torch.bfloat16) for layer in FLASH.engram_layer_ids]
    counts = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    assert counts == [98_462_906_368, 98_465_597_952]
    assert sum(counts) == 196_928_504_320 == weights.engram(FLASH).parameters
    shapes = {name: tuple(tensor.shape) for name, tensor in layers[0].state_dict().items()}
    assert shapes == {
        "embed.weight": (384006168, 256), "wkv.weight": (25600, 6144), "q_weight": (4, 5120), "k_weight": (4, 5120),
    }  # fmt: skip


def test_only_the_full_mode_rounds_the_projection_s_input():
    torch.manual_seed(0)
    engrams = {mode: Engram(NANO, 1, mode) for mode in ("none", "cache", "full")}
    for engram in engrams.values():
        engram.load_state_dict(engrams["none"].state_dict())
    row_ids = torch.arange(6)[None]
    values = {mode: engram.keys_and_value(row_ids)[1] for mode, engram in engrams.items()}
    assert torch.equal(values["none"], values["cache"])
    assert not torch.equal(values["none"], values["full"])
    assert torch.allclose(values["none"], values["full"], rtol=0.1, atol=1e-3)
    with pytest.raises(ValueError, match="quantization is 'fp8'"):
        Engram(NANO, 1, "fp8")


def test_lookups_of_the_released_model():
    reads = lookups(FLASH)
    assert [(read.layer, read.rows, read.row_bytes, read.layers_ahead) for read in reads] == [
        (1, 24, 264, 1),
        (14, 24, 264, 14),
    ]
    assert sum(read.nbytes for read in reads) == 12672 == weights.engram_row_bytes(FLASH)


def test_link_speed_is_set_by_the_tightest_layer():
    # Layer 1 needs 6336 bytes after 1 ms; layer 14 both tables' 12672 after 14 ms, which asks for less.
    assert link_speed(FLASH, tokens=1, seconds_per_layer=1e-3) == pytest.approx(6336 / 1e-3)
    assert link_speed(FLASH, tokens=8, seconds_per_layer=1e-3) == pytest.approx(8 * 6336 / 1e-3)
    # Layers 2 and 3: the upper one has both tables to wait for, and only half as long again.
    close = dataclasses.replace(FLASH, engram_layer_ids=(2, 3))
    assert link_speed(close, tokens=1, seconds_per_layer=1e-3) == pytest.approx(2 * 6336 / 3e-3)
    for bad in ({"tokens": 0, "seconds_per_layer": 1.0}, {"tokens": 1, "seconds_per_layer": 0.0}):
        with pytest.raises(ValueError, match="expected a positive number of each"):
            link_speed(FLASH, **bad)
