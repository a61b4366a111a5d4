"""The walk through the page table: addresses against the cache's own bytes, sums against the torch definition."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

from ds41 import viz
from ds41.cache import PageLayout
from ds41.config import ModelConfig
from ds41.formats import MAIN_KV, WINDOW_KV, Packed
from ds41.viz import page_views
from ds41.viz.bit_explorer import show
from ds41.viz.diagram import asset
from ds41.viz.page_trace import KEY_TILE, LENGTHS, SELECTED, SPLITS, WINDOW, trace_walks
from ds41.viz.page_walk import walk_data

FLASH = ModelConfig.flash()
NANO = ModelConfig.nano()
CONFIGS = pytest.mark.parametrize("config", [FLASH, NANO], ids=["flash", "nano"])


@pytest.fixture
def page(look):
    return look(viz.page_walk()._repr_html_())


def out(page, name):
    return page.locator(f"[data-out={name}]").inner_text()


def caption(page):
    return page.locator("figcaption").inner_text()


def test_the_figures_leave_triton_unimported():
    # On a CPU the interpreter is chosen after the figures are imported and before triton is.
    code = "import sys, ds41.viz; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# The trace


@CONFIGS
def test_keys_are_window_rows_then_entries_in_order(config):
    for walk in trace_walks(config):
        keys = [key for tile in walk.tiles for key in tile]
        newest = LENGTHS[walk.sequence] - 1
        assert {len(tile) for tile in walk.tiles} == {KEY_TILE}
        assert [key.token for key in keys[:WINDOW]] == list(range(newest - WINDOW + 1, newest + 1))
        entries = [key.token for key in keys[WINDOW:] if key.kind == "main"]
        assert entries == sorted(set(entries))
        assert len(entries) == min(
            SELECTED, LENGTHS[walk.sequence] // config.layers[config.kv_source_layer_ids[-1]].ratio
        )
        assert [key.kind for key in keys[WINDOW + len(entries) :]] == ["none"] * (SELECTED - len(entries))
        assert len({key.codes for key in keys if key.kind == "main"}) == len(entries)


@CONFIGS
def test_addresses_follow_from_table_and_layout(config):
    layout = PageLayout.of(config)
    source = layout.source(config.kv_source_layer_ids[-1])
    owned = set()
    for walk in trace_walks(config):
        held = [page for page in walk.table if page >= 0]
        assert not owned & set(held)
        owned |= set(held)
        assert len(held) == layout.pages_for(LENGTHS[walk.sequence])
        for key in (key for tile in walk.tiles for key in tile if key.kind == "main"):
            entry = key.token // source.ratio
            assert key.page == walk.table[entry // source.entries]
            assert key.place == entry % source.entries
            codes, scales = source.main_codes, source.main_scales
            assert key.codes == key.page * layout.nbytes + codes.offset + key.place * codes.row_bytes
            assert key.scales == key.page * layout.nbytes + scales.offset + key.place * scales.row_bytes
    assert sorted(owned) != list(range(len(owned)))


@CONFIGS
def test_partial_sums_combine_to_the_output(config):
    for walk in trace_walks(config):
        part = len(walk.tiles) // SPLITS
        ends = walk.running[part - 1 :: part]
        # The sink is zero, and so is its logarithm.
        top = max(0.0, *(end.largest for end in ends))
        total = 2**-top + sum(end.total * 2 ** (end.largest - top) for end in ends)
        for channel, expected in enumerate(walk.output):
            summed = sum(end.sums[channel] * 2 ** (end.largest - top) for end in ends)
            assert summed / total == pytest.approx(expected, rel=1e-4, abs=1e-5)
        for before, after in zip(walk.running, walk.running[1:], strict=False):
            assert after.largest >= before.largest or walk.running.index(after) % part == 0


def test_the_trace_leaves_the_reader_s_random_numbers_alone():
    trace_walks.cache_clear()
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = trace_walks(NANO)
    assert torch.equal(torch.random.get_rng_state(), before)
    trace_walks.cache_clear()
    assert trace_walks(NANO) == first


# The picture


def test_decoded_bytes_are_the_formats_numbers():
    data = walk_data(FLASH)
    for kind, block_format, per_load in (("main", MAIN_KV, 32), ("window", WINDOW_KV, 16)):
        key = next(key for key in data["walks"][0]["keys"] if key[0] == kind)
        values = torch.tensor(key[6], dtype=torch.uint8), torch.tensor(key[7], dtype=torch.uint8)
        if kind == "window":
            # One scale stands for 32 channels, of which the first load holds 16.
            values = torch.cat((values[0], values[0])), values[1]
        decoded = block_format.decode(Packed(*values), torch.float32)[:per_load].tolist()
        shown = ", ".join(show(value, 3) for value in decoded[: 8 if kind == "main" else 4])
        words = page_views.decoded_view(key).replace("</b>", ", ").replace("<b>", "|").split("|")[1:]
        assert "".join(word.split("</li>")[0].split("<li>")[0] for word in words).strip(", ") == shown


def test_the_first_picture_says_what_is_there():
    figure = viz.page_walk(query=1, key=95)
    assert "selected[63] = -1" in figure.body
    assert "nothing is loaded" in figure.body
    assert "none of its places holds an entry" not in viz.page_walk(query=1, key=40).caption
    assert figure.body.count('<button type="button" class="ds-cell') == 96
    assert figure.table.count("<tr>") == 1 + 2 * 6
    sizes = [size for size, _ in page_views.planes_of(figure.data)]
    assert sum(sizes) == 56_960
    assert sizes[-2:] == [64 * 288, 64 * 68]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"query": 2}, "query is 2; expected 0 to 1"),
        ({"key": 96}, "key is 96; expected 0 to 95"),
        ({"key": -1}, "key is -1; expected 0 to 95"),
        ({"config": dataclasses.replace(NANO, sliding_window=16)}, "sliding_window is 16; the walk needs 32"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        viz.page_walk(**arguments)


@pytest.mark.browser
@CONFIGS
def test_the_script_draws_what_python_draws(look, config):
    data = walk_data(config)
    views = ("index_view", "table_view", "address_view", "loads_view", "registers_view", "caption", "cell_label")
    page = look("")
    for module in ("words", "codec", "pages"):
        page.add_script_tag(content=asset(f"js/{module}.js"))
    states = [{"query": query, "key": key} for query in (0, 1) for key in range(len(data["walks"][query]["keys"]))]
    drawn = json.loads(
        page.evaluate(
            """text => {
              const [data, states] = JSON.parse(text);
              const views = [indexView, tableView, addressView, loadsView, registersView, captionOf];
              return JSON.stringify(states.map(state => [
                ...views.map(view => view(data, state)), cellLabel(data, state, state.key), cellClass(data, state, 0),
              ]));
            }""",
            json.dumps([data, states]),
        )
    )
    for state, texts in zip(states, drawn, strict=True):
        expected = [getattr(page_views, view)(data, state) for view in views[:-1]]
        expected += [page_views.cell_label(data, state, state["key"]), page_views.cell_class(data, state, 0)]
        assert texts == expected, state


@pytest.mark.browser
def test_a_key_is_chosen_by_mouse_and_by_keyboard(page):
    assert "page_table[0," in out(page, "table")
    page.locator("[data-key='5']").click()
    assert "choice[5] = 17" in out(page, "index")
    assert "A ring needs no page table." in out(page, "table")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "choice[21] = 33" in out(page, "index")
    assert page.locator("[data-key='21']").get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.querySelectorAll('.ds-keys [tabindex=\"0\"]').length") == 1
    assert "Tile 1, split 0: 16 rows of the ring" in caption(page)


@pytest.mark.browser
def test_tiles_are_walked_to_the_end_and_no_further(page):
    page.locator("[data-act=back]").click()
    assert "Nothing is written to memory yet" in caption(page)
    for _ in range(6):
        page.locator("[data-act=next]").click()
    assert "Tile 5, split 1" in caption(page)
    assert "the combine adds the sink" in caption(page)
    assert page.locator(".ds-keys .ds-now").count() == 16


@pytest.mark.browser
def test_the_other_query_has_places_without_entries(page):
    page.locator("input[value='1']").check(force=True)
    page.locator("[data-act=next]").click()
    page.locator("[data-act=next]").click()
    page.locator("[data-act=next]").click()
    assert "Tile 5, split 1: 2 entries" in caption(page) or "none of its places" in caption(page)
    assert page.locator(".ds-keys .ds-none-key").count() == SELECTED - LENGTHS[1]
    page.locator("[data-key='95']").click()
    assert out(page, "address") == "No address."
    assert "its weight is 0" in out(page, "registers")


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 375, 760])
def test_nothing_is_cut_off(look, width):
    page = look(viz.page_walk()._repr_html_(), width=width)
    for key in (5, 40):
        page.locator(f"[data-key='{key}']").click()
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        right = page.evaluate(
            "Math.max(...[...document.querySelectorAll('.ds-body *')].map(e => e.getBoundingClientRect().right))"
        )
        assert right <= width - 16


@pytest.mark.browser
def test_nothing_moves_by_itself_and_the_caption_is_read_out(page):
    assert page.locator("figcaption").get_attribute("aria-live") == "polite"
    assert page.evaluate("document.getAnimations().length") == 0
