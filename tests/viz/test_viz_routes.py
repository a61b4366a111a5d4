"""The route of a batch: counted as the library counts, drawn as Python draws it, and what a reader can do with it."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch

from ds41 import viz, weights
from ds41.config import ModelConfig
from ds41.expert_balance import expert_load
from ds41.viz.diagram import asset
from ds41.viz.route_explorer import even_count, load_of, route_data
from ds41.viz.route_trace import route_batches

FLASH = ModelConfig.flash()
SMALL = dataclasses.replace(ModelConfig.nano(), n_routed_experts=20, num_experts_per_tok=3, initializer_range=0.13)
INPUTS = ("even", "topics", "balanced")


@pytest.fixture
def routes_page(look):
    return look(viz.route_explorer()._repr_html_())


def text_of(page, part):
    return page.locator(part).inner_text()


def tokens_in(page):
    return page.locator(".ds-cell.ds-in").count()


# The trace


def test_the_batches_are_what_they_are_called():
    batches = route_batches(FLASH)
    even, topics, balanced = (batches[name] for name in INPUTS)
    assert set(even.topics) == {None}
    assert topics.topics == balanced.topics
    assert {len(row) for row in topics.experts} == {6}
    loads = {
        name: expert_load(torch.tensor(routed.experts), FLASH.n_routed_experts) for name, routed in batches.items()
    }
    read = {name: int((load > 0).sum()) for name, load in loads.items()}
    assert read["topics"] < 0.93 * even_count({"experts": 384, "chosen": 6}, 64) < min(read["even"], read["balanced"])
    assert loads["topics"].max() > 2 * max(loads["even"].max(), loads["balanced"].max()) - 1
    for routed in batches.values():
        assert [sum(row) for row in routed.weights] == pytest.approx([1.5] * 64)


def test_the_trace_leaves_the_reader_s_random_numbers_alone():
    route_batches.cache_clear()
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = route_batches(SMALL)
    assert torch.equal(torch.random.get_rng_state(), before)
    route_batches.cache_clear()
    assert route_batches(SMALL) == first


# Counts


@pytest.mark.browser
@pytest.mark.parametrize("config", [FLASH, SMALL], ids=["flash", "small"])
def test_the_script_counts_what_the_library_counts(look, config):
    data = route_data(config, route_batches(config))
    page = look("")
    for module in ("words", "codec", "routes"):
        page.add_script_tag(content=asset(f"js/{module}.js"))
    # As text: playwright takes its time over arrays of numbers.
    text = page.evaluate(
        """text => {
          const data = JSON.parse(text);
          const count = (inputs, batch) => {
            const { load, read, most } = loadOf(data, { inputs, batch });
            return [load, read, most, evenCount(data, batch)];
          };
          const batches = [...Array(64).keys()].map(n => n + 1);
          return JSON.stringify(Object.keys(data.batches).map(inputs => batches.map(n => count(inputs, n))));
        }""",
        json.dumps(data),
    )
    for name, batches in zip(INPUTS, json.loads(text), strict=True):
        experts = torch.tensor(data["batches"][name]["experts"])
        for batch, (load, read, most, even) in enumerate(batches, start=1):
            expected = expert_load(experts[:batch], config.n_routed_experts)
            assert load == expected.tolist()
            assert (read, most) == (int((expected > 0).sum()), int(expected.max()))
            outside = weights.read_per_step(config, batch) - config.num_hidden_layers * even * data["expertBytes"]
            assert outside == pytest.approx(_outside(config), rel=1e-9)


def _outside(config):
    """Bytes of a decode step that are not routed experts."""
    one = config.num_hidden_layers * config.num_experts_per_tok * weights.expert(config).nbytes
    return weights.read_per_step(config) - one


def test_the_picture_counts_a_layer():
    figure = viz.route_explorer(inputs="even", batch=64, token=3)
    state = {"inputs": "even", "batch": 64, "token": 3}
    load = load_of(figure.data, state)
    read = int(re.search(r"(\d+) <small>of 384", figure.body).group(1))
    assert read == len(load) == figure.body.count('<i class="ds-fill" style="height:calc(')
    assert f"{read} × 18,800,640" in figure.body
    assert figure.body.count('<i class="ds-slot ds-route">') == 6 + 1
    most = max(load.values())
    busiest = min(expert for expert, count in load.items() if count == most)
    assert f"64 tokens, 384 choices. Experts 0 to 383, row by row; the busiest, {busiest}, serves {most}" in figure.body
    rows = [tuple(map(int, row)) for row in re.findall(r">(\d+)</th><td class=\"ds-number\">(\d+)<", figure.table)]
    assert sum(experts for _, experts in rows) == 384
    assert sum(tokens * experts for tokens, experts in rows) == 6 * 64


# The script against Python

# The parts that are not as ``html`` has them; only a mounted figure has an order of focus.
UNEQUAL = """(html) => {
  const still = new DOMParser().parseFromString(html, "text/html");
  return [".ds-readouts", ".ds-share", ".ds-batch", ".ds-experts", ".ds-tokens", "figcaption", "table"]
    .map((part) => [document, still].map((page) => page.querySelector(part).innerHTML))
    .map(([live, drawn]) => [live.replace(/ tabindex="-?[0-9]"/g, ""), drawn])
    .filter(([live, drawn]) => live !== drawn);
}"""


@pytest.mark.browser
@pytest.mark.parametrize("config", [FLASH, SMALL], ids=["flash", "small"])
def test_every_state_is_drawn_as_in_python(look, config):
    page = look(viz.route_explorer(config)._repr_html_())
    slider = page.locator("input[name=batch]")
    for inputs, batch, token in (
        ("even", 1, 0),
        ("topics", 1, None),
        ("topics", 64, 63),
        ("balanced", 13, 12),
        ("balanced", 40, None),
        ("even", 5, 4),
    ):
        page.locator(f"input[name=inputs][value={inputs}]").check()
        if token is not None:
            slider.fill(str(token + 1))
            if page.locator(f"[data-token='{token}']").get_attribute("aria-pressed") == "false":
                page.locator(f"[data-token='{token}']").click()
        elif (pressed := page.locator(".ds-cell[aria-pressed=true]")).count():
            pressed.click()
        slider.fill(str(batch))
        still = viz.route_explorer(config, inputs, batch, token)
        html = f"{still.body}<figcaption>{still.caption}</figcaption>{still.table}"
        assert page.evaluate(UNEQUAL, html) == [], (inputs, batch, token)


# What a reader can do


@pytest.mark.browser
def test_a_token_shows_its_route(routes_page):
    page, data = routes_page, route_data(FLASH, route_batches(FLASH))
    page.locator("[data-token='2']").click()
    routed = data["batches"]["topics"]
    caption = text_of(page, "figcaption")
    assert caption.startswith(f"Token 2, one of {routed['topics'].count(routed['topics'][2])} of topic ")
    assert [int(one) for one in re.findall(r"(\d+) \(", caption)] == routed["experts"][2]
    assert "sum to 1.5." in caption
    lit = "[...document.querySelectorAll('.ds-experts .ds-slot')].flatMap((e, i) => e.matches('.ds-route') ? [i] : [])"
    assert page.evaluate(lit) == sorted(routed["experts"][2])
    page.locator("[data-token='2']").click()
    assert text_of(page, "figcaption") == "Choose a token to see the experts that it goes to."
    assert page.evaluate(lit) == []


@pytest.mark.browser
def test_a_token_beyond_the_batch_joins_it_and_the_slider_drops_it(routes_page):
    page = routes_page
    slider = page.locator("input[name=batch]")
    assert tokens_in(page) == 32
    page.locator("[data-token='50']").click()
    assert tokens_in(page) == 51
    assert slider.input_value() == "51"
    slider.fill("10")
    assert tokens_in(page) == 10
    assert page.locator("[aria-pressed=true]").count() == 0
    assert "Choose a token" in text_of(page, "figcaption")
    slider.fill("1")
    assert text_of(page, ".ds-batch").startswith("1 token, 6 choices.")
    assert page.locator("[data-token='0']").get_attribute("aria-label").endswith(", in the batch")
    assert slider.get_attribute("aria-valuetext") == "1 token, 6 experts read"
    assert "113 MB for one alone" in text_of(page, ".ds-readouts")


@pytest.mark.browser
def test_tokens_are_one_tab_stop_with_arrow_keys(routes_page):
    page = routes_page
    at = "document.activeElement.dataset.token"
    page.keyboard.press("Tab")
    assert page.evaluate(at) == "0"
    for key, token in (("ArrowRight", 1), ("ArrowDown", 17), ("End", 31), ("ArrowRight", 32), ("Home", 32)):
        page.keyboard.press(key)
        assert page.evaluate(at) == str(token)
    page.keyboard.press("Enter")
    assert tokens_in(page) == 33
    assert text_of(page, "figcaption").startswith("Token 32")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator("input[value=balanced]").is_checked()
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert tokens_in(page) == 64


@pytest.mark.browser
def test_the_slider_alone_is_not_read_out(routes_page):
    routes_page.evaluate(
        "window.changes = 0; new MutationObserver(() => changes++)"
        ".observe(document.querySelector('figcaption'), {childList: true, subtree: true})"
    )
    routes_page.locator("input[name=batch]").fill("60")
    assert routes_page.evaluate("changes") == 0
    routes_page.locator("input[value=even]").check()
    assert routes_page.evaluate("changes") == 1


@pytest.mark.browser
def test_the_bar_is_to_scale(routes_page):
    widths = "['.ds-share', '.ds-share .ds-length'].map(q => document.querySelector(q).clientWidth)"
    for batch in ("64", "8"):
        routes_page.locator("input[name=batch]").fill(batch)
        every, filled = routes_page.evaluate(widths)
        read = int(re.match(r"\d+", routes_page.locator(".ds-readouts dd").first.inner_text()).group())
        assert filled / every == pytest.approx(read / 384, abs=0.003)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": "text"}, "inputs is 'text'; expected one of: even, topics, balanced"),
        ({"batch": 65}, "batch is 65; expected 1 to 64"),
        ({"batch": 4, "token": 4}, "token is 4; expected one of the batch, 0 to 3"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        viz.route_explorer(**arguments)
