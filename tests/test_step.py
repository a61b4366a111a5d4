"""The tokens of a step, cut down to those that a layer goes on with."""

from ds41.step import Step


def test_sequences_without_tokens_stay_where_they_are():
    """The place before a later position was perhaps never written; who reads windows would read it."""
    step = Step.of((0, 3, 4, 2), (0, 27, 5, 8))
    narrowed, kept = step.from_position((15, 28, 15, 0))
    assert (narrowed.counts, narrowed.firsts) == ((0, 2, 0, 2), (0, 28, 15, 8))
    assert kept.tolist() == [1, 2, 7, 8]
    assert narrowed.position.tolist() == [28, 29, 8, 9]
    assert narrowed.sequence.tolist() == [1, 1, 3, 3]
