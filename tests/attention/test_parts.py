"""Parts of attention on hand-made input: the sink, visibility, pair pooling, the window, scores."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds41 import ModelConfig
from ds41.attention import QueryPath
from ds41.attention.compressor import pool_pair
from ds41.attention.window import visible_rows
from ds41.ops.index_scores import index_scores, index_scores_of_pool
from ds41.ops.sparse_attention import sparse_attention
from ds41.rope import layer_frequencies, turns
from ds41.step import Step


def attend(kv, index, sink, query=(1.0, 0.0)):
    """Attention with scale 1 over rows by index, -1 for an empty slot."""
    index = torch.tensor(index)
    rows = torch.tensor(kv)[index.clamp(min=0)]
    q = torch.tensor(query) * math.sqrt(len(query))
    return sparse_attention(q.expand(len(index), 1, -1), rows, index >= 0, torch.tensor([sink]))[:, 0]


def test_empty_slots_anywhere_and_a_row_without_keys():
    kv = [[0.0, 1.0], [math.log(3), 2.0]]
    out = attend(kv, [[0, 1, -1, -1], [-1, -1, 0, 1], [-1, 0, -1, 1], [-1, -1, -1, -1]], sink=0.0)
    expected = torch.tensor([[0.6591673732, 1.4]] * 3 + [[0.0, 0.0]])
    assert torch.allclose(out, expected, atol=1e-6)


def test_the_sink_from_minus_to_plus_infinity():
    kv = [[0.0, 1.0], [math.log(3), 2.0]]
    plain = attend(kv, [[0, 1]], sink=-math.inf)
    assert torch.allclose(plain, torch.tensor([[0.75 * math.log(3), 1.75]]))
    assert torch.equal(attend(kv, [[0, 1]], sink=math.inf), torch.zeros(1, 2))
    assert torch.equal(attend(kv, [[0, 1]], sink=1e30), torch.zeros(1, 2))
    assert torch.equal(attend(kv, [[-1, -1]], sink=-math.inf), torch.zeros(1, 2))


def test_the_sink_is_not_scaled_and_has_no_value():
    query, keys = torch.tensor([[[2.0, 0, 0, 0]]]), torch.tensor([[[3.0, 1.0, 0, 0]]])
    share = math.exp(3) / (math.exp(3) + math.exp(0.5))
    out = sparse_attention(query, keys, torch.tensor([[True]]), torch.tensor([0.5]))
    assert torch.allclose(out[0, 0], share * keys[0, 0])


def test_unusable_keys_may_hold_anything_finite():
    query, usable = torch.randn(2, 3, 8), torch.tensor([[True, False], [False, False]])
    keys = torch.randn(2, 2, 8)
    poisoned = keys.clone()
    poisoned[0, 1], poisoned[1] = 1e30, -1e30
    sink = torch.zeros(3)
    assert torch.equal(sparse_attention(query, keys, usable, sink), sparse_attention(query, poisoned, usable, sink))


@pytest.mark.parametrize(("ratio", "visible"), [(2, [0, 1, 1, 2, 2, 3, 3, 4]), (1, [1, 2, 3, 4, 5, 6, 7, 8])])
def test_visible_entries(ratio, visible):
    assert ((Step.of([8], [0]).position + 1) // ratio).tolist() == visible


def test_pair_pooling():
    value = torch.tensor([1.0, 3.0, 2.0, 6.0, 5.0, 0.0])
    gate = torch.tensor([0.0, math.log(3), 0.0, 0.0, math.log(4), 0.0])
    assert torch.allclose(pool_pair(value[::2], gate[::2], value[1::2], gate[1::2]), torch.tensor([2.5, 4.0, 4.0]))


def test_window_of_one_sequence():
    assert visible_rows(Step.of([4], [0]), 3, 0, [0]).tolist() == [[-1, -1, 0], [-1, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_window_reaches_into_older_rows():
    # Two rows kept from before: positions 3 and 4; tokens 5 and 6 stand behind them.
    assert visible_rows(Step.of([2], [5]), 3, 2, [0]).tolist() == [[0, 1, 2], [1, 2, 3]]
    assert visible_rows(Step.of([2], [5]), 3, 2, [4]).tolist() == [[-1, 1, 2], [1, 2, 3]]
    assert visible_rows(Step.of([2], [5]), 3, 2, [5]).tolist() == [[-1, -1, 2], [-1, 2, 3]]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=3),
       st.integers(1, 6))  # fmt: skip
def test_window_equals_its_definition(rows, window):
    counts, firsts, starts = zip(*rows, strict=True)
    step = Step.of(counts, firsts)
    got, flat = visible_rows(step, window, window - 1, starts), 0
    for sequence, (count, first, start) in enumerate(rows):
        for position in range(first, first + count):
            expected = []
            for s in range(position - window + 1, position + 1):
                older = sequence * (window - 1) + window - 1 - (first - s)
                row = len(rows) * (window - 1) + sum(counts[:sequence]) + s - first if s >= first else older
                expected.append(row if s >= start else -1)
            assert got[flat].tolist() == expected
            flat += 1


def test_no_norm_follows_the_second_query_matrix():
    config = ModelConfig.nano()
    path = QueryPath(config, "none", torch.float32)
    x = torch.randn(5, config.hidden_size, generator=torch.Generator().manual_seed(0))
    turn = turns(torch.arange(5), layer_frequencies(config, 0))
    _, before = path(x, turn)
    with torch.no_grad():
        path.wq_b.weight[: config.head_dim] *= 2
    _, after = path(x, turn)
    assert torch.allclose(after[:, 0], 2 * before[:, 0])
    assert torch.equal(after[:, 1:], before[:, 1:])


def test_scores_are_weighted_sums_of_what_is_positive():
    generator = torch.Generator().manual_seed(0)
    query, keys = torch.randn(5, 3, 8, generator=generator), torch.randn(11, 8, generator=generator)
    weight = torch.randn(5, 3, generator=generator)
    expected = (torch.einsum("nhc,lc->nhl", query, keys).clamp(min=0) * weight[..., None]).sum(1)
    assert torch.allclose(index_scores(query, weight, keys), expected, atol=1e-5)
    assert torch.allclose(index_scores_of_pool(query, weight, keys.expand(5, -1, -1)), expected, atol=1e-5)
    assert (expected < 0).any()


def test_scores_in_tiles_equal_scores_at_once(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    query, keys = torch.randn(7, 2, 8, generator=generator), torch.randn(13, 8, generator=generator)
    weight = torch.randn(7, 2, generator=generator)
    whole = index_scores(query, weight, keys)
    monkeypatch.setattr("ds41.ops.index_scores._TILE", 60)
    assert torch.allclose(whole, index_scores(query, weight, keys), atol=1e-6)
