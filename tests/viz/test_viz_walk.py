"""The walk through a decode step: its numbers against the library's, its tracks against the rules of selection."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from small_configs import plans, with_plan

from ds41 import reads, viz
from ds41.config import ModelConfig
from ds41.viz.decode_trace import small_plan, trace_decode
from ds41.viz.decode_walk import CONTEXTS
from ds41.viz.decode_words import card, names, sends, titles

FLASH = ModelConfig.flash()
SMALL = small_plan(FLASH)
# Chooses context and layer as a reader would and gives the parts that are not as ``html`` has them; only a mounted
# figure has an order of focus.
UNEQUAL = """(cases) => cases.flatMap(([html, tokens, layer]) => {
  document.querySelector(`input[name=tokens][value="${tokens}"]`).click();
  document.querySelector(`[data-layer="${layer}"]`).click();
  const still = new DOMParser().parseFromString(html, "text/html");
  const drawn = (page, part) => page.querySelector(part).innerHTML.replace(/ tabindex="[^"]*"/g, "");
  return [".ds-map", ".ds-reads", ".ds-sum", "figcaption"]
    .map((part) => [document, still].map((page) => drawn(page, part)))
    .filter(([live, expected]) => live !== expected)
    .map((pair) => [tokens, layer, ...pair]);
})"""
# How far the furthest label of each layer stands beyond the strip, in pixels.
BEYOND = """(layers) => layers.map((layer) => {
  document.querySelector(`[data-layer="${layer}"]`).click();
  const strip = document.querySelector(".ds-strip").getBoundingClientRect();
  const boxes = [...document.querySelectorAll(".ds-wires span")].map((e) => e.getBoundingClientRect());
  return Math.max(0, ...boxes.map((box) => Math.max(strip.left - box.left, box.right - strip.right)));
})"""
MILLION = 2**20


@pytest.fixture
def page(look):
    return look(viz.decode_walk()._repr_html_())


def caption(page):
    return page.locator("figcaption").inner_text()


# What is recorded


def test_a_source_scores_everything_and_a_reindex_layer_its_pool():
    traces = trace_decode(SMALL, 129)
    assert list(traces) == [2, 8, 14, 20, 24, 28, 32, 36]
    for layer in (2, 8, 14):
        assert traces[layer].scored == tuple(range(64))
    assert traces[20].scored == tuple(range(129))
    pool = traces[24].scored
    # Six blocks of four; the newest is forced in and holds a single entry.
    assert len(pool) == 5 * 4 + 1
    assert pool[-1] == 128
    assert all(traces[layer].scored == pool for layer in (28, 32, 36))
    assert len({traces[layer].selected for layer in traces}) == len(traces)


@given(plans())
@settings(max_examples=5, deadline=None)
def test_recorded_selections_keep_the_rules(config):
    small = small_plan(config)
    for tokens in (7, 100):
        for layer, trace in trace_decode(small, tokens).items():
            visible = tokens // small.layers[layer].ratio
            assert list(trace.selected) == sorted(set(trace.selected))
            assert len(trace.selected) == min(visible, small.index_topk)
            assert set(trace.selected) <= set(trace.scored or range(visible))
            assert bool(trace.scored) == (visible > small.index_topk)


def test_a_trace_leaves_the_random_state_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    trace_decode.__wrapped__(SMALL, 20)
    assert torch.equal(torch.rand(1), expected)


def test_a_trace_needs_a_prompt():
    with pytest.raises(ValueError, match="tokens is 1; expected 2 or more"):
        trace_decode(SMALL, 1)


# What is said


def test_who_takes_what_from_whom():
    assert sends(FLASH, FLASH.layers[20]) == {
        "main KV": list(range(21, 40)),
        "index keys": [24, 28, 32, 36],
        "selection": [21, 22, 23],
        "candidate pool": [24, 28, 32, 36],
    }
    assert sends(FLASH, FLASH.layers[8]) == {"main KV": [9, 10, 11, 12, 13], "selection": [9, 10, 11, 12, 13]}
    assert sends(FLASH, FLASH.layers[28]) == {"selection": [29, 30, 31]}
    assert sends(FLASH, FLASH.layers[0]) == sends(FLASH, FLASH.layers[39]) == {}
    assert "writes 356 B of global KV a token" in card(FLASH, FLASH.layers[20])
    assert card(FLASH, FLASH.layers[39]).endswith("Sends nothing to another layer's attention.")


def test_lists_of_layers():
    assert names([7]) == "layer 7"
    assert names([3, 4]) == "layers 3 and 4"
    assert names([3, 4, 5]) == "layers 3–5"
    assert names([24, 28, 32]) == "layers 24, 28 and 32"


@pytest.mark.parametrize(
    ("layer", "tokens", "scoring"),
    [
        (0, MILLION, "No index keys"),
        (8, MILLION, "Scores all 524,288 index keys of its own"),
        (8, 1000, "No scores: all 500 entries are selected"),
        (20, MILLION, "Scores all 1,048,576 index keys of its own"),
        (24, MILLION, "Scores 16,384 index keys of layer 20, those in its pool"),
        (24, 4096, "Scores all 4,096 index keys of layer 20; its pool still holds every block"),
        (31, MILLION, "No scores: takes the selection of layer 28"),
    ],
)
def test_what_a_layer_scores_is_said(layer, tokens, scoring):
    read = reads.decode_reads(FLASH, tokens)[layer]
    index, main, window = titles(FLASH, FLASH.layers[layer], read, tokens)
    assert f"</i>{scoring}</span> <b>{read.index:,} B</b>" in index
    assert f"<b>{read.main:,} B</b>" in main
    assert "the last 128 tokens" in window
    assert f"<b>{read.window:,} B</b>" in window


# What is drawn


def test_wires_run_from_the_sources():
    for plan, drawn in zip(FLASH.layers, viz.decode_walk().data["layers"], strict=True):
        wires = re.findall(
            r'<i class="ds-wire ds-wire-(\w+)" style="--lane:\d;left:([\d.]+)%;right:([\d.]+)%', drawn["wires"]
        )
        first = 0 if plan.half == "encoder" else 20
        ends = {kind: (float(left) / 5 - 0.5 + first, 19.5 - float(right) / 5 + first) for kind, left, right in wires}
        expected = {
            "reuse": {"main": plan.kv_source, "hit": plan.index_source},
            "reindex": {"main": plan.kv_source, "index": plan.kv_source, "pool": plan.candidate_source},
        }.get(plan.mode, {})
        assert {kind: source for kind, (source, _) in ends.items()} == pytest.approx(expected)
        assert all(end == pytest.approx(plan.index) for _, end in ends.values())


def test_tracks_lie_where_the_entries_lie():
    data = viz.decode_walk().data
    trace = trace_decode(SMALL, 129)[8]
    index, main, window = data["tracks"][data["layers"][9]["group"]]
    # A Reuse layer shows the selection and no keys; entry j of ratio 2 begins at token 2j of 129.
    assert {kind for kind, _, _ in index} == {"hit"}
    covered = sum(float(width) for _, _, width in main)
    assert covered == pytest.approx(100 * 2 * len(trace.selected) / 129, abs=0.1)
    assert float(main[0][1]) == pytest.approx(100 * 2 * trace.selected[0] / 129, abs=0.01)
    assert window == [("ring", f"{100 * 113 / 129:.2f}", f"{100 * 16 / 129:.2f}")]


@pytest.mark.browser
def test_the_script_draws_what_the_library_draws(page):
    cases = []
    for tokens in CONTEXTS:
        for layer in (0, 2, 13, 20, 23, 24, 31, 39):
            still = viz.decode_walk(layer=layer, tokens=tokens)
            cases.append((f"{still.body}<figcaption>{still.caption}</figcaption>", tokens, layer))
    assert page.evaluate(UNEQUAL, cases) == []


@pytest.mark.browser
def test_the_whole_step_adds_up(page):
    page.locator("[data-layer='39']").click()
    for tokens in CONTEXTS:
        page.locator(f"input[name=tokens][value='{tokens}']").check()
        total = viz.readable_bytes(reads.kv_bytes_read(FLASH, tokens))
        assert page.locator(".ds-progress p").inner_text() == f"Read so far in this step: {total} of {total}"
    widths = page.evaluate("[...document.querySelectorAll('.ds-bar > i')].map(e => e.getBoundingClientRect().width)")
    shares = [read.total / reads.kv_bytes_read(FLASH, MILLION) for read in reads.decode_reads(FLASH, MILLION)]
    assert [width / sum(widths) for width in widths] == pytest.approx(shares, abs=0.002)


@pytest.mark.browser
def test_labels_stay_on_the_strip(look):
    page = look(viz.decode_walk()._repr_html_(), width=375)
    beyond = page.evaluate(BEYOND, list(range(40)))
    assert [layer for layer, distance in enumerate(beyond) if distance >= 4] == []
    assert page.locator(".ds-wires span").count() > 0


# What a reader can do


@pytest.mark.browser
def test_keys_choose_a_layer_and_walk(page):
    page.keyboard.press("Tab")
    focused = "() => document.activeElement.dataset.layer"
    assert page.evaluate(focused) == "24"
    page.keyboard.press("ArrowRight")
    # Moving the focus chooses nothing yet.
    assert caption(page).startswith("Layer 24, decoder, Reindex")
    page.keyboard.press("Enter")
    assert caption(page).startswith("Layer 25, decoder, Reuse. Owns its window.")
    assert page.locator(".ds-now").inner_text() == "Layer 25 reads"
    page.locator("[data-act=step]").press("Enter")
    assert caption(page).startswith("Layer 26")
    page.locator("[data-act=back]").press("Space")
    page.locator("[data-act=back]").press("Space")
    assert caption(page).startswith("Layer 24")
    slider = page.locator("input[name=layer]")
    slider.focus()
    page.keyboard.press("Home")
    assert caption(page).startswith("Layer 0, encoder, window only")
    assert slider.get_attribute("aria-valuetext") == "layer 0, window only"
    page.locator("[data-act=back]").click()
    assert caption(page).startswith("Layer 39")
    assert page.locator(".ds-cell[tabindex='0']").get_attribute("data-layer") == "39"


@pytest.mark.browser
def test_those_who_take_are_outlined(page):
    linked = "() => [...document.querySelectorAll('.ds-linked')].map((e) => Number(e.dataset.layer))"
    assert page.evaluate(linked) == [25, 26, 27]
    page.locator("[data-layer='20']").click()
    assert page.evaluate(linked) == list(range(21, 40))
    page.locator("[data-layer='30']").click()
    assert page.evaluate(linked) == []


@pytest.mark.browser
def test_play_walks_to_the_last_layer_and_stops(look):
    page = look("", own=True)
    page.clock.install()
    page.set_content(f"<main>{viz.decode_walk(layer=36)._repr_html_()}</main>")
    button = page.locator("[data-act=play]")
    live = "() => document.querySelector('figcaption').getAttribute('aria-live')"
    button.click()
    assert (button.inner_text(), page.evaluate(live)) == ("Pause", "off")
    page.clock.run_for(2500)
    assert caption(page).startswith("Layer 38")
    button.click()
    page.clock.run_for(5000)
    assert caption(page).startswith("Layer 38")
    assert (button.inner_text(), page.evaluate(live)) == ("Play", "polite")
    button.click()
    page.clock.run_for(9000)
    assert caption(page).startswith("Layer 39")
    assert button.inner_text() == "Play"
    # From the end it begins anew.
    button.click()
    assert caption(page).startswith("Layer 0")
    page.locator("[data-layer='5']").click()
    page.clock.run_for(5000)
    assert caption(page).startswith("Layer 5")


@pytest.mark.browser
def test_nothing_plays_where_motion_is_unwanted(look):
    page = look("")
    page.emulate_media(reduced_motion="reduce")
    page.set_content(f"<main>{viz.decode_walk()._repr_html_()}</main>")
    assert not page.locator("[data-act=play]").is_visible()
    page.locator("[data-act=step]").click()
    assert caption(page).startswith("Layer 25")


# Other configurations


@given(plans())
@settings(max_examples=5, deadline=None)
def test_any_plan_can_be_walked(config):
    figure = viz.decode_walk(config, layer=config.num_hidden_layers - 1)
    assert figure.body.count('class="ds-cell') == config.num_hidden_layers
    for tokens in CONTEXTS:
        assert figure.data["contexts"][tokens]["ends"][-1] == "100.000"


def test_a_plan_without_reindex_layers_begins_at_its_owner():
    figure = viz.decode_walk(with_plan((0, 2, 2, 2), (1,)))
    assert figure.caption.startswith("<b>Layer 1</b>")
    assert "pool" not in figure.body
    assert figure.title == "One decode step: of 4 layers 1 own keys, 1 choose among them and 2 follow a choice"


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="kv_source_layer_ids is empty"):
        viz.decode_walk(with_plan((0, 0), ()))
    with pytest.raises(ValueError, match="layer is 40; expected 0 to 39"):
        viz.decode_walk(layer=40)
    with pytest.raises(ValueError, match="tokens is 5; expected one of 4096, 65536, 1048576"):
        viz.decode_walk(tokens=5)
