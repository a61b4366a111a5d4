"""The map of the serving stack: bytes against the ledger, tokens against the real engine, and what a reader can do."""

from __future__ import annotations

import dataclasses
import re

import pytest
import tiny_model
from small_configs import with_plan

from ds41 import ledger
from ds41.cache import PageLayout
from ds41.config import ModelConfig
from ds41.reads import kv_bytes_read
from ds41.serving import HostWindowPool, PrefixStore, model_fingerprint
from ds41.serving.pools import EngineOptions, PoolSizes, Request, local_cluster
from ds41.serving.pools.requests import RequestReport, Stage
from ds41.serving.turn import TurnReport
from ds41.vision.sizes import plan_image
from ds41.viz import serving_trace
from ds41.viz.serving_journeys import journeys
from ds41.viz.serving_map import serving_map
from ds41.viz.serving_trace import EVICTABLE, Flow, Journey, Kept, Step, journey_of, lifetime
from ds41.weights import engram_row_bytes

FLASH = ModelConfig.flash()
COLD, RESTORED, REPLAYED, PICTURE, LOST = range(5)
# Of the conversation with the real pools.
TOKENS, NEW, ANSWER = 131, 30, 6
SIZES = ((100_000, 2_000, 500), (50_001, 77, 333), (1_000_000, 1, 2))


def flows(journey):
    return [flow for step in journey.steps for flow in step.flows]


def moved(journey, source, target, what="pages"):
    return sum(one.nbytes for one in flows(journey) if (one.source, one.target, one.what) == (source, target, what))


def at_the_end(journey):
    return {kept.tier: kept for step in journey.steps for kept in step.kept}


def words(journey):
    return "; ".join(step.computed for step in journey.steps if step.computed)


# The bytes are the ledger's


@pytest.mark.parametrize(("tokens", "new", "answer"), SIZES)
def test_what_a_conversation_leaves_is_what_the_ledger_says(tokens, new, answer):
    shown = journeys(FLASH, tokens, new, answer)
    for number, end in ((COLD, tokens + answer), (RESTORED, tokens + 2 * answer + new), (LOST, tokens + answer)):
        kept = at_the_end(shown[number])
        assert kept["store"].nbytes == kept["pages"].nbytes == ledger.global_bytes(FLASH, end)
        state = ledger.open_group_bytes(FLASH, end) + ledger.engram_history_bytes(FLASH)
        assert kept["windows"].nbytes == ledger.window_bytes(FLASH) + state
        assert (kept["pages"].stays, kept["store"].stays, kept["windows"].stays) == (EVICTABLE, "≥ 72 h", "10 min")


def test_only_a_page_that_was_partial_is_stored_again():
    cold, restored, replayed, *_ = journeys(FLASH, 100_000, 2_000, 500)
    assert moved(cold, "prefill", "store") == 890 * 100_000
    assert moved(cold, "decode", "store") == 890 * (100_500 - 99_968)
    for journey in (restored, replayed):
        assert moved(journey, "prefill", "store") == 890 * (102_500 - 100_480)
        assert moved(journey, "decode", "store") == 890 * (103_000 - 102_464)


def test_what_is_read_back():
    _, restored, replayed, *_ = journeys(FLASH, 100_000, 2_000, 500)
    assert moved(replayed, "store", "prefill") == 890 * 100_500
    # Of a prompt only whole pages of 64 tokens are found in memory.
    assert moved(restored, "store", "prefill") == 890 * (100_500 - 99_968)
    assert "99,968" in [flow.amount for flow in flows(restored)]
    assert moved(restored, "windows", "prefill", "windows") == ledger.window_bytes(FLASH) + 24
    assert "windows-prefill nothing" in [f"{one.source}-{one.target} {one.amount}" for one in flows(replayed)]


def test_a_hand_over_has_what_the_decode_worker_lacks():
    cold, restored, replayed, *_ = journeys(FLASH, 100_000, 2_000, 500)
    private, page = ledger.window_bytes(FLASH) + 24, 890 * 64
    assert moved(cold, "prefill", "decode", "pages, windows") == 1_563 * page + private
    assert moved(replayed, "prefill", "decode", "pages, windows") == 1_602 * page + private
    # The worker has 1,570 whole pages; 64 travel together, so those from page 1,536 on do.
    assert moved(restored, "prefill", "decode", "pages, windows") == (1_602 - 1_536) * page + private


