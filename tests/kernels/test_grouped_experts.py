"""Grouping exact; the experts' kernels at most twice as far from the truth as torch with dequantised weights."""

from __future__ import annotations

import pytest
import torch

from ds41.kernels import grouped_experts
from ds41.kernels.expert_products import compile_cases, experts_down_launch, experts_up_launch
from ds41.kernels.expert_tiles import ExpertTiles, rows_per_tile
from ds41.kernels.group_tokens import group_tokens, group_tokens_cost, group_tokens_launch, most_tiles
from ds41.kernels.grouped_experts import (
    distinct_experts,
    experts_down,
    experts_down_cost,
    experts_packed,
    experts_packed_cost,
    experts_up,
    experts_up_cost,
)
from ds41.kernels.sum_choices import sum_choices_launch
from ds41.linear import quantize_input
from ds41.moe import swiglu
from ds41.weight_formats import EXPERT_ROWS

LIMIT = 0.8
TYPES = [torch.float32, torch.bfloat16, torch.float16]
each_type = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t).removeprefix("torch."))
# Exponentials run out of fp32; under the interpreter numpy mentions it.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=["dot", "sums"])
def formulation(request, monkeypatch):
    """The form for GPUs with matrix units, and that for sm_75; which of them a device runs is no matter of numbers."""
    if request.param == "sums":
        monkeypatch.setattr(grouped_experts, "capability", lambda tensor: 75)
    elif torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the GPU has no matrix unit that tl.dot uses")
    return request.param


def expected_groups(indices: torch.Tensor, experts: int, block_m: int) -> tuple[list[int], list[int]]:
    order, tile_experts = [], []
    for expert in range(experts):
        pairs = (indices.flatten() == expert).nonzero().flatten().tolist()
        tiles = -(-len(pairs) // block_m)
        order += pairs + [-1] * (tiles * block_m - len(pairs))
        tile_experts += [expert] * tiles
    tiles = most_tiles(indices.numel(), experts, block_m)
    order += [-1] * (tiles * block_m - len(order))
    return order, tile_experts + [-1] * (tiles - len(tile_experts))


def distinct_choices(tokens: int, top_k: int, experts: int, seed: int = 0) -> torch.Tensor:
    scores = torch.rand(tokens, experts, generator=generator(seed))
    return scores.topk(top_k).indices


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "block_m"),
    [(1, 6, 9, 16), (37, 3, 5, 4), (1, 1, 1, 1), (2, 3, 20, 16), (400, 3, 4, 64), (13, 2, 16, 1)],
)
def test_groups(tokens, top_k, experts, block_m, device):
    indices = distinct_choices(tokens, top_k, experts)
    order, tile_experts = group_tokens(indices.to(device), experts, block_m)
    assert order.dtype == tile_experts.dtype == torch.int32
    assert (order.tolist(), tile_experts.tolist()) == expected_groups(indices, experts, block_m)


def test_all_tokens_with_one_expert(device):
    indices = torch.full((50, 1), 2)
    order, tile_experts = group_tokens(indices.to(device), 4, 16)
    assert (order.tolist(), tile_experts.tolist()) == expected_groups(indices, 4, 16)
    assert tile_experts[:4].tolist() == [2] * 4


def test_the_worst_routing_fits_exactly():
    """One pair an expert, and one expert with the rest: no tile is left over."""
    indices = torch.arange(5)[:, None]
    assert group_tokens(indices, 5, 16)[1].tolist() == [0, 1, 2, 3, 4]
    assert most_tiles(0, 5, 16) == 0
    assert most_tiles(6, 384, 16) == 6


def test_numbers_that_are_no_expert_are_left_out(device):
    indices = torch.tensor([[0, -1], [3, 1], [7, 1], [2**40, -(2**40)]])
    order, tile_experts = group_tokens(indices.to(device), 3, 4)
    assert (order.tolist(), tile_experts.tolist()) == expected_groups(indices, 3, 4)


