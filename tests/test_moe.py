"""Router and experts against hand-computed numbers, a per-token reference in double precision, and golden tensors."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ds41 import ModelConfig
from ds41.config import ConfigError
from ds41.linear import quantize_input
from ds41.moe import Experts, MoE, Router, grouped_product, sqrt_softplus, swiglu

CONFIG = dataclasses.replace(
    ModelConfig.nano(),
    hidden_size=32,
    moe_intermediate_size=48,
    n_routed_experts=6,
    num_experts_per_tok=3,
    # Small enough that both clamps act on the test's activations.
    swiglu_limit=0.6,
    initializer_range=0.3,
)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def router_of(logits: list[float], top_k: int, **changes) -> tuple[Router, torch.Tensor]:
    """A router and one token whose logits are given."""
    config = dataclasses.replace(CONFIG, n_routed_experts=len(logits), num_experts_per_tok=top_k, **changes)
    router = Router(config)
    token = torch.zeros(1, config.hidden_size)
    token[0, 0] = 1
    with torch.no_grad():
        router.weight[:, 0] = torch.tensor(logits)
    return router, token


def biased_moe(seed: int = 0, **options) -> MoE:
    torch.manual_seed(seed)
    moe = MoE(CONFIG, **options)
    with torch.no_grad():
        moe.gate.bias.normal_(0, 0.3)
        moe.gate.bias_vl.normal_(0, 0.3)
    return moe


def reference_moe(moe: MoE, x: torch.Tensor, image_mask: torch.Tensor) -> torch.Tensor:
    """Token by token, expert by expert, in double precision and with plain Python's sort."""

    def expert(token, w1, w2, w3, weight):
        gate = torch.clamp(w1.double() @ token, max=CONFIG.swiglu_limit)
        up = torch.clamp(w3.double() @ token, min=-CONFIG.swiglu_limit, max=CONFIG.swiglu_limit)
        return w2.double() @ (gate * torch.sigmoid(gate) * up * weight)

    rows = []
    for token, is_image in zip(x.double(), image_mask.tolist(), strict=True):
        scores = torch.log1p(torch.exp(moe.gate.weight.double() @ token)).sqrt()
        keys = scores + (moe.gate.bias_vl if is_image else moe.gate.bias)
        chosen = sorted(range(len(keys)), key=lambda e: (-keys[e].item(), e))[: CONFIG.num_experts_per_tok]
        total = sum(scores[e] for e in chosen)
        shared = moe.shared_experts
        row = expert(token, shared.w1.weight, shared.w2.weight, shared.w3.weight, 1.0)
        for e in chosen:
            weight = CONFIG.routed_scaling_factor * scores[e] / total
            row = row + expert(token, moe.experts.w1[e], moe.experts.w2[e], moe.experts.w3[e], weight)
        rows.append(row)
    return torch.stack(rows)


def test_router_self_check():
    router, token = router_of([0.0, 1.0, -1.0, 2.0, -3.0, 0.5], top_k=3)
    with torch.no_grad():
        router.bias[[2, 4]] = 0.9
    routing = router(token)
    expected = torch.tensor([[0.8325546, 1.1459763, 0.5596979, 1.4583991, 0.2204254, 0.9869534]])
    torch.testing.assert_close(routing.scores, expected, rtol=0, atol=2e-7)
    # Keys: expert 2 has 1.4597 and so goes before 3; the weights are of the unbiased scores.
    assert routing.indices.tolist() == [[2, 3, 1]]
    expected = torch.tensor([[0.2653373, 0.6913869, 0.5432758]])
    torch.testing.assert_close(routing.weights, expected, rtol=0, atol=2e-7)
    assert routing.weights.sum().item() == pytest.approx(1.5)


def test_equal_keys_go_to_the_lower_expert():
    router, token = router_of([1.0] * 300, top_k=5)
    assert router(token.expand(64, -1)).indices.tolist() == [[0, 1, 2, 3, 4]] * 64
    router, token = router_of([0.0, 2.0, 1.0, 2.0, 1.0, 1.0], top_k=4)
    assert router(token).indices.tolist() == [[1, 3, 2, 4]]


def test_image_bias_acts_on_image_tokens_only():
    router, token = router_of([3.0, 2.0, 1.0, 0.0], top_k=1)
    with torch.no_grad():
        router.bias[1] = 5.0
        router.bias_vl[2] = 5.0
    tokens = token.expand(3, -1)
    mask = torch.tensor([False, True, False])
    assert router(tokens, mask).indices.tolist() == [[1], [2], [1]]
    assert router(tokens).indices.tolist() == [[1], [1], [1]]
    torch.testing.assert_close(router(tokens, mask).scores[1], router(tokens).scores[1])