def test_tokens_that_run():
    shown = journeys(FLASH, 100_000, 2_000, 500)
    assert "100,000 new × layers 0–19, the last 128 × layers 20–39" in words(shown[COLD])
    assert words(shown[RESTORED]).startswith("2,000 new × layers 0–19")
    assert words(shown[REPLAYED]).startswith("128 again and 2,000 new × layers 0–19")
    # Both Engram layers lie in the encoder, so every token that is fed reads its rows, fed again or not.
    for number, fed in ((COLD, 100_000), (RESTORED, 2_000), (REPLAYED, 2_128)):
        (rows,) = [one.nbytes for one in flows(shown[number]) if (one.target, one.what) == ("prefill", "rows")]
        assert rows == fed * engram_row_bytes(FLASH)


def test_a_step_of_decode_reads_a_part_of_what_is_there():
    cold = journeys(FLASH, 2**20 - 1, 1, 2)[COLD]
    (read,) = [one for one in flows(cold) if one.what == "KV"]
    assert (read.nbytes, read.each) == (kv_bytes_read(FLASH, 2**20), "a token")


def test_windows_of_the_encoder_alone_are_smaller():
    kept = {
        windows: at_the_end(journeys(FLASH, windows=windows)[COLD])["windows"].nbytes for windows in ("prefill", "all")
    }
    layer = 128 * 528
    assert (kept["all"] - kept["prefill"], kept["prefill"]) == (19 * layer, 21 * layer + 24)
    # Fewer new tokens than a window: then some run again for the decoder's sake.
    assert words(journeys(FLASH, new_tokens=28, windows="prefill")[RESTORED]).startswith("100 again and 28 new")


def test_a_picture_is_as_many_tokens_as_its_plan_says():
    plan = plan_image(640, 480, FLASH.vision)
    shown = journeys(FLASH, new_tokens=2_000, picture=(640, 480))[PICTURE]
    (vectors,) = [one for one in flows(shown) if one.what == "vectors"]
    assert vectors.nbytes == plan.span_tokens * FLASH.hidden_size * 2
    assert at_the_end(shown)["store"].nbytes == ledger.global_bytes(FLASH, 2_000 + plan.span_tokens + 500)
    assert f"{plan.patches:,} patches" in words(shown)


def test_a_lost_worker_costs_a_hand_over_and_no_prefill():
    shown = journeys(FLASH, 100_000, 2_000, 500)[LOST]
    (fault,) = [number for number, step in enumerate(shown.steps) if step.fault]
    before, after = shown.steps[:fault], shown.steps[fault + 1 :]
    assert [step.box for step in after] == ["decode", "decode", "clients", "decode"]
    hand_over = {one.nbytes for one in flows(shown) if one.what == "pages, windows"}
    assert hand_over == {1_563 * 64 * 890 + ledger.window_bytes(FLASH) + 24}
    assert shown.steps[fault].kept == (Kept("pages", 0),)
    # The first token came from the prefill, and none is sent twice.
    drawn = [
        (one.source, int(one.amount)) for one in flows(shown) if one.target == "endpoint" and one.source != "clients"
    ]
    assert drawn == [("prefill", 1), ("decode", 249), ("decode", 250)]
    sent = [int(one.amount) for step in (*before, *after) for one in step.flows if one.target == "clients"]
    assert sent == [250, 250]


