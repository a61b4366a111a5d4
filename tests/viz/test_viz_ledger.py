"""The interactive ledger: its formula against the library's, and what a reader can do with it."""

from __future__ import annotations

import itertools

import pytest
from small_configs import with_plan

from ds41 import ledger, viz
from ds41.config import ModelConfig
from ds41.ledger import Storage
from ds41.records import bf16, exact, fp8_index_key
from ds41.systems import systems
from ds41.viz.diagram import asset
from ds41.viz.ledger_explorer import ledger_data, main_records

FLASH = ModelConfig.flash()
# Three layers a side, another ratio pattern, another owner: nothing of the published plan is built in.
SMALL = with_plan((0, 2, 2, 1, 1, 1), (1, 3), (1, 3, 5))
TOKENS = [1, 2, 3, 127, 128, 4095, 4096, 65_537, 524_289, 1_000_001, 2**20 - 1, 2**20]


@pytest.fixture
def ledger_page(look):
    return look(viz.ledger_explorer()._repr_html_())


def readout(page, name):
    return page.locator(f"[data-out={name}]").inner_text()


def pick(page, name, value):
    page.locator(f"input[name={name}][value={value}]").check()


@pytest.mark.browser
@pytest.mark.parametrize("config", [FLASH, SMALL], ids=["flash", "small"])
def test_the_script_counts_what_the_library_counts(look, config):
    data = ledger_data(config, [systems()["deepseek-v4-flash"]], "deepseek-v4-flash")
    storages = main_records(config)
    keys = {
        "mxfp4": Storage.published(config).index,
        "fp8": fp8_index_key(config.index_head_dim),
        "bf16": bf16(config.index_head_dim),
    }
    plans = [
        {"sharing": sharing, "ratios": ratios, "main": main, "index": index}
        for sharing, ratios, main, index in itertools.product(("on", "off"), ("published", "one"), storages, keys)
    ]
    page = look("")
    page.add_script_tag(content=asset("js/words.js") + asset("js/ledger.js"))
    counted = page.evaluate(
        "([data, plans, tokens]) => plans.map(p => [countBytes(data, p, 1).perToken, "
        "tokens.map(n => countBytes(data, p, n).total)])",
        [data, plans, TOKENS],
    )
    assert len(counted) == 48
    for plan, (per_token, totals) in zip(plans, counted, strict=True):
        storage = Storage("chosen", storages[plan["main"]].main, keys[plan["index"]], Storage.published(config).window)
        choice = {"shared": plan["sharing"] == "on", "compressed": plan["ratios"] == "published"}
        assert per_token == exact(ledger.bytes_per_token(config, storage, **choice)), plan
        assert totals == [ledger.global_bytes(config, n, storage, **choice) for n in TOKENS], plan


# Chooses one system after the other, as a reader would, and reads the row that it gets.
LAST_ROWS = """(keys) => keys.map((key) => {
  const select = document.querySelector("select");
  select.value = key;
  for (const type of ["input", "change"]) select.dispatchEvent(new Event(type, { bubbles: true }));
  return [...document.querySelectorAll(".ds-scale-view li")].at(-1).innerText;
})"""


@pytest.mark.browser
def test_every_other_system_shows_its_own_bytes(ledger_page):
    others = {key: system for key, system in systems().items() if system.family != "csa2"}
    for system, row in zip(others.values(), ledger_page.evaluate(LAST_ROWS, list(others)), strict=True):
        sessions = 80 * 2**30 // system.nbytes(2**20)
        assert f"{system.name}, {system.precision.upper()}" in row
        # The script rounds halves up.
        assert f"{int(system.bytes_per_token + 0.5):,} B" in row
        assert f"{sessions:,} session{'' if sessions == 1 else 's'}" in row


@pytest.mark.browser
def test_the_published_plan_and_its_counterfactuals(ledger_page):
    page = ledger_page
    assert readout(page, "token") == "890 bytes"
    assert readout(page, "exact") == "exactly 933,232,640 bytes"
    assert (readout(page, "sessions"), readout(page, "with-window")) == ("92", "91 with their windows")
    assert page.locator(".ds-split").inner_text().split("\n") == ["main KV 720 B", "index keys 170 B"]
    assert "2,703,360 B" in page.locator(".ds-window").inner_text()
    pick(page, "sharing", "off")
    assert readout(page, "token") == "10,324 bytes"
    assert "29 entries a token" in page.locator("figcaption").inner_text()
    pick(page, "sharing", "on")
    pick(page, "main", "v4")
    assert readout(page, "token") == "1,630 bytes"
    pick(page, "index", "fp8")
    assert readout(page, "token") == "1,790 bytes"
    assert "As published 890 B" in page.locator(".ds-scale-view").inner_text()
    pick(page, "main", "fp8")
    assert readout(page, "token") == "1,650 bytes"
    page.locator("button[type=reset]").click()
    page.wait_for_function("document.querySelector('[data-out=token]').innerText.startsWith('890')")
    assert "As published" not in page.locator(".ds-scale-view").inner_text()


