"""FP4 under large, small and uneven norm weights: the format's predictions against rounded latents."""

from __future__ import annotations

import dataclasses
import math

import pytest
import tiny_model
import torch

from ds41.probes import fp4_claims
from ds41.probes.main_formats import MAIN_FORMATS
from ds41.probes.norm_weights import heavy_channel_sweep, spike_sweep, trained_sources, weight_sweep
from ds41.probes.rounding import (
    e4m3_scale,
    predicted_error_of_size,
    predicted_float_rounding,
    predicted_rounding,
    worst_case_weight,
)
from ds41.small_floats import e4m3_values, number_table, round_to_e4m3

FP4 = {"FP4": MAIN_FORMATS["FP4"]}


def test_growing_to_two_four_and_eight_changes_no_bit():
    errors = {row.weight: row.error for row in weight_sweep((1.0, 2.0, 4.0, 8.0, 64.0), FP4, seeds=3)}
    assert all(error == errors[1.0] for error in errors.values())


@pytest.mark.parametrize("weight", [1024.0, 600.0, 3.0, 1.0, 1 / 32, 1 / 64, 1 / 128, 1 / 256, 2.0**-12])
def test_predicted_errors_and_shares_hold(weight):
    (row,) = weight_sweep((weight,), FP4, seeds=12)
    assert row.error.mean == pytest.approx(row.predicted_error, rel=0.015)
    for measured, predicted in (
        (row.saturated, row.predicted_saturated),
        (row.subnormal, row.predicted_subnormal),
        (row.floored, row.predicted_floored),
    ):
        assert measured.mean == pytest.approx(predicted, abs=0.02)


def test_other_formats_do_not_notice_the_weight():
    for row in weight_sweep((1024.0, 2.0**-9), MAIN_FORMATS, seeds=3):
        if row.format != "FP4":
            bits = {"FP8": 3, "bf16": 7}[row.format]
            assert row.error.mean == pytest.approx(predicted_float_rounding(bits).error, rel=0.02)
            assert row.saturated is None


def test_error_rises_again_before_the_floor_is_all_there_is():
    """At 1/128 scales have one or two steps; at 1/256 all are the floor, which fits better."""
    errors = [predicted_rounding(weight).error for weight in (1 / 64, 1 / 128, 1 / 256, 1 / 512)]
    assert errors[0] < errors[1] > errors[2] < errors[3]


def test_one_channel_with_the_whole_norm_saturates_where_the_norm_bound_says():
    bound = worst_case_weight(512)
    assert bound == pytest.approx(2688 / math.sqrt(512))
    inside, outside = spike_sweep((0.999 * bound, 2 * bound))
    assert inside.predicted == 0
    assert inside.error <= 1 / 17
    assert outside.error == pytest.approx(0.5, rel=1e-5) == outside.predicted


def test_one_heavy_channel_drowns_the_quiet_ones_in_fp4_only():
    rows = heavy_channel_sweep((1.0, 8.0, 256.0), MAIN_FORMATS, seeds=12)
    fp4 = [row for row in rows if row.format == "FP4"]
    for row in fp4:
        assert row.quiet_error.mean == pytest.approx(row.predicted_error, rel=0.02)
    assert fp4[-1].needle_mass.high < 0.1 < 0.9 < fp4[0].needle_mass.low
    for row in rows:
        if row.format != "FP4":
            assert row.quiet_error.mean < 0.03
            assert row.needle_mass.mean == pytest.approx(row.exact_mass, abs=0.01)


def test_scale_rounding_by_definition_agrees_with_the_cast():
    x = torch.tensor(e4m3_values()[1:127], dtype=torch.float64)
    between = torch.cat((x, (x[1:] + x[:-1]) / 2, (x[1:] + x[:-1]) / 2 * (1 + 1e-6)))
    table = number_table("e4m3", torch.device("cpu"))
    assert torch.equal(e4m3_scale(between).float(), table[round_to_e4m3(between.float()).int()])
    assert e4m3_scale(torch.tensor([1e-9, 1e9], dtype=torch.float64)).tolist() == [2.0**-9, 448.0]