# The rules are those of the real pools


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Three turns of a tiny model: cold, soon after, and when the windows have gone and other workers take over."""
    model, clock = tiny_model.build(), [0.0]
    pool = HostWindowPool(2**24, lifetime_s=600, clock=lambda: clock[0])
    fingerprint, layout = model_fingerprint(model), PageLayout.of(model.config, page_tokens=2)
    sizes, options = PoolSizes(vision=0, rows=2), EngineOptions(max_tokens=256)
    folder = tmp_path_factory.mktemp("store")
    reports, ids = [], tuple(range(3, 3 + TOKENS))
    with PrefixStore(folder, layout, fingerprint=fingerprint, budget_bytes=2**24) as store:
        tiers = {"store": store, "pool": pool, "fingerprint": fingerprint}
        for turns in (2, 1):
            with local_cluster(model, options, sizes, **tiers) as cluster:
                for _ in range(turns):
                    # The last token drawn is never fed: it belongs to what the next turn brings.
                    answer = cluster.submit(Request("t", ids, max_new_tokens=ANSWER + 1, stop_ids=frozenset()))
                    ids += (*answer, *range(5, 5 + NEW - 1))
                    reports.append(answer.report)
            clock[0] += 601
    return model.config, reports


def test_the_real_pools_move_what_the_map_says(real):
    config, reports = real
    first = journeys(config, TOKENS, NEW, ANSWER, page_tokens=2)
    third = journeys(config, TOKENS + ANSWER + NEW, NEW, ANSWER, page_tokens=2)
    for report, shown in zip(reports, (first[COLD], first[RESTORED], third[REPLAYED]), strict=True):
        assert report.prefill.stored_bytes == moved(shown, "prefill", "store")
        assert report.decode.stored_bytes == moved(shown, "decode", "store")
        private = ledger.window_bytes(config) + ledger.open_group_bytes(config, report.prompt_tokens)
        handed = moved(shown, "prefill", "decode", "pages, windows") - private
        assert report.handed_bytes - report.window_bytes == handed
        again = f"{report.prefill.replayed_tokens:,} again and " if report.prefill.replayed_tokens else ""
        assert words(shown).startswith(f"{again}{report.prefill.computed_tokens} new × layers")
    restored, replayed = reports[1].prefill, reports[2].prefill
    assert (restored.windows, replayed.windows) == ("restored", "replayed")
    assert f"{restored.resident_tokens:,}" in [flow.amount for flow in flows(first[RESTORED])]
    assert (replayed.resident_tokens, replayed.replayed_tokens) == (0, config.sliding_window)


def test_a_real_request_takes_the_stops_of_the_predicted_one(real):
    _, reports = real
    shown = journey_of(reports[2])
    assert [step.box for step in shown.steps] == ["endpoint", *["prefill"] * 3, *["decode"] * 3, "clients"]
    assert moved(shown, "store", "prefill") == reports[2].prefill.store_bytes > 0
    assert moved(shown, "prefill", "decode", "pages, windows") == reports[2].handed_bytes
    assert moved(shown, "decode", "windows", "windows") == reports[2].decode.kept_window_bytes > 0


def test_any_plan_of_two_halves_has_its_journeys():
    small = with_plan((0, 0, 2, 2, 1, 1, 1), (2, 4), (2, 4, 6), sliding_window=48, max_position_embeddings=5000)
    small = dataclasses.replace(small, vision=None)
    shown = journeys(small, 301, 20, 10)
    assert [journey.name for journey in shown] == ["Cold prompt", "Next turn", "Next turn", "A killed worker"]
    assert at_the_end(shown[0])["store"].nbytes == ledger.global_bytes(small, 311)
    figure = serving_map(small, 301, 20, 10)
    assert 'data-box="engram"' not in figure.body
    assert 'data-edge="engram' not in figure.body


# Real requests


def traced():
    report = RequestReport(
        prompt_tokens=300, generated_tokens=9, prompt_pages=5, handed_bytes=9_000, window_bytes=1_000
    )
    report.prefill = TurnReport(
        store_tokens=200,
        store_bytes=4_000,
        windows="replayed",
        replayed_tokens=16,
        computed_tokens=100,
        generated_tokens=1,
        stored_bytes=50,
    )
    report.decode = TurnReport(computed_tokens=9, kept_window_bytes=700, stored_bytes=70, refused="no room <here>")
    report.stages = [
        Stage("prefill", "prefill-0", 0.0, 0.002, 0.25, "lost"),
        Stage("prefill", "prefill-1", 0.3, 0.001, 1.25, "done"),
        Stage("decode", "decode-0", 1.6, 0.0, 2.0, "done"),
    ]
    report.first_token_s, report.seconds, report.finish = 1.5, 3.75, "length"
    return report


def test_a_traced_request_tells_what_was_counted():
    shown = journey_of(traced(), name="Nano, traced")
    assert [step.does for step in shown.steps] == [
        "takes the request",
        "is killed",
        "looks for the prefix",
        "reads the prompt",
        "leaves its state behind",
        "takes the sequence over",
        "writes the answer",
        "leaves its state behind",
        "have the answer",
    ]
    assert [step.fault for step in shown.steps].index(True) == 1
    assert 'Worker <b translate="no">prefill-0</b>: waited 2 ms, there for 250 ms.' in shown.steps[1].text
    assert moved(shown, "store", "prefill") == 4_000
    assert moved(shown, "decode", "windows", "windows") == 700
    assert (moved(shown, "prefill", "store"), moved(shown, "decode", "store")) == (50, 70)
    # What the decode stores comes to what the prefill has stored.
    assert at_the_end(shown)["store"].nbytes == 120
    assert "100 new, 16 again" in words(shown)
    assert "It took 3.75 s, the first token after 1.5 s." in shown.overview
    assert "A worker of the prefill pool was lost on the way." in shown.overview
    assert shown.steps[-1].flows[0] == Flow("prefill", "endpoint", "tokens", amount="1")
    assert "Refused: no room &lt;here&gt;." in shown.steps[7].text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.002, "2 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (3.754, "3.75 s"), (1234.0, "1,230 s")],
)
def test_seconds_are_no_powers_of_ten(seconds, said):
    assert serving_trace._seconds(seconds) == said


def test_a_traced_request_stands_beside_the_predicted_ones():
    figure = serving_map(journeys=[journey_of(traced(), name="Nano & traced")])
    assert "Nano &amp; traced" in figure.body
    assert len(figure.data["journeys"]) == 6
    assert 'data-edge="prefill-store"' in figure.body


def test_a_request_that_no_worker_took_has_no_journey():
    with pytest.raises(ValueError, match="the report has no stages"):
        journey_of(RequestReport())


# What is drawn


def test_every_edge_that_travels_is_drawn_and_every_step_is_in_the_table():
    figure = serving_map()
    drawn = set(re.findall(r'data-edge="([^"]+)"', figure.body))
    assert drawn == {edge for one in figure.data["journeys"] for step in one["steps"] for edge in step["edges"]}
    assert figure.table.count("<tr>") == 1 + sum(1 + len(one["steps"]) for one in figure.data["journeys"])
    assert "89,000,000 B of pages, prefill pool → device pages" in figure.table


def test_the_page_stays_light():
    both = [journey_of(traced(), name) for name in ("Traced, cold", "Traced, next turn")]
    assert len(serving_map(journeys=both)._repr_html_().encode()) < 60_000


def test_tables_are_held_where_they_are_known():
    figure = serving_map(journeys=[journey_of(traced())])
    tables = [one["held"].get("engram") for one in figure.data["journeys"]]
    assert tables == [("203 GB", "weights")] * 5 + [None]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="new_tokens is 0; expected 1 or more"):
        serving_map(new_tokens=0)
    with pytest.raises(
        ValueError, match="tokens and answer_tokens are 100 and 20; expected more than the window of 128"
    ):
        serving_map(tokens=100, answer_tokens=20)
    with pytest.raises(ValueError, match="these layers are not an encoder and a decoder"):
        serving_map(with_plan((1, 1), (0,)))
    with pytest.raises(ValueError, match="box is 'disk'; expected one of: clients, endpoint"):
        Flow("disk", "prefill", "pages")
    astray = Journey("astray", "", "", (Step("vision", "writes", "", (Flow("vision", "store", "pages"),)),))
    with pytest.raises(ValueError, match="no edge of the map leads from 'vision' to 'store'"):
        serving_map(journeys=[astray])
    with pytest.raises(ValueError, match="step 'reads' has two flows between the same boxes"):
        Step("prefill", "reads", "", (Flow("store", "prefill", "a"), Flow("prefill", "store", "b")))
    with pytest.raises(ValueError, match="journey 'empty' has no steps"):
        Journey("empty", "", "", ())


def test_lifetimes_are_said_in_their_unit():
    assert [lifetime(seconds) for seconds in (259_200, 5_400, 600, 45)] == ["72 h", "1.5 h", "10 min", "45 s"]


# What a reader can do


@pytest.fixture
def page(look):
    return look(serving_map()._repr_html_())


def caption(page):
    return page.locator("figcaption").inner_text()


def lit(page):
    return page.evaluate("[...document.querySelectorAll('g.ds-now')].map(e => e.dataset.edge || e.dataset.box)")


def held(page, tier):
    return page.locator(f"[data-box={tier}] .ds-held").text_content()


@pytest.mark.browser
def test_a_request_is_followed_by_button_and_by_key(page):
    assert lit(page) == []
    assert caption(page).startswith("A cold prompt of 100,000 tokens")
    assert held(page, "store") == "89.4 MB"
    page.locator("[data-act=next]").click()
    assert set(lit(page)) == {"clients-endpoint", "endpoint"}
    assert held(page, "store") == "–"
    slider = page.locator("input[name=step]")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "4 of 9, prefill pool reads the prompt"
    assert set(lit(page)) == {"prefill-pages", "engram-prefill", "prefill"}
    assert "100,000 new × layers 0–19" in caption(page)
    assert "1,267,200,000 B of rows, Engram → prefill pool" in caption(page)
    assert page.locator("[data-edge=prefill-pages] text").all_text_contents() == ["89 MB", "pages"]
    assert held(page, "pages") == "89 MB"
    page.keyboard.press("End")
    assert (held(page, "windows"), held(page, "store")) == ("2.7 MB", "89.4 MB")
    page.locator("[data-act=next]").click()
    assert caption(page).startswith("Step 9 of 9: decode pool leaves its state behind.")
    page.locator("[data-act=back]").press("Enter")
    assert caption(page).startswith("Step 8 of 9")


@pytest.mark.browser
def test_another_journey_begins_at_its_beginning(page):
    page.locator("[data-act=next]").click()
    page.locator("input[name=journey][value='2']").check()
    assert caption(page).startswith("The next turn, hours later.")
    assert lit(page) == []
    assert page.locator("input[name=step]").get_attribute("aria-valuetext") == "the whole journey"
    page.locator("[data-act=next]").click()
    # The turn before has left pages on disk and nothing else.
    assert (held(page, "store"), held(page, "windows"), held(page, "pages")) == ("89.4 MB", "–", "–")
    to_vision = page.locator("[data-edge=endpoint-vision]")
    assert not to_vision.is_visible()
    page.locator("input[name=journey][value='3']").check()
    assert to_vision.is_visible()


@pytest.mark.browser
def test_a_worker_that_is_lost_is_marked(page):
    page.locator("input[name=journey][value='4']").check()
    lost = "[...document.querySelectorAll('.ds-lost')].map(e => e.dataset.box)"
    for _ in range(9):
        assert page.evaluate(lost) == []
        page.locator("[data-act=next]").click()
    assert page.evaluate(lost) == ["decode"]
    assert held(page, "pages") == "–"
    page.locator("[data-act=next]").click()
    assert page.evaluate(lost) == []
    assert held(page, "pages") == "89 MB"


@pytest.mark.browser
def test_every_step_says_what_its_row_of_the_table_says(page):
    data = serving_map().data
    row = 0
    for journey, one in enumerate(data["journeys"]):
        page.locator(f"input[name=journey][value='{journey}']").check()
        for step in range(len(one["steps"]) + 1):
            cells = page.locator("tbody tr").nth(row).locator("td").all_text_contents()
            shown = page.evaluate("[...document.querySelectorAll('dd')].map(e => e.innerHTML.replaceAll('<br>', '; '))")
            assert shown == cells[2:], (journey, step)
            row += 1
            page.locator("[data-act=next]").click()


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 375, 760])
def test_labels_stay_in_the_picture_and_off_each_other(look, width):
    page = look(serving_map()._repr_html_(), width=width)
    faults = page.evaluate(
        """() => {
          const faults = [];
          const next = document.querySelector("[data-act=next]");
          const frame = document.querySelector("figure").getBoundingClientRect();
          for (const journey of document.querySelectorAll("input[name=journey]")) {
            journey.click();
            for (let step = 0; step < 15; step += 1, next.click()) {
              const labels = [...document.querySelectorAll(".ds-stack text")].filter((e) => e.textContent);
              const boxes = labels.map((e) => [e.textContent, e.getBoundingClientRect()]).filter(([, b]) => b.width);
              boxes.forEach(([text, b], i) => {
                if (b.left < frame.left - 1 || b.right > frame.right + 1) faults.push(`outside: ${text}`);
                for (const [other, o] of boxes.slice(i + 1)) {
                  const across = Math.min(b.right, o.right) - Math.max(b.left, o.left);
                  const down = Math.min(b.bottom, o.bottom) - Math.max(b.top, o.top);
                  if (across > 1 && down > 4) faults.push(`${text} over ${other}`);
                }
              });
            }
          }
          return [...new Set(faults)];
        }"""
    )
    assert faults == []
