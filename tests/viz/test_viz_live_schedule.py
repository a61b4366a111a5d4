"""Another schedule of layers: the library's own plan, checks and ledger behind the controls."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from live_driver import explored

from ds41 import ModelConfig, ledger, reads
from ds41.config import ConfigError
from ds41.ledger import Storage
from ds41.viz import live
from ds41.viz.live_schedule_picture import schedule_diagram

CONFIG = ModelConfig.flash()
PUBLISHED = live.Schedule.of(CONFIG)


@pytest.mark.parametrize("preset", ["flash", "mini", "nano"])
def test_the_shipped_plans_are_schedules_and_come_back_unchanged(preset):
    config = getattr(ModelConfig, preset)()
    found = live.plan_schedule(live.Schedule.of(config), config)
    assert found.config == config
    assert found.per_token == ledger.bytes_per_token(config)
    assert found.kept == ledger.global_bytes(config, config.max_position_embeddings)
    assert found.windows == ledger.window_bytes(config)
    assert found.read == reads.kv_bytes_read(config, config.max_position_embeddings)


def test_the_published_schedule_in_a_reader_s_words():
    assert (PUBLISHED.window_layers, PUBLISHED.encoder_layers, PUBLISHED.encoder_group) == (2, 18, 6)
    assert (PUBLISHED.decoder_layers, PUBLISHED.decoder_group, PUBLISHED.decoder_owning) == (20, 4, "first")


def test_a_plan_of_unequal_groups_is_no_schedule():
    uneven = replace(CONFIG, kv_source_layer_ids=(2, 7, 14, 20), index_source_layer_ids=(2, 7, 14, 20, 24, 28, 32, 36))
    with pytest.raises(ValueError, match=r"\[2, 7, 14, 20\].*follow no schedule; expected .* equal groups"):
        live.Schedule.of(uneven)


def test_the_ledger_is_the_library_s():
    alone = replace(PUBLISHED, encoder_group=1, decoder_group=1, decoder_owning="every", main="bf16", index="bf16")
    assert live.plan_schedule(alone).per_token == ledger.bytes_per_token(CONFIG, Storage.bf16(CONFIG), shared=False)
    v4 = replace(PUBLISHED, main="v4", window_format="v4")
    assert live.plan_schedule(v4).per_token == ledger.bytes_per_token(CONFIG, Storage.v4(CONFIG))
    assert live.plan_schedule(v4).windows == 40 * 128 * 584
    paired = replace(PUBLISHED, decoder_ratio=2)
    assert live.plan_schedule(paired).per_token == 4 * 356 / 2
    borrowed = replace(paired, decoder_owning="none", pool=False)
    assert live.plan_schedule(borrowed).per_token == 3 * 356 / 2


def test_a_shorter_model_keeps_those_engram_and_drafter_layers_that_exist():
    short = live.plan_schedule(replace(PUBLISHED, encoder_layers=6, decoder_layers=4)).config
    assert short.num_hidden_layers == 12
    assert short.engram_layer_ids == tuple(layer for layer in CONFIG.engram_layer_ids if layer < 12)
    assert len(short.engram_num_embeddings) == len(short.engram_layer_ids)
    assert short.dspark_target_layer_ids == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder_ratio": 4}, r"compress_ratios\[2\] is 4; expected 0, 1 or 2"),
        ({"decoder_owning": "none"}, "layer 20 reads at ratio 1, its KV source 14 writes at ratio 2"),
        ({"encoder_owning": "none"}, "layer 2 has ratio 2 and no KV source"),
        ({"top_k": 2**15}, "guarantees only 16377 candidates; index_topk needs 32768"),
        ({"decoder_layers": 0}, r"candidate_source_layer_id is 20; expected one of the KV sources \[2, 8, 14\]"),
    ],
)
def test_the_library_refuses_impossible_schedules(change, words):
    with pytest.raises(ConfigError, match=words):
        live.plan_schedule(replace(PUBLISHED, **change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder_group": 0}, "encoder_group is 0; expected 1 or more"),
        ({"window_layers": -1}, "window_layers is -1; expected 0 or more"),
        ({"decoder_owning": "some"}, "decoder_owning is 'some'; expected one of 'every', 'first', 'none'"),
        ({"main": "fp2"}, "main is 'fp2'; expected one of 'fp4', 'fp8', 'v4', 'bf16'"),
        ({"window_format": "fp4"}, "window_format is 'fp4'"),
    ],
)
def test_what_is_no_schedule_at_all_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        live.plan_schedule(replace(PUBLISHED, **change))


def test_the_picture_counts_what_the_ledger_counts():
    given = live.plan_schedule(PUBLISHED)
    html = schedule_diagram(given, given)._repr_html_()
    assert "The published schedule keeps 890 bytes a token, in 4 of 40 layers" in html
    assert html.count('class="ds-cell') == 40
    assert html.count("<script") == 0
    other = live.plan_schedule(replace(PUBLISHED, encoder_group=3))
    picture = schedule_diagram(other, given)
    assert picture.title == "This schedule keeps 1,424 bytes a token, 1.6 times the published 890"
    assert "6 × 178 + 356" in picture.body
    widths = [float(width) for width in re.findall(r'class="ds-bar" style="width:([\d.]+)%', picture.body)]
    assert widths == pytest.approx([100, 100 * 890 / 1424], abs=0.001)
    owners = re.findall(r"<th[^>]*>(\d+)–\d+</th><td>\w+</td><td>Full</td>", picture.table)
    assert owners == ["2", "5", "8", "11", "14", "17", "20"]
    assert "91,136" in picture.table, "a page of 64 tokens"


def test_a_schedule_without_global_kv_has_a_picture():
    given = live.plan_schedule(PUBLISHED)
    windows = live.plan_schedule(replace(PUBLISHED, encoder_ratio=0, decoder_ratio=0, pool=False))
    picture = schedule_diagram(windows, given)
    assert picture.title == "This schedule keeps 0 bytes a token, the published one 890"
    assert "No layer keeps anything that grows with the context." in picture.caption


def test_controls_change_the_answer(monkeypatch):
    first, controls, button, place = explored(monkeypatch, live.explore_schedule, CONFIG)
    assert "890 bytes a token" in first.title
    assert "Change the schedule" in place.value
    (group,) = [one for name, one in controls.items() if name == "encoder: layers a group"]
    group.value = 3
    assert "This schedule keeps 1,424 bytes a token, 1.6 times the published 890" in place.value
    controls["main KV"].value = "fp8"
    assert "3 × 1/2" not in place.value
    assert f"This schedule keeps {4 * (528 + 68):,} bytes a token" in place.value
    controls["encoder: tokens per entry"].value = 4
    assert "No model can be built from this schedule" in place.value
    assert "compress_ratios[2] is 4; expected 0, 1 or 2" in place.value
    button.click()
    assert group.value == 6
    assert first._repr_html_() in place.value


def test_every_control_reaches_the_ledger(monkeypatch):
    _, controls, button, place = explored(monkeypatch, live.explore_schedule, CONFIG)
    button.click()
    before = place.value
    for label, control in controls.items():
        values = [value for _, value in control.options] if hasattr(control, "options") else [control.max]
        control.value = next(value for value in values if value != control.value)
        assert place.value != before, label
        button.click()
        assert place.value == before, label


def test_another_configuration_is_called_the_given_one(monkeypatch):
    first, controls, *_, place = explored(monkeypatch, live.explore_schedule, ModelConfig.nano())
    assert "The given schedule keeps 106 bytes a token, in 3 of 10 layers" in first.title
    controls["window-only layers"].value = 0
    assert "as many as the given one" in place.value
