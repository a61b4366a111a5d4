"""The growing text of an answer: whole characters, stop strings over the ends of tokens, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_backend import TOKENIZER, ids

from ds41.generation import stream_text
from ds41.serving.endpoint.text import AnswerText
from ds41.tokenizer import FIRST_BYTE

BYTES = st.lists(st.integers(0, 255), max_size=40).map(lambda found: [FIRST_BYTE + byte for byte in found])
WORDS = st.text("ab🙂é ", max_size=30)


def parts(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    found, place = [], 0
    for size in [*sizes, len(tokens)]:
        found.append(tokens[place : place + size])
        place += size
    return found


@given(BYTES, st.lists(st.integers(0, 5), max_size=20))
def test_without_stop_strings_it_is_the_stream_of_text(tokens, sizes):
    text = AnswerText(TOKENIZER)
    pieces = [text.feed(part) for part in parts(tokens, sizes)]
    assert "".join([*pieces, text.finish()]) == "".join(stream_text(tokens, TOKENIZER))
    assert text.tokens == len(tokens)


@given(WORDS, st.lists(st.text("ab🙂é ", min_size=1, max_size=4), min_size=1, max_size=4), st.lists(st.integers(0, 5)))
def test_the_first_complete_stop_string_cuts(words, stops, sizes):
    text = AnswerText(TOKENIZER, stops)
    shown = ""
    for part in parts(ids(words), sizes):
        shown += text.feed(part)
        # What was shown is never taken back.
        assert words.startswith(shown)
    shown += text.finish()
    ends = [(words.index(stop) + len(stop), words.index(stop)) for stop in stops if stop in words]
    assert text.stopped == bool(ends)
    assert shown == (words[: min(ends)[1]] if ends else words)
    if ends:
        assert text.tokens == len(words[: min(ends)[0]].encode())


@pytest.mark.parametrize(
    ("words", "stops", "held", "whole"),
    [
        ("one two", ["two!"], "one ", "one two"),
        ("abab", ["abac"], "ab", "abab"),
        ("a\n\nUser", ["\n\nUser:"], "a", "a\n\nUser"),
    ],
)
def test_what_could_be_a_stop_string_is_held_back_until_the_end(words, stops, held, whole):
    text = AnswerText(TOKENIZER, stops)
    shown = text.feed(ids(words))
    assert shown == held
    assert shown + text.finish() == whole
    assert not text.stopped


def test_half_a_character_waits_for_the_other_half():
    text = AnswerText(TOKENIZER)
    assert [text.feed([token]) for token in ids("é🙂")] == ["", "é", "", "", "", "🙂"]
    assert text.feed(ids("é")[:1]) == ""
    assert text.finish() == "\ufffd"


def test_a_stop_string_in_the_last_characters_held_counts():
    text = AnswerText(TOKENIZER, ["\ufffd"])
    assert text.feed([*ids("a"), *ids("é")[:1]]) == "a"
    assert text.finish() == ""
    assert text.stopped
