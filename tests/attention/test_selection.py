"""The selection rule: ties, missing entries, NaN, and the candidate pool's edges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds41.ops.selection import candidate_blocks, entries_of_blocks, top_entries


def naive_top(row, count):
    """Sort by falling score, then rising index; NaN and minus infinity never count."""
    usable = [i for i, score in enumerate(row) if score > float("-inf")]
    chosen = sorted(sorted(usable, key=lambda i: (-row[i], i))[:count])
    width = min(count, len(row))
    return chosen + [-1] * (width - len(chosen))


scores = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.0, float("-inf"), float("inf"), float("nan"), -1e-45, 1e-45]),
    st.floats(width=32),
)


@settings(deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(scores, min_size=n, max_size=n), min_size=1, max_size=4)),
       st.integers(1, 10))  # fmt: skip
def test_equals_a_plain_sort(rows, count):
    chosen = top_entries(torch.tensor(rows), count)
    assert chosen.tolist() == [naive_top(row, count) for row in rows]


def test_thousands_of_equal_scores():
    row = torch.zeros(1, 8320)
    winners = [7 + 83 * i for i in range(100)]
    row[0, winners] = torch.arange(1.0, 101.0)
    chosen = top_entries(row, 2048)[0].tolist()
    assert len(set(chosen)) == 2048
    assert set(winners) <= set(chosen)
    assert chosen == sorted(chosen)
    assert max(set(chosen) - set(winners)) == 1971


def test_fewer_visible_than_wanted():
    visible = torch.tensor([0, 1, 3, 512, 513])
    row = torch.rand(5, 600).masked_fill(torch.arange(600) >= visible[:, None], -torch.inf)
    chosen = top_entries(row, 512)
    assert (chosen >= 0).sum(1).tolist() == [0, 1, 3, 512, 512]
    for line in chosen.tolist():
        padding = line.index(-1) if -1 in line else len(line)
        assert set(line[padding:]) <= {-1}


def test_nan_is_never_selected():
    nan, inf = float("nan"), float("inf")
    assert top_entries(torch.tensor([[nan, 1.0, 2.0, nan, -inf]]), 3).tolist() == [[1, 2, -1]]


def test_very_negative_scores_are_scores():
    row = torch.tensor([[-7e4, -8e4, -6.6e4, -9e4, -1e5]])
    assert top_entries(row, 3).tolist() == [[0, 1, 2]]


def test_no_entries_and_no_rows():
    assert top_entries(torch.empty(3, 0), 5).shape == (3, 0)
    assert top_entries(torch.empty(0, 4), 5).shape == (0, 4)


def block_scores(maxima, block, visible):
    """Scores whose block maxima are given; what is not visible holds minus infinity."""
    row = torch.tensor(maxima).repeat_interleave(block) - torch.arange(len(maxima) * block) % block * 0.01
    return row.masked_fill(torch.arange(len(row)) >= visible, -torch.inf)[None]


def test_the_newest_block_is_always_kept_and_counts():
    row = block_scores([-1.0, -2.0, -3.0, -5.0], 8, 28)[:, :28]
    assert candidate_blocks(row, torch.tensor([28]), 8, 2).tolist() == [[0, 3]]
    blocks = torch.tensor([[0, 3]])
    entries = entries_of_blocks(blocks, 8, torch.tensor([28]))
    assert entries.tolist() == [[*range(8), *range(24, 28), -1, -1, -1, -1]]
    # 16 are wanted, 12 exist: the rest is empty, never an entry from outside the pool.
    padded = torch.rand(1, 16).masked_fill(entries < 0, -torch.inf)
    assert (top_entries(padded, 16) >= 0).sum() == 12


def test_nothing_visible_forces_no_block():
    row = torch.full((1, 16), -torch.inf)
    assert candidate_blocks(row, torch.tensor([0]), 8, 2).tolist() == [[-1, -1]]


def test_equal_blocks_go_to_the_lower_one():
    row = torch.zeros(1, 40)
    assert candidate_blocks(row, torch.tensor([40]), 8, 3).tolist() == [[0, 1, 4]]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 8), st.randoms(use_true_random=False))
def test_pool_equals_a_plain_loop(block, length, budget, random):
    visible = random.randint(0, length)
    row = [random.choice([-2.0, -1.0, 0.0, 1.0, 3.5]) if i < visible else float("-inf") for i in range(length)]
    blocks = -(-length // block)
    maxima = [max(row[b * block : (b + 1) * block]) for b in range(blocks)]
    if visible:
        maxima[(visible - 1) // block] = float("inf")
    expected = naive_top(maxima, budget)
    got = candidate_blocks(torch.tensor([row]), torch.tensor([visible]), block, budget)
    assert got.tolist() == [expected]


def test_a_pool_beyond_the_budget_still_fills_the_selection():
    # The published sizes: 2,048 blocks of 8 of which the newest may hold a single entry.
    visible = torch.tensor([8 * 4000 + 1])
    row = torch.randn(1, int(visible), generator=torch.Generator().manual_seed(0))
    blocks = candidate_blocks(row, visible, 8, 2048)
    assert int((entries_of_blocks(blocks, 8, visible) >= 0).sum()) == 16377
    assert blocks[0, -1] == 4000


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_row_does_not_depend_on_its_neighbours(count):
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    together = top_entries(rows, count)
    assert torch.equal(together, torch.cat([top_entries(rows[i : i + 1], count) for i in range(6)]))
