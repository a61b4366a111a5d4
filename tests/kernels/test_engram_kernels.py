"""The Engram kernels against the torch definitions: row numbers and table values exact, streams to their rounding."""

from __future__ import annotations

import pytest
import torch

from ds41 import ModelConfig
from ds41.engram import DEAD, Hasher, engram_gate, look_back, new_history
from ds41.engram.table import StoredRows
from ds41.formats import WINDOW_KV
from ds41.kernels.engram import (
    engram_rows,
    engram_rows_cost,
    engram_rows_launch,
    hash_rows,
    hash_rows_cost,
    hash_rows_launch,
)
from ds41.kernels.engram_write import engram_write, engram_write_cost, engram_write_launch

FLASH = ModelConfig.flash()
HASHER = Hasher(FLASH, torch.arange(FLASH.vocab_size) % FLASH.engram_compressed_vocab_size)
TYPES = [torch.float32, torch.bfloat16, torch.float16]
each_type = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t).removeprefix("torch."))
# int64 products wrap and exponents run out, on purpose; under the interpreter numpy mentions it.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def hashed(windows: torch.Tensor, hasher: Hasher = HASHER, device: torch.device | str = "cpu") -> torch.Tensor:
    constants = [t.to(device) for t in (hasher.multipliers, hasher.primes, hasher.offsets)]
    rows = hash_rows(windows.to(device), *constants, hasher.pad_id)
    assert rows.dtype == torch.int64
    return rows.cpu()


def reference_rows(windows: torch.Tensor, hasher: Hasher = HASHER, validate: bool = True) -> torch.Tensor:
    return torch.stack(list(hasher.rows(windows, validate).values()))


def random_windows(tokens: int, seed: int = 0) -> torch.Tensor:
    windows = torch.randint(FLASH.engram_compressed_vocab_size, (tokens, 4), generator=generator(seed))
    windows[torch.rand(windows.shape, generator=generator(seed + 1)) < 0.15] = DEAD
    return windows


def test_rows_worked_by_hand(device):
    ids = torch.tensor([5, 7, 11, 13, 17])
    one = torch.zeros(5, dtype=torch.int64)
    rows = hashed(look_back(ids, torch.arange(5), one, new_history(1, 4)), device=device)
    columns = [0, 1, 2, 8, 9, 16, 17]
    assert rows[0, 0, columns].tolist() == [5412672, 18319159, 35492627, 143494632, 151789366, 256353435, 276423911]
    assert rows[0, 4, columns].tolist() == [12341303, 23527019, 37635120, 137746435, 144079794, 259224166, 273108917]
    assert rows[1, 0, :3].tolist() == [6939818, 27264717, 45254833]
    assert rows[1, 4, :3].tolist() == [2607190, 16704444, 43223337]
    ids[1] = DEAD
    rows = hashed(look_back(ids, torch.arange(5), one, new_history(1, 4)), device=device)
    assert rows[0, 2, [0, 1, 8]].tolist() == [5935489, 27383162, 134799720]


@pytest.mark.parametrize("tokens", [1, 63, 130])
def test_rows_are_those_of_the_reference(tokens, device):
    windows = random_windows(tokens)
    assert torch.equal(hashed(windows, device=device), reference_rows(windows))


def test_the_largest_products_stay_exact(device):
    """The highest compressed id times the largest multiplier needs all 63 bits, ten more than a double holds."""
    windows = torch.full((3, 4), FLASH.engram_compressed_vocab_size - 1)
    windows[1, 1:] = 0
    windows[2, 2] = 0
    assert torch.equal(hashed(windows, device=device), reference_rows(windows))
    # The constants of cases b_engram_int64: one id, one multiplier, one prime.
    window = torch.tensor([[99091, 0]], device=device)
    constants = [torch.tensor(v, device=device) for v in ([[93078876567781, 1]], [[[16000057]]], [[0]])]
    assert hash_rows(window, *constants, 2).tolist() == [[[3755251]]]


def test_dead_everywhere_hashes_the_pad(device):
    windows = torch.full((2, 4), DEAD)
    assert torch.equal(hashed(windows, device=device), reference_rows(windows))
    assert torch.equal(hashed(windows, device=device), reference_rows(torch.full((2, 4), HASHER.pad_id)))


