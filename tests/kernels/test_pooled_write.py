"""Pooling and writing entries of ratio 2, against the compressor."""

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

from ds41.attention import Compressor
from ds41.attention.compressor import pool_pair
from ds41.config import ModelConfig
from ds41.formats import MAIN_KV, Packed
from ds41.kernels.pooled_write import write_pooled
from ds41.norm import rms_norm
from ds41.step import Step

TYPES = [torch.float32, torch.bfloat16, torch.float16]
each_type = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t).removeprefix("torch."))
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered")


def run(value, gate, waiting, partner, closing, weight, dtype, turn, packed, page, place) -> torch.Tensor:
    """The wrapper on the device of the planes; gives the latent, which was poisoned before."""
    device = packed.codes.device
    latent = torch.full((len(partner), value.shape[1]), float("nan"), dtype=dtype, device=device)
    pairs = [t.to(device) for t in (value, gate, *waiting, partner, closing)]
    to = [t.to(device) for t in (turn.real, turn.imag)]
    write_pooled(
        *pairs, weight.to(device), EPS, latent, *to, *packed, page.to(device), place.to(device), **layout(MAIN_KV)
    )
    return latent.cpu()


def pairs_of(tokens: int, sequences: int, rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Any two tokens for each entry, every third partner among the waiting rows."""
    generator = torch.Generator().manual_seed(seed)
    partner = sequences + torch.randint(tokens, (rows,), generator=generator)
    partner[::3] = torch.randint(sequences, (len(partner[::3]),), generator=generator)
    return partner, torch.randint(tokens, (rows,), generator=generator)


def pooled_rows(value, gate, waiting, partner, closing) -> torch.Tensor:
    values, gates = torch.cat((waiting[0], value)), torch.cat((waiting[1], gate))
    return pool_pair(values[partner], gates[partner], value[closing], gate[closing])


@each_type
@pytest.mark.parametrize("difference", [0.0, 300.0, -300.0], ids=["halves", "first alone", "second alone"])
def test_exact_shares_give_the_bytes_of_the_reference(dtype, difference, device):
    """Gates that share exactly, of rows whose norm is exact: every byte is known."""
    channels, tokens = 128, 6
    row = exact_rows(1, channels, torch.float32)
    value = row * torch.exp2(torch.arange(tokens, dtype=torch.float32) - 3)[:, None]
    gate = torch.full((tokens, channels), 5.0)
    if difference == 0:
        # A row and itself, whose mean is exact and has an exact norm: two of them waiting, then tokens 1, 5 and 2.
        closing, partner = torch.tensor([0, 1, 2, 5, 2]), torch.tensor([1, 3, 0, 7, 4])
        waiting_value = torch.stack((value[2], value[0]))
    else:
        # Partners never close, so all pairs differ by the same.
        closing, partner = torch.tensor([1, 2, 3, 5, 2]), torch.tensor([1, 0, 2, 6, 1])
        waiting_value = value[:2] * 8
        gate[closing] -= difference
    waiting = waiting_value, torch.full((2, channels), 5.0)
    weight, turn = weight_of(channels), turn_of(5, 32)
    page, place = addresses(5, 2, 8)
    packed = planes(MAIN_KV, 2, 8, channels, device)
    latent = run(value, gate, waiting, partner, closing, weight, dtype, turn, packed, page, place)
    pooled = pooled_rows(value, gate, waiting, partner, closing)
    normed = rms_norm(pooled.to(dtype), weight, EPS)
    assert torch.equal(latent, normed)
    assert_stored(packed, page, place, reference(MAIN_KV, normed, turn))


@each_type
@pytest.mark.parametrize(("rows", "channels", "rotated"), [(10, 512, 64), (35, 64, 16), (1, 96, 32)], ids=str)
def test_latents_are_as_near_as_the_reference_and_bytes_are_theirs(dtype, rows, channels, rotated, device):
    tokens, sequences = 9, 3
    value, gate = rows_like(tokens, channels, torch.float32), 3 * rows_like(tokens, channels, torch.float32, seed=1)
    waiting = (rows_like(sequences, channels, torch.float32, 2), rows_like(sequences, channels, torch.float32, 3))
    partner, closing = pairs_of(tokens, sequences, rows)
    weight, turn = weight_of(channels), turn_of(rows, rotated)
    page, place = addresses(rows, 3, 14)
    packed = planes(MAIN_KV, 3, 14, channels, device)
    latent = run(value, gate, waiting, partner, closing, weight, dtype, turn, packed, page, place)
    assert_stored(packed, page, place, reference(MAIN_KV, latent, turn))

    in_double = [t.double() for t in (value, gate, *waiting)]
    exact = norm_in_double(pooled_rows(*in_double[:2], in_double[2:], partner, closing), weight)
    plain = rms_norm(pooled_rows(value, gate, waiting, partner, closing).to(dtype), weight, EPS)
    error, plain_error = ((t.double() - exact).abs() for t in (latent, plain))
    assert error.max() <= 2 * plain_error.max() + 1e-12


class HalfPairs:
    """The memory that a compressor asks for its waiting rows."""

    def __init__(self, value: torch.Tensor, gate: torch.Tensor) -> None:
        self.waiting = value, gate

    def open_rows(self, layer, step, value, gate):
        return self.waiting


@pytest.mark.parametrize(("counts", "firsts"), [((3, 0, 4, 1), (1, 4, 2, 7)), ((2,), (0,)), ((1, 1), (3, 6))], ids=str)
def test_a_fixed_number_of_rows_serves_a_ragged_step(counts, firsts, device):
    """One row a token, -1 where its token closes nothing: what a captured graph would launch."""
    config = ModelConfig.nano()
    torch.manual_seed(0)
    compressor = Compressor(config, 2, torch.float32)
    torch.nn.init.normal_(compressor.wkv.weight)
    torch.nn.init.normal_(compressor.wgate.weight, std=0.1)
    step = Step.of(counts, firsts)
    x = torch.randn(step.tokens, config.hidden_size)
    waiting = torch.randn(len(counts), config.head_dim), torch.randn(len(counts), config.head_dim)
    expected = compressor(x, step, HalfPairs(*waiting), 0)

    token = torch.arange(step.tokens)
    closes = step.position % 2 == 1
    alone = step.position == step.first_position[step.sequence]
    partner = torch.where(closes, torch.where(alone, step.sequence, len(counts) + token - 1), -1)
    turn = turn_of(step.tokens, config.qk_rope_head_dim)
    packed = planes(MAIN_KV, 1, 16, config.head_dim, device)
    with torch.no_grad():
        value, gate = compressor.wkv(x), compressor.wgate(x)
    latent = run(
        value, gate, waiting, partner, torch.where(closes, token, -1), compressor.norm.weight.detach(), torch.float32,
        turn, packed, torch.zeros_like(token), token,
    )  # fmt: skip
    torch.testing.assert_close(latent[closes], expected.latent.detach(), rtol=2e-6, atol=2e-6)
    assert (latent[~closes] == 0).all()
    stored = Packed(*(part[closes] for part in reference(MAIN_KV, latent, turn)))
    assert_stored(packed, torch.zeros_like(token)[closes], token[closes], stored)


def test_rows_out_of_reach_are_no_entries(device):
    value = rows_like(3, 64, torch.float32)
    partner, closing = torch.tensor([5, -1, 1, 2**40]), torch.tensor([0, 1, 3, 0])
    packed = planes(MAIN_KV, 1, 4, 64, device)
    latent = run(
        value, value, (value[:2], value[:2]), partner, closing, weight_of(64), torch.bfloat16, turn_of(4, 16), packed,
        torch.zeros(4, dtype=torch.int64), torch.arange(4),
    )  # fmt: skip
    assert (latent == 0).all()
    assert (pool_of(packed) == POISON).all()


def test_repeated_launches_agree(device):
    value, gate = rows_like(9, 512, torch.float32), rows_like(9, 512, torch.float32, seed=1)
    partner, closing = pairs_of(9, 2, 5)
    page, place = addresses(5, 2, 8)
    results = []
    for _ in range(20 if device.type == "cuda" else 3):
        packed = planes(MAIN_KV, 2, 8, 512, device)
        latent = run(
            value, gate, (value[:2], gate[:2]), partner, closing, weight_of(512), torch.bfloat16, turn_of(5, 64),
            packed, page, place,
        )  # fmt: skip
        results.append((pool_of(packed), latent))
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(result, results[0], strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": torch.ones(3, 32, dtype=torch.bfloat16)}, "value is torch.bfloat16"),
        ({"gate": torch.ones(2, 32)}, r"\[3, 32\].*\[2, 32\]"),
        ({"waiting_gate": torch.ones(1, 32)[:, ::2]}, r"waiting_gate is torch.float32 \[1, 16\]"),
        ({"partner": torch.zeros(2)}, "partner is torch.float32"),
        ({"closing": torch.zeros(3, dtype=torch.int64)}, r"closing is torch.int64 \[3\].*\[2\]"),
        ({"latent": torch.ones(2, 32, dtype=torch.float64)}, "latent is torch.float64"),
        ({"latent": torch.ones(4, 32)[::2]}, "contiguous"),
        ({"place": torch.zeros(3, dtype=torch.int64)}, r"place is.*\[3\]"),
    ],
    ids=lambda value: None,
)
def test_names_what_it_cannot_take(arguments, message):
    index, turn = torch.arange(2), torch.ones(2, 8)
    good = {
        "value": torch.ones(3, 32), "gate": torch.ones(3, 32), "waiting_value": torch.ones(1, 32),
        "waiting_gate": torch.ones(1, 32), "partner": index, "closing": index, "norm_weight": torch.ones(32),
        "eps": EPS, "latent": torch.ones(2, 32), "turn_cos": turn, "turn_sin": turn,
        "codes": torch.zeros(1, 3, 16, dtype=torch.uint8), "scales": torch.zeros(1, 3, 2, dtype=torch.uint8),
        "page": None, "place": index, **layout(MAIN_KV),
    }  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=message):
        write_pooled(**{**good, **arguments})
