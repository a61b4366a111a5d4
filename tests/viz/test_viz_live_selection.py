"""What the trained nano selects in a text: its own decode step, marked over the text, and how edits change it."""

from __future__ import annotations

import html
import re

import pytest
import torch
from live_driver import explored

from ds41 import Model, ModelConfig
from ds41.tokenizer import byte_tokenizer
from ds41.trained import load_trained
from ds41.training.corpus import Corpus
from ds41.viz import live

SELECTING = [1, 3, 5, 7, 9]


@pytest.fixture(scope="module")
def model():
    return load_trained("nano")


@pytest.fixture(scope="module")
def text(model):
    return live.example_text(model.config)


@pytest.fixture(scope="module")
def report(model, text):
    return live.select_entries(model, text)


def needle_in(text):
    """The needle that the text asks for at its end, ``@kk=v-v``."""
    start = text.index("@" + text[-3:-1])
    return text[start : start + 7]


def test_the_example_asks_for_a_needle_far_beyond_the_window(model, text):
    assert re.fullmatch(r"\?[a-z0-9]{2}=", text[-4:])
    needle = needle_in(text)
    assert re.fullmatch(r"@[a-z0-9]{2}=[a-z0-9]-[a-z0-9]", needle)
    assert len(text) - text.index(needle) > 200 > model.config.sliding_window


def test_the_model_selects_the_needle_and_answers_by_it(model, text, report):
    needle = needle_in(text)
    assert report.likely[0][0] == needle[4]
    assert report.likely[0][1] > 0.5
    value = text.index(needle) + 4 + 1  # the begin token stands before the text
    found = [choice.layer for choice in report.choices if value in choice.tokens()]
    assert found
    assert all(report.reach(choice) > 200 for choice in report.choices if choice.layer in found)
    other = "m" if needle[4] != "m" else "n"
    changed = live.select_entries(model, text.replace(needle, needle[:4] + other + needle[5:]))
    assert changed.likely[0][0] == other


@pytest.mark.parametrize("back", [0, 57])
def test_the_selection_is_the_one_of_a_whole_prefill(model, text, back):
    tokens = [0, *byte_tokenizer().encode(text).ids]
    seen = {}
    hooks = [
        model.layers[layer].attn.indexer.register_forward_hook(
            lambda indexer, given, made: seen.update({indexer.plan.index: made.entries})
        )
        for layer in SELECTING
    ]
    with torch.no_grad():
        model.prefill(torch.tensor(tokens), model.new_cache(len(tokens)), chunk_tokens=len(tokens))
    for hook in hooks:
        hook.remove()
    report = live.select_entries(model, text, back)
    assert [choice.layer for choice in report.choices] == SELECTING
    for choice in report.choices:
        whole = {entry for entry in seen[choice.layer][-1 - back].tolist() if entry >= 0}
        # One step and many tokens at once add up in another order, so an entry at the edge may differ.
        assert len(whole ^ set(choice.entries)) <= 4, choice.layer


def test_choices_keep_to_plan_and_pool(model, report):
    config = model.config
    pools = {choice.layer: choice.pool for choice in report.choices}
    assert pools[1] is None
    assert pools[3] is None
    assert set(pools[5]) == set(pools[7]) == set(pools[9])
    held = config.candidate_topk_blocks * config.candidate_block_size
    assert held - config.candidate_block_size < len(pools[5]) <= held
    for choice in report.choices:
        assert choice.visible == (report.token + 1) // choice.ratio
        assert len(choice.entries) == config.index_topk == len(set(choice.entries))
        assert max(choice.tokens()) <= report.token
        assert all(max(choice.tokens([entry])) < report.window_start for entry in choice.beyond(report.window_start))
        if choice.mode == "reindex":
            assert set(choice.entries) <= set(choice.pool)


def test_a_model_without_rounding_is_watched_too():
    plain = live.select_entries(Model(ModelConfig.nano(), quantization="none"), "x = 1\n" * 20)
    assert [choice.layer for choice in plain.choices] == SELECTING
    assert plain.likely[0][1] < 0.5, "its weights are random"


def test_a_short_text_is_read_whole(model):
    report = live.select_entries(model, "import os")
    assert all(choice.entries == tuple(range(choice.visible)) for choice in report.choices)
    picture = report.diagram()
    assert picture.title == "Nothing selected lies beyond the window of 32 tokens"
    assert "all 10 entries: no more than it may select" in picture.body


def test_marks_stand_over_the_selected_characters(model):
    text = ("hé <b>\n" * 30)[:-1]
    report = live.select_entries(model, text)
    for choice in report.choices:
        body = report.diagram([choice.layer]).body
        (opened,) = re.findall(r'<details class="ds-choice" open>.*?</details>', body, re.DOTALL)
        shown = re.search(r'class="ds-text"[^>]*>(.*)</div>', opened, re.DOTALL).group(1)
        marked = "".join(re.findall(r"<mark[^>]*>(.*?)</mark>", shown, re.DOTALL))
        plain = [html.unescape(re.sub(r"<[^>]+>", "", part)).replace("↵\n", "\n") for part in (shown, marked)]
        assert plain[0] == "⊢" + text
        picked = {place for token in choice.tokens() if token for place in range(*report.spans[token])}
        assert plain[1] == ("⊢" if 0 in choice.tokens() else "") + "".join(text[place] for place in sorted(picked))


def test_the_table_says_what_is_marked(report):
    picture = report.diagram()
    for choice in report.choices:
        assert html.escape(" · ".join(report.words(choice))) in picture.table
    assert picture.data is None
    assert "<script" not in picture._repr_html_()


@pytest.mark.parametrize(
    ("text", "back", "words"),
    [
        ("", 0, "the text is empty; expected 1 to 1,023 tokens"),
        ("é" * 600, 0, "the text is 1,200 tokens; expected 1 to 1,023"),
        ("abc", 3, "back is 3; expected 0 to 2"),
    ],
)
def test_what_cannot_be_read_is_refused(model, text, back, words):
    with pytest.raises(ValueError, match=words):
        live.select_entries(model, text, back)


def test_a_corpus_without_programs_has_no_example(model):
    with pytest.raises(ValueError, match="no row of 480 tokens"):
        live.example_text(model.config, corpus=Corpus({"a.py": b"x = 1\n" * 200}))


def test_editing_the_text_makes_another_step(monkeypatch, model, text, report):
    first, controls, button, place = explored(monkeypatch, live.explore_selection, model, text)
    assert first._repr_html_() == report.diagram()._repr_html_()
    steps = []
    hook = model.layers[9].register_forward_hook(lambda *_: steps.append(1))
    controls["text marked by"].value = 7
    assert report.diagram([7])._repr_html_() in place.value
    assert not steps, "another layer of the same step needs no other"
    controls["text"].value = "x = 1\n" * 20
    assert live.select_entries(model, "x = 1\n" * 20).diagram([7])._repr_html_() in place.value
    controls["tokens left out"].value = 3
    assert live.select_entries(model, "x = 1\n" * 20, 3).diagram([7])._repr_html_() in place.value
    controls["text"].value = ""
    assert "The model cannot read this" in place.value
    assert "the text is empty; expected 1 to 1,023 tokens" in place.value
    button.click()
    assert first._repr_html_() in place.value
    assert steps
    hook.remove()
