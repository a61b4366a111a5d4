"""Hyper-connections against hand-computed numbers, a per-token reference in double precision, and golden tensors."""

from __future__ import annotations

import dataclasses

import golden_io
import pytest
import torch

from ds41 import ModelConfig
from ds41.hyper_connections import (
    Coefficients,
    HyperConnection,
    collapse,
    expand,
    first_weights,
    repeat_to_streams,
    sinkhorn,
)
from ds41.linear import quantize_input
from ds41.norm import rms_norm

CONFIG = dataclasses.replace(ModelConfig.nano(), hidden_size=24)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def random_site(seed: int = 0) -> HyperConnection:
    """A site whose coefficients differ from stream to stream and from token to token."""
    torch.manual_seed(seed)
    site = HyperConnection(CONFIG)
    with torch.no_grad():
        site.fn.normal_(0, 0.1)
        site.base.normal_(0, 0.5)
        site.scale.copy_(torch.tensor([0.5, 0.7, 0.9]))
    return site


def reference_coefficients(site: HyperConnection, token: torch.Tensor):
    """One token [n, d] with double numbers, entry by entry: pre, post and comb as nested lists of scalars."""
    n, eps = site.streams, site.eps
    fn, base, scale = site.fn.double(), site.base.double(), site.scale.double()
    flat = torch.cat([token[i].double() for i in range(n)])
    factor = (flat.square().mean() + site.norm_eps) ** -0.5
    mixes = [factor * (row @ flat) for row in fn]
    pre = [torch.sigmoid(mixes[i] * scale[0] + base[i]) + eps for i in range(n)]
    post = [2 * torch.sigmoid(mixes[n + i] * scale[1] + base[n + i]) for i in range(n)]
    comb = []
    for j in range(n):
        places = [2 * n + n * j + k for k in range(n)]
        exponentials = [torch.exp(mixes[place] * scale[2] + base[place]) for place in places]
        comb.append([value / sum(exponentials) + eps for value in exponentials])
    for step in range(2 * site.iterations - 1):
        if step % 2 == 0:
            sums = [sum(row[k] for row in comb) + eps for k in range(n)]
            comb = [[row[k] / sums[k] for k in range(n)] for row in comb]
        else:
            comb = [[value / (sum(row) + eps) for value in row] for row in comb]
    return pre, post, comb


def reference_site(site, token, weights, sublayer):
    """One whole site for one token: collapse with ``weights``, run, write back; returns new streams and its pre."""
    n = site.streams
    pre, post, comb = reference_coefficients(site, token)
    y = sublayer(sum(weights[i] * token[i].double() for i in range(n)))
    new = [post[k] * y + sum(comb[j][k] * token[j].double() for j in range(n)) for k in range(n)]
    return torch.stack(new), torch.stack(pre)


def test_coefficients_of_known_mixes():
    # A stream of ones has norm factor one, so fn's rows of m / (n d) project to m.
    site = HyperConnection(CONFIG)
    mixes = torch.tensor([(i - 12) / 10 for i in range(24)])
    with torch.no_grad():
        site.fn.copy_((mixes / site.fn.shape[1])[:, None].expand_as(site.fn))
        site.base.copy_(torch.tensor([(-1) ** i * 0.05 * i for i in range(24)]))
        site.scale.copy_(torch.tensor([0.5, 0.7, 0.9]))
    found = site(torch.ones(1, 4, 24))
    expected = Coefficients(
        torch.tensor([0.3543447, 0.3543447, 0.4013133, 0.3543447]),
        torch.tensor([0.8219191, 0.6460083, 0.9400719, 0.6636245]),
        torch.tensor(
            [
                [0.1771723, 0.3228272, 0.1771722, 0.3228273],
                [0.2250831, 0.2749164, 0.2250831, 0.2749164],
                [0.2749166, 0.2250829, 0.2749166, 0.2250829],
                [0.3228271, 0.1771725, 0.3228271, 0.1771724],
            ]
        ),
    )
    for name, value in found._asdict().items():
        torch.testing.assert_close(value[0], getattr(expected, name), rtol=0, atol=3e-7, msg=name)
    torch.testing.assert_close(found.comb.sum(1), torch.full((1, 4), 0.999999), rtol=0, atol=2e-7)
    torch.testing.assert_close(found.comb.sum(2), torch.full((1, 4), 0.999999), rtol=0, atol=5e-7)


def test_expand_contracts_over_the_old_streams():
    comb = torch.tensor([[[0.9, 0.3], [0.1, 0.7]]])
    coefficients = Coefficients(torch.zeros(1, 2), torch.zeros(1, 2), comb)
    new = expand(torch.tensor([[[1.0], [10.0]]]), torch.zeros(1, 1), coefficients)
    torch.testing.assert_close(new, torch.tensor([[[1.9], [7.3]]]))