def test_groups_of_any_strides(device):
    indices = distinct_choices(6, 4, 7, seed=1)
    for view in (lambda x: x.T.contiguous().T, lambda x: x[:, ::2], lambda x: x[::3]):
        got = group_tokens(view(indices.to(device)), 7, 16)
        assert tuple(part.tolist() for part in got) == expected_groups(view(indices), 7, 16)


def test_groups_write_all_of_their_output_and_nothing_else(device):
    indices = distinct_choices(9, 2, 4, seed=2)
    expected = expected_groups(indices, 4, 16)
    tiles = most_tiles(18, 4, 16)
    for poison in (-77, 5):
        order = torch.full((tiles * 16 + 2048,), poison, dtype=torch.int32, device=device)
        marks = torch.full((tiles + 2048,), poison, dtype=torch.int32, device=device)
        inner = slice(1024, -1024)
        group_tokens_launch(indices.to(device), order[inner], marks[inner], experts=4).run()
        assert (order[inner].tolist(), marks[inner].tolist()) == expected
        for buffer in (order, marks):
            assert (buffer[:1024] == poison).all()
            assert (buffer[-1024:] == poison).all()


class Weights:
    """Packed experts of random weights whose rows differ in magnitude, on a device; and the same as fp32 numbers."""

    def __init__(self, experts: int, inner: int, channels: int, device: torch.device, seed: int = 0) -> None:
        self.packed, self.values = {}, {}
        shapes = {"w1": (inner, channels), "w3": (inner, channels), "w2": (channels, inner)}
        for place, (name, shape) in enumerate(shapes.items()):
            weight = torch.randn(experts, *shape, generator=generator(seed + place)) * shape[1] ** -0.5
            weight *= torch.exp2(torch.randint(-2, 3, (experts, shape[0], 1), generator=generator(seed + place)))
            packed = EXPERT_ROWS.encode(weight)
            self.packed |= {f"{name}_codes": packed.codes.to(device), f"{name}_scales": packed.scales.to(device)}
            self.values[name] = EXPERT_ROWS.decode(packed, torch.float32)

    def up(self) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in self.packed.items() if not name.startswith("w2")}

    def down(self) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in self.packed.items() if name.startswith("w2")}


def reference(x, indices, routing, weights: Weights, dtype: torch.dtype, rounds: bool = False) -> torch.Tensor:
    """Pair by pair as in ds41.moe.Experts, products in ``dtype``; in double precision, nothing is rounded between."""
    wide = torch.promote_types(dtype, torch.float32)
    rounded = quantize_input if rounds else lambda t: t
    w1, w3, w2 = (weights.values[name].to(dtype) for name in ("w1", "w3", "w2"))
    x = rounded(x.to(dtype))
    out = torch.zeros(len(x), w2.shape[1], dtype=wide)
    for token, choice in (indices >= 0).nonzero().tolist():
        expert = indices[token, choice]
        gate, up = (w[expert] @ x[token] for w in (w1, w3))
        if dtype == torch.float64:
            gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
            hidden = gate * torch.sigmoid(gate) * up
        else:
            hidden = swiglu(gate, up, LIMIT)
        hidden = rounded((hidden * routing[token, choice]).to(dtype))
        out[token] += (w2[expert] @ hidden).to(wide)
    return out


def problem(tokens: int, top_k: int, weights: Weights, dtype: torch.dtype, seed: int = 0) -> tuple:
    experts, _, channels = weights.values["w1"].shape
    x = torch.randn(tokens, channels, generator=generator(seed)).to(dtype)
    routing = torch.rand(tokens, top_k, generator=generator(seed + 1)) + 0.1
    return x, distinct_choices(tokens, top_k, experts, seed + 2), routing


def run(x, indices, routing, weights: Weights, device, round_inputs: bool = False) -> torch.Tensor:
    inputs = [t.to(device) for t in (x, indices, routing)]
    out = experts_packed(*inputs, **weights.packed, limit=LIMIT, round_inputs=round_inputs)
    assert out.dtype == torch.float32
    assert out.shape == x.shape
    return out.cpu()


