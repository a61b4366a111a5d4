"""The grid of layers and tokens: its counts against the library's, its script against its still picture."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from small_configs import with_plan

from ds41 import flops, viz
from ds41.config import ModelConfig
from ds41.viz.prefill_map import SHOWN, WAYS, percent, rows_of, token_layers

FLASH = ModelConfig.flash()
# Another split, another pattern of owners, a window of its own: nothing of the published plan is built in.
SMALL = with_plan((0, 0, 2, 2, 1, 1, 1), (2, 4), (2, 4, 6), sliding_window=48, max_position_embeddings=5000)
LENGTHS = (1, 2, 128, 129, 1001, 2414, SHOWN, SHOWN + 1, 2**20)


@pytest.fixture
def prefill_page(look):
    return look(viz.prefill_map()._repr_html_())


# Sets the controls as a reader would and gives each part of the picture, as it is and as ``html`` has it.
PARTS = """([html, fields]) => {
  const form = document.querySelector("form");
  for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
  form.elements.tokens.dispatchEvent(new Event("input", { bubbles: true }));
  const still = new DOMParser().parseFromString(html, "text/html");
  const parts = [".ds-picture", "figcaption", ".ds-chosen-layer", "table"];
  return parts.map((part) => [document, still].map((page) => page.querySelector(part).innerHTML));
}"""


def caption(page):
    return page.locator("figcaption").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize("config", [FLASH, SMALL, ModelConfig.nano()], ids=["flash", "small", "nano"])
def test_the_script_draws_what_the_library_draws(look, config):
    page = look(viz.prefill_map(config, tokens=7)._repr_html_())
    lengths = [tokens for tokens in LENGTHS if tokens <= config.max_position_embeddings]
    for window, tokens, way in itertools.product((config.sliding_window, 256), lengths, WAYS):
        figure = viz.prefill_map(config, tokens, way, window)._repr_html_()
        fields = {"window": str(window), "tokens": tokens, "way": way}
        for live, still in page.evaluate(PARTS, [figure, fields]):
            assert live == still, (window, tokens, way)


@pytest.mark.browser
def test_every_layer_says_what_it_does(prefill_page):
    words = prefill_page.locator(".ds-chosen-layer")
    assert words.inner_text().startswith(
        "Layer 20, decoder, Full. Runs on the last 128 of 1,024 tokens. Writes an entry"
    )
    prefill_page.locator("input[name=layer]").fill("24")
    assert "Layer 24, decoder, Reindex. Runs on the last 128 of 1,024 tokens. Writes nothing" in words.inner_text()
    assert "saw less than they would have" in words.inner_text()
    assert prefill_page.locator(".ds-chosen").get_attribute("data-layer") == "24"
    prefill_page.locator("[data-layer='8']").click()
    assert words.inner_text().startswith(
        "Layer 8, encoder, Full. Runs on all 1,024 tokens. Writes an entry for every 2"
    )
    assert prefill_page.locator("input[name=layer]").input_value() == "8"
    assert prefill_page.locator("input[name=layer]").get_attribute("aria-valuetext") == "layer 8, encoder"


@pytest.mark.browser
def test_keys_do_all_that_a_pointer_does(prefill_page):
    prefill_page.locator("input[name=way][value=bounded]").focus()
    prefill_page.keyboard.press("ArrowRight")
    assert caption(prefill_page).startswith("Exact tail. The last token reaches 127 tokens further back")
    prefill_page.keyboard.press("Tab")
    prefill_page.keyboard.press("End")
    assert prefill_page.locator("input[name=tokens]").input_value() == str(2**20)
    assert "layer 20 runs on the last 2,414 of 1,048,576" in caption(prefill_page)
    assert prefill_page.locator("input[name=slider]").get_attribute("aria-valuetext") == "1,048,576 tokens"
    prefill_page.keyboard.press("Home")
    assert prefill_page.locator("input[name=slider]").get_attribute("aria-valuetext") == "1 token"
    # Prompt, tokens, window, layer.
    for _ in range(3):
        prefill_page.keyboard.press("Tab")
    prefill_page.keyboard.press("End")
    assert prefill_page.locator(".ds-chosen-layer").inner_text().startswith("Layer 39")


@pytest.mark.browser
def test_a_length_half_typed_breaks_nothing(prefill_page):
    for typed, tokens in (("", 1), ("0", 1), ("-5", 1), ("1e9", 2**20), ("12.7", 12)):
        prefill_page.locator("input[name=tokens]").fill(typed)
        assert f"token {tokens - 1:,}" in prefill_page.locator(".ds-axis").inner_text()


@pytest.mark.browser
def test_lengths_are_to_scale(prefill_page):
    prefill_page.locator("input[name=tokens]").fill("2000")
    widths = prefill_page.evaluate(
        "[19, 20, 30].map(l => document.querySelector(`[data-layer='${l}'] i`).getBoundingClientRect().width)"
    )
    assert [width / widths[0] for width in widths[1:]] == pytest.approx([128 / 2000] * 2, rel=0.02)
    assert prefill_page.locator("[data-layer='30'] .ds-replay").count() == 1
    assert prefill_page.locator("[data-layer='30'] .ds-run").count() == 0


@pytest.mark.parametrize("way", ["full", "bounded", "exact"])
@pytest.mark.parametrize("tokens", [1, 100, 1024, 100_000])
def test_the_count_is_that_of_the_operations(way, tokens):
    """Experts run once for each token and layer, so their operations count both."""
    each = flops.by_layer(FLASH, 1)[0]["routed experts"]
    counted = flops.prefill(FLASH, tokens, way)["routed experts"]
    assert token_layers(rows_of(FLASH, way, tokens), way, tokens) * each == counted


def test_the_still_picture_says_its_numbers():
    figure = viz.prefill_map()
    assert figure.title.startswith("Above layer 20 nothing is written that grows")
    assert "<dd>23,040</dd>" in figure.body
    assert "56.3 % of a full prefill" in figure.body
    assert figure.body.count("ds-replay") == 19 + 1
    assert figure.body.count('class="ds-main"') == 4
    assert re.findall(r"<tr><th scope=\"row\">([^<]+)<", figure.table)[-2:] == ["20", "21–39"]
    after = viz.prefill_map(way="next", tokens=1000)
    assert "<dd>40</dd>" in after.body
    assert "<dd>2,501</dd>" in after.body


def test_percents_round_halves_up():
    assert percent(1, 2000) == "0.1 %"
    assert percent(9, 16) == "56.3 %"
    assert percent(3, 3) == "100.0 %"


def test_bad_pictures_are_named():
    with pytest.raises(ValueError, match="way is 'half'; expected one of: full, bounded, exact, next"):
        viz.prefill_map(way="half")
    with pytest.raises(ValueError, match="tokens is 0; expected 1 to 1048576"):
        viz.prefill_map(tokens=0)
    with pytest.raises(ValueError, match="window is 100; expected one of: 32, 64, 128, 256"):
        viz.prefill_map(window=100)
    with pytest.raises(ValueError, match="decoder_start is 0; these layers are not an encoder and a decoder"):
        viz.prefill_map(with_plan((1, 1), (0,)))
    assert viz.prefill_map(replace(FLASH, sliding_window=100)).body.count('value="100"') == 1
