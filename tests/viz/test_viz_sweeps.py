"""The walk through the sweeps: its counts against the traffic's ledger, its arrows against the model, its controls."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from ds41 import viz
from ds41.config import ModelConfig
from ds41.mhc_traffic import SINGLE_PASS, TWO_PASSES
from ds41.model import Model
from ds41.viz.sweep_walk import parts
from ds41.viz.sweeps import MODES, Site, sites_of, steps

FLASH = ModelConfig.flash()
SITES = sites_of(FLASH, 2)


def caption(page):
    return page.locator("figcaption").inner_text()


def count(page):
    return page.locator(".ds-count").inner_text()


def lit(page, state="now"):
    return page.evaluate(
        "state => [...document.querySelectorAll(`.ds-sites .ds-${state}:not([hidden])`)].map(e => e.dataset.part)",
        state,
    )


@pytest.mark.parametrize(("mode", "plan"), [("shifted", SINGLE_PASS), ("unshifted", TWO_PASSES)])
@pytest.mark.parametrize("n", [1, 4, 7])
def test_a_plain_boundary_costs_what_the_traffic_says(mode, plan, n):
    run = [step for step in steps(SITES, mode) if step.boundary == 1]
    assert len(run) == (1 if mode == "shifted" else 2)
    assert sum(step.reads(n) for step in run) == plan.reads(n)
    assert sum(step.writes(n) for step in run) == plan.writes(n)


def test_the_shift_saves_one_sweep_everywhere():
    for boundary in range(len(SITES) + 1):
        sweeps, moved = {}, {}
        for mode in MODES:
            run = [step for step in steps(SITES, mode) if step.boundary == boundary and not step.engram]
            sweeps[mode] = len(run)
            moved[mode] = sum(step.reads(4) + step.writes(4) for step in run)
        assert sweeps["unshifted"] - sweeps["shifted"] == 1
        assert moved["unshifted"] - moved["shifted"] == 4


def test_engram_stands_between_the_update_and_the_coefficients():
    assert [site.engram for site in SITES] == [False, False, True, False]
    for mode in MODES:
        run = [step for step in steps(SITES, mode) if step.boundary == 2]
        assert (run[0].updates, run[0].predicts) == (True, False)
        assert run[1].engram
        assert (run[2].updates, run[2].predicts) == (False, True)
    first = steps((Site(0, "attention", engram=True),), "shifted")
    assert [step.engram for step in first] == [True, False, False]
    assert not first[1].updates


@pytest.mark.parametrize("mode", MODES)
def test_no_weights_are_used_before_they_are_predicted(mode):
    known = set()
    for step in steps(SITES, mode):
        part = parts(step, SITES, mode)
        (used,) = [name for name in part if name.startswith(("pre-", "own-"))] if step.collapses else (None,)
        if used == f"own-{step.boundary}":
            assert step.boundary in known
        elif used is not None:
            assert used == f"pre-{step.boundary - 1}"
            assert step.boundary == 0 or step.boundary - 1 in known
        known |= {step.boundary} if step.predicts else set()


def test_the_arrows_are_those_of_the_model():
    """The pre that the figure lights at a collapse is the one that this collapse listens to."""
    torch.manual_seed(0)
    config = ModelConfig.nano()
    sites = sites_of(config, 2)
    assert [site.engram for site in sites] == [False, False, True, False]
    model = Model(config, quantization="none")
    predictors = [hc for layer in model.layers[:2] for hc in (layer.hc_attn, layer.hc_ffn)]
    norms = [norm for layer in model.layers[:3] for norm in (layer.attn_norm, layer.ffn_norm)][:5]
    ids = torch.randint(256, (1, 6))

    @torch.no_grad()
    def inputs(disturbed=None):
        seen = []
        hooks = [norm.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for norm in norms]
        if disturbed is not None:
            hooks.append(predictors[disturbed].register_forward_hook(lambda m, x, out: out._replace(pre=out.pre * 2)))
        model(ids)
        for hook in hooks:
            hook.remove()
        return seen

    plain = inputs()
    collapsing = {step.boundary: step for step in steps(sites, "shifted") if step.collapses}
    for number in range(len(sites)):
        after = inputs(number)
        first = next(i for i, (a, b) in enumerate(zip(plain, after, strict=True)) if not torch.equal(a, b))
        assert f"pre-{number}" in parts(collapsing[first], sites, "shifted")


def test_every_part_that_a_step_lights_is_drawn():
    for config in (FLASH, dataclasses.replace(FLASH, hc_mult=2, engram_layer_ids=(), engram_num_embeddings=())):
        figure = viz.sweep_walk(config)
        drawn = set(re.findall(r'data-part="([^"]+)"', figure.body))
        used = {part for mode in MODES for step in figure.data[mode]["steps"] for part in step["lit"]}
        assert used == drawn
        assert figure.body.count('data-part="engram') == bool(config.engram_layer_ids)
    assert "49d" in viz.sweep_walk().body
    assert viz.sweep_walk().table.count("<tr>") == 1 + 7 + 12


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="layers is 41; expected 1 to 40"):
        sites_of(FLASH, 41)
    with pytest.raises(ValueError, match="mode is 'late'; expected one of: shifted, unshifted"):
        steps(SITES, "late")


@pytest.fixture
def page(look):
    return look(viz.sweep_walk()._repr_html_())


@pytest.mark.browser
def test_one_sweep_does_it_all_with_the_shift(page):
    assert "6. Read and written for a token: 49d" in count(page)
    assert lit(page) == lit(page, "later") == []
    page.locator("[data-act=next]").click()
    assert set(lit(page)) == {"streams-0", "pre--1", "predict-0", "collapse-0"}
    page.locator("[data-act=next]").click()
    assert set(lit(page)) == {"streams-1", "write-0", "pre-0", "predict-1", "collapse-1"}
    assert "pre of site 0 was there before it began" in caption(page)
    assert "2. Read and written for a token: 15d" in count(page)
    assert "streams-2" in lit(page, "later")


@pytest.mark.browser
def test_two_sweeps_without(page):
    page.locator("input[value=unshifted]").check(force=True)
    assert "11. Read and written for a token: 69d" in count(page)
    for _ in range(3):
        page.locator("[data-act=next]").click()
    assert set(lit(page)) == {"streams-1", "write-0", "predict-1"}
    assert "nothing can be collapsed yet" in caption(page)
    page.locator("[data-act=next]").click()
    assert set(lit(page)) == {"streams-1", "own-1", "collapse-1"}
    assert "reads the same streams again" in caption(page)
    # The same boundary in the other mode.
    page.locator("input[value=shifted]").check(force=True)
    assert "pre-0" in lit(page)
    assert page.locator("[data-part=own-1]").get_attribute("hidden") is not None
    assert page.locator("[data-part=pre-0]").get_attribute("hidden") is None


@pytest.mark.browser
def test_the_keyboard_walks_to_the_end_and_no_further(page):
    page.locator("input[name=step]").focus()
    page.keyboard.press("End")
    assert "Final norm and head follow" in caption(page)
    assert lit(page, "later") == []
    assert page.locator("input[name=step]").get_attribute("aria-valuetext") == "7 of 7, before final norm"
    page.locator("[data-act=next]").focus()
    page.keyboard.press("Enter")
    assert page.locator("input[name=step]").input_value() == "7"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert page.locator("input[name=step]").input_value() == "6"
    page.locator("input[name=step]").focus()
    page.keyboard.press("Home")
    page.locator("[data-act=back]").click()
    assert page.locator("input[name=step]").get_attribute("aria-valuetext") == "all steps at once"
    assert "known, so one kernel does all of it" in caption(page)


@pytest.mark.browser
def test_the_caption_is_read_out_and_nothing_moves_by_itself(page):
    assert page.locator("figcaption").get_attribute("aria-live") == "polite"
    assert page.locator(".ds-sites").get_attribute("role") == "img"
    assert "at the next site, or, un-shifted, at the same one" in page.locator(".ds-sites").get_attribute("aria-label")
    assert page.evaluate("document.getAnimations().length") == 0


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 375, 760])
def test_text_is_readable_and_inside(look, width):
    page = look(viz.sweep_walk()._repr_html_(), width=width)
    page.locator("input[value=unshifted]").check(force=True)
    boxes = page.evaluate(
        "[...document.querySelectorAll('.ds-sites text')].filter(t => t.getClientRects().length).map(t => "
        "[t.textContent, t.getBoundingClientRect().left, t.getBoundingClientRect().right, "
        "parseFloat(getComputedStyle(t).fontSize)])"
    )
    assert len(boxes) > 15
    for text, left, right, size in boxes:
        assert 16 <= left <= right <= width - 16, text
        assert size >= 11, text
