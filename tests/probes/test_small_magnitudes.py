"""Attention over rounded entries against its own definition, and the predictions against what was measured."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from ds41 import ModelConfig
from ds41.formats import MAIN_KV
from ds41.probes import needle_masses as needle_module
from ds41.probes.attention_case import AttentionCase, Setting
from ds41.probes.main_formats import MAIN_FORMATS, UNROUNDED
from ds41.probes.needle_masses import needle_masses
from ds41.probes.small_magnitudes import ABSOLUTE_EDGES, RELATIVE_EDGES, output_errors

SMALL = Setting(channels=64, heads=4, selected=24, window=8)
PUBLISHED = Setting.of(ModelConfig.flash(), heads=16)


def test_setting_takes_the_published_sizes():
    assert Setting.of(ModelConfig.flash()) == Setting(512, 64, 512, 128, 1.0)


def test_unrounded_entries_give_no_error():
    outputs, sizes = output_errors(SMALL, {"none": UNROUNDED}, seeds=2)
    assert outputs[0].output.mean == outputs[0].values.mean == outputs[0].weights.mean == 0
    assert all(row.value_error.mean == row.output_error.mean == row.error_share.mean == 0 for row in sizes)


def test_output_error_is_that_of_attention_written_out():
    outputs, _ = output_errors(SMALL, {"FP4": MAIN_KV}, seeds=1)
    case = AttentionCase.draw(SMALL, 0)

    def attend(entries):
        keys = torch.cat((entries, case.window))
        exponentials = torch.exp(case.queries @ keys.T / math.sqrt(SMALL.channels))
        return exponentials @ keys / (exponentials.sum(1, keepdim=True) + 1)

    exact = attend(case.entries)
    error = (attend(MAIN_KV.fake_quantize(case.entries)) - exact).norm() / exact.norm()
    assert outputs[0].output.mean == pytest.approx(float(error), rel=1e-4)


@pytest.mark.parametrize(("relative", "edges"), [(True, RELATIVE_EDGES), (False, ABSOLUTE_EDGES)])
def test_bins_hold_every_value_and_all_of_the_error(relative, edges):
    _, sizes = output_errors(SMALL, MAIN_FORMATS, seeds=3)
    for name in MAIN_FORMATS:
        rows = [row for row in sizes if row.format == name and row.relative is relative]
        assert [row.low for row in rows] == list(edges[:-1])
        assert sum(row.share.mean for row in rows) == pytest.approx(1, abs=1e-6)
        assert sum(row.error_share.mean for row in rows) == pytest.approx(1, abs=1e-4)


def test_a_bin_is_what_its_edges_say():
    _, sizes = output_errors(SMALL, {"FP4": MAIN_KV}, seeds=1)
    entries = AttentionCase.draw(SMALL, 0).entries
    rounded = MAIN_KV.fake_quantize(entries)
    for row in (row for row in sizes if not row.relative):
        inside = (entries.abs() > row.low) & (entries.abs() <= row.high)
        assert row.share.mean == pytest.approx(float(inside.float().mean()), abs=1e-6)
        if inside.any():
            error = (rounded - entries)[inside].norm() / entries[inside].norm()
            assert row.value_error.mean == pytest.approx(float(error), rel=1e-4)


def test_size_predictions_hold_below_the_maximum():
    _, sizes = output_errors(PUBLISHED, {"FP4": MAIN_KV}, seeds=3)
    rows = [row for row in sizes if row.relative][:-1]
    for row in rows:
        assert row.value_error.mean == pytest.approx(row.predicted_error, rel=0.06)
    assert [row.predicted_error for row in rows[:3]] == pytest.approx([1, 1, 1])
    # The design's small values: all lost, a fiftieth of the error.
    assert 0.01 < sum(row.error_share.mean for row in rows[:3]) < 0.04


def test_needles_without_rounding_have_the_margin_that_was_asked_for():
    for row in needle_masses(SMALL, (-2.0, 0.0, 2.0), {"none": UNROUNDED}, seeds=2):
        assert row.exact_mass == pytest.approx(1 / (1 + math.exp(-row.margin)))
        assert row.mass.mean == pytest.approx(row.exact_mass, abs=1e-5)
        assert row.shift.mean == pytest.approx(0, abs=1e-4)
        assert row.predicted_noise == row.predicted_mass_noise == 0


def test_needles_are_rows_as_a_norm_gives_them():
    case = AttentionCase.draw(SMALL, 0)
    wanted = torch.tensor([-1.0, 0.5, 3.0, 5.0])
    needles = needle_module._needles(case, wanted, 0)
    assert needles.square().mean(1).tolist() == pytest.approx([1] * 4, rel=1e-5)
    assert ((needles * case.queries).sum(1) / 8).tolist() == pytest.approx(wanted.tolist(), rel=1e-4)


@pytest.mark.parametrize("query_rms", [1.0, 4.0])
def test_needle_predictions_hold(query_rms):
    setting = dataclasses.replace(PUBLISHED, query_rms=query_rms)
    for row in needle_masses(setting, (-6.0, -2.0, 0.0, 2.0), seeds=24):
        assert row.noise.mean == pytest.approx(row.predicted_noise, rel=0.2)
        assert row.mass_noise.mean == pytest.approx(row.predicted_mass_noise, rel=0.3)
        assert abs(row.shift.mean - row.predicted_shift) < 0.25 * row.predicted_noise


def test_fp8_moves_a_needle_less_than_fp4_and_bf16_less_than_fp8():
    rows = needle_masses(PUBLISHED, (0.0,), seeds=3)
    noise = {row.format: row.mass_noise.mean for row in rows}
    assert noise["FP4"] > 2.5 * noise["FP8"] > 2.5 * 8 * noise["bf16"]


def test_same_seeds_give_same_numbers_and_json_holds_them():
    first, again = (needle_masses(SMALL, (0.0,), seeds=2) for _ in range(2))
    assert first == again
    assert json.loads(json.dumps([dataclasses.asdict(row) for row in first]))[0]["mass"]["samples"] == 2


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="query_rms is 0"):
        dataclasses.replace(SMALL, query_rms=0)
    with pytest.raises(ValueError, match="channels is 40; expected a multiple of 32"):
        dataclasses.replace(SMALL, channels=40)
    with pytest.raises(ValueError, match="heads is 1"):
        needle_masses(dataclasses.replace(SMALL, heads=1), seeds=1)
    with pytest.raises(ValueError, match=r"gives at most 8\.0"):
        needle_masses(SMALL, (6.0,), seeds=1)
