"""The encode and decode kernels against the torch definition, bit for bit."""

import json
from pathlib import Path

import pytest
import torch

from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, BlockFormat, Packed
from ds41.kernels.aot import all_cases
from ds41.kernels.decode import decode_blocks, decode_launch
from ds41.kernels.encode import encode_blocks, encode_launch

CASES = json.loads((Path(__file__).parents[1] / "golden" / "format_cases.json").read_text())["quant_cases"]
FORMATS = [MAIN_KV, INDEX_KEY, WINDOW_KV]
CASE_PREFIX = {"q": MAIN_KV, "m": INDEX_KEY, "w": WINDOW_KV}
TYPES = [torch.float32, torch.bfloat16, torch.float16]
AS_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}

each_format = pytest.mark.parametrize("block_format", FORMATS, ids=lambda f: f.name.replace(" ", "-"))
each_type = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t).removeprefix("torch."))
# Thresholds and products at the far end of fp32 may overflow, on purpose; under the interpreter numpy mentions it.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")


def layout(block_format: BlockFormat) -> dict:
    return {"element": block_format.element, "scale": block_format.scale, "block": block_format.block}


def encode(block_format: BlockFormat, x: torch.Tensor, check: bool = True) -> Packed:
    """The kernel's result, on the CPU; the input must have been found finite."""
    codes, scales, finite = encode_blocks(x, **layout(block_format), amax_floor=block_format.amax_floor, check=check)
    assert finite
    return Packed(codes.cpu(), scales.cpu())


def decode(block_format: BlockFormat, packed: Packed, dtype: torch.dtype) -> torch.Tensor:
    return decode_blocks(packed.codes, packed.scales, **layout(block_format), dtype=dtype).cpu()


def assert_same_packed(actual: Packed, expected: Packed) -> None:
    for name in ("scales", "codes"):
        got, wanted = getattr(actual, name), getattr(expected, name)
        assert got.shape == wanted.shape
        wrong = torch.nonzero(got != wanted)
        assert not len(wrong), f"{len(wrong)} {name} differ, first at {wrong[0].tolist()}"


