"""The balancing bias and the sequence loss, against counts and sums made by hand."""

from __future__ import annotations

import pytest
import torch

from ds41.expert_balance import expert_load, sequence_balance_loss, update_bias


def test_load_counts_choices():
    indices = torch.tensor([[0, 2], [2, 3], [2, 0]])
    assert expert_load(indices, 5).tolist() == [2, 0, 3, 1, 0]
    is_image = torch.tensor([True, False, True])
    assert expert_load(indices[is_image], 5).tolist() == [2, 0, 2, 0, 0]
    assert expert_load(indices[:0], 5).tolist() == [0] * 5


def test_bias_moves_against_the_load():
    bias = torch.tensor([0.5, 0.0, -0.5, 0.0])
    update_bias(bias, torch.tensor([9, 1, 0, 2]))
    torch.testing.assert_close(bias, torch.tensor([0.499, 0.001, -0.499, 0.001]))
    update_bias(bias, torch.tensor([3, 3, 6, 0]), speed=0.1)
    torch.testing.assert_close(bias, torch.tensor([0.499, 0.001, -0.599, 0.101]))


def test_a_balanced_or_absent_load_moves_nothing():
    bias = torch.randn(3)
    before = bias.clone()
    update_bias(bias, torch.tensor([7, 7, 7]))
    update_bias(bias, torch.zeros(3, dtype=torch.int64))
    assert torch.equal(bias, before)


def test_bias_of_a_parameter_moves_in_place():
    bias = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    update_bias(bias, torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(bias.data, torch.tensor([-0.001, 0.001]))


def test_a_load_of_another_size_is_named():
    with pytest.raises(ValueError, match=r"load is \[3\] for a bias of \[4\]"):
        update_bias(torch.zeros(4), torch.zeros(3))


def test_the_bias_rule_evens_out_a_router():
    """An expert that every token prefers loses its advantage step by step."""
    torch.manual_seed(0)
    scores = torch.rand(512, 8) + torch.tensor([0.5] + [0.0] * 7)
    bias = torch.zeros(8)
    for _ in range(600):
        load = expert_load((scores + bias).topk(2).indices, 8)
        update_bias(bias, load)
    assert expert_load(scores.topk(2).indices, 8).max() > 3 * 128
    assert load.max() < 1.2 * 128
    assert load.min() > 0.8 * 128


def test_loss_is_the_weight_at_balance():
    scores = torch.full((8, 4), 0.7)
    indices = torch.tensor([[0, 1], [2, 3]]).repeat(4, 1)
    loss = sequence_balance_loss(scores, indices, torch.zeros(8, dtype=torch.int64), weight=0.25)
    assert loss.item() == pytest.approx(0.25)


def test_loss_of_a_collapsed_router():
    scores = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]).repeat(5, 1)
    indices = torch.tensor([[0, 1]]).repeat(5, 1)
    loss = sequence_balance_loss(scores, indices, torch.zeros(5, dtype=torch.int64), weight=1.0)
    assert loss.item() == pytest.approx(6 / 2)


def test_loss_of_ragged_sequences_equals_loops():
    torch.manual_seed(1)
    scores = torch.rand(11, 5, requires_grad=True)
    indices = torch.rand(11, 5).topk(2).indices
    # Interleaved rows, names that are no ranks, lengths that differ.
    sequence = torch.tensor([7, 7, 3, 7, 3, 3, 40, 7, 3, 40, 7])
    loss = sequence_balance_loss(scores, indices, sequence, weight=0.1)

    per_sequence = []
    for name in (3, 7, 40):
        tokens = [t for t in range(11) if sequence[t] == name]
        total = 0.0
        for e in range(5):
            chosen = sum(e in indices[t].tolist() for t in tokens)
            share = sum(scores[t, e] / scores[t].sum() for t in tokens) / len(tokens)
            total = total + 5 / (2 * len(tokens)) * chosen * share
        per_sequence.append(total)
    expected = 0.1 * sum(per_sequence) / 3
    torch.testing.assert_close(loss, expected)
    (found,) = torch.autograd.grad(loss, scores)
    (wanted,) = torch.autograd.grad(expected, scores)
    torch.testing.assert_close(found, wanted)


def test_no_tokens_and_no_scores():
    empty = torch.zeros(0, dtype=torch.int64)
    assert sequence_balance_loss(torch.zeros(0, 4), torch.zeros(0, 2, dtype=torch.int64), empty).item() == 0
    loss = sequence_balance_loss(torch.zeros(1, 4), torch.tensor([[0, 1]]), torch.zeros(1, dtype=torch.int64))
    assert loss.item() == 0