def test_expand_adds_the_output_by_post():
    coefficients = Coefficients(torch.zeros(1, 2), torch.tensor([[0.5, 2.0]]), torch.zeros(1, 2, 2))
    new = expand(torch.ones(1, 2, 3), torch.tensor([[1.0, 2.0, 4.0]]), coefficients)
    torch.testing.assert_close(new, torch.tensor([[[0.5, 1.0, 2.0], [2.0, 4.0, 8.0]]]))


@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_columns_sum_to_one_and_rows_only_nearly(spread):
    torch.manual_seed(1)
    comb = sinkhorn(torch.randn(500, 4, 4) * spread, iterations=20, eps=1e-6)
    assert (comb > 0).all()
    assert (comb.sum(1) - 1).abs().max() < 3e-6
    rows_off = (comb.sum(2) - 1).abs().max()
    # Twenty rounds are not enough for strong logits, and no row pass comes after the last column pass.
    assert rows_off < 3e-6 if spread == 0.1 else rows_off > 1e-3


def test_one_iteration_is_a_softmax_and_a_column_pass():
    logits = torch.randn(7, 4, 4)
    rows = logits.softmax(-1) + 1e-6
    torch.testing.assert_close(sinkhorn(logits, 1, 1e-6), rows / (rows.sum(1, keepdim=True) + 1e-6))


def test_large_logits_stay_finite():
    logits = torch.zeros(1, 4, 4)
    logits[0, :, 0] = 300.0
    assert sinkhorn(logits, 20, 1e-6).isfinite().all()


def test_coefficients_equal_the_reference():
    site = random_site()
    streams = torch.randn(6, 4, 24)
    with torch.no_grad():
        found = site(streams)
        expected = [reference_coefficients(site, token) for token in streams]
    for t in range(6):
        for name, value in zip(Coefficients._fields, expected[t], strict=True):
            torch.testing.assert_close(getattr(found, name)[t], torch.tensor(value, dtype=torch.float32), msg=name)


def test_statistic_is_over_all_streams_together():
    site = random_site()
    streams = torch.randn(3, 4, 24)
    scaled = site(streams * 1000)
    torch.testing.assert_close(scaled.comb, site(streams).comb)
    louder = streams * torch.tensor([1.0, 1.0, 1.0, 1000.0])[:, None]
    assert (site(louder).pre - site(streams).pre).abs().max() > 0.01


def test_each_site_uses_the_pre_of_the_site_before():
    """Three sites in a row, values and gradients, against the reference per token."""
    chain = [random_site(seed) for seed in range(3)]
    embedding = torch.randn(5, 24, requires_grad=True)
    streams, pre = repeat_to_streams(embedding, 4), first_weights(5, 4)
    torch.testing.assert_close(collapse(streams, pre), embedding, rtol=0, atol=0)
    for site in chain:
        coefficients = site(streams)
        y = torch.tanh(collapse(streams, pre))
        streams, pre = expand(streams, y, coefficients), coefficients.pre
    out = collapse(streams, pre)
    inputs = [embedding, *(parameter for site in chain for parameter in site.parameters())]
    gradients = torch.autograd.grad(out.square().sum(), inputs)

    rows = []
    for t in range(5):
        token = torch.stack([embedding[t]] * 4)
        weights = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()
        for site in chain:
            token, weights = reference_site(site, token, weights, torch.tanh)
        rows.append(sum(weights[i] * token[i] for i in range(4)))
    expected = torch.stack(rows)
    assert relative(out, expected) < 1e-6
    for found, wanted in zip(gradients, torch.autograd.grad(expected.square().sum(), inputs), strict=True):
        assert relative(found, wanted) < 1e-4


def test_bf16_streams_are_computed_in_float32():
    site = random_site()
    streams = torch.randn(64, 4, 24).to(torch.bfloat16)
    exact, found = site(streams.float()), site(streams)
    for name, value in found._asdict().items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, getattr(exact, name), rtol=0, atol=0, msg=name)
    y = torch.randn(64, 24).to(torch.bfloat16)
    for low, high in (
        (collapse(streams, found.pre), collapse(streams.float(), found.pre)),
        (expand(streams, y, found), expand(streams.float(), y.float(), found)),
    ):
        assert low.dtype == torch.bfloat16
        torch.testing.assert_close(low, high.to(torch.bfloat16), rtol=0, atol=0)


def test_autocast_changes_nothing():
    site = random_site()
    streams, y = torch.randn(8, 4, 24), torch.randn(8, 24)
    plain = site(streams)
    with torch.autocast("cpu", torch.bfloat16):
        inside = site(streams)
        pairs = [(inside.pre, plain.pre), (inside.comb, plain.comb)]
        pairs.append((collapse(streams, plain.pre), collapse(streams, plain.pre)))
        mixed = expand(streams, y, plain)
    torch.testing.assert_close(mixed, expand(streams, y, plain), rtol=0, atol=0)
    for low, high in pairs:
        torch.testing.assert_close(low, high, rtol=0, atol=0)


