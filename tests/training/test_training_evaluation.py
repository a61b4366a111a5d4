"""Measures of what was learnt, held to models whose answers are known."""

import math

import pytest
import torch
from tiny_run import tiny_corpus

from ds41 import ModelConfig
from ds41.step import Step
from ds41.tokenizer import FIRST_BYTE
from ds41.training.evaluation import far_enough, retrieval, tail_losses, text_loss
from ds41.training.serving_conditions import ReplayMemory
from ds41.training.tasks import LINE

CORPUS = tiny_corpus()
LENGTH, ROWS = 192, 6


class Told:
    """Stands where a model is called; ``rule`` says for every position whether the next token is told rightly."""

    config, quantization, device = ModelConfig.nano(), "cache", torch.device("cpu")

    def __init__(self, rule):
        self.rule, self.calls = rule, 0

    def __call__(self, ids, memory=None):
        self.calls += 1
        ahead = torch.cat((ids[:, 1:], ids[:, :1]), 1)
        told = torch.where(self.rule(ids), ahead, (ahead + 1) % self.config.vocab_size)
        return torch.nn.functional.one_hot(told, self.config.vocab_size).float() * 50


class Uniform(Told):
    """Knows nothing."""

    def __call__(self, ids, memory=None):
        return torch.zeros(*ids.shape, self.config.vocab_size)


def always(ids):
    return torch.ones_like(ids, dtype=torch.bool)


def never(ids):
    return ~always(ids)


def first_bytes(ids):
    """The first of the two bytes of an answer follows an equals sign, the second a dash."""
    return ids == FIRST_BYTE + ord("=")


def every_second(ids):
    return (torch.arange(ids.shape[1]) % 2 == 0).expand_as(ids)


def nearer_than(distance):
    """Right where the needle of a query lies less than ``distance`` tokens before it."""

    def rule(ids):
        right = never(ids)
        for row, text in enumerate(bytes(max(0, token - FIRST_BYTE) for token in each.tolist()) for each in ids):
            for place in range(1, len(text) - LINE + 1, LINE):
                near = place - text.find(b"@" + text[place + 1 : place + 3]) < distance
                right[row, place + 3 : place + 6 : 2] = near and text[place : place + 1] == b"?"
        return right

    return rule


@pytest.mark.parametrize(("rule", "byte", "answer"), [(always, 1, 1), (never, 0, 0), (first_bytes, 0.5, 0)])
def test_shares_are_those_of_the_answers(rule, byte, answer):
    found = retrieval(Told(rule), CORPUS, LENGTH, ROWS, least_distance=0)
    assert found.queries == 4 * ROWS
    assert (found.bytes_right.mean, found.answers_right.mean) == pytest.approx((byte, answer))
    assert found.bytes_right.samples == 2 * found.answers_right.samples == 8 * ROWS
    # A wrong byte costs the 50 that the logits differ by.
    assert found.loss == pytest.approx(50 * (1 - byte), abs=1e-3)
    assert (found.length, found.kind) == (LENGTH, "recall")


def test_only_queries_that_lie_far_enough_count():
    near, every = Told(nearer_than(100)), retrieval(Told(always), CORPUS, LENGTH, ROWS, least_distance=0)
    assert retrieval(near, CORPUS, LENGTH, ROWS, least_distance=100).loss == pytest.approx(50)
    mixed = retrieval(near, CORPUS, LENGTH, ROWS, least_distance=0)
    assert 0 < mixed.loss < 50
    far = retrieval(near, CORPUS, LENGTH, ROWS, least_distance=100).queries
    assert 0 < far < every.queries
    # What is far is what was told wrongly.
    assert far == round(mixed.loss / 50 * every.queries)


def test_the_least_distance_is_beyond_window_and_recency():
    config = ModelConfig.nano()
    assert far_enough(config) == 32 + 2 * 32
    standard = retrieval(Told(always), CORPUS, LENGTH, ROWS)
    assert standard == retrieval(Told(always), CORPUS, LENGTH, ROWS, least_distance=far_enough(config))


def test_rows_without_a_far_query_are_an_error():
    with pytest.raises(
        ValueError, match="no query of 2 rows of 40 lies 96 tokens and 0 needles back; take longer rows"
    ):
        retrieval(Told(always), CORPUS, 40, 2, queries=1)


def test_passes_have_a_bounded_size():
    model = Told(always)
    retrieval(model, CORPUS, 1024, 9, least_distance=0)
    assert model.calls == 3


@pytest.mark.parametrize("kind", ["source", "recall", "planted"])
def test_the_loss_of_a_uniform_model_is_that_of_chance(kind):
    loss = text_loss(Uniform(always), CORPUS, 100, 3, kind=kind)
    assert loss.mean == pytest.approx(math.log(272), rel=1e-5)
    assert loss.samples == 3


def test_the_loss_of_text_leaves_out_what_nobody_can_predict():
    # Half of the hundred bytes that follow the begin token.
    assert text_loss(Told(every_second), CORPUS, 101, 3).mean == pytest.approx(25, abs=1e-3)
    # Random bytes of needles are left out, so telling them wrongly costs nothing.
    forms = Told(lambda ids: torch.isin(ids.roll(-1, 1), torch.tensor([FIRST_BYTE + byte for byte in b"@?=-\n"])))
    assert text_loss(forms, CORPUS, 98, 3, kind="stream").mean < 50 * 0.5


class Bounded(Told):
    """After a bounded prefill it knows nothing of the second half, and is wrong before, which must not count."""

    memories = ()

    def __call__(self, ids, memory=None):
        logits = super().__call__(ids)
        if memory is None:
            return logits
        rows, length = ids.shape
        self.memories += (memory(Step.of([length] * rows, [0] * rows)),)
        return torch.cat((-logits[:, : length // 2 - 1], 0 * logits[:, length // 2 - 1 :]), 1)


def test_the_cost_of_a_bounded_prefill_is_that_of_the_second_half():
    model = Bounded(always)
    assert tail_losses(model, CORPUS, LENGTH, 5).mean == pytest.approx(math.log(272), rel=1e-5)
    (memory,) = model.memories
    assert isinstance(memory, ReplayMemory)
    # The decoder's windows begin one window before the half.
    begin, config = LENGTH // 2 - 32, model.config
    step, rows = Step.of([LENGTH] * 5, [0] * 5), torch.zeros(5 * LENGTH, config.head_dim)
    seen = [memory.window(layer, step, rows)[1].unflatten(0, (5, LENGTH)) >= 0 for layer in range(10)]
    for layer, choice in enumerate(seen):
        first = [1, 32] if layer > config.decoder_start else [32, 32]
        assert choice[:, [begin, begin + 31]].sum(-1).tolist() == [first] * 5
