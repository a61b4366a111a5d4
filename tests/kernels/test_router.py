"""The router kernel against the torch definition: choices exact, given the same scores; weights to fp32 rounding."""

from __future__ import annotations

import pytest
import torch

from ds41.kernels.router import route_tokens, route_tokens_cost, router_launch
from ds41.moe import sqrt_softplus

# NaN is asked for, and exponents run out of fp32; under the interpreter numpy mentions it.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered")


def random(*shape: int, seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def route(logits, bias, top_k, *, bias_vl=None, image_mask=None, renormalize=True, scaling=1.5):
    """The kernel's choice and weights on the CPU."""
    indices, weights = route_tokens(logits, bias, bias_vl, image_mask, top_k, renormalize, scaling)
    assert indices.dtype == torch.int64
    assert weights.dtype == torch.float32
    assert indices.shape == weights.shape == (len(logits), top_k)
    return indices.cpu(), weights.cpu()


def scores_of(logits: torch.Tensor) -> torch.Tensor:
    """The kernel's own scores: all experts chosen, weights neither divided nor scaled."""
    experts = logits.shape[1]
    indices, weights = route(logits, logits.new_zeros(experts), experts, renormalize=False, scaling=1.0)
    return torch.zeros(logits.shape).scatter(1, indices, weights)


def reference(scores: torch.Tensor, bias: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What ds41.moe.Router does after its scores, with the published factor."""
    order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.double().gather(1, order)
    return order, 1.5 * weights / (weights.sum(1, keepdim=True) + 1e-20)


def test_self_check(device):
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, -3.0, 0.5]], device=device)
    bias = torch.tensor([0, 0, 0.9, 0, 0.9, 0], device=device)
    expected = torch.tensor([[0.8325546, 1.1459763, 0.5596979, 1.4583991, 0.2204254, 0.9869534]])
    torch.testing.assert_close(scores_of(logits), expected, rtol=0, atol=2e-7)
    indices, weights = route(logits, bias, 3)
    assert indices.tolist() == [[2, 3, 1]]
    torch.testing.assert_close(weights, torch.tensor([[0.2653373, 0.6913869, 0.5432758]]), rtol=0, atol=2e-7)


def test_scores_have_fp32_precision_over_the_whole_range(device):
    steps = torch.linspace(-86, 30, 1024, dtype=torch.float64).float()
    around_twenty = torch.tensor([20.0]).view(torch.int32) + torch.arange(-512, 512, dtype=torch.int32)
    logits = torch.stack([steps, around_twenty.view(torch.float32), random(1024, spread=1e-3)])
    exact = torch.log1p(torch.exp(logits.double())).sqrt()
    scores = scores_of(logits.to(device))
    torch.testing.assert_close(scores.double(), exact, rtol=6e-7, atol=0)
    ours, torchs = (s.double().sub(exact).abs().div(exact).max() for s in (scores, sqrt_softplus(logits)))
    assert ours < 2 * torchs + 2e-7


def test_scores_where_the_softplus_leaves_fp32(device):
    logits = torch.tensor([[-88.0, -100.0, -103.0, -104.5, -1e4, -torch.inf, 1e4, 3e38, torch.inf]])
    scores = scores_of(logits.to(device))
    torch.testing.assert_close(scores, sqrt_softplus(logits), rtol=1e-6, atol=5e-23)


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(5, 384, 6), (1, 1, 1), (3, 7, 7), (9, 16, 3), (2, 1024, 6), (6, 33, 1)]
)
def test_choices_are_those_of_the_reference(tokens, experts, top_k, device):
    logits, bias = random(tokens, experts, spread=2), random(experts, seed=1, spread=0.3)
    indices, weights = route(logits.to(device), bias.to(device), top_k)
    expected_indices, expected_weights = reference(scores_of(logits.to(device)), bias, top_k)
    assert torch.equal(indices, expected_indices)
    torch.testing.assert_close(weights.double(), expected_weights, rtol=4e-7, atol=0)


def test_equal_keys_go_to_the_lower_expert(device):
    logits = torch.zeros(2, 40)
    logits[1, ::3] = 1.0
    indices, _ = route(logits.to(device), torch.zeros(40, device=device), 16)
    assert indices[0].tolist() == list(range(16))
    assert indices[1].tolist() == [*range(0, 40, 3), 1, 2]
    # Coarse biases: many keys agree although the scores differ in their last bits.
    logits, bias = random(8, 96, spread=1e-3), random(96, seed=2, spread=1e4).round(decimals=-4)
    indices, _ = route(logits.to(device), bias.to(device), 12)
    assert torch.equal(indices, reference(scores_of(logits.to(device)), bias, 12)[0])


def test_negative_keys_keep_their_order(device):
    logits, bias = random(4, 50, seed=3), random(50, seed=4) - 5
    indices, _ = route(logits.to(device), bias.to(device), 50)
    assert torch.equal(indices, reference(scores_of(logits.to(device)), bias, 50)[0])


def test_images_have_a_bias_of_their_own(device):
    logits, bias, bias_vl = random(7, 24, seed=5), random(24, seed=6), random(24, seed=7)
    mask = torch.tensor([True, False, False, True, True, False, True])
    indices, _ = route(logits.to(device), bias.to(device), 4, bias_vl=bias_vl.to(device), image_mask=mask.to(device))
    chosen = torch.where(mask[:, None], bias_vl, bias)
    assert torch.equal(indices, reference(scores_of(logits.to(device)), chosen, 4)[0])
    assert not torch.equal(indices, route(logits.to(device), bias.to(device), 4)[0])


def test_without_renormalising(device):
    logits, bias = random(3, 12, seed=8), random(12, seed=9)
    indices, weights = route(logits.to(device), bias.to(device), 2, renormalize=False, scaling=2.5)
    torch.testing.assert_close(weights, 2.5 * scores_of(logits.to(device)).gather(1, indices))


def test_scores_that_have_all_vanished_weigh_nothing(device):
    indices, weights = route(torch.full((1, 8), -500.0, device=device), torch.zeros(8, device=device), 3)
    assert indices.tolist() == [[0, 1, 2]]
    assert weights.tolist() == [[0.0, 0.0, 0.0]]


def test_nan_orders_as_in_torch_and_indices_stay_experts(device):
    logits = random(4, 20, seed=10)
    logits[0, 7] = torch.nan
    logits[1] = torch.nan
    logits[2, [3, 11]] = torch.tensor([-torch.nan, torch.inf])
    bias = torch.zeros(20)
    indices, weights = route(logits.to(device), bias.to(device), 5)
    expected = torch.sort(sqrt_softplus(logits), dim=-1, descending=True, stable=True).indices[:, :5]
    assert torch.equal(indices, expected)
    assert weights[:2].isnan().all()
    assert weights[3].isfinite().all()


STRIDED = {
    "rows with gaps": lambda x: x[:, 3:27],
    "every third row": lambda x: x[::3, :24],
    "every second expert": lambda x: x[:, ::2],
    "transposed": lambda x: x[:24].T,
    "one row for all": lambda x: x[:1].expand(5, -1),
}


@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED.keys())
def test_any_strides(view, device):
    logits = view(random(30, 48, seed=11))
    bias = random(2 * logits.shape[1], seed=12)[::2]
    mask = torch.zeros(len(logits), 2, dtype=torch.bool)
    mask[::2, 0] = True
    mask = mask[:, 0]
    bias_vl = -bias
    inputs = [t.to(device) for t in (logits, bias, bias_vl, mask)]
    packed = [t.contiguous().to(device) for t in (logits, bias, bias_vl, mask)]
    for got, expected in zip(
        route(inputs[0], inputs[1], 4, bias_vl=inputs[2], image_mask=inputs[3]),
        route(packed[0], packed[1], 4, bias_vl=packed[2], image_mask=packed[3]),
        strict=True,
    ):
        assert torch.equal(got, expected)


def test_offsets_beyond_32_bits(device):
    """Two rows 2^31 elements apart, in the middle of a buffer, so that a wrapped offset stays inside."""
    buffer = torch.empty(2**31 + 2**29, dtype=torch.float32, device=device)
    rows = buffer.as_strided((2, 16), (2**31 + 64, 1), storage_offset=2**10)
    logits, bias = random(2, 16, seed=13), random(16, seed=14).to(device)
    rows.copy_(logits)
    for got, expected in zip(route(rows, bias, 3), route(logits.to(device), bias, 3), strict=True):
        assert torch.equal(got, expected)


def test_all_of_the_output_is_written_and_nothing_else(device):
    logits, bias = random(5, 24, seed=15).to(device), random(24, seed=16).to(device)
    expected = route(logits, bias, 3)
    for poison in (-1, 12345):
        indices = torch.full((9, 3), poison, dtype=torch.int64, device=device)
        weights = torch.full((9, 3), torch.nan, device=device)
        router_launch(logits, bias, None, None, indices[2:7], weights[2:7], renormalize=True, scaling=1.5).run()
        assert torch.equal(indices[2:7].cpu(), expected[0])
        assert torch.equal(weights[2:7].cpu(), expected[1])
        assert (indices[[0, 1, 7, 8]] == poison).all()
        assert weights[[0, 1, 7, 8]].isnan().all()


def test_no_tokens(device):
    indices, weights = route(torch.empty(0, 16, device=device), torch.zeros(16, device=device), 4)
    assert indices.shape == weights.shape == (0, 4)


def test_repeated_launches_agree(device):
    logits, bias = random(6, 48, seed=17).to(device), random(48, seed=18).to(device)
    first = route(logits, bias, 6)
    for _ in range(19 if device.type == "cuda" else 3):
        again = route(logits, bias, 6)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


def test_cost_counts_each_byte_once():
    assert route_tokens_cost(1, 384, 6) == (4 * 384 * 2 + 6 * 12, 0)
    assert route_tokens_cost(10, 384, 6, images=True) == (4 * 384 * 12 + 10 + 60 * 12, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.zeros(2, 8, dtype=torch.bfloat16)}, r"logits are torch.bfloat16 \[2, 8\]"),
        ({"logits": torch.zeros(2, 1025)}, r"\[2, 1025\].*1 to 1024"),
        ({"logits": torch.zeros(8)}, r"\[8\]"),
        ({"bias": torch.zeros(7)}, r"bias is torch.float32 \[7\].*\[8\]"),
        ({"bias_vl": torch.zeros(8, dtype=torch.float16)}, "bias_vl is torch.float16"),
        ({"top_k": 9}, "top_k is 9; expected 1 to 8"),
        ({"top_k": 0}, "top_k is 0"),
        ({"image_mask": torch.zeros(2)}, r"image_mask is torch.float32 \[2\].*torch.bool \[2\]"),
        ({"image_mask": torch.zeros(3, dtype=torch.bool)}, r"\[3\].*\[2\]"),
        ({"image_mask": torch.zeros(2, dtype=torch.bool), "bias_vl": None}, "bias_vl is None"),
    ],
    ids=lambda value: None,
)
def test_names_what_it_cannot_take(changes, message):
    good = {
        "logits": torch.zeros(2, 8),
        "bias": torch.zeros(8),
        "bias_vl": torch.zeros(8),
        "image_mask": None,
        "top_k": 2,
        "renormalize": True,
        "scaling": 1.5,
    }
    with pytest.raises(ValueError, match=message):
        route_tokens(**{**good, **changes})
