"""Cache writes against the model's own steps: norm, rotation, encoding, and a ring or pages that take the bytes."""

import pytest
import torch
from write_cases import (
    EPS,
    POISON,
    addresses,
    assert_stored,
    exact_rows,
    layout,
    norm_in_double,
    planes,
    pool_of,
    reference,
    rows_like,
    turn_of,
    weight_of,
)  # fmt: skip

from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, Packed
from ds41.kernels.aot import all_cases
from ds41.kernels.cache_write import write_rows, write_rows_cost
from ds41.kernels.pooled_write import write_pooled, write_pooled_cost
from ds41.norm import rms_norm

FORMATS = [MAIN_KV, INDEX_KEY, WINDOW_KV]
TYPES = [torch.float32, torch.bfloat16, torch.float16]

each_format = pytest.mark.parametrize("block_format", FORMATS, ids=lambda f: f.name.replace(" ", "-"))
each_type = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t).removeprefix("torch."))
# Thresholds at the far end of fp32 may overflow, on purpose; under the interpreter numpy mentions it.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered")


def run(block_format, x, weight, turn, packed, page, place, latent=None) -> None:
    """The wrapper, with everything moved to the device of the planes."""
    device = packed.codes.device
    on = [None if t is None else t.to(device) for t in (x, weight, turn.real, turn.imag, page, place)]
    write_rows(on[0], on[1], EPS, latent, on[2], on[3], *packed, on[4], on[5], **layout(block_format))


@each_format
@each_type
@pytest.mark.parametrize(("rows", "channels", "rotated"), [(11, 512, 64), (37, 128, 64), (5, 96, 16)], ids=str)
def test_exact_norms_give_the_bytes_of_the_reference(block_format, dtype, rows, channels, rotated, device):
    x, weight, turn = exact_rows(rows, channels, dtype), weight_of(channels, dtype), turn_of(rows, rotated)
    page, place = addresses(rows, 3, 16)
    packed = planes(block_format, 3, 16, channels, device)
    run(block_format, x, weight, turn, packed, page, place)
    expected = reference(block_format, rms_norm(x, weight, EPS), turn)
    assert_stored(packed, page, place, expected)


@each_format
@each_type
@pytest.mark.parametrize(("rows", "channels", "rotated"), [(9, 512, 64), (33, 128, 128), (3, 96, 32)], ids=str)
def test_bytes_are_those_of_the_latent_that_is_left(block_format, dtype, rows, channels, rotated, device):
    x, weight, turn = rows_like(rows, channels, dtype), weight_of(channels), turn_of(rows, rotated)
    page, place = addresses(rows, 4, 9)
    packed = planes(block_format, 4, 9, channels, device)
    latent = torch.full((rows, channels), float("nan"), dtype=dtype, device=device)
    run(block_format, x, weight, turn, packed, page, place, latent)
    assert_stored(packed, page, place, reference(block_format, latent.cpu(), turn))

    exact = norm_in_double(x, weight)
    error, plain = ((t.cpu().double() - exact).abs() for t in (latent, rms_norm(x, weight, EPS)))
    assert error.max() <= 2 * plain.max() + 1e-12

    alone = planes(block_format, 4, 9, channels, device)
    run(block_format, x, weight, turn, alone, page, place)
    assert torch.equal(pool_of(alone), pool_of(packed))


def test_a_ring_is_one_page(device):
    x, weight, turn = exact_rows(7, 128, torch.bfloat16), weight_of(128), turn_of(7, 32)
    packed = planes(WINDOW_KV, 1, 12, 128, device)
    slot = torch.tensor([11, 0, 5, -1, 3, 12, 2])
    run(WINDOW_KV, x, weight, turn, packed, None, slot)
    there = (slot >= 0) & (slot < 12)
    expected = reference(WINDOW_KV, rms_norm(x, weight, EPS), turn)
    expected = Packed(*(part[there] for part in expected))
    assert_stored(packed, torch.zeros(5, dtype=torch.int64), slot[there], expected)


def test_rows_that_go_nowhere_change_nothing_but_leave_their_latent(device):
    x, weight, turn = exact_rows(6, 64, torch.float16), weight_of(64), turn_of(6, 16)
    page = torch.tensor([-1, 0, 1, 2, 0, 5_000_000_000])
    place = torch.tensor([0, -1, 4, 1, 3, 0])
    packed = planes(MAIN_KV, 2, 4, 64, device)
    latent = torch.full((6, 64), float("nan"), dtype=torch.float16, device=device)
    run(MAIN_KV, x, weight, turn, packed, page, place, latent)
    normed = rms_norm(x, weight, EPS)
    assert torch.equal(latent.cpu(), normed)
    expected = Packed(*(part[4:5] for part in reference(MAIN_KV, normed, turn)))
    assert_stored(packed, page[4:5], place[4:5], expected)


