"""Batches: a row follows from the stream's name and its number alone."""

import pytest
import torch
from tiny_run import tiny_corpus

from ds41.training.stream import make_batch

CORPUS = tiny_corpus()
MIX = {"stream": 1, "recall": 2.0, "planted": 1.5, "source": 1, "copy": 1}


def test_batches_cut_differently_give_the_same_rows():
    whole = make_batch(CORPUS, MIX, 12, 96, "s")
    for size in (1, 5):
        parts = [make_batch(CORPUS, MIX, min(size, 12 - first), 96, "s", first) for first in range(0, 12, size)]
        assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
        assert torch.equal(torch.cat([part.weights for part in parts]), whole.weights)
        assert sum((part.asked for part in parts), ()) == whole.asked


def test_streams_of_other_names_differ():
    first, second = (make_batch(CORPUS, {"recall": 1.0}, 4, 96, name) for name in ("s", "t"))
    assert all(not torch.equal(a, b) for a, b in zip(first.ids, second.ids, strict=True))
    assert len({tuple(row.tolist()) for row in first.ids}) == 4


def test_kinds_come_as_often_as_the_mix_says():
    batch = make_batch(CORPUS, {"stream": 1, "source": 3, "copy": 0}, 400, 40, "s")
    # Text alone has no byte of weight zero but the first token.
    sources = (batch.weights[:, 1:] == 1).all(1)
    assert sources.float().mean().item() == pytest.approx(0.75, abs=0.07)


def test_answers_are_the_places_of_the_answer_bytes():
    batch = make_batch(CORPUS, MIX, 30, 96, "s")
    rows, places = batch.answers()
    expected = [(row, place) for row, every in enumerate(batch.asked) for asked in every for place in asked.answers]
    assert list(zip(rows.tolist(), places.tolist(), strict=True)) == expected
    assert bool((batch.weights[rows, places] == 4).all())
    assert len(expected) > 10


def test_a_batch_without_queries_has_no_answers():
    rows, places = make_batch(CORPUS, {"source": 1.0}, 2, 30, "s").answers()
    assert rows.shape == places.shape == (0,)
    assert rows.dtype == torch.int64


def test_queries_are_as_many_as_asked_for():
    batch = make_batch(CORPUS, {"recall": 1.0, "source": 1.0}, 20, 96, "s", queries=3)
    assert {len(every) for every in batch.asked} == {0, 3}


@pytest.mark.parametrize("mix", [{}, {"source": -1.0, "copy": 2.0}, {"source": 0.0}])
def test_a_mix_that_draws_nothing_is_refused(mix):
    with pytest.raises(ValueError, match=r"mix is .*; expected weights of zero or more"):
        make_batch(CORPUS, mix, 1, 40, "s")


def test_what_a_row_refuses_a_batch_refuses():
    with pytest.raises(ValueError, match="kind is 'prose'"):
        make_batch(CORPUS, {"prose": 1.0}, 1, 40, "s")