def test_what_is_no_compressed_id_still_reads_rows_of_its_column(device):
    windows = torch.tensor([[-5, 2**40, -(2**62), 7], [2**62, -2, 3, -(2**63)]])
    rows = hashed(windows, device=device)
    first, count = HASHER.offsets[:, None], HASHER.primes.flatten(1)[:, None]
    assert ((rows >= first) & (rows < first + count)).all()
    assert torch.equal(rows, reference_rows(windows, validate=False))


@pytest.mark.parametrize("model", [ModelConfig.nano(), ModelConfig.mini()], ids=["nano", "mini"])
def test_other_configurations(model, device):
    size = model.engram_compressed_vocab_size
    hasher = Hasher(model, torch.arange(model.vocab_size) % size)
    windows = torch.randint(-1, size, (17, model.engram_max_ngram_size), generator=generator(3))
    assert torch.equal(hashed(windows, hasher, device), reference_rows(windows, hasher))


def test_windows_of_any_strides(device):
    windows = random_windows(24)
    for view in (lambda x: x.T.contiguous().T, lambda x: x[::3], lambda x: x[:1].expand(5, -1)):
        assert torch.equal(hashed(view(windows.to(device)), device=device), reference_rows(view(windows)))


def test_no_tokens(device):
    assert hashed(torch.empty(0, 4, dtype=torch.int64), device=device).shape == (2, 0, 24)