def test_errors_by_size_are_whole_below_the_smallest_magnitude():
    assert predicted_error_of_size(0.001, 1 / 24) == pytest.approx(1)
    assert predicted_error_of_size(1 / 24, 1 / 12) < 0.4


def test_a_gain_below_one_is_what_projections_lose():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 512, generator=generator)
    for name, expected in (("FP4", predicted_rounding()), ("FP8", predicted_float_rounding(3))):
        rounded = MAIN_FORMATS[name].fake_quantize(x)
        gain = float((rounded.double() * x).sum() / x.double().square().sum())
        assert gain == pytest.approx(expected.gain, abs=3e-4)


def test_weights_that_are_not_positive_are_refused():
    with pytest.raises(ValueError, match=r"weights holds 0\.0"):
        weight_sweep((1.0, 0.0), seeds=1)
    with pytest.raises(ValueError, match="ratios holds -1"):
        heavy_channel_sweep((-1,), seeds=1)


def test_a_trained_source_shows_its_weights_and_what_they_do():
    model = tiny_model.build()
    ids = torch.randint(3, model.config.vocab_size, (2, 48), generator=torch.Generator().manual_seed(1))
    plain = {row.layer: row for row in trained_sources(model, ids)}
    assert list(plain) == list(model.config.kv_source_layer_ids)
    for row in plain.values():
        assert row.smallest_weight == row.largest_weight == row.spread == 1
        assert row.error == pytest.approx(predicted_rounding().error, rel=0.15)
        assert row.logit_noise == pytest.approx(row.predicted_noise, rel=0.25)
    last = model.config.kv_source_layer_ids[-1]
    weight = model.layers[last].attn.compressor.norm.weight
    with torch.no_grad():
        weight.fill_(2.0**-9)
        weight[3] = 2.0**-4
    changed = {row.layer: row for row in trained_sources(model, ids)}[last]
    assert (changed.smallest_weight, changed.largest_weight, changed.spread) == (2.0**-9, 2.0**-4, 32)
    assert changed.subnormal > 0.9
    assert plain[last].subnormal == 0
    assert changed.zeroed > 2 * plain[last].zeroed


def test_hooks_are_gone_after_a_failed_look():
    model = tiny_model.build()
    with pytest.raises(ValueError, match="outside"):
        trained_sources(model, torch.full((1, 8), model.config.vocab_size))
    assert not any(layer.attn.query._forward_hooks for layer in model.layers)


@pytest.fixture(scope="module")
def report():
    return fp4_claims.probe_fp4(seeds=4, heads=8, query_sizes=(1.0,))


def test_every_claim_is_decided_and_most_hold(report):
    assert len(report.claims) == 7
    assert [claim.claim for claim in report.claims if not claim.holds] == []
    assert all(claim.found and claim.falsified_if for claim in report.claims)


def test_claims_fail_when_numbers_say_so(report):
    def failed(**changes):
        claims = fp4_claims.synthetic_claims(dataclasses.replace(report, **changes), 512)
        return [number for number, claim in enumerate(claims) if not claim.holds]

    def changed(row, **means):
        return dataclasses.replace(
            row, **{name: dataclasses.replace(getattr(row, name), mean=mean) for name, mean in means.items()}
        )

    assert failed(sizes=tuple(changed(row, error_share=0.2) for row in report.sizes)) == [0]
    assert failed(needles=tuple(changed(row, mass=0.9 * row.exact_mass) for row in report.needles)) == [1]
    noisy = [
        r if r.margin != -6 else dataclasses.replace(r, noise=dataclasses.replace(r.noise, low=9.0))
        for r in report.needles
    ]
    assert failed(needles=tuple(noisy)) == [2]
    assert failed(weights=tuple(changed(r, error=0.0952) if r.weight == 4 else r for r in report.weights)) == [3]
    full = [changed(r, saturated=0.1) if r.format == "FP4" and r.weight == 8 else r for r in report.weights]
    assert failed(weights=tuple(full)) == [4]
    coarse = [changed(r, error=0.2) if r.weight == 0.25 else r for r in report.weights]
    assert failed(weights=tuple(coarse)) == [5]
    assert failed(heavy=tuple(changed(r, quiet_error=0.6) if r.ratio == 8 else r for r in report.heavy)) == [6]
