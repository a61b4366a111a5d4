"""The attention of a draft block: what the drafter and decode really see, and what a reader can do with the picture."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
import torch
from drafting_model import CONFIG, pair, prompt

from ds41.config import ModelConfig
from ds41.viz.draft_block import MODES, MarkovStep, block_reach, causal_reach, draft_block

FLASH = ModelConfig.flash()
WORDS = ["def", " load", "(", "path", ")", ":\n"]
ROUNDS = [
    [
        MarkovStep(before, (("self", 0.4), (after, 0.3)), ((after, 0.625), ("<b>", 0.25), ("self", 0.125)), after)
        for before, after in itertools.pairwise(words)
    ]
    for words in (WORDS, WORDS[::-1])
]

# Sets the controls as a reader would and gives the parts that are not as ``html`` has them.
UNEQUAL = """(cases) => cases.flatMap(([html, fields]) => {
  const form = document.querySelector("form");
  for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
  form.dispatchEvent(new Event("input"));
  const still = new DOMParser().parseFromString(html, "text/html");
  return [".ds-picture", "figcaption", ".ds-place", ".ds-scroll"]
    .map((part) => [document, still].map((page) => page.querySelector(part).innerHTML))
    .filter(([live, expected]) => live !== expected)
    .map((pair) => [fields, ...pair]);
})"""


@pytest.fixture
def draft_page(look):
    return look(draft_block(steps=ROUNDS)._repr_html_())


def caption(page):
    return page.locator("figcaption").inner_text()


# What is seen


@pytest.mark.parametrize("config", [FLASH, ModelConfig.nano()], ids=["flash", "nano"])
@pytest.mark.parametrize("position", [0, 1, 30, 31, 32, 126, 127, 128, 1000])
def test_reaches_are_what_walking_back_finds(config, position):
    window, size = config.sliding_window, config.dspark_block_size
    block = list(range(position + 1, position + 1 + size))
    drafted, causal = block_reach(config, position), causal_reach(config, position)
    assert drafted.context == [list(range(max(0, position + 1 - window), position + 1))] * size
    assert drafted.block == [block] * size
    for place, here in enumerate(block):
        seen = [at for at in range(here - window + 1, here + 1) if at >= 0]
        assert causal.context[place] + causal.block[place] == seen
        assert set(seen) <= {*drafted.context[place], *block}
        assert all(at > position for at in causal.block[place])


@pytest.mark.parametrize("length", [3, CONFIG.sliding_window, 40])
def test_the_drafter_attends_to_what_is_drawn(monkeypatch, length):
    model, drafter = pair()
    cache = drafter.new_cache(model, 64)
    model.prefill(torch.tensor([prompt(length)]), cache)
    caught = {}
    monkeypatch.setattr(drafter, "guess", lambda model, first, step, memory, pick: caught.update(vars(), step=step))
    drafter.draft(model, cache, [7])
    step, size = caught["step"], CONFIG.dspark_block_size
    rows = torch.zeros(size, CONFIG.head_dim)
    keys, choice = caught["memory"].window(drafter.mtp[0].plan.index, step, rows)
    first = length - (len(keys) - size)
    seen = [[first + row for row in line if row >= 0] for line in choice.tolist()]
    shown = block_reach(CONFIG, length - 1)
    assert seen == [context + block for context, block in zip(shown.context, shown.block, strict=True)]
    assert step.position.tolist() == shown.block[0]


# The picture


def cells(row):
    """Kind and state of each drawn cell: ("row", "seen"), ("own", "more") ..."""
    found = re.findall(r'<i class="ds-(row|own)(?: ds-first)?(?: ds-(\w+))?"></i>|ds-(gap)"', row)
    return [(kind or gap, state) for kind, state, gap in found]


def test_every_cell_of_a_short_context_is_drawn_as_it_is_seen():
    config, position = dataclasses.replace(FLASH, sliding_window=8), 20
    drafted, causal = block_reach(config, position), causal_reach(config, position)
    data = draft_block(config, position).data
    for place in range(5):
        columns = range(13, 26)
        decode = {*causal.context[place], *causal.block[place]}
        assert {*drafted.context[place], *drafted.block[place]} == set(columns)
        for mode, lacking in (("draft", "more"), ("causal", "less")):
            expected = [("own" if at > position else "row", "seen" if at in decode else lacking) for at in columns]
            assert cells(data["rows"][mode][place]) == expected


def test_the_gap_hides_no_difference():
    data = draft_block().data
    for place, row in enumerate(data["rows"]["draft"]):
        drawn = cells(row)
        assert [kind for kind, _ in drawn] == ["row"] * 6 + ["gap"] + ["row"] * 4 + ["own"] * 5
        # A window that ends n positions later has lost its n oldest rows, and has seen n of the block.
        assert [state for _, state in drawn].count("more") == place + 1 + 4 - place
    assert "--columns:16" in draft_block().body


def test_words_count_rows():
    assert draft_block().caption == (
        "<b>Query 3</b>, noise, at position 1,003, sees 128 rows of the context, 873 to 1,000, and all 5 block rows. "
        "A causal pass would see 125 and 3."
    )
    assert draft_block(query=1, mode="causal").caption == (
        "<b>Query 1</b>, the token drawn last, at position 1,001, sees 127 rows of the context, 874 to 1,000, and "
        "itself alone. In a draft block it sees 128 and 5."
    )
    assert "sees 1 row of the context, position 0, and all 5" in draft_block(position=0).caption
    narrow = dataclasses.replace(FLASH, sliding_window=3)
    assert "sees no context row and 3 block rows" in draft_block(narrow, query=4, mode="causal").caption


def test_the_table_counts_all_queries():
    rows = re.findall(r"<tr><th[^>]*>(.*?)</tr>", draft_block().table)[1:]
    numbers = [re.findall(r"[\d,]+(?=</t)", row) for row in rows]
    assert numbers == [[str(n), f"1,00{n}", "128", "5", str(128 - n), str(n)] for n in range(1, 6)]


# The Markov head


def without_names(figure) -> str:
    """The body without the marks of what is not to be translated."""
    return re.sub(r'<bdi translate="no">(.*?)</bdi>', r"\1", figure.body)


def test_the_correction_of_a_place_is_told():
    figure = draft_block(query=1, steps=ROUNDS)
    assert "after “def”: the Markov head puts “␣load” before “self”. Drafted is <b>“␣load”</b>." in without_names(
        figure
    )
    assert "62.5 %" in figure.body
    assert "&lt;b&gt;" in figure.body
    assert "<b>&" not in figure.body
    assert ":⏎" in draft_block(query=5, steps=ROUNDS).body
    assert "ds-place" not in draft_block().body
    assert 'name="round"' not in draft_block(steps=ROUNDS[:1]).body
    kept = [(before, [("x", 0.5)], [("x", 0.75)], "x") for before in ("a", "x", "x", "x", "x")]
    assert "after “a”: the Markov head keeps the likeliest token." in without_names(draft_block(query=1, steps=[kept]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position": -1}, "position is -1; expected 0 or more"),
        ({"query": 6}, "query is 6; expected 1 to 5"),
        ({"query": 0}, "query is 0; expected 1 to 5"),
        ({"mode": "full"}, "mode is 'full'; expected one of: draft, causal"),
        ({"steps": [ROUNDS[0][:3]]}, "steps[0] has 3 places; expected 5"),
        ({"steps": [ROUNDS[0], [*ROUNDS[0][:4], ROUNDS[0][0]]]}, "steps[1][4] stands behind 'def'; expected ')'"),
        ({"steps": [[ROUNDS[0][0]._replace(base=[]), *ROUNDS[0][1:]]]}, "steps[0][0].base is empty"),
        (
            {"steps": [[ROUNDS[0][0]._replace(corrected=[("a", 62.0)]), *ROUNDS[0][1:]]]},
            "steps[0][0].corrected gives 'a' the probability 62.0; expected 0 to 1",
        ),
        ({"config": dataclasses.replace(FLASH, dspark_block_size=0)}, "dspark_block_size is 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        draft_block(**arguments)


# What a reader can do


@pytest.mark.browser
def test_every_state_is_drawn_as_in_python(look):
    page = look(draft_block(position=300, steps=ROUNDS)._repr_html_())
    cases = []
    for mode in MODES:
        for query in range(1, 6):
            for number, places in enumerate(ROUNDS):
                figure = draft_block(None, 300, query, mode, [places])
                html = f"{figure.body}<figcaption>{figure.caption}</figcaption>"
                cases.append((html, {"query": str(query), "mode": mode, "round": str(number)}))
    assert page.evaluate(UNEQUAL, cases) == []


@pytest.mark.browser
def test_keys_and_pointer_choose_a_query(draft_page):
    draft_page.keyboard.press("Tab")
    draft_page.keyboard.press("Tab")
    draft_page.keyboard.press("ArrowRight")
    assert caption(draft_page).startswith("Query 4")
    assert draft_page.locator(".ds-chosen").get_attribute("data-query") == "4"
    draft_page.locator("[data-query='1']").click()
    assert caption(draft_page).startswith("Query 1, the token drawn last")
    assert draft_page.locator("input[name=query][value='1']").is_checked()
    draft_page.locator("input[name=mode][value=causal]").check()
    assert "sees 127 rows of the context" in caption(draft_page)
    assert draft_page.locator(".ds-picture .ds-more").count() == 0


@pytest.mark.browser
def test_another_round_is_read_out_at_its_place_alone(draft_page):
    draft_page.evaluate(
        "window.changed = []; new MutationObserver(all => changed.push(...all.map(one => one.target.className)))"
        ".observe(document.querySelector('figure'), {childList: true, subtree: true})"
    )
    draft_page.locator("input[name=round][value='1']").check()
    assert "the Markov head puts “(” before “self”" in draft_page.locator(".ds-place").inner_text()
    changed = draft_page.evaluate("changed")
    assert changed.count("ds-place") == 1
    assert "" not in changed


@pytest.mark.browser
def test_a_draft_without_rounds_answers_too(look):
    page = look(draft_block(position=3)._repr_html_())
    page.locator("input[name=query][value='5']").check()
    assert caption(page).startswith("Query 5, noise, at position 8, sees 4 rows of the context, 0 to 3,")