def test_cast_parameters_are_refused():
    with pytest.raises(TypeError, match=r"fn is torch\.bfloat16; expected torch\.float32"):
        random_site().to(torch.bfloat16)(torch.zeros(1, 4, 24))


def test_wrong_streams_are_named():
    with pytest.raises(ValueError, match=r"streams are \[2, 3, 24\]; expected \[tokens, 4, 24\]"):
        random_site()(torch.zeros(2, 3, 24))


def test_no_tokens():
    site = random_site()
    found = site(torch.zeros(0, 4, 24))
    assert [tuple(value.shape) for value in found] == [(0, 4), (0, 4), (0, 4, 4)]
    assert collapse(torch.zeros(0, 4, 24), found.pre).shape == (0, 24)
    assert expand(torch.zeros(0, 4, 24), torch.zeros(0, 24), found).shape == (0, 4, 24)


def test_zero_streams_give_the_base_alone():
    site = random_site()
    found = site(torch.zeros(1, 4, 24))
    torch.testing.assert_close(found.pre[0], torch.sigmoid(site.base[:4]) + 1e-6)


def test_a_new_site_averages():
    found = HyperConnection(CONFIG)(torch.randn(10, 4, 24))
    for value, start in zip(found, (0.5, 1.0, 0.25), strict=True):
        assert (value - start).abs().max() < 0.02


def test_parameters_of_the_published_model():
    config = ModelConfig.flash()
    with torch.device("meta"):
        site = HyperConnection(config)
    assert {name: tuple(p.shape) for name, p in site.named_parameters()} == {
        "fn": (24, 20480),
        "base": (24,),
        "scale": (3,),
    }
    assert all(p.dtype == torch.float32 for p in site.parameters())
    per_layer = 2 * sum(p.numel() for p in site.parameters())
    assert per_layer == 983_094
    assert per_layer * config.num_hidden_layers == 39_323_760


@pytest.mark.parametrize("mode", golden_io.MODES)
@pytest.mark.parametrize("model", golden_io.MODELS)
def test_golden_sites(model, mode):
    """Each site alone, fed the stored streams, and the hand-over of pre from site to site."""
    config = ModelConfig.from_json(golden_io.FOLDER / model / "config.json")
    stored, weights = golden_io.load(model, mode), golden_io.weights(model)
    # A float32 sum of bf16 numbers taken in another order flips single last bits of the bf16 result.
    tolerance = 5e-4 if mode == "bf16_native" else 2e-6
    embedding = weights["embed.weight"][stored["input_ids"]].to(stored["final.norm_out"].dtype)
    streams = repeat_to_streams(embedding, config.hc_mult)
    pre = first_weights(len(embedding), config.hc_mult)
    for layer in range(config.num_hidden_layers):
        name = f"layers.{layer}"
        if layer in config.engram_layer_ids:
            streams = after_engram(stored, weights, name, streams, rounded=mode == "fp32_fullq")
        for part, after in (("attn", "stream_mid"), ("ffn", "stream_out")):
            entered = rms_norm(collapse(streams, pre), weights[f"{name}.{part}_norm.weight"], config.rms_norm_eps)
            assert relative(entered, stored[f"{name}.{part}.in"]) < tolerance

            site = HyperConnection(config)
            site.load_state_dict({key: weights[f"{name}.hc_{part}_{key}"] for key in ("fn", "base", "scale")})
            with torch.no_grad():
                found = site(streams)
            expected = Coefficients(*(stored[f"{name}.hc_{part}.{key}"] for key in Coefficients._fields))
            for value, wanted in zip(found, expected, strict=True):
                assert relative(value, wanted) < 2e-6

            out = expand(streams, stored[f"{name}.{part}.out"], found)
            assert out.dtype == embedding.dtype
            # The streams between the sites are not stored in every mode; the next site checks them then.
            streams, pre = stored.get(f"{name}.{after}", out), expected.pre
            assert relative(out, streams) < tolerance
    final = rms_norm(collapse(streams, pre), weights["norm.weight"], config.rms_norm_eps)
    assert relative(final, stored["final.norm_out"]) < tolerance


def after_engram(stored, weights, name, streams, rounded):
    """The streams that a layer with Engram receives: stored, or rebuilt from its stored rows and gates."""
    if f"{name}.engram.stream_out" in stored:
        return stored[f"{name}.engram.stream_out"]
    rows = stored[f"{name}.engram.rows"]
    value = (quantize_input(rows) if rounded else rows) @ weights[f"{name}.engram.wkv.weight"][-streams.shape[-1] :].T
    return streams + stored[f"{name}.engram.gate"][..., None] * value[:, None]
