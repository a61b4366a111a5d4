"""The timeline of a hit: its plan by plain counting, its script against its still picture."""

from __future__ import annotations

import itertools

import pytest
from small_configs import with_plan

from ds41 import flops, viz
from ds41.config import ModelConfig
from ds41.viz.replay_timeline import PROMPTS, entries_written, resume, token_layers

FLASH = ModelConfig.flash()
# Another split, another pattern of owners, a window of its own: nothing of the published plan is built in.
SMALL = with_plan((0, 0, 2, 2, 1, 1, 1), (2, 4), (2, 4, 6), sliding_window=48, max_position_embeddings=5000)
HITS = (0, 1, 47, 48, 49, 127, 128, 129, 255, 299, 640, 767)

# Sets the controls as a reader would and gives the parts of the picture that are not as ``html`` has them.
UNEQUAL = """(cases) => cases.flatMap(([html, fields]) => {
  const form = document.querySelector("form");
  form.elements.prompt.value = fields.prompt;
  form.elements.prompt[0].dispatchEvent(new Event("input", { bubbles: true }));
  for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
  form.elements.hit.dispatchEvent(new Event("input", { bubbles: true }));
  const still = new DOMParser().parseFromString(html, "text/html");
  return [".ds-picture", "figcaption", ".ds-query", "table"]
    .map((part) => [document, still].map((page) => page.querySelector(part).innerHTML))
    .filter(([live, expected]) => live !== expected)
    .map((pair) => [fields, ...pair]);
})"""


@pytest.fixture
def replay_page(look):
    return look(viz.replay_timeline()._repr_html_())


def rows_in_reach(shown, windows, group, query):
    """Rows a query sees, found by walking back from it one position at a time."""
    # A group's rows are written where the group below it gives an output.
    written = range(shown.tail if group == 2 else shown.start, shown.prompt + 1)
    kept = {"gone": (), "prefill": (0, 1), "all": (0, 1, 2)}[windows] if shown.found else ()
    # A decoder that leaves out tokens between the kept rows and its own begins anew.
    goes_on = group in kept and (group < 2 or shown.tail <= shown.hit)
    walked = range(query, max(-1, query - shown.window), -1)
    return [position for position in walked if position in written or (goes_on and position < shown.hit)]


@pytest.mark.browser
@pytest.mark.parametrize("config", [FLASH, SMALL, ModelConfig.nano()], ids=["flash", "small", "nano"])
def test_the_script_draws_what_the_library_draws(look, config):
    page = look(viz.replay_timeline(config, hit=7, prompt=300)._repr_html_())
    cases = []
    for prompt, hit, windows, short in itertools.product(
        PROMPTS, HITS, ("gone", "prefill", "all"), ("recompute", "replay")
    ):
        for query in (hit, prompt - 20, prompt) if hit < prompt else ():
            figure = viz.replay_timeline(config, hit, prompt, windows, short, query)
            fields = {"prompt": str(prompt), "hit": hit, "windows": windows, "short": short, "query": query}
            html = f"{figure.body}<figcaption>{figure.caption}</figcaption>{figure.table}"
            cases.append((html, fields))
    assert page.evaluate(UNEQUAL, cases) == []


@pytest.mark.parametrize("windows", ["gone", "prefill", "all"])
@pytest.mark.parametrize("hit", HITS)
def test_reach_is_what_walking_back_finds(hit, windows):
    for short in ("recompute", "replay"):
        shown = resume(FLASH, 768, hit, windows, short)
        for group in range(3):
            cut = 0
            for query in range(769):
                reach = shown.reach(group, query)
                if query < shown.begin(group):
                    assert reach is None
                    continue
                expected = rows_in_reach(shown, windows, group, query)
                assert list(range(*reach)) == expected[::-1], (group, query)
                cut += query < 768 and len(expected) < min(query + 1, 128)
            assert cut == shown.clipped(group)


def test_a_kept_encoder_feeds_the_decoder_its_window():
    assert resume(FLASH, 768, 500, "prefill").replayed == 0
    shown = resume(FLASH, 768, 700, "prefill")
    assert (shown.start, shown.replayed, shown.sees) == (640, 60, (0, 640))
    assert resume(FLASH, 768, 700, "all").replayed == 0


@pytest.mark.parametrize(
    ("hit", "start", "adopted"),
    [(0, 0, 0), (1, 0, 0), (127, 0, 0), (128, 0, 0), (129, 1, 129), (255, 127, 255), (256, 128, 256), (700, 572, 700)],
)
def test_hits_of_every_length(hit, start, adopted):
    shown = resume(FLASH, 768, hit)
    assert (shown.start, shown.hit) == (start, adopted)
    replayed = resume(FLASH, 768, hit, short_hits="replay")
    assert (replayed.start, replayed.hit) == (max(0, hit - 128), hit)


