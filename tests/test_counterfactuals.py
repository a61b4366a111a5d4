"""The design without one of its axes, what engines store, and the article's four candidates."""

from fractions import Fraction

import pytest
from small_configs import with_plan

from ds41 import ModelConfig, ledger
from ds41.candidates import article_index_key_bytes, candidates
from ds41.counterfactuals import counterfactuals, engines, levers

FLASH = ModelConfig.flash()


def test_counterfactuals():
    rows = {row.name: row.bytes for row in counterfactuals(FLASH)}
    assert rows == {
        "as published": 890,
        "no cross-layer sharing": 10_324,
        "no compression along the sequence": 1_424,
        "V4's formats": 1_630,
        "main records in MXFP8": 1_490,
        "everything in BF16": 3_200,
        "V4-Flash's layer plan in these formats": 1_914,
        "none of the three": 38 * 1_280,
    }


def test_counterfactuals_of_another_plan():
    config = with_plan([0, 2, 2, 1], [1, 3])
    rows = {row.name: row.bytes for row in counterfactuals(config)}
    assert rows["as published"] == 356 * Fraction(3, 2)
    assert rows["no cross-layer sharing"] == 356 * 2
    assert rows["V4-Flash's layer plan in these formats"] == 1_914


def test_engines():
    rows = {row.name: row for row in engines(FLASH)}
    assert {name: row.bytes for name, row in rows.items()} == {
        "TensorRT-LLM": 890,
        "SGLang on B200 (v41_fp4)": 890,
        "vLLM on SM100, default": 1_490,
        "FP8 records and FP8 keys": 1_650,
        "vLLM elsewhere": 1_790,
        "released inference code": 3_200,
        "Ascend A2/A3": 4_096 + 325,
    }
    assert [name for name, row in rows.items() if row.source == "measured"] == ["Ascend A2/A3"]


def test_formulas_evaluate_to_their_bytes():
    for row in counterfactuals(FLASH) + engines(FLASH):
        assert eval(row.formula.replace("×", "*")) == row.bytes, row.name


def test_levers_multiply_to_the_whole_in_both_orders():
    formats_first, plan_first = levers(FLASH)
    assert [lever.name for lever in formats_first] == ["FP4 records", "sharing and ratios"]
    assert [lever.after for lever in formats_first] == [1_914, 890]
    assert [lever.after for lever in plan_first] == [1_630, 890]
    for first, second in (formats_first, plan_first):
        assert first.factor * second.factor == Fraction("3514.25") / 890
        assert first.after == second.before
    assert [round(float(lever.factor), 2) for lever in formats_first] == [1.84, 2.15]
    assert [round(float(lever.factor), 2) for lever in plan_first] == [2.16, 1.83]


def test_candidates_as_the_article_prints_them():
    found = candidates(FLASH)
    assert [one.letter for one in found] == ["A", "B", "C", "D"]
    assert [one.row.bytes for one in found] == [864, 1_440, 1_152, 1_152]
    assert [f"{one.printed_percent:+.1f}" for one in found] == ["+3.0", "-38.2", "-22.7", "-22.7"]
    assert [f"{one.percent_off:+.1f}" for one in found] == ["-2.9", "+61.8", "+29.4", "+29.4"]
    assert article_index_key_bytes(FLASH) == 2_304


def test_corrections_lead_from_each_candidate_to_890():
    for one in candidates(FLASH):
        assert one.row.bytes + sum(row.bytes for row in one.corrections) == one.exact == 890
        for row in (one.row, *one.corrections):
            assert eval(row.formula.replace("×", "*")) == row.bytes, row.name
        assert one.assumes
        assert one.misses
    assert [row.bytes for row in candidates(FLASH)[0].corrections] == [-432, 288, 170]


def test_candidates_of_a_plan_with_other_groups():
    config = with_plan([2, 2, 2, 1, 1], [0, 1, 3], head_dim=256, index_head_dim=64, qk_rope_head_dim=32)
    for one in candidates(config):
        assert one.row.bytes + sum(row.bytes for row in one.corrections) == ledger.bytes_per_token(config)
    assert candidates(config)[0].row.bytes == 2 * 144


@pytest.mark.parametrize(("ratios", "sources"), [([2, 2], [0]), ([1, 1], [0]), ([2, 1, 1], [0, 1, 2]), ([0], [])])
def test_candidates_need_the_articles_split(ratios, sources):
    with pytest.raises(ValueError, match="suppose some and exactly one"):
        candidates(with_plan(ratios, sources))
