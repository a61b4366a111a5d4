"""Rows of every kind: their form, their needles, and what counts in them."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_run import tiny_corpus

from ds41.tokenizer import FIRST_BYTE
from ds41.training.tasks import BEGIN, KINDS, LINE, make_row

CORPUS = tiny_corpus()
# No line of the corpus looks like one of these.
LINES = re.compile(rb"([@?])([a-z0-9]{2})=([a-z0-9])-([a-z0-9])\n")
SHORTEST = 2 + 2 * LINE
rows = given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6), st.integers(SHORTEST, 400))


def text_of(row) -> bytes:
    """The bytes of a row, one for each token; the begin token is a zero."""
    assert row.ids[0] == BEGIN
    assert min(row.ids[1:]) >= FIRST_BYTE
    return bytes([0, *(token - FIRST_BYTE for token in row.ids[1:])])


def built(kind, seed, length, queries=None, parity=1):
    return make_row(kind, CORPUS, random.Random(seed), length, queries, parity)


def found_lines(row) -> list[tuple[int, bytes, bytes, bytes]]:
    """Position, mark, key and value of every whole line of a needle or a query."""
    return [(match.start(), match[1], match[2], match[3] + match[4]) for match in LINES.finditer(text_of(row))]


@rows
@settings(max_examples=60)
def test_a_row_has_its_length_and_repeats(kind, seed, length):
    row = built(kind, seed, length)
    assert len(row.ids) == len(row.weights) == length
    assert row.weights[0] == 0
    assert row == built(kind, seed, length)


@rows
@settings(max_examples=60)
def test_every_query_points_at_its_needle(kind, seed, length):
    row, text = built(kind, seed, length), None
    lines = found_lines(row)
    needles = {key: (place, value) for place, mark, key, value in lines if mark == b"@"}
    assert len(needles) == sum(mark == b"@" for _, mark, _, _ in lines), "a key was given out twice"
    assert all(place % 2 == 1 for place, *_ in lines)
    text = text_of(row)
    for asked in row.asked:
        query = text[asked.query : asked.query + 4]
        place, value = needles[query[1:3]]
        assert query[:1] + query[3:] == b"?="
        assert place == asked.needle < asked.query
        assert bytes(text[place] for place in asked.answers) == bytes(text[place] for place in asked.values) == value
        assert asked.distractors == sum(place < other < asked.query for other, _ in needles.values())
    asked_at = {asked.query for asked in row.asked}
    assert {place for place, mark, _, _ in lines if mark == b"?"} <= asked_at


@rows
@settings(max_examples=60)
def test_only_answers_weigh_more_and_random_bytes_weigh_nothing(kind, seed, length):
    row = built(kind, seed, length)
    answers = {place for asked in row.asked for place in asked.answers}
    for place, mark, _, _ in found_lines(row):
        assert row.weights[place + 1 : place + 3] == [0, 0]
        assert row.weights[place + 4 : place + 7 : 2] == ([4, 4] if mark == b"?" else [0, 0])
        assert [row.weights[place + i] for i in (0, 3, 5, 7)] == [0.1] * 4
    heavy = {place for place, weight in enumerate(row.weights) if weight > 1}
    # An answer that the row's end cut in two is no question, and yet its first byte follows from the needle.
    assert heavy - answers <= {length - 2, length - 1}
    assert answers <= heavy


@given(st.integers(0, 10**6), st.integers(SHORTEST, 400), st.data())
@settings(max_examples=60)
def test_recall_fills_the_row_and_asks_as_often_as_wanted(seed, length, data):
    queries = data.draw(st.integers(1, (length - 2) // (2 * LINE)))
    row = built("recall", seed, length, queries)
    lines = found_lines(row)
    assert len(row.asked) == queries
    assert len(lines) == (length - 2) // LINE
    marks = b"".join(mark for _, mark, _, _ in lines)
    assert marks == b"@" * (len(lines) - queries) + b"?" * queries
    assert len({asked.needle for asked in row.asked}) == queries


@given(st.integers(0, 10**6), st.integers(60, 400), st.data())
@settings(max_examples=60)
def test_planted_needles_stand_in_text(seed, length, data):
    # With more queries the row has no text, and its end cuts queries off.
    queries = data.draw(st.integers(1, (length - 3) // (2 * LINE + 3) - 1))
    row = built("planted", seed, length, queries)
    lines = found_lines(row)
    assert len(row.asked) == queries
    assert sum(mark == b"@" for _, mark, _, _ in lines) == max(2, queries)
    assert sum(weight == 1 for weight in row.weights) > 0


@given(st.integers(0, 10**6), st.integers(SHORTEST, 400))
@settings(max_examples=60)
def test_a_stream_asks_only_what_it_has_told(seed, length):
    lines = found_lines(built("stream", seed, length))
    told = set()
    for _, mark, key, value in lines:
        if mark == b"@":
            told.add((key, value))
        assert (key, value) in told
    assert length - LINE < 1 + LINE * len(lines) <= length


@given(st.integers(0, 10**6), st.integers(80, 400))
@settings(max_examples=60)
def test_a_copy_repeats_its_passage(seed, length):
    row = built("copy", seed, length)
    silent = [place for place, weight in enumerate(row.weights) if weight == 0 and place]
    again = silent[0]
    text = text_of(row).rstrip(b"\n")[again:]
    assert len(text) + 1 >= length // 8
    assert text_of(row)[1 : 1 + len(text)] == text
    assert silent[:LINE] == list(range(again, again + LINE))


@pytest.mark.parametrize("kind", ["stream", "recall", "planted"])
@pytest.mark.parametrize("parity", [0, 1])
def test_lines_begin_at_positions_of_the_parity_asked_for(kind, parity):
    lines = found_lines(built(kind, 7, 200, None if kind == "stream" else 3, parity))
    assert {place % 2 for place, *_ in lines} == {parity}
    assert len(lines) > 5


def test_source_rows_are_text_alone():
    row = built("source", 3, 100)
    assert text_of(row)[1:] == CORPUS.read(random.Random(3), 99)
    assert row.weights == [0] + [1] * 99
    assert row.asked == []


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="kind is 'other'; expected one of 'source', 'stream'"):
        built("other", 0, 100)
    with pytest.raises(ValueError, match="length is 17; expected 18 or more"):
        built("recall", 0, 17)
    for queries in (0, 7):
        with pytest.raises(ValueError, match=f"queries is {queries}; expected 1 to 6 in a row of 100"):
            built("recall", 0, 100, queries)


def test_a_row_with_more_needles_than_keys_is_refused():
    with pytest.raises(ValueError, match="1296"):
        built("recall", 0, 1300 * LINE, 1)