@pytest.mark.parametrize("mask", [torch.ones(2, dtype=torch.bool), torch.ones(3), torch.ones(3, 1, dtype=torch.bool)])
def test_a_wrong_image_mask_is_named(mask):
    router, token = router_of([1.0, 2.0], top_k=1)
    with pytest.raises(ValueError, match=r"image_mask is torch\.\w+ \[[\d, ]+\]; expected torch\.bool \[3\]"):
        router(token.expand(3, -1), mask)


def test_renormalisation():
    logits, score = [1.0, 2.0, 0.0], sqrt_softplus(torch.tensor([1.0, 2.0])).tolist()
    one, token = router_of(logits, top_k=1)
    assert one(token).weights.tolist() == [[pytest.approx(1.5 * score[1])]]
    plain, token = router_of(logits, top_k=2, norm_topk_prob=False)
    assert plain(token).weights.tolist() == [[pytest.approx(1.5 * score[1]), pytest.approx(1.5 * score[0])]]
    # Scores of 1e-20 in all: the sum is not lost in its epsilon.
    tiny, token = router_of([-92.0, -92.0, -300.0], top_k=2)
    share = sqrt_softplus(torch.tensor(-92.0)).item()
    assert tiny(token).weights.tolist() == [[pytest.approx(1.5 * share / (2 * share + 1e-20))] * 2]


def test_vanished_scores_have_no_gradient():
    x = torch.tensor([-300.0, -1.0, 0.0, 30.0, 300.0], requires_grad=True)
    scores = sqrt_softplus(x)
    (gradient,) = torch.autograd.grad(scores.sum(), x)
    softplus = torch.nn.functional.softplus(x.detach().double())
    torch.testing.assert_close(scores.detach(), softplus.sqrt().float())
    expected = torch.sigmoid(x.detach().double()) / (2 * softplus.sqrt())
    torch.testing.assert_close(gradient[1:], expected[1:].float())
    assert gradient[0] == 0


def test_router_is_float32_whatever_comes():
    moe = biased_moe(dtype=torch.bfloat16)
    x = torch.randn(16, 32).to(torch.bfloat16)
    assert {p.dtype for p in moe.gate.parameters()} == {torch.float32}
    plain = moe.gate(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        inside = moe.gate(x)
    for low, high in zip(inside, plain, strict=True):
        torch.testing.assert_close(low, high, rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"router's weight is torch\.bfloat16; expected torch\.float32"):
        moe.to(torch.bfloat16)(x)


def test_swiglu_clamps_the_gate_from_above_only():
    gate = torch.tensor([-50.0, 50.0, 10.0, 1.0, 1.0])
    up = torch.tensor([1.0, 1.0, 1.0, 50.0, -50.0])
    silu = torch.nn.functional.silu
    expected = [silu(gate[0]), silu(torch.tensor(10.0)), silu(torch.tensor(10.0)), silu(gate[3]) * 10]
    expected.append(silu(gate[4]) * -10)
    found = swiglu(gate.to(torch.bfloat16), up.to(torch.bfloat16), 10.0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=0)
    # silu has its minimum near -1.28; a gate clamped at -10 would give -4.5e-4.
    assert abs(found[0].item()) < 1e-19


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_moe_equals_the_reference_with_gradients(tokens):
    moe = biased_moe()
    x = torch.randn(tokens, 32, requires_grad=True)
    mask = torch.arange(tokens) % 3 == 1
    out = moe(x, mask)
    expected = reference_moe(moe, x, mask)
    assert relative(out, expected) < 1e-6
    parameters = [p for p in moe.parameters() if p.requires_grad]
    direction = torch.randn(tokens, 32)
    found = torch.autograd.grad((out * direction).sum(), [x, *parameters])
    wanted = torch.autograd.grad((expected * direction).sum(), [x, *parameters])
    for mine, other in zip(found, wanted, strict=True):
        assert relative(mine, other) < 1e-5
    # Both clamps were exercised.
    gates, ups = moe.shared_experts.w1(x), moe.shared_experts.w3(x)
    assert (gates > CONFIG.swiglu_limit).any()
    assert (gates < -CONFIG.swiglu_limit).any()
    assert (ups.abs() > CONFIG.swiglu_limit).any()


def test_gradient_reaches_the_routing_weights():
    experts = biased_moe().experts
    x, indices = torch.randn(5, 32), torch.tensor([[0, 1, 4], [4, 0, 2], [1, 2, 0], [2, 4, 1], [0, 2, 1]])
    weights = torch.rand(5, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(experts(x, indices, weights).sum(), weights)
    for t in range(5):
        for slot in range(3):
            alone = experts(x[t : t + 1], indices[t : t + 1, slot : slot + 1], torch.ones(1, 1))
            assert gradient[t, slot].item() == pytest.approx(alone.sum().item(), rel=1e-4, abs=1e-6)


def test_experts_without_tokens_are_not_read():
    experts = biased_moe().experts
    with torch.no_grad():
        experts.w1[3:].fill_(torch.nan)
        experts.w2[3:].fill_(torch.nan)
    x, indices = torch.randn(4, 32), torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1]])
    out = experts(x, indices, torch.rand(4, 2))
    assert out.isfinite().all()
    out.sum().backward()
    assert (experts.w1.grad[3:] == 0).all()
    assert (experts.w1.grad[:3].abs().amax((1, 2)) > 0).all()