@pytest.mark.parametrize("hit", [0, 129, 500, 700])
def test_the_count_is_that_of_the_operations(hit):
    """Experts run once for each token and layer, so their operations count both."""
    shown = resume(FLASH, 768, hit)
    each = flops.by_layer(FLASH, 1)[0]["routed experts"]
    counted = flops.prefill(FLASH, 768 - shown.start, "bounded", cached=shown.start)["routed experts"]
    assert token_layers(FLASH, shown) * each == counted


def test_a_pair_that_straddles_the_hit_is_written_by_the_new_token():
    assert entries_written(FLASH, resume(FLASH, 768, 501)) == 3 * (384 - 250) + 267
    assert entries_written(FLASH, resume(FLASH, 768, 500)) == 3 * (384 - 250) + 268


@pytest.mark.browser
def test_moving_the_hit_says_what_runs_again(replay_page):
    caption, query = replay_page.locator("figcaption"), replay_page.locator(".ds-query")
    assert caption.inner_text().startswith("Hit of 500, windows gone. Tokens 372 to 499 are fed again. The first 127")
    assert query.inner_text().startswith(
        "Token 768, next. Layers 0–19 see all 128 rows, from position 641. Layer 20 sees"
    )
    replay_page.locator("input[name=slider]").fill("128")
    assert caption.inner_text().startswith("Hit of 128 passed over.")
    replay_page.locator("input[name=short][value=replay]").check()
    assert "The whole prefix is fed again. Nothing before it is missing" in caption.inner_text()
    replay_page.locator("input[name=windows][value=all]").check()
    assert "windows kept. Nothing is fed again." in caption.inner_text()
    assert replay_page.locator("[class=ds-replay]").count() == 0


@pytest.mark.browser
def test_keys_do_all_that_a_pointer_does(replay_page):
    slider = replay_page.locator("input[name=slider]")
    slider.focus()
    replay_page.keyboard.press("ArrowRight")
    assert replay_page.locator("input[name=hit]").input_value() == "501"
    assert slider.get_attribute("aria-valuetext") == "501 of 768 tokens"
    replay_page.keyboard.press("Home")
    assert replay_page.locator("figcaption").inner_text().startswith("No hit.")
    # Found, exactly, windows, short hits, prompt, query.
    for _ in range(5):
        replay_page.keyboard.press("Tab")
    replay_page.keyboard.press("Home")
    assert replay_page.locator(".ds-query").inner_text().startswith("Token 0, new.")
    box = replay_page.locator(".ds-tokens").bounding_box()
    replay_page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
    assert abs(int(replay_page.locator("input[name=hit]").input_value()) - 384) <= 2


@pytest.mark.browser
def test_a_hit_half_typed_breaks_nothing(replay_page):
    for typed, hit in (("", 0), ("-5", 0), ("1e9", 767), ("12.7", 12)):
        replay_page.locator("input[name=hit]").fill(typed)
        assert replay_page.locator("input[name=slider]").input_value() == str(hit)
    replay_page.locator("input[name=hit]").fill("700")
    replay_page.locator("input[name=prompt][value='300']").check()
    assert replay_page.locator("input[name=slider]").input_value() == "299"
    assert replay_page.locator(".ds-query").inner_text().startswith("Token 300, next.")


@pytest.mark.browser
def test_lengths_are_to_scale(replay_page):
    widths = replay_page.evaluate(
        "['.ds-half .ds-replay', '.ds-half .ds-window', '.ds-pages .ds-main'].map("
        "(name) => document.querySelector(name).getBoundingClientRect().width)"
    )
    assert [width / widths[0] for width in widths[1:]] == pytest.approx([1, 268 / 128], rel=0.03)


def test_bad_timelines_are_named():
    with pytest.raises(ValueError, match="prompt is 500; expected one of: 300, 768, 2048"):
        viz.replay_timeline(prompt=500)
    with pytest.raises(ValueError, match="windows is 'lost'; expected one of: gone, prefill, all"):
        viz.replay_timeline(windows="lost")
    with pytest.raises(ValueError, match="short_hits is 'drop'; expected one of: recompute, replay"):
        viz.replay_timeline(short_hits="drop")
    with pytest.raises(ValueError, match="hit is 768; expected 0 to 767, less than the prompt"):
        viz.replay_timeline(hit=768)
    with pytest.raises(ValueError, match="query is 769; expected 0 to 768"):
        viz.replay_timeline(query=769)
    with pytest.raises(ValueError, match="decoder_start is 0; these layers are not an encoder and a decoder"):
        viz.replay_timeline(with_plan((1, 1), (0,)))
