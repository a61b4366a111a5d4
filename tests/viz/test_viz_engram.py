"""The hash in the browser against the library's, to the last bit, and what a reader can do with it."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

from ds41 import ModelConfig, viz
from ds41.engram import DEAD, Hasher, look_back, new_history
from ds41.tokenizer import byte_tokenizer, compression_map
from ds41.viz.diagram import asset
from ds41.viz.engram_explorer import Hashed, _hashes, _token_map

NAMES = ("released-1", "released-14", "nano-1", "nano-3")
# Straight and folded case, white space, signs of HTML, two- to four-byte characters, and a window cut short.
TEXTS = ("PARIS is not Paris", "a", "<b>&amp;\"'", "tab\there", "naïve Ω 🙂", "x" * 64)


def hasher(name: str) -> tuple[Hasher, int]:
    """The library's hash of a layer; the released one over any map whose pad token is 2."""
    preset, layer = name.split("-")
    if preset == "nano":
        config = ModelConfig.nano()
        return Hasher(config, compression_map(byte_tokenizer(), config.vocab_size)), int(layer)
    config = ModelConfig.flash()
    return Hasher(config, torch.arange(config.vocab_size) % config.engram_compressed_vocab_size), int(layer)


def random_windows(name: str, count: int = 300) -> list[list[int]]:
    """Windows over all compressed ids, the largest among them, with dead ids at any place but the first."""
    generator = random.Random(9)
    size = hasher(name)[0].config.engram_compressed_vocab_size
    windows = [[size - 1] * 4, [0] * 4, [size - 1, DEAD, size - 1, DEAD]]
    for _ in range(count):
        window = [generator.randrange(size) for _ in range(4)]
        if generator.random() < 0.3:
            window[generator.randrange(1, 4)] = DEAD
        windows.append(window)
    return windows


@pytest.fixture(scope="module")
def script(chromium):
    page = chromium.new_page()
    page.add_script_tag(content=asset("js/words.js") + asset("js/ngrams.js"))
    yield page
    page.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_still_picture_hashes_as_the_library(name):
    library, layer = hasher(name)
    for window in random_windows(name):
        expected = library.rows(torch.tensor([window]))[layer][0].tolist()
        # A text whose last window this is.
        seen = window[: window.index(DEAD)] if DEAD in window else window
        hashed = Hashed(_hashes()[name], seen[::-1], len(seen) - 1)
        assert [row for rows in hashed.rows for row in rows] == expected
        assert max(hashed.products) < 2**63


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_the_script_hashes_as_the_library(script, name):
    library, layer = hasher(name)
    windows = random_windows(name)
    got = json.loads(
        script.evaluate(
            "([hash, windows]) => JSON.stringify(windows.map(ids => hashWindow(hash, ids).rows.flat()))",
            [_hashes()[name].data(), windows],
        )
    )
    assert got == library.rows(torch.tensor(windows))[layer].tolist()


@pytest.mark.browser
def test_the_script_s_integers_are_exact(script):
    """The largest product that the published bound allows, which a double rounds to the next row."""
    hash = {"multipliers": ["93078876567781", "1"], "primes": [[16000057]], "offsets": [[0]], "pad": 2}
    steps = "(([hash, ids]) => { const h = hashWindow(hash, ids); return [h.products.map(String), h.rows]; })"
    assert script.evaluate(steps, [hash, [99091, 0]]) == [["9223278957977987071", "0"], [[3755251]]]
    assert script.evaluate("([hash, ids]) => wrongThroughDoubles(hash, ids)", [hash, [99091, 0]]) == 1
    assert script.evaluate("grouped(9223278957977987071n) + grouped(0n) + grouped('123') + grouped(1234)") == (
        "9,223,278,957,977,987,07101231,234"
    )


def test_the_picture_s_windows_are_the_library_s():
    text = list(b"PARIS is not Paris")
    ids = [_token_map()[16 + byte] for byte in text]
    count = len(ids)
    windows = look_back(
        torch.tensor(ids), torch.arange(count), torch.zeros(count, dtype=torch.int64), new_history(1, 4)
    )
    for place in range(count):
        hashed = Hashed(_hashes()["nano-1"], ids, place)
        assert hashed.window == windows[place].tolist()
    chosen = Hashed(_hashes()["nano-1"], ids, count - 1)
    shared = {place: chosen.shared_order(place) for place in range(count - 1)}
    # "aris" in PARIS, "is" in "is".
    assert {place: order for place, order in shared.items() if order} == {4: 4, 7: 2}