def table(rows: int = 40, channels: int = 256, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.randn(rows, channels, generator=generator(seed))
    values *= torch.exp2(torch.randint(-9, 10, (rows, 1), generator=generator(seed + 1)))
    return WINDOW_KV.encode(values)


def assert_same_values(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert torch.equal(got.cpu().isnan(), expected.isnan())
    assert torch.equal(got.cpu().nan_to_num(), expected.nan_to_num())


@each_type
@pytest.mark.parametrize(("shape", "channels"), [((5, 24), 256), ((1, 1), 32), ((3, 7), 96)], ids=str)
def test_gathered_rows_are_the_stored_values(dtype, shape, channels, device):
    codes, scales = table(channels=channels)
    ids = torch.randint(40, shape, generator=generator(2))
    values = engram_rows(codes.to(device), scales.to(device), ids.to(device), dtype)
    assert values.shape == (shape[0], shape[1] * channels)
    assert_same_values(values, StoredRows(codes, scales, dtype).read(ids).flatten(1))


@each_type
def test_every_code_with_every_scale_byte(dtype, device):
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 8)
    ids = torch.arange(256).flip(0)[:, None]
    values = engram_rows(codes.to(device), scales.to(device), ids.to(device), dtype)
    assert_same_values(values, StoredRows(codes, scales, dtype).read(ids).flatten(1))


def test_a_row_that_does_not_exist_is_nan_and_reads_nothing(device):
    codes, scales = table(8)
    # The table lies in the middle of larger buffers; what is beside it must not be taken for a row.
    around = [torch.zeros(24, t.shape[1], dtype=torch.uint8, device=device) for t in (codes, scales)]
    for buffer, part in zip(around, (codes, scales), strict=True):
        buffer[8:16] = part.to(device)
    ids = torch.tensor([[0, -1, 7], [8, 2**40, -(2**40)]], device=device)
    values = engram_rows(around[0][8:16], around[1][8:16], ids, torch.float32).view(2, 3, 256)
    missing = torch.tensor([[False, True, False], [True, True, True]])
    assert torch.equal(values.isnan().all(-1).cpu(), missing)
    assert values[~missing.to(device)].isfinite().all()


def test_tables_with_rows_far_apart(device):
    """Rows whose offsets pass 2^31, in the middle of a buffer, so that a wrapped offset stays inside."""
    codes, scales = table(3)
    buffer = torch.empty(2**32 + 2**29, dtype=torch.uint8, device=device)
    far_codes = buffer.as_strided((3, 256), (2**30 + 2**28, 1), storage_offset=2**30)
    far_scales = buffer.as_strided((3, 8), (2**30 + 2**28, 1), storage_offset=2**30 + 4096)
    far_codes.copy_(codes)
    far_scales.copy_(scales)
    ids = torch.tensor([[2, 0, 1, 2]])
    values = engram_rows(far_codes, far_scales, ids.to(device), torch.float16)
    assert_same_values(values, StoredRows(codes, scales, torch.float16).read(ids).flatten(1))


def test_records_of_codes_and_scales_and_ids_of_any_strides(device):
    codes, scales = table()
    records = torch.cat([codes, scales], dim=1).to(device)
    ids = torch.randint(40, (12, 5), generator=generator(4)).T
    values = engram_rows(records[:, :256], records[:, 256:], ids.to(device))
    assert_same_values(values, StoredRows(codes, scales).read(ids).flatten(1))


def random_streams(shape: tuple[int, int, int], dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
    tokens, count, channels = shape
    random = {
        "streams": torch.randn(shape, generator=generator(seed)),
        "projected": torch.randn((tokens, (count + 1) * channels), generator=generator(seed + 1)),
        "q_weight": 1 + 0.5 * torch.randn((count, channels), generator=generator(seed + 2)),
        "k_weight": 1 + 0.5 * torch.randn((count, channels), generator=generator(seed + 3)),
    }
    return {name: tensor.to(dtype) for name, tensor in random.items()}


def reference_write(streams, projected, q_weight, k_weight, image_mask=None, eps=1e-20, dtype=torch.float64):
    """What ds41.engram.Engram does after its projection; ``dtype`` is that of the arithmetic."""
    keys, value = projected.unflatten(-1, (streams.shape[1] + 1, -1)).split([streams.shape[1], 1], dim=1)
    x, keys, value, weight = (t.to(dtype) for t in (streams, keys, value, q_weight.to(dtype) * k_weight.to(dtype)))
    product = (x * keys * weight).sum(-1)
    match = product * torch.rsqrt(x.square().mean(-1) + eps) * torch.rsqrt(keys.square().mean(-1) + eps)
    match = match * x.shape[-1] ** -0.5
    gate = torch.sigmoid(torch.copysign(match.abs().clamp(min=1e-6).sqrt(), match))
    if image_mask is not None:
        gate = gate.masked_fill(image_mask[:, None], 0)
    return x + gate[..., None] * value


def write(tensors: dict, device, image_mask=None, eps: float = 1e-20) -> torch.Tensor:
    mask = None if image_mask is None else image_mask.to(device)
    out = engram_write(**{name: t.to(device) for name, t in tensors.items()}, image_mask=mask, eps=eps).cpu()
    assert out.dtype == tensors["streams"].dtype
    return out


@each_type
@pytest.mark.parametrize("shape", [(5, 4, 320), (1, 1, 1), (3, 2, 33), (2, 4, 768)], ids=str)
def test_the_write_is_as_close_as_torch(dtype, shape, device):
    tensors = random_streams(shape, dtype)
    exact = reference_write(**tensors)
    ours = (write(tensors, device).double() - exact).norm()
    torchs = (reference_write(**tensors, dtype=torch.float32).to(dtype).double() - exact).norm()
    assert ours <= 2 * torchs + 1e-7 * exact.norm()


def test_the_write_agrees_with_the_module_gate(device):
    tensors = random_streams((6, 4, 96), torch.float32, seed=5)
    keys, value = tensors["projected"].unflatten(-1, (5, 96)).split([4, 1], dim=1)
    gate = engram_gate(tensors["streams"], keys, tensors["q_weight"] * tensors["k_weight"], 1e-20)
    torch.testing.assert_close(write(tensors, device), tensors["streams"] + gate[..., None] * value, rtol=0, atol=1e-6)


def test_matches_too_small_to_tell_apart_keep_their_sign(device):
    """A match of zero opens the gate by 0.50025, one just below zero by 0.49975."""
    streams = torch.tensor([[1.0, 0.0]]).repeat(3, 1, 1)
    tensors = {
        "streams": streams,
        "projected": torch.tensor([[0.0, 3.0, 1.0, 1.0], [-1e-7, 3.0, 1.0, 1.0], [1e-7, 3.0, 1.0, 1.0]]),
        "q_weight": torch.ones(1, 2),
        "k_weight": torch.ones(1, 2),
    }
    gates = (write(tensors, device) - streams)[:, 0, 0]
    assert torch.allclose(gates, torch.tensor([0.50025, 0.49975, 0.50025]), rtol=0, atol=1e-6)


def test_streams_of_zeros(device):
    tensors = random_streams((2, 2, 64), torch.float32, seed=6)
    tensors["streams"][0] = 0
    tensors["projected"][1, :128] = 0
    torch.testing.assert_close(write(tensors, device).double(), reference_write(**tensors), rtol=0, atol=1e-6)


@each_type
def test_streams_of_images_stay_as_they_are(dtype, device):
    tensors = random_streams((5, 2, 96), dtype, seed=7)
    mask = torch.tensor([True, False, True, False, False])
    tensors["projected"][0] = torch.nan
    out = write(tensors, device, mask)
    assert torch.equal(out[mask], tensors["streams"][mask])
    assert torch.equal(out[~mask], write(tensors, device)[~mask])
    strided = torch.stack([mask, ~mask], dim=1)[:, 0]
    assert torch.equal(write(tensors, device, strided), out)
    assert torch.equal(write(tensors, device, torch.ones(5, dtype=torch.bool)), tensors["streams"])


def test_nan_stays_in_its_stream(device):
    tensors = random_streams((2, 3, 40), torch.float32, seed=8)
    tensors["streams"][1, 1, 7] = torch.nan
    out = write(tensors, device)
    assert torch.equal(out.isnan().any(-1), torch.tensor([[False, False, False], [False, True, False]]))


def test_streams_of_any_strides(device):
    tensors = random_streams((4, 3, 80), torch.bfloat16, seed=9)
    expected = write(tensors, device)
    views = {
        "streams": tensors["streams"].transpose(0, 1).contiguous().transpose(0, 1),
        "projected": torch.cat([tensors["projected"], tensors["projected"]], dim=1)[:, :320],
        "q_weight": tensors["q_weight"].T.contiguous().T,
        "k_weight": tensors["k_weight"],
    }
    assert torch.equal(write(views, device), expected)
    wide = torch.stack([tensors["streams"]] * 2, dim=-1).flatten(-2)[..., ::2]
    assert torch.equal(write({**tensors, "streams": wide}, device), expected)


def test_tokens_far_apart(device):
    tensors = random_streams((2, 2, 32), torch.float16, seed=10)
    expected = write(tensors, device)
    buffer = torch.empty(2**32 + 2**28, dtype=torch.float16, device=device)
    far = {
        "streams": buffer.as_strided((2, 2, 32), (2**31, 2**30, 1), storage_offset=2**27),
        "projected": buffer.as_strided((2, 96), (2**31 + 64, 1), storage_offset=2**27 + 2**20),
    }
    for name, view in far.items():
        view.copy_(tensors[name])
    assert torch.equal(write({**tensors, **far}, device), expected)


def test_all_of_the_output_is_written_and_nothing_else(device):
    windows = random_windows(9).to(device)
    constants = [t.to(device) for t in (HASHER.multipliers, HASHER.primes, HASHER.offsets)]
    codes, scales = (t.to(device) for t in table())
    ids = torch.randint(40, (2, 5), generator=generator(11)).to(device)
    tensors = {name: t.to(device) for name, t in random_streams((3, 2, 72), torch.float32, seed=12).items()}
    for poison in (0x55, 0xAA):
        rows = torch.full((4, 9, 24), poison, dtype=torch.int64, device=device)
        hash_rows_launch(windows, *constants, rows[1:3], pad_id=HASHER.pad_id).run()
        assert torch.equal(rows[1:3].cpu(), reference_rows(windows.cpu()))
        assert (rows[[0, 3]] == poison).all()

        values = torch.full((30, 256), float(poison), device=device)
        engram_rows_launch(codes, scales, ids, values[10:20]).run()
        assert torch.equal(values[10:20].view(2, -1), engram_rows(codes, scales, ids, torch.float32))
        assert (values[:10] == poison).all()
        assert (values[20:] == poison).all()

        out = torch.full((9, 2, 72), float(poison), device=device)
        engram_write_launch(**tensors, image_mask=None, out=out[3:6], eps=1e-20).run()
        assert torch.equal(out[3:6], engram_write(**tensors, image_mask=None, eps=1e-20))
        assert (out[:3] == poison).all()
        assert (out[6:] == poison).all()


def test_repeated_launches_agree(device):
    tensors = random_streams((3, 4, 160), torch.bfloat16, seed=13)
    codes, scales = (t.to(device) for t in table())
    ids = torch.randint(40, (3, 8), generator=generator(14)).to(device)
    first = write(tensors, device), engram_rows(codes, scales, ids)
    for _ in range(19 if device.type == "cuda" else 2):
        assert torch.equal(write(tensors, device), first[0])
        assert torch.equal(engram_rows(codes, scales, ids), first[1])


def test_nothing_to_do(device):
    codes, scales = (t.to(device) for t in table())
    assert engram_rows(codes, scales, torch.empty(0, 24, dtype=torch.int64, device=device)).shape == (0, 24 * 256)
    assert engram_rows(codes, scales, torch.empty(3, 0, dtype=torch.int64, device=device)).shape == (3, 0)
    assert write(random_streams((0, 4, 64), torch.bfloat16), device).shape == (0, 4, 64)


def test_costs():
    assert hash_rows_cost(10, 2, 4, 8) == (8 * (10 * 4 + 10 * 48 + 8 + 96), 2 * 10 * 2 * 4)
    assert engram_rows_cost(1, 24, 256, 2) == (24 * (8 + 264 + 512), 2 * 24 * 256)
    assert engram_write_cost(1, 4, 5120, 2) == (2 * 5120 * (13 + 8), 8 * 4 * 5120)
    assert engram_write_cost(2, 4, 5120, 2, images=True)[0] == 2 * 5120 * (26 + 8) + 2


GOOD_HASH = {
    "windows": torch.zeros(3, 4, dtype=torch.int64),
    "multipliers": HASHER.multipliers,
    "primes": HASHER.primes,
    "offsets": HASHER.offsets,
    "pad_id": 2,
}
GOOD_ROWS = {
    "codes": torch.zeros(4, 64, dtype=torch.uint8),
    "scales": torch.zeros(4, 2, dtype=torch.uint8),
    "row_ids": torch.zeros(1, 3, dtype=torch.int64),
}
GOOD_WRITE = {**random_streams((2, 4, 32), torch.float32), "image_mask": None, "eps": 1e-20}


@pytest.mark.parametrize(
    ("function", "changes", "error", "message"),
    [
        (hash_rows, {"windows": torch.zeros(3, 4)}, ValueError, "windows are torch.float32"),
        (hash_rows, {"windows": torch.zeros(3, 5, dtype=torch.int64)}, ValueError, r"\[3, 5\].*\[3, 4\]"),
        (hash_rows, {"multipliers": HASHER.multipliers[:1]}, ValueError, r"\[1, 4\].*\[2, 4\]"),
        (hash_rows, {"offsets": HASHER.offsets[:, :5]}, ValueError, r"\[2, 5\].*\[2, 24\]"),
        (engram_rows, {"codes": torch.zeros(4, 64)}, ValueError, "codes are torch.float32"),
        (engram_rows, {"scales": torch.zeros(4, 3, dtype=torch.uint8)}, ValueError, r"\[4, 3\].*C / 32"),
        (engram_rows, {"codes": torch.zeros(4, 128, dtype=torch.uint8)[:, ::2]}, ValueError, r"strides \[128, 2\]"),
        (engram_rows, {"row_ids": torch.zeros(3, dtype=torch.int64)}, ValueError, r"\[3\].*\[N, columns\]"),
        (engram_rows, {"dtype": torch.float64}, TypeError, "float64"),
        (engram_write, {"streams": torch.zeros(2, 4, 32, dtype=torch.float64)}, TypeError, "streams is torch.float64"),
        (engram_write, {"streams": torch.zeros(2, 128)}, ValueError, r"streams are \[2, 128\]"),
        (engram_write, {"projected": torch.zeros(2, 128)}, ValueError, r"projected is \[2, 128\].*\[2, 160\]"),
        (engram_write, {"q_weight": torch.zeros(4, 31)}, ValueError, r"q_weight is \[4, 31\]"),
        (engram_write, {"image_mask": torch.zeros(2)}, ValueError, "image_mask is torch.float32"),
        (engram_write, {"eps": 0.0}, ValueError, "eps is 0.0"),
    ],
    ids=lambda value: None,
)
def test_names_what_it_cannot_take(function, changes, error, message):
    good = {hash_rows: GOOD_HASH, engram_rows: GOOD_ROWS, engram_write: GOOD_WRITE}[function]
    with pytest.raises(error, match=message):
        function(**{**good, **changes})