def test_no_rows_launch_nothing(device, monkeypatch):
    monkeypatch.setattr("ds41.kernels.launch.Launch.run", lambda self: pytest.fail("launched"))
    packed = planes(MAIN_KV, 1, 2, 64, device)
    none = torch.empty(0, dtype=torch.int64)
    run(MAIN_KV, torch.empty(0, 64), weight_of(64), turn_of(0, 16), packed, none, none)
    empty = torch.empty(0, 64, device=device)
    index = none.to(device)
    turn = torch.empty(0, 8, device=device)
    write_pooled(
        empty, empty, empty, empty, index, index, weight_of(64).to(device), EPS, empty, turn, turn, *packed, index,
        index, **layout(MAIN_KV),
    )  # fmt: skip
    assert (pool_of(packed) == POISON).all()


STRIDED = {
    "rows with gaps": lambda x: x[:, 64:128],
    "every second row": lambda x: x[::2, :64],
    "every second channel": lambda x: x[:, ::2],
    "transposed": lambda x: x[:64, :64].T,
    "one row for all": lambda x: x[:1, :64].expand(40, 64),
}


@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED.keys())
def test_any_strides_of_the_input(view, device):
    x = view(exact_rows(64, 128, torch.bfloat16, seed=3))
    weight, turn = weight_of(64), turn_of(len(x), 16)
    page, place = addresses(len(x), 2, 40)
    latent = torch.full((len(x), 64), float("nan"), dtype=torch.bfloat16, device=device)
    packed = planes(INDEX_KEY, 2, 40, 64, device)
    run(INDEX_KEY, x, weight, turn, packed, page, place, latent)
    assert_stored(packed, page, place, reference(INDEX_KEY, latent.cpu(), turn))
    assert torch.allclose(latent.cpu().float(), rms_norm(x, weight, EPS).float(), rtol=1e-2)


def test_channels_that_do_not_turn_keep_the_sign_of_a_zero(device):
    x = torch.full((2, 64), -0.0)
    x[1, :32] = 1.0
    packed = planes(WINDOW_KV, 1, 2, 64, device)
    run(WINDOW_KV, x, torch.ones(64), turn_of(2, 32), packed, None, torch.tensor([1, 0]))
    assert (packed.codes[0, 1, :32] == 0x80).all()
    assert (packed.codes[0, 0, :32] == packed.codes[0, 0, 0]).all()


@each_format
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_read_back_as_nan(block_format, bad, device):
    x, weight, turn = exact_rows(3, 128, torch.float32), weight_of(128), turn_of(3, 32)
    expected = reference(block_format, rms_norm(x, weight, EPS), turn)
    x[1, 40] = bad
    packed = planes(block_format, 1, 3, 128, device)
    run(block_format, x, weight, turn, packed, None, torch.arange(3))
    others, zero = torch.tensor([0, 2]), torch.zeros(2, dtype=torch.int64)
    assert_stored(packed, zero, others, Packed(*(part[others] for part in expected)), untouched=False)
    block = slice(40 // block_format.block * block_format.block, None)
    values = block_format.decode(Packed(packed.codes[0, 1:2].cpu(), packed.scales[0, 1:2].cpu()))[0]
    assert torch.isnan(values[block][: block_format.block]).all()
    if bad != bad:
        assert torch.isnan(values).all()


def test_offsets_beyond_32_bits(device):
    """Pages so far apart that a byte's offset passes 2^31 and 2^32; a wrapped one would stay inside the buffer."""
    far = 2**31 - 64
    x, weight, turn = exact_rows(3, 64, torch.bfloat16), weight_of(64), turn_of(3, 16)
    memory = torch.empty(2 * far + 2**20, dtype=torch.uint8, device=device)
    codes = memory.as_strided((3, 4, 32), (far, 32, 1))
    scales = memory.as_strided((3, 4, 4), (far, 4, 1), storage_offset=4096)
    for plane in (codes, scales):
        plane.fill_(POISON)
    page, place = torch.tensor([2, 1, 0]), torch.tensor([3, 2, 1])
    packed = Packed(codes, scales)
    run(MAIN_KV, x, weight, turn, packed, page, place)
    assert_stored(packed, page, place, reference(MAIN_KV, rms_norm(x, weight, EPS), turn), untouched=False)


def test_repeated_launches_agree(device):
    x, weight, turn = rows_like(9, 512, torch.bfloat16), weight_of(512), turn_of(9, 64)
    page, place = addresses(9, 2, 8)
    results = []
    for _ in range(20 if device.type == "cuda" else 3):
        packed = planes(MAIN_KV, 2, 8, 512, device)
        latent = torch.empty(9, 512, dtype=torch.bfloat16, device=device)
        run(MAIN_KV, x, weight, turn, packed, page, place, latent)
        results.append((pool_of(packed).clone(), latent))
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(result, results[0], strict=True))