def test_a_token_does_not_depend_on_its_company():
    moe = biased_moe()
    x = torch.randn(40, 32)
    together = moe(x)
    for t in range(40):
        torch.testing.assert_close(moe(x[t : t + 1])[0], together[t])


@pytest.mark.parametrize("quantization", ["none", "full"])
def test_no_tokens(quantization):
    moe = biased_moe(quantization=quantization)
    x = torch.zeros(0, 32, requires_grad=True)
    out = moe(x, torch.zeros(0, dtype=torch.bool))
    assert out.shape == (0, 32)
    out.sum().backward()
    assert grouped_product(torch.zeros(0, 32), moe.experts.w1, [0] * 6).shape == (0, 48)


def test_low_precision_sums_in_float32():
    torch.manual_seed(0)
    moe = biased_moe(dtype=torch.bfloat16)
    x = torch.randn(64, 32).to(torch.bfloat16)
    routing = moe.gate(x)
    routed = moe.experts(x, routing.indices, routing.weights)
    assert routed.dtype == torch.float32
    each = [moe.experts(x, routing.indices[:, [slot]], routing.weights[:, [slot]]) for slot in range(3)]
    torch.testing.assert_close(routed, sum(each), rtol=0, atol=1e-6)
    out = moe(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, (routed + moe.shared_experts(x).float()).to(torch.bfloat16), rtol=0, atol=0)


def test_full_rounds_the_weighted_hidden():
    moe = biased_moe(quantization="full")
    x = torch.randn(9, 32)
    routing = moe.gate(x)
    rounded = quantize_input(x)
    expected = torch.zeros(9, 32)
    for t in range(9):
        for e, weight in zip(routing.indices[t], routing.weights[t], strict=True):
            hidden = swiglu(moe.experts.w1[e] @ rounded[t], moe.experts.w3[e] @ rounded[t], CONFIG.swiglu_limit)
            expected[t] += moe.experts.w2[e] @ quantize_input(hidden * weight)
    assert relative(moe.experts(x, routing.indices, routing.weights), expected) < 1e-6
    shared = moe.shared_experts
    hidden = swiglu(rounded @ shared.w1.weight.T, rounded @ shared.w3.weight.T, CONFIG.swiglu_limit)
    assert relative(moe(x), expected + quantize_input(hidden) @ shared.w2.weight.T) < 1e-6
    assert relative(biased_moe()(x), moe(x)) > 1e-3


@pytest.mark.parametrize("count", [0, 1, 3])
def test_shared_experts(count):
    moe = MoE(dataclasses.replace(CONFIG, n_shared_experts=count))
    x = torch.randn(5, 32)
    routing = moe.gate(x)
    routed = moe.experts(x, routing.indices, routing.weights)
    if not count:
        assert moe.shared_experts is None
        torch.testing.assert_close(moe(x), routed)
    else:
        assert moe.shared_experts.w1.weight.shape == (count * 48, 32)
        torch.testing.assert_close(moe(x), routed + moe.shared_experts(x))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; expected 'sqrtsoftplus'"),
        ({"expert_dtype": "int4"}, "expert_dtype is 'int4'; expected 'fp4' or 'fp8'"),
        ({"swiglu_limit": 0.0}, r"swiglu_limit is 0\.0; expected a positive number"),
    ],
)
def test_unknown_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        MoE(dataclasses.replace(CONFIG, **changes))


def test_storage_follows_the_configuration():
    assert Experts(CONFIG).storage == "fp4"
    assert Experts(dataclasses.replace(CONFIG, expert_dtype="fp8")).storage == "fp8"
    assert {module.storage for module in MoE(CONFIG).shared_experts.children()} == {"fp8"}


def test_parameters_of_the_published_model():
    config = ModelConfig.flash()
    with torch.device("meta"):
        moe = MoE(config, dtype=torch.bfloat16)
    count = sum(p.numel() for p in moe.parameters())
    assert count == 13_626_901_248
    assert count * config.num_hidden_layers == 545_076_049_920
    assert {name for name, _ in moe.named_parameters()} == {
        *(f"gate.{name}" for name in ("weight", "bias", "bias_vl")),
        *(f"experts.{name}" for name in ("w1", "w2", "w3")),
        *(f"shared_experts.{name}.weight" for name in ("w1", "w2", "w3")),
    }
    assert tuple(moe.experts.w2.shape) == (384, 5120, 2304)