def assert_same_values(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits, sign of zero included; NaN where NaN is expected, of any payload."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(actual), nan)
    bits = AS_BITS[expected.dtype]
    wrong = torch.nonzero((actual.view(bits) != expected.view(bits)) & ~nan)
    assert not len(wrong), f"{len(wrong)} values differ, first at {wrong[0].tolist()}"


def finite_bf16() -> torch.Tensor:
    """Each of the 65280 finite bf16 numbers once."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return every[torch.isfinite(every)]


def random_like_rows(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal values, each row of another magnitude (2^-12 to 2^12), a few zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.exp2(torch.randint(-12, 13, (*shape[:-1], 1), generator=generator))
    x = torch.randn(shape, generator=generator) * magnitude
    x[..., 3::29] = 0.0
    x[..., 5::31] = -0.0
    return x


@each_format
def test_handed_cases(block_format, device):
    cases = [case for case in CASES if CASE_PREFIX[case["id"][0]] is block_format]
    bits = torch.tensor([case["input_bf16_bits"] for case in cases], dtype=torch.int32)
    packed = encode(block_format, bits.to(torch.int16).view(torch.bfloat16).to(device))
    values = decode(block_format, Packed(packed.codes.to(device), packed.scales.to(device)), torch.float32)
    for row, case in enumerate(cases):
        stored = packed.codes[row].tolist()
        codes = stored if block_format.element == "e4m3" else [c for byte in stored for c in (byte & 15, byte >> 4)]
        assert packed.scales[row].tolist() == [case["scale_code"]], case["id"]
        assert codes == case["codes"], case["id"]
        largest = torch.finfo(torch.float32).max
        expected = torch.tensor([float(v) for v in case["dequant"]]).clamp(-largest, largest)
        assert_same_values(values[row], expected)


@each_format
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_every_finite_bf16(block_format, order, device):
    x = finite_bf16()
    if order == "shuffled":
        x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    x = x.view(-1, 480)
    assert_same_packed(encode(block_format, x.to(device)), block_format.encode(x))


@each_format
def test_fp32_at_ties_and_beside_them(block_format, device):
    generator = torch.Generator().manual_seed(2)
    blocks = 64 * 512 // block_format.block
    if block_format.scale == "e4m3":
        scale = block_format.scale_values(torch.randint(1, 127, (blocks, 1), generator=generator))
    else:
        scale = torch.exp2(torch.randint(-20, 60, (blocks, 1), generator=generator).float())
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    if block_format.element == "e4m3":
        table = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    midpoint = (table[1:] + table[:-1])[
        torch.randint(len(table) - 1, (blocks, block_format.block), generator=generator)
    ] / 2
    x = midpoint * scale
    x[:, :1] = table[-1] * scale  # the block maximum, which fixes the scale
    steps = torch.randint(-1, 2, x.shape, generator=generator, dtype=torch.int32)
    x[:, 1:] = (x.view(torch.int32) + steps).view(torch.float32)[:, 1:]
    x *= torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    x = x.view(64, 512)
    expected = block_format.encode(x)
    assert torch.equal(block_format.scale_values(expected.scales), scale.view(64, -1))
    assert_same_packed(encode(block_format, x.to(device)), expected)


@each_format
@each_type
@pytest.mark.parametrize(
    "shape", [(512,), (1, 128), (9, 512), (33, 128), (3, 5, 96), (2, 1, 3, 64), (5, 1312), (1, 32)], ids=str
)
def test_shapes_and_types_there_and_back(block_format, dtype, shape, device):
    x = random_like_rows(*shape).to(dtype)
    expected = block_format.encode(x)
    packed = encode(block_format, x.to(device))
    assert_same_packed(packed, expected)
    on_device = Packed(packed.codes.to(device), packed.scales.to(device))
    assert_same_values(decode(block_format, on_device, dtype), block_format.decode(expected, dtype=dtype))


STRIDED = {
    "rows with gaps": lambda x: x[:, 64:192],
    "rows backwards in memory order": lambda x: x[::3],
    "every second channel": lambda x: x[:, ::2],
    "transposed": lambda x: x[:96, :9].T,
    "off by one element": lambda x: x.flatten()[1:513].view(4, 128),
    "leading dimensions no single stride describes": lambda x: x.view(8, 12, 256)[:, :5],
    "swapped leading dimensions": lambda x: x.view(8, 12, 256).transpose(0, 1),
    "one row for all": lambda x: x[:1].expand(7, 256),
}


@each_format
@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED.keys())
def test_any_strides(block_format, view, device):
    x = random_like_rows(96, 256, seed=3).to(torch.bfloat16).to(device)
    assert_same_packed(encode(block_format, view(x)), block_format.encode(view(x.cpu())))


@each_format
def test_decode_reads_records_with_any_strides(block_format, device):
    """A record as pages hold it: a row's code bytes, then its scale bytes; and both of them transposed."""
    x = random_like_rows(21, 512, seed=4)
    expected = block_format.encode(x)
    records = torch.cat([expected.codes, expected.scales], dim=1).to(device)
    split = expected.codes.shape[1]
    values = block_format.decode(expected)
    assert_same_values(decode(block_format, Packed(records[:, :split], records[:, split:]), torch.bfloat16), values)
    columns = records.T.contiguous()
    transposed = Packed(columns[:split].T, columns[split:].T)
    assert_same_values(decode(block_format, transposed, torch.bfloat16), values)
    some = Packed(records[2::4, :split], records[2::4, split:])
    assert_same_values(decode(block_format, some, torch.bfloat16), values[2::4])


@each_format
@each_type
def test_decode_of_every_code_with_every_scale_byte(block_format, dtype, device):
    bytes_per_scale = block_format.block * block_format.element_bits // 8
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 256 // bytes_per_scale)
    expected = block_format.decode(Packed(codes, scales), dtype=dtype)
    assert_same_values(decode(block_format, Packed(codes.to(device), scales.to(device)), dtype), expected)


@each_format
@pytest.mark.parametrize("shape", [(0, 512), (2, 0, 128), (0,)], ids=str)
def test_empty_input(block_format, shape, device):
    if shape == (0,):
        with pytest.raises(ValueError, match="positive multiple"):
            encode(block_format, torch.empty(shape, device=device))
        return
    expected = block_format.encode(torch.empty(shape))
    packed = encode(block_format, torch.empty(shape, device=device))
    assert_same_packed(packed, expected)
    on_device = Packed(packed.codes.to(device), packed.scales.to(device))
    assert_same_values(
        decode(block_format, on_device, torch.float16), block_format.decode(expected, dtype=torch.float16)
    )


@each_format
@pytest.mark.parametrize(("rows", "channels"), [(11, 512), (3, 96)])
def test_kernels_write_all_of_their_output_and_nothing_else(block_format, rows, channels, device):
    """Outputs start poisoned and lie inside larger buffers, with more room than a tile on either side."""
    margin = 64
    x = random_like_rows(rows, channels, seed=5).to(torch.bfloat16)
    expected = block_format.encode(x)
    x = x.to(device)

    def surrounded(shape, dtype, poison):
        buffer = torch.full((shape[0] + 2 * margin, shape[1]), poison, dtype=dtype, device=device)
        return buffer, buffer[margin:-margin]

    def untouched(buffer, poison):
        around = torch.cat([buffer[:margin], buffer[-margin:]])
        return torch.isnan(around).all() if poison != poison else (around == poison).all()

    for poison in (0x00, 0xFF):
        codes_buffer, codes = surrounded(expected.codes.shape, torch.uint8, poison)
        scales_buffer, scales = surrounded(expected.scales.shape, torch.uint8, poison)
        encode_launch(x, codes, scales, None, **layout(block_format), amax_floor=block_format.amax_floor).run()
        assert_same_packed(Packed(codes.cpu(), scales.cpu()), expected)
        assert untouched(codes_buffer, poison)
        assert untouched(scales_buffer, poison)

    buffer, out = surrounded((rows, channels), torch.bfloat16, float("nan"))
    decode_launch(codes, scales, out, **layout(block_format)).run()
    assert_same_values(out.cpu(), block_format.decode(expected))
    assert untouched(buffer, float("nan"))


@each_format
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_noticed_and_stay_in_their_block(block_format, bad, device):
    x = random_like_rows(10, 128, seed=6)
    expected = block_format.encode(x)
    x[9, 37] = bad
    arguments = {**layout(block_format), "amax_floor": block_format.amax_floor}
    codes, scales, finite = encode_blocks(x.to(device), **arguments)
    assert not finite
    assert encode_blocks(x.to(device), **arguments, check=False)[2]
    hit = torch.zeros(10, 128 // block_format.block, dtype=torch.bool)
    hit[9, 37 // block_format.block] = True
    assert torch.equal(scales.cpu()[~hit], expected.scales[~hit])
    kept = ~hit.repeat_interleave(codes.shape[1] // hit.shape[1], dim=1)
    assert torch.equal(codes.cpu()[kept], expected.codes[kept])


def test_offsets_beyond_32_bits(device):
    """Rows and channels whose offsets pass 2^31; in the middle of a buffer, so that a wrapped offset stays inside."""
    far = 2**30
    values = random_like_rows(3, 512, seed=7).to(torch.float16)
    buffer = torch.empty(2 * far + 2**31 + 2**24, dtype=torch.float16, device=device)
    rows = buffer.as_strided((3, 512), (far, 1), storage_offset=2**31)
    rows.copy_(values)
    expected = MAIN_KV.encode(values)
    assert_same_packed(encode(MAIN_KV, rows), expected)

    columns = buffer.as_strided((3, 512), (1, 2**22 + 2**15), storage_offset=2**31)
    columns.copy_(values)
    assert_same_packed(encode(MAIN_KV, columns), expected)

    columns = buffer.view(torch.uint8).as_strided((3, 256), (1, 2**23 + 2**16), storage_offset=2**31)
    columns.copy_(expected.codes)
    scale_rows = buffer.view(torch.uint8).as_strided((3, 32), (far, 1), storage_offset=2**31 + 2**20)
    scale_rows.copy_(expected.scales)
    packed = Packed(columns, scale_rows)
    assert_same_values(decode(MAIN_KV, packed, torch.float16), MAIN_KV.decode(expected, dtype=torch.float16))


@each_format
def test_repeated_launches_agree(block_format, device):
    x = random_like_rows(8, 512, seed=8).to(device)
    first = encode(block_format, x)
    for _ in range(19 if device.type == "cuda" else 2):
        assert_same_packed(encode(block_format, x), first)


def test_compile_cases_are_the_published_formats_and_widths():
    """kernels/ imports nothing of ds41, so it repeats the formats' numbers."""
    widths = {"main_kv": (MAIN_KV, 512), "index_key": (INDEX_KEY, 128), "window_kv": (WINDOW_KV, 512)}
    seen = set()
    for case in all_cases():
        operation, name = case.name.split("_")[0], "_".join(case.name.split("_")[1:3])
        if operation not in ("encode", "decode"):
            continue
        block_format, channels = widths[name]
        constants = case.launch.constants
        expected = layout(block_format) | {"channels": channels}
        if operation == "encode":
            expected["amax_floor"] = block_format.amax_floor
        assert {key: constants[key.upper()] for key in expected} == expected
        seen.add((operation, name))
    assert len(seen) == 2 * len(widths)


def test_input_of_a_graph_is_encoded_without_it(device):
    x = random_like_rows(2, 64).to(device).requires_grad_()
    assert_same_packed(encode(MAIN_KV, x), MAIN_KV.encode(x.detach().cpu()))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": torch.ones(2, 40)}, ValueError, r"\[2, 40\].*multiple of 16"),
        ({"x": torch.tensor(1.0)}, ValueError, r"shape \[\]"),
        ({"x": torch.ones(2, 32, dtype=torch.float64)}, TypeError, "float64.*float32"),
        ({"element": "e5m2"}, ValueError, "'e5m2'.*'e2m1' or 'e4m3'"),
        ({"scale": "fp32"}, ValueError, "'fp32'"),
        ({"element": "e4m3", "scale": "e4m3"}, ValueError, "e4m3.*with"),
        ({"block": 24}, ValueError, "24.*16 or 32"),
    ],
    ids=lambda value: None,
)
def test_encode_names_what_it_cannot_take(arguments, error, message):
    good = {"x": torch.ones(2, 32), "element": "e2m1", "scale": "e4m3", "block": 16, "amax_floor": 1e-4}
    with pytest.raises(error, match=message):
        encode_blocks(**{**good, **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"codes": torch.zeros(2, 16, dtype=torch.int8)}, TypeError, "codes are torch.int8"),
        ({"scales": torch.zeros(2, 2)}, TypeError, "scales are torch.float32"),
        ({"scales": torch.zeros(2, 3, dtype=torch.uint8)}, ValueError, r"\[2, 3\].*\[2, 2\]"),
        ({"scales": torch.zeros((), dtype=torch.uint8)}, ValueError, "scalar"),
        ({"codes": torch.zeros(2, 9, dtype=torch.uint8)}, ValueError, "18 channels.*16"),
        ({"dtype": torch.float64}, TypeError, "float64"),
        ({"block": 8}, ValueError, "8.*16 or 32"),
        ({"scales": torch.zeros(2, 2, dtype=torch.uint8, device="meta")}, ValueError, "meta"),
    ],
    ids=lambda value: None,
)
def test_decode_names_what_it_cannot_take(arguments, error, message):
    zeros = torch.zeros(2, 16, dtype=torch.uint8)
    good = {"codes": zeros, "scales": zeros[:, :2], "element": "e2m1", "scale": "e4m3", "block": 16}
    with pytest.raises(error, match=message):
        decode_blocks(**{**good, **arguments})