def test_compile_cases_are_the_published_formats_and_widths():
    """kernels/ imports nothing of ds41, so it repeats the formats' numbers."""
    widths = {"main": (MAIN_KV, 512), "pooled": (MAIN_KV, 512), "index": (INDEX_KEY, 128), "window": (WINDOW_KV, 512)}
    seen = set()
    for case in all_cases():
        operation, name = case.name.split("_")[:2]
        if operation == "write":
            block_format, channels = widths[name]
            constants = case.launch.constants
            wanted = layout(block_format) | {"channels": channels, "rotated": 64, "eps": EPS}
            assert {key: constants[key.upper()] for key in wanted} == wanted
            seen.add(name)
    assert seen == widths.keys()


def test_costs():
    """By hand, for one row: 512 channels of bf16 and 128 bytes of rotation, 16 of address, and a 288-byte record."""
    assert write_rows_cost(1, 512, 64, "e2m1", 16, 2)[0] == 1024 + 256 + 16 + 288 + 2048
    assert write_rows_cost(1, 512, 64, "e2m1", 16, 2, writes_latent=True)[0] == 2 * 1024 + 256 + 16 + 288 + 2048
    assert write_rows_cost(10, 128, 64, "e2m1", 32, 2) == (10 * (256 + 256 + 16 + 68) + 512, 10 * (512 + 192))
    assert write_pooled_cost(1, 512, 64, "e2m1", 16, 2)[0] == 4 * 2048 + 256 + 32 + 1024 + 288 + 2048


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.ones(2, 32, dtype=torch.float64)}, "x is torch.float64"),
        ({"x": torch.ones(32)}, r"x is torch.float32 \[32\]"),
        ({"norm_weight": torch.ones(16)}, r"norm_weight is torch.float32 \[16\].*\[32\]"),
        ({"turn_sin": torch.ones(2, 4)}, r"turn_sin.*\[2, 4\]"),
        ({"turn_cos": torch.ones(2, 17), "turn_sin": torch.ones(2, 17)}, "at most 32"),
        ({"turn_cos": torch.ones(2, 8, dtype=torch.float64)}, "turn_cos is torch.float64"),
        ({"latent": torch.ones(2, 32, dtype=torch.bfloat16)}, "latent is torch.bfloat16"),
        ({"latent": torch.ones(2, 64)[:, ::2]}, "contiguous"),
        ({"codes": torch.zeros(3, 16, dtype=torch.uint8)}, r"codes are torch.uint8 \[3, 16\].*pages"),
        ({"scales": torch.zeros(1, 3, 1, dtype=torch.uint8)}, r"scales are.*\[1, 3, 1\].*entries, 2"),
        ({"scales": torch.zeros(1, 4, 2, dtype=torch.uint8)}, "same pages"),
        ({"place": torch.zeros(2, dtype=torch.int32)}, "place is torch.int32"),
        ({"page": torch.zeros(3, dtype=torch.int64)}, r"page is.*\[3\].*\[2\]"),
        ({"element": "e5m2"}, "'e5m2'"),
        ({"block": 24}, "24"),
    ],
    ids=lambda value: None,
)
def test_names_what_it_cannot_take(arguments, message):
    turn = torch.ones(2, 8)
    good = {
        "x": torch.ones(2, 32), "norm_weight": torch.ones(32), "eps": EPS, "latent": None, "turn_cos": turn,
        "turn_sin": turn, "codes": torch.zeros(1, 3, 16, dtype=torch.uint8),
        "scales": torch.zeros(1, 3, 2, dtype=torch.uint8), "page": None, "place": torch.arange(2), **layout(MAIN_KV),
    }  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=message):
        write_rows(**{**good, **arguments})
