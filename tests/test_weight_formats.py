"""The weight formats: golden matrices by torch's own casts, tiles by a loop, rounding in exact arithmetic."""

import math

import golden_io
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from ds41.formats import Packed
from ds41.small_floats import e2m1_values, e4m3_values
from ds41.weight_formats import ENGRAM_ROWS, EXPERT_ROWS, TileFormat, as_bytes

TILES = TileFormat()
FORMATS = {"tiles": TILES, "expert rows": EXPERT_ROWS, "Engram rows": ENGRAM_ROWS}
by_format = pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS.keys())
LARGEST = {"F8_E4M3": 448, "I8": 6}


def golden_matrices(model: str):
    """Every quantised weight of a reference model: name, format, stored bytes."""
    with safe_open(golden_io.FOLDER / model / "weights.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            if not name.endswith(".scale"):
                continue
            weight = name.removesuffix("scale") + "weight"
            kind = EXPERT_ROWS if ".experts." in name else ENGRAM_ROWS if ".engram.embed." in name else TILES
            yield weight, kind, Packed(as_bytes(file.get_tensor(weight)), as_bytes(file.get_tensor(name)))


def scale_per_element(stored, packed: Packed, shape) -> torch.Tensor:
    """2^(byte - 127) for every element, float64, by indexing."""
    rows, columns = (torch.arange(size) for size in shape)
    height = stored.rows if isinstance(stored, TileFormat) else 1
    width = stored.columns if isinstance(stored, TileFormat) else 32
    return torch.exp2(packed.scales[rows[:, None] // height, columns // width].double() - 127)


@pytest.mark.parametrize("model", golden_io.MODELS)
def test_golden_weights_decode_exactly(model):
    expected = golden_io.weights(model)
    for name, stored, packed in golden_matrices(model):
        assert torch.equal(stored.decode(packed, torch.float32), expected[name]), name
        assert torch.equal(stored.decode(packed, torch.bfloat16).float(), expected[name]), name


@pytest.mark.parametrize("model", golden_io.MODELS)
def test_encoding_what_was_decoded_keeps_the_values(model):
    equal_scales = scales = 0
    for name, stored, packed in golden_matrices(model):
        values = stored.decode(packed, torch.bfloat16)
        again = stored.encode(values)
        assert torch.equal(stored.decode(again, torch.float32), values.float()), name
        # The scales written are the smallest that hold the values; the reference has some that are larger.
        assert bool((again.scales <= packed.scales).all()), name
        same = scale_per_element(stored, again, values.shape) == scale_per_element(stored, packed, values.shape)
        codes, before = (
            stored.decode(Packed(p.codes, torch.full_like(p.scales, 127)), torch.float32) for p in (again, packed)
        )
        assert torch.equal(codes[same], before[same]), name
        equal_scales += int((again.scales == packed.scales).sum())
        scales += packed.scales.numel()
    assert equal_scales / scales > 0.8


@settings(max_examples=25)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32 - 1), st.sampled_from(((32, 32), (8, 16), (2, 1))))
def test_a_tile_is_a_block_of_its_own(rows, columns, seed, tile):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    stored = TileFormat(*tile)
    packed = stored.encode(matrix)
    codes_shape, scales_shape = stored.stored_shapes(matrix.shape)
    assert (tuple(packed.codes.shape), tuple(packed.scales.shape)) == (codes_shape, scales_shape)
    table = torch.tensor(e4m3_values())
    decoded = stored.decode(packed, torch.float32)
    for i in range(scales_shape[0]):
        for j in range(scales_shape[1]):
            part = (slice(i * tile[0], (i + 1) * tile[0]), slice(j * tile[1], (j + 1) * tile[1]))
            scale = 2.0 ** (int(packed.scales[i, j]) - 127)
            amax = float(matrix[part].abs().max())
            assert 448 * scale / 2 < amax <= 448 * scale
            assert torch.equal(decoded[part], table[packed.codes[part].int()] * scale)


@by_format
@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-100, 100),
    columns=st.sampled_from((2, 32, 34, 96)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16)),
)
def test_encoding_never_clips_and_rounds_to_the_nearest(stored, seed, exponent, columns, dtype):
    matrix = torch.randn(5, columns, generator=torch.Generator().manual_seed(seed)).to(dtype) * 2.0**exponent
    packed = stored.encode(matrix)
    scale = scale_per_element(stored, packed, matrix.shape)
    scaled = matrix.double() / scale
    largest = LARGEST[stored.weight_dtype]
    assert float(scaled.abs().max()) <= largest
    table = e4m3_values() if largest == 448 else e2m1_values()
    numbers = torch.tensor(sorted({value for value in table if not math.isnan(value)}), dtype=torch.float64)
    nearest = (scaled[..., None] - numbers).abs().min(-1).values
    off = (stored.decode(packed, torch.float32).double() / scale - scaled).abs()
    assert torch.equal(off, nearest)


@pytest.mark.parametrize("amax", [448.0, 449.0, 447.0, 6.0, 6.5, 1.0])
def test_the_scale_is_the_smallest_power_of_two_that_holds_the_largest(amax):
    for stored, largest in ((TILES, 448), (EXPERT_ROWS, 6), (ENGRAM_ROWS, 448)):
        packed = stored.encode(torch.full((1, 32), amax))
        assert int(packed.scales) - 127 == math.ceil(math.log2(amax / largest))


def test_the_even_column_is_the_low_nibble():
    row = torch.zeros(1, 32)
    row[0, :4] = torch.tensor([6.0, -0.5, 1.0, 3.0])
    packed = EXPERT_ROWS.encode(row)
    assert packed.scales.tolist() == [[127]]
    assert packed.codes[0, :3].tolist() == [0x97, 0x52, 0x00]
    assert torch.equal(EXPERT_ROWS.decode(packed, torch.float32), row)


@by_format
def test_zeros_and_tiny_values(stored):
    assert bool((stored.decode(stored.encode(torch.zeros(3, 64)), torch.float32) == 0).all())
    tiny = torch.full((3, 64), 2.0**-120)
    assert torch.equal(stored.decode(stored.encode(tiny), torch.float32), tiny)


@by_format
def test_a_scale_byte_of_255_is_nan(stored):
    packed = stored.encode(torch.ones(1, 64))
    packed.scales[0, 0] = 255
    decoded = stored.decode(packed)
    assert bool(decoded[:, :32].isnan().all())
    assert bool((decoded[:, 32:] == 1).all())


@by_format
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(stored, wrong):
    matrix = torch.ones(2, 64)
    matrix[1, 5] = wrong
    with pytest.raises(ValueError, match="not finite"):
        stored.encode(matrix)


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"scales \[2, 1\]; expected \[2, 2\]"):
        TILES.decode(Packed(torch.zeros(33, 64, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="expected an even number"):
        EXPERT_ROWS.encode(torch.zeros(2, 33))
    with pytest.raises(ValueError, match=r"weight_block_size is \[3, 3\]"):
        TileFormat(3, 3)
    with pytest.raises(TypeError, match=r"torch\.float32"):
        as_bytes(torch.zeros(2))