@pytest.fixture
def page(look):
    return look(viz.engram_explorer()._repr_html_())


def caption(page):
    return page.locator("figcaption").inner_text()


def chosen(page):
    return page.locator(".ds-token[aria-pressed=true]").get_attribute("data-token")


# Types the text, chooses hash and token as a reader would, and gives the parts that are not as ``html`` has them.
UNEQUAL = """(cases) => cases.flatMap(([html, text, name, token]) => {
  const field = document.querySelector("input[name=text]");
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  document.querySelector(`input[name=hash][value=${name}]`).click();
  document.querySelector(`[data-token="${token}"]`).click();
  const still = new DOMParser().parseFromString(html, "text/html");
  return [".ds-tokens", ".ds-factors", ".ds-orders", "figcaption", "table"]
    .map((part) => [document, still].map((page) => page.querySelector(part).innerHTML))
    .filter(([live, expected]) => live !== expected)
    .map((pair) => [text, name, token, ...pair]);
})"""


@pytest.mark.browser
def test_every_text_is_drawn_as_in_the_library(page):
    cases = []
    for text in TEXTS:
        last = len(text.encode()) - 1
        for name in NAMES:
            for token in {0, last // 2, last}:
                still = viz.engram_explorer(text, name, token)
                html = f"{still.body}<figcaption>{still.caption}</figcaption>{still.table}"
                cases.append((html, text, name, token))
    assert len(cases) > 60
    assert page.evaluate(UNEQUAL, cases) == []


@pytest.mark.browser
def test_typing_follows_the_caret(page):
    page.locator("input[name=text]").fill("")
    assert caption(page) == "No token, no rows. Type a letter."
    assert not page.locator(".ds-orders").is_visible()
    page.keyboard.type("Ab")
    assert chosen(page) == "1"
    assert "The text begins within the window" in caption(page)
    assert page.locator(".ds-ids").all_inner_texts() == ["114 → 79", "81 → 78", "pad → 2", "pad → 2"]
    page.keyboard.press("ArrowLeft")
    page.keyboard.type("é")
    assert page.locator(".ds-token").all_inner_texts() == ["A", "C3", "A9", "b"]
    assert chosen(page) == "2"
    # More bytes than fit are left out.
    page.locator("input[name=text]").fill("é" * 64)
    assert page.locator(".ds-token").count() == 64
    assert chosen(page) == "63"


@pytest.mark.browser
def test_tokens_answer_the_keyboard(page):
    page.locator(".ds-token[tabindex='0']").focus()
    for key, token in (("ArrowLeft", "16"), ("Home", "0"), ("ArrowLeft", "0"), ("ArrowRight", "1"), ("End", "17")):
        page.keyboard.press(key)
        assert chosen(page) == token
        assert page.evaluate("document.activeElement.dataset.token") == token
    assert page.locator(".ds-token[tabindex='0']").count() == 1


@pytest.mark.browser
def test_folded_case_shares_all_rows(page):
    name = page.locator("[data-token='4']").get_attribute("aria-label")
    assert name == "Token 4: S, ends in the same 4-gram"
    rows = page.locator(".ds-orders").inner_text()
    page.locator("[data-token='4']").click()
    assert page.locator(".ds-orders").inner_text() == rows
    page.locator("[data-token='7']").click()
    assert page.locator(".ds-orders").inner_text() != rows


@pytest.mark.browser
def test_doubles_fail_where_products_are_large(page):
    assert caption(page).endswith("Doubles happen to hold all products here.")
    page.locator("input[name=hash][value=nano-1]").check()
    assert re.search(r"Through doubles it would read \d other rows\.", caption(page))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "text has 0 bytes of UTF-8; expected 1 to 64"),
        (("é" * 33,), "text has 66 bytes of UTF-8; expected 1 to 64"),
        (("a", "flash"), "hash_of is 'flash'; expected one of: released-1, released-14, nano-1, nano-3"),
        (("a", "nano-1", 1), "token is 1; the text has tokens 0 to 0"),
    ],
)
def test_bad_texts_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        viz.engram_explorer(*arguments)