@pytest.mark.browser
def test_lengths_are_to_one_scale(ledger_page):
    pick(ledger_page, "sharing", "off")
    ledger_page.locator("select").select_option("deepseek-v3.2")
    widths = ledger_page.evaluate(
        "[...document.querySelectorAll('.ds-length')].map(e => e.getBoundingClientRect().width)"
    )
    expected = [10_324, 890, 48_068]
    assert [width / widths[2] for width in widths] == pytest.approx([size / 48_068 for size in expected], rel=0.01)
    owners = ledger_page.evaluate(
        "[...document.querySelectorAll('.ds-bar > i')].map(e => e.getBoundingClientRect().width)"
    )
    assert len(owners) == 38
    assert owners[-1] / owners[0] == pytest.approx(2, rel=0.01)


@pytest.mark.browser
def test_slider_and_field_show_one_context(ledger_page):
    page = ledger_page
    slider, field = page.locator("input[name=slider]"), page.locator("input[name=tokens]")
    slider.focus()
    page.keyboard.press("Home")
    assert field.input_value() == "4096"
    assert readout(page, "exact") == f"exactly {890 * 4096:,} bytes"
    assert slider.get_attribute("aria-valuetext") == "4,096 tokens"
    # An odd number of tokens leaves three groups of two open.
    field.fill("65537")
    assert readout(page, "exact") == f"exactly {356 * (3 * 32_768 + 65_537):,} bytes"
    assert float(slider.input_value()) == 16
    field.press("Enter")
    assert readout(page, "context") == "65,537 tokens"
    field.fill("")
    assert readout(page, "context") == "1 token"
    field.fill("99999999")
    assert readout(page, "context") == "1,048,576 tokens"
    for typed, spoken in (("-5", "1 token"), ("2.7", "2 tokens"), ("99999999", "1,048,576 tokens")):
        field.fill(typed)
        assert slider.get_attribute("aria-valuetext") == spoken


@pytest.mark.browser
def test_before_the_first_group_closes_nothing_is_kept(look):
    config = with_plan((0, 2, 2, 2), (1,))
    page = look(viz.ledger_explorer(config)._repr_html_())
    page.locator("input[name=tokens]").fill("1")
    assert readout(page, "exact") == "exactly 0 bytes"
    assert readout(page, "sessions") == "–"
    assert "nothing kept yet" in page.locator(".ds-scale-view").inner_text()


@pytest.mark.browser
def test_choices_answer_the_keyboard(ledger_page):
    ledger_page.keyboard.press("Tab")
    ledger_page.keyboard.press("ArrowRight")
    assert readout(ledger_page, "token") == "10,324 bytes"
    ledger_page.keyboard.press("Tab")
    ledger_page.keyboard.press("ArrowRight")
    assert readout(ledger_page, "token") == f"{38 * 356:,} bytes"


@pytest.mark.browser
def test_the_caption_is_read_out_only_when_the_plan_changes(ledger_page):
    ledger_page.evaluate(
        "window.changes = 0; new MutationObserver(() => changes++)"
        ".observe(document.querySelector('figcaption'), {childList: true, subtree: true})"
    )
    ledger_page.locator("input[name=tokens]").fill("5000")
    pick(ledger_page, "main", "bf16")
    assert ledger_page.evaluate("changes") == 1


def test_the_table_adds_up():
    table = viz.ledger_explorer().table
    assert table.count("<tr>") == 6
    assert '<th scope="row">all</th><td class="ds-number"></td><td class="ds-number">720</td>' in table


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="compare is 'gpt-9'; expected one of: deepseek-llm-67b"):
        viz.ledger_explorer(compare="gpt-9")
    with pytest.raises(ValueError, match="kv_source_layer_ids is empty"):
        viz.ledger_explorer(with_plan((0, 0), ()))
