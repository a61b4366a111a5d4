"""The map of the whole stack: its bytes against the ledger, its links against the book, and what a reader can do."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from importlib import metadata
from itertools import product
from pathlib import Path

import book_rules
import pytest
import yaml
from small_configs import with_plan

from ds41 import ledger, viz
from ds41.config import ModelConfig
from ds41.reads import kv_bytes_read
from ds41.systems import system
from ds41.viz import stack_links
from ds41.viz.stack_flows import ABSENT, CACHES, PHASES, RESTS, UNKNOWN, WORKS, Travel, label
from ds41.viz.stack_map import CONTEXTS, MODELS, all_states, inference_stack
from ds41.viz.stack_parts import AROUND, CHAPTERS, PARTS, ROUTES
from ds41.viz.stack_token import number, v4_path, v41_path
from ds41.weights import engram_row_bytes

ROOT = Path(__file__).resolve().parents[2]
FLASH, V4 = ModelConfig.flash(), system("deepseek-v4-flash")
NEW = 2_048
# Pages that a part of the map may open, all of them in the book.
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = {Path(chapter["file"]).name for part in TOC["parts"] for chapter in part["chapters"]}


@pytest.fixture(scope="module")
def states():
    return all_states(FLASH, V4, CONTEXTS, NEW, (1280, 720))


@pytest.fixture(scope="module")
def figure():
    return inference_stack()


def carried(state, source, target):
    return {one.what: one.nbytes for one in state.travels if (one.source, one.target) == (source, target)}


# The bytes are the ledger's


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_a_prefill_moves_is_what_the_ledger_says(states, context):
    held, windows = ledger.global_bytes(FLASH, context), ledger.window_bytes(FLASH)
    known = ledger.global_bytes(FLASH, context - NEW)
    history = ledger.engram_history_bytes(FLASH)
    for cache, found, again in (("miss", 0, context - NEW), ("replay", known, 128), ("windows", known, 0)):
        state = states["v41", "prefill", cache, context]
        assert carried(state, "store", "prefill") == ({"pages": found} if found else {})
        assert carried(state, "prefill", "store") == {"pages": held - found}
        assert carried(state, "prefill", "decode") == {"handover": held + windows + history}
        assert carried(state, "engram", "prefill") == {"rows": (NEW + again) * engram_row_bytes(FLASH)}
        assert ("windows", "prefill") in {(one.source, one.target) for one in state.travels} or cache != "windows"
    assert carried(states["v41", "prefill", "windows", context], "windows", "prefill") == {"windows": windows + history}


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_a_decode_reads_and_leaves(states, context):
    state = states["v41", "decode", "miss", context]
    assert carried(state, "decode", "store") == {"pages": 890}
    assert carried(state, "decode", "windows")["windows"] >= ledger.window_bytes(FLASH)
    assert carried(state, "engram", "decode") == {"rows": engram_row_bytes(FLASH)}
    assert viz.readable_bytes(kv_bytes_read(FLASH, context)) in state.text


@pytest.mark.parametrize("context", CONTEXTS)
def test_v4_stores_windows_and_replays_one_for_each_layer(states, context):
    for cache, hit in (("miss", 0), ("replay", context - NEW), ("windows", context - NEW)):
        state = states["v4", "prefill", cache, context]
        new = V4.nbytes(context) - V4.nbytes(hit)
        assert carried(state, "prefill", "store") == {"entries": new, "windows": V4.window_bytes}
        back = carried(state, "store", "prefill")
        assert back.get("entries", 0) == V4.nbytes(hit)
        assert back.get("windows", 0) == (V4.window_bytes if cache == "windows" else 0)
    again = min(context - NEW, 43 * 128)
    assert states["v4", "prefill", "replay", context].parts["encoder"][1].startswith(f"{again:,} again")
    assert viz.readable_bytes(V4.bytes_read(context)) in states["v4", "decode", "miss", context].text


def test_after_the_prefill_the_cache_makes_no_difference(states):
    # The table leaves out what is repeated.
    for model, context in product(MODELS, CONTEXTS):
        assert len({states[model, "decode", cache, context].travels for cache in CACHES}) == 1


def test_what_is_not_known_of_v4_is_not_claimed(states):
    for (model, *_), state in states.items():
        unknown = {part for part, (_, note) in state.parts.items() if note == UNKNOWN}
        assert unknown == ({"vision", "kernels", "gpus", "engram", "drafter"} if model == "v4" else set())
    first, *others = v4_path(V4)
    assert first.nbytes is None
    assert all(stop.nbytes for stop in others)


def test_every_state_has_working_parts_that_its_arrows_join(states):
    working = {"prefill": {"prefill", "encoder", "keys", "rings"}, "decode": {"decode", "layers", "read", "turning"}}
    for (_, phase, _, _), state in states.items():
        other = next(one for one in PHASES if one != phase)
        assert all(state.parts[part][0] == WORKS for part in working[phase])
        assert not any(part in state.parts for part in working[other])
        for one in state.travels:
            assert one.edge in ROUTES["wide"]
            assert state.parts[one.source][0] == WORKS
            # The prefill's end is the decode worker's beginning.
            assert state.parts.get(one.target, (RESTS,))[0] == (RESTS if one.what == "handover" else WORKS)


# One token


def test_a_token_ends_as_the_ledger_s_bytes():
    stops = {stop.name: stop for stop in v41_path(FLASH)}
    assert [stops[name].nbytes for name in ("Engram rows, read", "Hidden row", "Latents of the sources")] == [
        engram_row_bytes(FLASH),
        FLASH.hidden_size * 2,
        Fraction(5, 2) * FLASH.head_dim * 2,
    ]
    assert stops["FP4"].nbytes == 720
    for name in ("Index keys beside them", "In its page", "Handed over", "On disk", "Four sources, one token"):
        assert stops[name].nbytes == ledger.bytes_per_token(FLASH) == 890
    assert "178 + 178 + 178 + 356 = 890 B" in stops["Four sources, one token"].text
    assert f"890 × 64 = {890 * 64:,} B" in stops["In its page"].text
    ring = stops["Beside it: window rows"]
    assert ring.nbytes * FLASH.sliding_window == ledger.window_bytes(FLASH)
    # Nothing of a window is on disk, and nothing of the tables is written.
    assert "window" not in dict(stops["On disk"].bars)
    assert all("890 B on disk" in stop.so_far for stop in v41_path(FLASH)[-2:])


def test_v4_s_token_leaves_its_windows_on_disk_too():
    *_, disk = v4_path(V4)
    assert disk.nbytes == V4.bytes_per_token + Fraction(V4.window_bytes, 128)
    assert [number(stop.nbytes) for stop in v4_path(V4)[2:4]] == ["3,157.25", "3,514.25"]


# Other configurations


def test_a_configuration_without_some_parts_says_so():
    small = with_plan((0, 0, 2, 2, 1, 1, 1), (2, 4), (2, 4, 6), sliding_window=48, max_position_embeddings=5000)
    small = dataclasses.replace(small, vision=None)
    made = inference_stack(small, context=4096, new_tokens=100)
    for part in ("engram", "drafter", "vision"):
        assert f'data-part="{part}" data-state="{ABSENT}"' in made.body
    assert len(made.data["states"]) == len(MODELS) * len(PHASES) * len(CACHES)
    assert "Engram" not in made.body.split("ds-trail")[1]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="context is 5000; expected one of: 4096, 65536, 1048576"):
        inference_stack(context=5000)
    with pytest.raises(ValueError, match="max_position_embeddings is 4000; expected 4096 or more"):
        inference_stack(dataclasses.replace(FLASH, max_position_embeddings=4000))
    with pytest.raises(ValueError, match="new_tokens is 4000; expected 1 to 3967"):
        inference_stack(new_tokens=4000)
    with pytest.raises(ValueError, match=r"picture is \(1280, 720\), 578 tokens; expected no more than the 500 new"):
        inference_stack(new_tokens=500)
    with pytest.raises(ValueError, match="these layers are not an encoder and a decoder"):
        inference_stack(with_plan((1, 1), (0,)))
    with pytest.raises(ValueError, match="kv_source_layer_ids is empty"):
        v41_path(with_plan((0, 0), ()))


def test_the_longest_context_of_a_model_is_shown_first(figure):
    assert 'value="1048576" checked' in figure.body
    assert 'value="4096" checked' in inference_stack(ModelConfig.nano()).body


# What is drawn


def test_every_part_opens_a_chapter_of_the_book(figure):
    links = re.findall(r'href="([^"]+)"', figure.body)
    assert {link.removesuffix(".html") for link in links} == set(CHAPTERS) <= PAGES
    assert {chapter for part in PARTS for chapter in part.chapters} | set(AROUND) == set(CHAPTERS)
    for part in PARTS:
        box = re.search(rf'data-part="{part.key}".*?</p>', figure.body).group()
        assert re.findall(r'href="([^"]+)\.html"', box) == list(part.chapters)


def test_both_layouts_have_the_same_parts_and_arrows(figure):
    assert list(ROUTES["wide"]) == list(ROUTES["narrow"])
    assert figure.body.count("data-edge=") == 2 * len(ROUTES["wide"])


def test_the_table_has_every_arrow_in_bytes(figure):
    assert "<td>Prefix store → Prefill pool</td><td>pages</td>" in figure.table
    numbers = [f'<td class="ds-number">{890 * (context - NEW):,} B</td>' for context in CONTEXTS]
    assert "".join(numbers) in figure.table
    assert len(v41_path(FLASH)) + len(v4_path(V4)) == figure.table.split("</table>")[1].count("<tr>") - 1


def test_an_arrow_that_carries_two_things_names_both():
    one = Travel("decode", "store", "entries", 3_000, kind="main", each="a token")
    other = Travel("decode", "store", "windows", 5_000_000, kind="window", each="at the end")
    assert label([one, other]) == ("3 kB a token", "+ 5 MB at the end", "main")
    assert label([one, dataclasses.replace(other, each="a token")]) == ("5 MB", "entries + windows", "main")
    assert label([other]) == ("5 MB", "at the end", "window")


def test_the_page_stays_light(figure):
    assert len(figure._repr_html_().encode()) < 110_000


# Where the book is


@pytest.fixture
def published(monkeypatch):
    def publish(*urls):
        class Named:
            def get_all(self, _):
                return list(urls) or None

        monkeypatch.setattr(metadata, "metadata", lambda _: Named())

    return publish


def test_the_address_is_the_package_s_own(published):
    published("Repository, https://example.org/code", "Documentation, https://example.org/ds41")
    assert stack_links.documentation_address() == "https://example.org/ds41/"
    assert stack_links.chapters_address() == ("https", "example.org/ds41/book/")
    published("Repository, https://example.org/code")
    assert stack_links.chapters_address() is None
    published()
    assert stack_links.documentation_address() is None


def test_a_package_that_is_not_installed_has_no_address():
    assert stack_links.documentation_address("no-such-package-of-this-name") is None


HREFS = "[...document.querySelectorAll('figure a')].map(a => [a.getAttribute('href'), a.target])"


@pytest.mark.browser
def test_links_lead_to_the_published_book_from_anywhere_else(look, published):
    published("Documentation, https://example.org/ds41/")
    made = inference_stack()._repr_html_()
    assert [None, ""] not in look(made).evaluate(HREFS)
    assert ["https://example.org/ds41/book/02-ced.html", "_blank"] in look(made).evaluate(HREFS)
    assert ["02-ced.html", ""] in look(made, markers='data-content_root="../"').evaluate(HREFS)
    assert ["02-ced.html", ""] in look(made, script=False).locator("html").evaluate_all(
        "() => [...document.querySelectorAll('figure a')].map(a => [a.getAttribute('href'), a.target])"
    )


@pytest.mark.browser
def test_without_an_address_names_stay_as_text(look, published):
    published()
    assert set(map(tuple, look(inference_stack()._repr_html_()).evaluate(HREFS))) == {(None, "")}


# What a reader can do


@pytest.fixture
def page(figure, look):
    return look(figure._repr_html_(), markers='data-content_root="../"')


def state(page, part):
    return page.locator(f"[data-part={part}]").get_attribute("data-state")


def note(page, part):
    return page.locator(f"[data-part={part}] .ds-note").inner_text()


def arrow(page, edge):
    return page.locator(f".ds-wide [data-edge={edge}] text").all_text_contents()


def pick(page, **choices):
    for name, value in choices.items():
        page.locator(f"input[name={name}][value='{value}']").check()


@pytest.mark.browser
def test_switches_change_what_works_and_what_travels(page):
    assert (state(page, "encoder"), state(page, "layers"), state(page, "windows")) == (WORKS, RESTS, RESTS)
    assert arrow(page, "store-prefill") == ["931 MB", "pages"]
    assert note(page, "encoder") == "128 again + 2,048 new, layers 0–19"
    pick(page, cache="miss", context=4096)
    assert arrow(page, "store-prefill") == ["", ""]
    assert arrow(page, "prefill-store") == ["3.65 MB", "pages"]
    pick(page, phase="decode")
    assert (state(page, "encoder"), state(page, "layers"), state(page, "drafter")) == (RESTS, WORKS, WORKS)
    assert arrow(page, "decode-store") == ["890 B", "a token"]
    assert page.locator(".ds-says").inner_text().startswith("Decode. Each token runs through all 40 layers")
    pick(page, model="v4")
    assert (state(page, "engram"), note(page, "engram")) == (ABSENT, UNKNOWN)
    assert arrow(page, "decode-store") == ["3.51 kB a token", "+ 3.21 MB at the end"]
    assert page.locator("[data-part=encoder] .ds-name").inner_text() == "All layers"
    assert page.locator("[data-part=layers] .ds-cells i").count() == 43
    pick(page, model="v41")
    assert page.locator("[data-part=encoder] .ds-name").inner_text() == "Encoder"


@pytest.mark.browser
def test_one_token_is_followed_by_buttons_and_arrow_keys(page):
    caption, slider = page.locator("figcaption"), page.locator("input[name=step]")
    here = "[...document.querySelectorAll('[data-here]')].map(e => e.dataset.part || e.dataset.edge || e.tagName)"
    assert caption.get_attribute("aria-live") == "polite"
    page.locator("[data-act=next]").click()
    assert caption.inner_text().startswith("Step 1 of 12: Engram rows, read.")
    assert set(page.evaluate(here)) == {"engram", "engram-prefill", "LI"}
    assert arrow(page, "engram-prefill") == ["12.7 kB", "this token"]
    page.locator("[data-act=next]").press("ArrowRight")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "Step 5 of 12: FP4"
    assert "So far: 12,672 B read, 720 B kept." in caption.inner_text()
    page.keyboard.press("End")
    assert "890 B on disk, no window row among them" in caption.inner_text()
    page.locator("[data-act=back]").press("Enter")
    assert set(page.evaluate(here)) == {"store", "prefill-store", "LI"}
    assert arrow(page, "store-prefill") == ["", ""]
    # A switch ends the walk; another model has another way.
    pick(page, model="v4")
    assert page.evaluate(here) == []
    assert slider.get_attribute("max") == "8"
    page.locator("[data-act=next]").click()
    assert "is not among the numbers of this book" in caption.inner_text()
    assert page.locator(".ds-trail li").first.inner_text().endswith(UNKNOWN)


@pytest.mark.browser
def test_every_link_is_reached_by_tab_and_can_be_seen(page):
    wanted = page.locator("figure a").count()
    seen = []
    for _ in range(wanted + 4):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "(e => e.tagName === 'A' ? [e.getAttribute('href'), getComputedStyle(e).outlineStyle] : null)"
                "(document.activeElement)"
            )
        )
    reached = [one for one in seen if one]
    assert len(reached) == wanted
    assert {style for _, style in reached} == {"solid"}
    # In the order of the map: a pool, then what is in it.
    first = [part.chapters for part in PARTS]
    assert [href for href, _ in reached[:5]] == [f"{one}.html" for chapters in first[:5] for one in chapters]


FITS = """() => {
  const faults = new Set();
  const inputs = [...document.querySelectorAll(".ds-switches input")];
  const values = (name) => inputs.filter((input) => input.name === name);
  const check = () => {
    for (const part of document.querySelectorAll(".ds-part"))
      if (part.scrollHeight > part.clientHeight + 1 || part.scrollWidth > part.clientWidth + 1)
        faults.add(`${part.dataset.part} overflows: ${part.innerText}`);
    const labels = [...document.querySelectorAll(".ds-arrows text")].filter((e) => e.textContent)
      .map((e) => [e.textContent, e.getBoundingClientRect()]).filter(([, box]) => box.width);
    const frame = document.querySelector("figure").getBoundingClientRect();
    for (const cell of document.querySelectorAll(".ds-trail li > *"))
      if (cell.scrollWidth > cell.clientWidth + 1 && cell.clientWidth) faults.add(`too wide: ${cell.innerText}`);
    const boxes = [...document.querySelectorAll(".ds-part")].map((e) => [e.dataset.part, e.getBoundingClientRect()]);
    labels.forEach(([text, b], i) => {
      if (b.left < frame.left - 1 || b.right > frame.right + 1) faults.add(`outside: ${text}`);
      for (const [other, o] of [...labels.slice(i + 1), ...boxes]) {
        const across = Math.min(b.right, o.right) - Math.max(b.left, o.left);
        const down = Math.min(b.bottom, o.bottom) - Math.max(b.top, o.top);
        if (across > 3 && down > 4) faults.add(`${text} over ${other}`);
      }
    });
  };
  for (const model of values("model")) for (const phase of values("phase")) for (const cache of values("cache"))
    for (const context of values("context")) { [model, phase, cache, context].forEach((e) => e.click()); check(); }
  for (const model of values("model")) {
    model.click();
    for (let step = 0; step < 13; step += 1) { document.querySelector("[data-act=next]").click(); check(); }
  }
  return [...faults];
}"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 375, 660, 760])
def test_words_stay_in_their_boxes_and_off_each_other(figure, look, width):
    assert look(figure._repr_html_(), width=width).evaluate(FITS) == []


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 760), ("dark", 375)])
def test_text_is_large_enough_and_readable_where_a_token_is_followed(figure, look, axe_source, theme, width):
    page = look(figure._repr_html_(), theme=theme, width=width, markers=f'data-theme="{theme}"')
    pick(page, model="v4")
    page.locator("[data-act=next]").click()
    sizes = page.evaluate(
        "[...document.querySelectorAll('figure *')].filter(e => e.childNodes.length && e.getClientRects().length)"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 11
    smallest = "Math.min(...[...document.querySelectorAll('figure a')].flatMap(e => [e.offsetWidth, e.offsetHeight]))"
    assert page.evaluate(smallest) >= 24
    assert list(book_rules.axe_faults(page, axe_source)) == []


def test_words_are_in_python(figure):
    script = re.search(r"<script>(.*?)</script>", figure._repr_html_(), re.DOTALL).group(1)
    told = re.findall(r"[\"'`>]([A-Z][a-z]+ [a-z]+[^\"'`]*)", re.sub(r"//.*", "", script))
    assert told == []
