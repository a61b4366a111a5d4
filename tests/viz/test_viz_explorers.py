"""What a reader can do with the bits, the block and the map, by pointer and by keyboard."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from small_configs import plans, with_plan

from ds41 import ledger, viz
from ds41.config import ModelConfig
from ds41.formats import MAIN_KV
from ds41.viz.bit_explorer import FORMATS as BIT_FORMATS
from ds41.viz.bit_explorer import TYPES, show
from ds41.viz.block_explorer import FORMATS, presets
from ds41.viz.layer_map import bytes_per_strip, halves, owners_of

FLASH = ModelConfig.flash()


def caption(page):
    return page.locator("figcaption").inner_text()


def part_of(page, figure, part):
    """The HTML of one part of a still figure, written by the browser that shows the live one."""
    return page.evaluate(
        "([html, part]) => new DOMParser().parseFromString(html, 'text/html').querySelector(part).innerHTML",
        [figure._repr_html_(), part],
    )


def focused(page, name):
    return page.evaluate("name => document.activeElement.dataset[name]", name)


# Bits


@pytest.fixture
def bits_page(look):
    return look(viz.bit_explorer()._repr_html_())


@pytest.mark.browser
def test_a_switched_bit_changes_the_number(bits_page):
    product = bits_page.locator(".ds-product b")
    assert product.inner_text() == "2.25"
    bits_page.locator("[data-role=element][data-bit='3']").click()
    assert product.inner_text() == "−2.25"
    bits_page.locator("[data-role=scale][data-bit='0']").click()
    assert product.inner_text() == show(-3 * 0.8125, 6)
    assert "Code 1101 under scale byte 0x35" in caption(bits_page)
    assert focused(bits_page, "bit") == "0"


@pytest.mark.browser
def test_keys_walk_the_codes_and_the_bits(bits_page):
    bits_page.locator("[data-role=element][data-bit='0']").focus()
    bits_page.keyboard.press("ArrowUp")
    assert "Code 0110" in caption(bits_page)
    bits_page.keyboard.press("ArrowUp")
    bits_page.keyboard.press("ArrowUp")
    assert "It is the largest under this scale; its neighbour is 3" in caption(bits_page)
    for _ in range(20):
        bits_page.keyboard.press("ArrowDown")
    assert "It is the smallest" in caption(bits_page)
    bits_page.keyboard.press("Space")
    assert "Code 1110" in caption(bits_page)
    bits_page.keyboard.press("ArrowRight")
    assert focused(bits_page, "role") == "scale"
    bits_page.keyboard.press("Enter")
    assert "0xB4" in caption(bits_page)
    assert "zero or negative" in caption(bits_page)


@pytest.mark.browser
@pytest.mark.parametrize("name", BIT_FORMATS)
def test_every_code_reads_as_in_the_library(look, name):
    """The picture of the script for codes of each kind is the picture that Python draws for them."""
    chosen = BIT_FORMATS[name]
    page = look(viz.bit_explorer()._repr_html_())
    page.locator(f"input[name=format][value={name}]").check()
    last = (1 << TYPES[chosen.element].bits) - 1
    for code, scale in ((0, 0), (1, 1), (last // 2, 126), (last // 2 + 1, 127), (last, 254), (last // 3, 255)):
        for role, value in (("element", code), ("scale", scale)):
            page.evaluate(
                """([role, wanted]) => {
                  for (const bit of document.querySelectorAll(`[data-role="${role}"]`)) {
                    if ((bit.ariaPressed === "true") !== Boolean(wanted >> bit.dataset.bit & 1)) {
                      document.querySelector(`[data-role="${role}"][data-bit="${bit.dataset.bit}"]`).click();
                    }
                  }
                }""",
                [role, value],
            )
        still = viz.bit_explorer(name, code, scale)
        for part in (".ds-pair", ".ds-line", "figcaption"):
            assert page.locator(part).inner_html() == part_of(page, still, part), (name, code, scale)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fp4",), "block_format is 'fp4'; expected one of: main, index, window"),
        (("main", 16), "code is 16; E2M1 has codes 0 to 15"),
        (("window", 255, 256), "scale is 256; expected a byte"),
    ],
)
def test_bad_bits_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        viz.bit_explorer(*arguments)


# Block


@pytest.fixture
def block_page(look):
    return look(viz.block_explorer()._repr_html_())


@pytest.mark.browser
@pytest.mark.parametrize("name", FORMATS)
def test_every_preset_is_drawn_as_in_the_library(block_page, name):
    block_page.locator(f"input[name=format][value={name}]").check()
    for preset in presets(16):
        block_page.locator(f"input[name=preset][value={preset}]").check()
        still = viz.block_explorer(name, preset)
        for part in (".ds-steps", ".ds-plot", "figcaption", "table"):
            assert block_page.locator(part).inner_html() == part_of(block_page, still, part), (preset, part)


@pytest.mark.browser
def test_a_changed_value_changes_the_whole_block(block_page):
    block_page.locator(".ds-channel").nth(3).click()
    assert "Value of channel 3" in block_page.locator("form").inner_text()
    block_page.locator("input[name=value]").fill("12.75")
    assert "largest value\n12.75" in block_page.locator(".ds-steps").inner_text()
    assert "This block clips: the scale was rounded down, and its largest value loses 5.9 %" in caption(block_page)
    assert block_page.locator(".ds-clipped").count() == 1
    block_page.locator("input[name=value]").fill("1e9")
    assert "no scale is larger" in caption(block_page)
    # A half-typed number changes nothing.
    block_page.locator("input[name=value]").fill("")
    assert "1 × 10⁹" in caption(block_page)


@pytest.mark.browser
def test_channels_answer_the_keyboard(block_page):
    block_page.locator(".ds-channel").first.focus()
    block_page.keyboard.press("ArrowRight")
    assert focused(block_page, "channel") == "1"
    block_page.keyboard.press("End")
    assert focused(block_page, "channel") == "15"
    assert block_page.locator("input[name=channel]").input_value() == "15"
    block_page.keyboard.press("ArrowRight")
    assert focused(block_page, "channel") == "15"
    block_page.keyboard.press("Home")
    assert caption(block_page).startswith("Channel 0")
    assert block_page.locator(".ds-channel[tabindex='0']").count() == 1
    block_page.locator("input[name=channel]").fill("7")
    assert caption(block_page).startswith("Channel 7")


@pytest.mark.browser
def test_another_sample_is_another_block(block_page):
    before = block_page.locator("table").text_content()
    block_page.locator("[data-act=sample]").click()
    assert block_page.locator("table").text_content() != before
    block_page.locator("input[name=preset][value=ties]").check()
    assert not block_page.locator("[data-act=sample]").is_visible()


@pytest.mark.parametrize("size", [16, 32])
def test_presets_show_what_they_are_named_for(size):
    blocks = {name: torch.tensor(preset["samples"][0]) for name, preset in presets(size).items()}
    assert all(len(values) == size for values in blocks.values())
    assert MAIN_KV.clipped_blocks(blocks["clipping"]).any()
    ties = MAIN_KV.decode(MAIN_KV.encode(blocks["ties"]), torch.float32)
    assert ties[:8].tolist() == [6, 0, 1, 1, 2, 2, 4, 4]
    # Below the smallest normal E4M3 scale, 2^-6.
    assert MAIN_KV.scale_values(MAIN_KV.encode(blocks["tiny"]).scales).max() < 2**-6
    lost = MAIN_KV.decode(MAIN_KV.encode(blocks["outlier"]), torch.float32) == 0
    assert lost.float().mean() > 0.3


def test_bad_blocks_are_named():
    with pytest.raises(ValueError, match="block_format is 'window'; expected one of: main, index"):
        viz.block_explorer("window")
    with pytest.raises(ValueError, match="preset is 'x'; expected one of: bell, ties"):
        viz.block_explorer(preset="x")


# Map


@pytest.fixture
def map_page(look):
    return look(viz.layer_map()._repr_html_())


@pytest.mark.browser
def test_a_chosen_layer_shows_its_sources(map_page):
    linked = "[...document.querySelectorAll('.ds-linked')].map(e => Number(e.dataset.layer))"
    map_page.locator("[data-layer='25']").click()
    assert "Reads the main KV of layer 20 where layer 24 has selected" in caption(map_page)
    assert map_page.evaluate(linked) == [20, 24]
    map_page.locator("[data-layer='8']").click()
    assert "Keeps 178 B a token: 144 of main KV and 34 of index keys, one entry for 2 tokens" in caption(map_page)
    assert map_page.evaluate(linked) == [9, 10, 11, 12, 13]
    map_page.locator("[data-layer='8']").click()
    assert caption(map_page).startswith("178 + 178 + 178 + 356 = 890 bytes a token")
    assert map_page.locator("[aria-pressed=true]").count() == 0
    map_page.locator("[data-layer='24']").click()
    assert "Selects 512 entries itself, among the candidates of layer 20" in caption(map_page)


@pytest.mark.browser
def test_the_map_is_one_tab_stop_with_arrow_keys(map_page):
    map_page.keyboard.press("Tab")
    assert focused(map_page, "layer") == "0"
    for key, layer in (("ArrowRight", 1), ("ArrowDown", 21), ("End", 39), ("ArrowUp", 19), ("Home", 0), ("ArrowUp", 0)):
        map_page.keyboard.press(key)
        assert focused(map_page, "layer") == str(layer)
    map_page.keyboard.press("ArrowRight")
    map_page.keyboard.press("Enter")
    assert caption(map_page).startswith("Layer 1, encoder, window only")
    map_page.keyboard.press("Tab")
    map_page.keyboard.press("End")
    assert caption(map_page).startswith("Layer 39, decoder, Reuse")
    assert map_page.locator("input[name=layer]").get_attribute("aria-valuetext") == "layer 39, Reuse"


@pytest.mark.browser
def test_bars_of_the_map_are_to_one_scale(map_page):
    widths = map_page.evaluate("[...document.querySelectorAll('.ds-length')].map(e => e.getBoundingClientRect().width)")
    assert [width / widths[0] for width in widths] == pytest.approx([1, 1, 1, 2], rel=0.005)


def test_the_map_follows_the_configuration():
    figure = viz.layer_map()
    assert figure.title == "4 of 40 layers keep what grows with the context, 34 borrow it"
    modes = [re.findall(r'aria-label="Layer (\d+), ([^"]+)"', figure.body)]
    assert len(modes[0]) == 40
    assert dict(modes[0])["20"] == "Full"
    assert figure.table.count("<tr>") == 18


@given(plans())
@settings(max_examples=30, deadline=None)
def test_any_plan_has_a_map_whose_bars_fit(config):
    figure = viz.layer_map(config)
    assert figure.body.count('class="ds-cell') == config.num_hidden_layers
    owners = owners_of(config)
    assert sum(owner.total for owner in owners) == ledger.bytes_per_token(config)
    columns = max(len(half) for _, half in halves(config))
    for owner in owners:
        assert owner.total / bytes_per_strip(config) <= (owner.last_reader - owner.layer + 1) / columns
    assert viz.landing_svg(config).count('class="cell"') == config.num_hidden_layers


def test_a_configuration_without_owners_is_refused():
    with pytest.raises(ValueError, match="kv_source_layer_ids is empty"):
        viz.layer_map(with_plan((0, 0), ()))