def assert_twice_as_close(ours, torchs, exact) -> None:
    """Up to a few units of fp32, since torch may be lucky."""
    ours, torchs = ((t.double() - exact).norm() for t in (ours, torchs))
    assert ours <= 2 * torchs + 3e-7 * exact.norm()


@each_type
@pytest.mark.parametrize(("tokens", "inner", "channels"), [(3, 96, 160), (1, 32, 32)], ids=str)
def test_as_close_as_torch_with_dequantised_weights(tokens, inner, channels, dtype, formulation, device):
    weights = Weights(4, inner, channels, device)
    inputs = problem(tokens, 2, weights, dtype)
    exact = reference(inputs[0].double(), *inputs[1:], weights, torch.float64)
    assert_twice_as_close(run(*inputs, weights, device), reference(*inputs, weights, dtype), exact)


def test_both_clamps_act_and_matter(device):
    weights = Weights(4, 96, 160, device)
    x, indices, _ = problem(3, 2, weights, torch.float32)
    projected = [torch.einsum("nkic,nc->nki", weights.values[name][indices], x) for name in ("w1", "w3")]
    assert (projected[0] > LIMIT).any()
    assert (projected[0] < -LIMIT).any()
    assert (projected[1].abs() > LIMIT).any()


@pytest.mark.parametrize("block_m", [16, 64, 128])
@each_type
def test_every_tile_height(block_m, dtype, device, monkeypatch):
    """More rows for an expert than a tile has, or fewer; what prefill and decode run."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the GPU has no matrix unit that tl.dot uses")
    monkeypatch.setattr(grouped_experts, "rows_per_tile", lambda *arguments: block_m)
    weights = Weights(3, 64, 96, device, seed=3)
    inputs = problem(30, 2, weights, dtype, seed=3)
    exact = reference(inputs[0].double(), *inputs[1:], weights, torch.float64)
    assert_twice_as_close(run(*inputs, weights, device), reference(*inputs, weights, dtype), exact)


def test_rows_per_tile_grow_with_the_rows_an_expert_gets():
    heights = [rows_per_tile(6 * tokens, 384, torch.bfloat16, 90) for tokens in (0, 1, 1024, 2048, 8192)]
    assert heights == [16, 16, 16, 64, 128]
    assert rows_per_tile(49152, 384, torch.float32, 90) == 64
    assert rows_per_tile(49152, 384, torch.bfloat16, 75) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_hidden_is_rounded_as_the_reference_rounds_it(dtype, formulation, device):
    """One code apart where sums in another order fall on the other side of a midpoint, and that rarely."""
    weights = Weights(2, 96, 64, device, seed=4)
    x, indices, routing = problem(3, 2, weights, dtype, seed=4)
    order, tiles = group_tokens(indices.to(device), 2, 16 if formulation == "dot" else 4)
    inputs = (x.to(device), order, tiles, routing.to(device))
    plain, rounded = (experts_up(*inputs, **weights.up(), limit=LIMIT, round_output=r).cpu() for r in (False, True))
    assert rounded.dtype == dtype
    assert torch.equal(rounded, quantize_input(plain))
    assert not torch.equal(rounded, plain)


def test_rounded_inputs(device):
    weights = Weights(3, 64, 96, device, seed=5)
    inputs = problem(4, 2, weights, torch.float32, seed=5)
    out = run(*inputs, weights, device, round_inputs=True).double()
    expected = reference(*inputs, weights, torch.float32, rounds=True)
    # A product on a midpoint may round to the other side: one unit of FP8 in one of 64 channels.
    assert (out - expected).norm() < 3e-3 * expected.norm()
    assert (run(*inputs, weights, device) - expected).norm() > 1e-2 * expected.norm()


def test_every_code_and_scale_is_decoded_exactly(formulation, device):
    """Products with one row of the identity read single weights: all sixteen codes under scales over the fp32 range."""
    scales = torch.tensor([0, 1, 60, 100, 126, 127, 128, 160, 200, 230, 248, 250]).to(torch.uint8)
    codes = torch.arange(16, dtype=torch.uint8)
    codes = (codes | (codes.flip(0) << 4)).repeat(12, 1)[None]
    values = EXPERT_ROWS.decode((codes, scales[None, :, None]), torch.float32)[0]
    w2 = {"w2_codes": codes.to(device), "w2_scales": scales[None, :, None].to(device)}
    indices = torch.zeros(32, 1, dtype=torch.int64, device=device)
    order, tiles = group_tokens(indices, 1, 16 if formulation == "dot" else 4)
    hidden = torch.zeros(len(order), 32, device=device)
    hidden[:32] = torch.eye(32)
    out = experts_down(hidden, order, tiles, indices, **w2)
    assert torch.equal(out.cpu().T, values)


def test_a_nan_scale_reaches_its_output_alone(formulation, device):
    weights = Weights(2, 64, 96, device, seed=6)
    weights.packed["w2_scales"][1, 5, 1] = 255
    inputs = problem(4, 1, weights, torch.float32, seed=6)
    out = run(*inputs, weights, device)
    hit = torch.zeros(out.shape, dtype=torch.bool)
    hit[(inputs[1][:, 0] == 1), 5] = True
    assert hit.any()
    assert torch.equal(out.isnan(), hit)


def test_nan_in_a_token_stays_with_that_token(formulation, device):
    weights = Weights(2, 64, 96, device, seed=7)
    x, indices, routing = problem(5, 2, weights, torch.float32, seed=7)
    clean = run(x, indices, routing, weights, device)
    x[2, 7] = torch.nan
    out = run(x, indices, routing, weights, device)
    assert out[2].isnan().all()
    assert torch.equal(out[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_choices_that_are_no_expert_add_nothing(device):
    weights = Weights(3, 32, 64, device, seed=8)
    x, indices, routing = problem(4, 2, weights, torch.float32, seed=8)
    indices[1, 0] = -1
    indices[2] = -1
    out = run(x, indices, routing, weights, device)
    exact = reference(x.double(), indices, routing, weights, torch.float64)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-5)
    assert (out[2] == 0).all()
    indices[indices < 0] = 3
    assert torch.equal(run(x, indices, routing, weights, device), out)


def test_a_token_does_not_depend_on_the_tokens_beside_it(device):
    weights = Weights(3, 64, 96, device, seed=9)
    x, indices, routing = problem(6, 2, weights, torch.bfloat16, seed=9)
    together = run(x, indices, routing, weights, device)
    assert torch.equal(together[4:5], run(x[4:5], indices[4:5], routing[4:5], weights, device))


def test_inputs_of_any_strides(device):
    weights = Weights(3, 32, 64, device, seed=10)
    x, indices, routing = problem(5, 2, weights, torch.bfloat16, seed=10)
    expected = run(x, indices, routing, weights, device)
    wide = torch.cat([x, x], dim=1)[:, :64]
    assert torch.equal(run(wide, indices.T.contiguous().T, routing.T.contiguous().T, weights, device), expected)
    assert torch.equal(run(x.T.contiguous().T, indices, routing, weights, device), expected)
    gaps = Weights(3, 32, 64, device, seed=10)
    for name, part in gaps.packed.items():
        padded = torch.full((3, part.shape[1] + 3, part.shape[2] + 16), 0xAA, dtype=torch.uint8, device=device)
        padded[:, : part.shape[1], : part.shape[2]] = part
        gaps.packed[name] = padded[:, : part.shape[1], : part.shape[2]]
    assert torch.equal(run(x, indices, routing, gaps, device), expected)


def test_experts_far_apart(formulation, device):
    """Experts and rows whose offsets pass 2^31, in the middle of a buffer, so that a wrapped offset stays inside."""
    weights = Weights(2, 32, 32, device, seed=11)
    inputs = problem(2, 2, weights, torch.float32, seed=11)
    expected = run(*inputs, weights, device)
    buffer = torch.empty(2**33, dtype=torch.uint8, device=device)
    for place, (name, part) in enumerate(weights.packed.items()):
        strides = (2**31 + 2**27, 2**26, 1)
        far = buffer.as_strided(part.shape, strides, storage_offset=2**31 + place * 2**12)
        far.copy_(part)
        weights.packed[name] = far
    assert torch.equal(run(*inputs, weights, device), expected)


def test_all_of_the_output_is_written_and_nothing_else(formulation, device):
    """Outputs start poisoned inside larger buffers; tiles without pairs come out as zeros, not as what was there."""
    weights = Weights(4, 32, 64, device, seed=12)
    x, indices, routing = (t.to(device) for t in problem(3, 2, weights, torch.float32, seed=12))
    indices[0] = -1
    target, block_m = (75, 4) if formulation == "sums" else (0, 16)
    target = 80 if formulation == "dot" and device.type == "cuda" else target
    tiles = ExpertTiles.of(block_m, x.dtype, target)
    order, marks = group_tokens(indices, 4, block_m)
    assert (marks == -1).any()
    w1, w3, w2 = ((weights.packed[f"{n}_codes"], weights.packed[f"{n}_scales"]) for n in ("w1", "w3", "w2"))
    expected = experts_up(x, order, marks, routing, *w1, *w3, LIMIT, False)
    assert (expected[order < 0] == 0).all()

    hidden = torch.full((len(order) + 256, 32), torch.nan, device=device)
    shared = {"tiles": tiles, "target": target}
    experts_up_launch(
        x, order, marks, routing, w1, w3, hidden[128:-128], limit=LIMIT, round_output=False, **shared
    ).run()
    assert torch.equal(hidden[128:-128], expected)
    assert hidden[:128].isnan().all()
    assert hidden[-128:].isnan().all()

    rows = torch.full((6 + 256, 64), torch.nan, device=device)
    experts_down_launch(expected, order, marks, *w2, rows[128:-128], **shared).run()
    present = (indices.flatten() >= 0).cpu()
    assert torch.equal(rows[128:-128].isfinite().all(-1).cpu(), present)
    assert torch.equal(rows[128:-128].isnan().all(-1).cpu(), ~present)
    assert rows[:128].isnan().all()
    assert rows[-128:].isnan().all()

    out = torch.full((3 + 2, 64), torch.nan, device=device)
    sum_choices_launch(rows[128:-128], indices, None, out[1:-1], experts=4).run()
    assert torch.equal(out[1:-1], experts_down(expected, order, marks, indices, *w2))
    assert out[[0, -1]].isnan().all()


def test_repeated_runs_agree(formulation, device):
    weights = Weights(3, 64, 96, device, seed=13)
    inputs = problem(4, 2, weights, torch.bfloat16, seed=13)
    first = run(*inputs, weights, device)
    for _ in range(19 if device.type == "cuda" else 1):
        assert torch.equal(run(*inputs, weights, device), first)


def test_no_tokens(device):
    weights = Weights(3, 32, 64, device)
    inputs = torch.empty(0, 64), torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2)
    for round_inputs in (False, True):
        assert run(*inputs, weights, device, round_inputs).shape == (0, 64)
    nothing = torch.empty(5, 64), torch.empty(5, 0, dtype=torch.int64), torch.empty(5, 0)
    assert torch.equal(run(*nothing, weights, device), torch.zeros(5, 64))


def test_costs():
    expert = 3 * 5120 * 2304
    moved, operations = experts_packed_cost(1, 6, 384, 5120, 2304, 2, visited=6)
    assert operations == 2 * 6 * expert
    assert moved == 6 * 18_800_640 + 5120 * 6 + 6 * 12
    parts = [cost(16, 6, 384, 5120, 2304, 2, visited=85) for cost in (experts_up_cost, experts_down_cost)]
    assert sum(part[1] for part in parts) == experts_packed_cost(16, 6, 384, 5120, 2304, 2, visited=85)[1]
    assert sum(part[0] for part in parts) > experts_packed_cost(16, 6, 384, 5120, 2304, 2, visited=85)[0]
    assert distinct_experts(1, 6, 384) == pytest.approx(6)
    assert distinct_experts(16, 6, 384) == pytest.approx(384 * (1 - (378 / 384) ** 16))
    assert group_tokens_cost(1, 6, 384, 16) == (8 * 6 + 4 * 17 * 6, 0)


def test_compile_cases_cover_all_targets_at_the_published_shape():
    targets = {operation: set() for operation in ("up", "down")}
    for case in compile_cases():
        constants = case.launch.constants
        assert {constants["COLUMNS"], constants["OUTPUTS"]} == {5120, 2304}
        assert case.matrix == constants["DOT"]
        targets[case.name.split("_")[1]] |= set(case.targets)
    assert targets == {"up": {75, 80, 86, 89, 90, 100, 120}, "down": {75, 80, 86, 89, 90, 100, 120}}


GOOD = {
    "x": torch.zeros(2, 64),
    "indices": torch.zeros(2, 1, dtype=torch.int64),
    "weights": torch.zeros(2, 1),
    **Weights(2, 32, 64, torch.device("cpu")).packed,
    "limit": 1.0,
    "round_inputs": False,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(2, 64, dtype=torch.float64)}, r"x is torch.float64 \[2, 64\]"),
        ({"x": torch.zeros(2, 40)}, "rows have 40 channels"),
        ({"x": torch.zeros(2, 96)}, r"w1_codes are \[2, 32, 32\]; expected \[2, 32, 48\] for 96"),
        ({"x": torch.zeros(3, 64)}, r"expected \[3, k\]"),
        ({"indices": torch.zeros(2, 1, dtype=torch.int32)}, "indices are torch.int32"),
        ({"weights": torch.zeros(2, 1, dtype=torch.bfloat16)}, "weights are torch.bfloat16"),
        ({"weights": torch.zeros(2, 2)}, r"weights \[2, 2\]"),
        ({"w1_scales": torch.zeros(2, 32, 3, dtype=torch.uint8)}, r"w1_scales are \[2, 32, 3\]; expected \[2, 32, 2\]"),
        ({"w3_codes": torch.zeros(2, 32, 32, dtype=torch.int8)}, "w3_codes are torch.int8"),
        ({"w2_codes": torch.zeros(2, 64, 32, dtype=torch.uint8)[..., ::2]}, r"w2_codes .*strides \[2048, 32, 2\]"),
        ({"limit": 0.0}, "limit is 0.0"),
    ],
    ids=lambda value: None,
)
def test_names_what_it_cannot_take(changes, message):
    with pytest.raises(ValueError, match=message):
        experts_packed(**{**GOOD, **changes})


def test_groups_name_what_they_cannot_take():
    with pytest.raises(ValueError, match="experts is 0"):
        group_tokens(torch.zeros(1, 1, dtype=torch.int64), 0, 16)
    with pytest.raises(ValueError, match=r"indices are torch.int64 \[3\]"):
        group_tokens(torch.zeros(3, dtype=torch.int64), 1, 16)
    with pytest.raises(ValueError, match="block_m is 8; expected 16 or more"):
        ExpertTiles.of(8, torch.bfloat16, 90)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_shared_expert_is_added_last_in_its_own_type(dtype, device):
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(2)).to(device)
    indices = torch.tensor([[0, 1], [2, 9], [9, 9]], device=device)
    shared = torch.randn(3, 80, generator=torch.Generator().manual_seed(3)).to(device, dtype)[:, ::2]
    out = torch.full((3, 40), float("nan"), dtype=dtype, device=device)
    sum_choices_launch(rows, indices, shared.contiguous(), out, experts=4).run()
    wanted = torch.stack((rows[0] + rows[1], rows[2], torch.zeros_like(rows[0]))) + shared.float()
    assert torch.equal(out, wanted.to(dtype))
