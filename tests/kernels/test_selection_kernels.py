"""Selection of entries and of candidate blocks: equal, index by index, to the torch rule."""

import pytest
import torch

from ds41.kernels import selection
from ds41.kernels.launch import Launch
from ds41.kernels.selection import (
    PIECE,
    select_blocks,
    select_blocks_cost,
    select_top,
    select_top_cost,
)
from ds41.kernels.selection_rows import select_rows_launch
from ds41.ops.selection import candidate_blocks, top_entries

INF, NAN = float("inf"), float("nan")


def coarse_scores(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Scores with many equal ones, of both signs of zero, and some that may not be selected."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, length, generator=generator).mul(20).round().div(8)
    scores[:, 1::11] = -0.0
    scores[:, 3::13] = NAN
    scores[:, 5::17] = -INF
    scores[:, 9::1001] = INF
    return scores


def assert_selects(scores: torch.Tensor, count: int, device: torch.device) -> None:
    assert select_top(scores.to(device), count).tolist() == top_entries(scores, count).tolist()


@pytest.fixture
def small_pieces(monkeypatch):
    """Rounds on rows of some hundreds of scores."""
    monkeypatch.setattr(selection, "PIECE", 128)


@pytest.mark.parametrize(
    ("length", "count"), [(1, 1), (1, 5), (2, 1), (7, 7), (100, 3), (129, 128), (1000, 512), (5000, 37), (5000, 5000)]
)
def test_one_piece(length, count, device):
    assert_selects(coarse_scores(2, length), count, device)


@pytest.mark.parametrize(("length", "count"), [(129, 1), (500, 64), (900, 10)])
@pytest.mark.usefixtures("small_pieces")
def test_rounds(length, count, device):
    assert_selects(coarse_scores(2, length), count, device)


@pytest.mark.parametrize(("length", "count"), [(129, 65), (1000, 999), (300, 300), (2500, 100)])
@pytest.mark.usefixtures("small_pieces")
def test_large_counts_of_long_rows(length, count, device):
    assert_selects(coarse_scores(3, length), count, device)


def test_pieces_of_the_published_size(device):
    """Two full pieces and one of a single score, which is the largest."""
    scores = coarse_scores(1, 2 * PIECE + 1)
    scores[0, -1] = INF
    assert_selects(scores, 512, device)


@pytest.mark.usefixtures("small_pieces")
def test_each_round_takes_half_of_a_row_or_less(monkeypatch, device):
    grids = []
    run = Launch.run
    monkeypatch.setattr(Launch, "run", lambda launch: (grids.append(launch.grid), run(launch)))
    select_top(coarse_scores(1, 500).to(device), 64)
    assert grids == [(1, 4), (1, 2), (1, 1)]


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3e38, 1e-45, INF])
def test_equal_scores_take_the_lowest_indices(value, device):
    scores = torch.full((1, 300), value)
    assert select_top(scores.to(device), 7).tolist() == [list(range(7))]


def test_zeros_of_both_signs_tie(device):
    scores = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -1.0]])
    assert select_top(scores.to(device), 3).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("pieces", ["one piece", "rounds", "rows"])
def test_thousands_of_ties(pieces, monkeypatch, device):
    """Handed case: 100 winners among 8320 scores, all others 0; the smallest other indices fill up."""
    if pieces != "one piece":
        monkeypatch.setattr(selection, "PIECE", 4096 if pieces == "rounds" else 2048)
    scores = torch.zeros(1, 8320)
    winners = 7 + 83 * torch.arange(100)
    scores[0, winners] = torch.arange(1.0, 101.0)
    (selected,) = select_top(scores.to(device), 2048).tolist()
    assert len(set(selected)) == 2048
    assert set(winners.tolist()) < set(selected)
    others = sorted(set(selected) - set(winners.tolist()))
    assert others[-1] == 1971
    assert others == [index for index in range(1972) if index not in set(winners.tolist())]


def test_fewer_visible_than_wanted(device):
    """Handed case: -1 only after the entries, never among them."""
    visible = torch.tensor([0, 1, 3, 512, 513])
    scores = torch.randn(5, 600, generator=torch.Generator().manual_seed(1))
    scores.masked_fill_(torch.arange(600) >= visible[:, None], -INF)
    selected = select_top(scores.to(device), 512).cpu()
    assert (selected >= 0).sum(1).tolist() == [0, 1, 3, 512, 512]
    assert selected.tolist() == top_entries(scores, 512).tolist()


@pytest.mark.usefixtures("small_pieces")
def test_rounds_with_too_few_to_select(device):
    scores = torch.full((2, 400), -INF)
    scores[1, [5, 200, 201, 399]] = torch.tensor([1.0, -2.0, -2.0, -3e38])
    assert select_top(scores.to(device), 6).tolist() == [[-1] * 6, [5, 200, 201, 399, -1, -1]]


def test_nan_and_minus_infinity_are_never_selected(device):
    """Handed case."""
    scores = torch.tensor([[NAN, 1.0, 2.0, NAN, -INF]])
    assert select_top(scores.to(device), 3).tolist() == [[1, 2, -1]]
    negative_nan = torch.tensor([-1], dtype=torch.int32).view(torch.float32)
    assert select_top(torch.cat([negative_nan, negative_nan])[None].to(device), 2).tolist() == [[-1, -1]]


def test_rows_cut_from_a_wider_tensor_count_from_their_own_start(device):
    """Handed case: row 1 starts at column 10."""
    packed = torch.zeros(1, 16)
    packed[0, [2, 9, 11, 14]] = 1.0
    for start, length, best in ((0, 10, [2, 9]), (10, 6, [1, 4])):
        row = packed.to(device)[:, start : start + length]
        assert select_top(row, 2).tolist() == [best]


@pytest.mark.parametrize("count", [20, 90])
@pytest.mark.usefixtures("small_pieces")
def test_any_strides(count, device):
    scores = coarse_scores(300, 2).to(device).T
    assert not scores.is_contiguous()
    assert select_top(scores, count).tolist() == top_entries(scores.cpu(), count).tolist()
    sparse = coarse_scores(4, 600).to(device)[::2, ::2]
    assert select_top(sparse, count).tolist() == top_entries(sparse.cpu(), count).tolist()
    visible = torch.tensor([250, 300], device=device)
    assert select_blocks(sparse, visible, 8, 9).tolist() == candidate_blocks(sparse.cpu(), visible.cpu(), 8, 9).tolist()


def test_every_order_of_bits(device):
    """Scores over all exponents: order is decided by bits from the first to the last."""
    generator = torch.Generator().manual_seed(2)
    bits = torch.randint(-(2**31), 2**31, (2, 3000), generator=generator).to(torch.int32)
    scores = bits.view(torch.float32)
    for count in (1, 1500, 2999):
        assert_selects(scores, count, device)
    neighbours = (torch.arange(500, dtype=torch.int32) // 2 + 0x3F800000).view(torch.float32)
    assert_selects(torch.stack([neighbours, -neighbours]), 101, device)


@pytest.mark.parametrize("shape", [(0, 10), (3, 0)])
def test_nothing_to_select_from(shape, device):
    scores = torch.empty(shape, device=device)
    assert select_top(scores, 4).shape == (shape[0], min(4, shape[1]))
    blocks = select_blocks(scores, torch.zeros(shape[0], dtype=torch.int64, device=device), 8, 4)
    assert blocks.shape == (shape[0], min(4, -(-shape[1] // 8)))
    assert select_top(torch.zeros(3, 5, device=device), 0).shape == (3, 0)


def test_every_place_is_written(monkeypatch, device):
    monkeypatch.setattr(selection, "PIECE", 128)
    new_empty = torch.Tensor.new_empty

    def poisoned(tensor, *size, **options):
        made = new_empty(tensor, *size, **options)
        return made.fill_(NAN if made.is_floating_point() else 0x2AAAAAAA)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    scores = torch.full((2, 200), -INF)
    scores[0, ::40] = 1.0
    for count in (3, 40, 100):
        assert_selects(scores, count, device)
    visible = torch.tensor([200, 0])
    expected = candidate_blocks(scores, visible, 8, 10)
    assert select_blocks(scores.to(device), visible.to(device), 8, 10).tolist() == expected.tolist()


def test_repeated_launches_agree(monkeypatch, device):
    monkeypatch.setattr(selection, "PIECE", 128)
    scores = coarse_scores(1, 200).to(device)
    first = select_top(scores, 20)
    for _ in range(19 if device.type == "cuda" else 2):
        assert torch.equal(select_top(scores, 20), first)


@pytest.mark.parametrize(("block", "budget"), [(8, 3), (8, 1), (8, 500), (6, 4), (1, 9), (32, 2), (500, 2)])
def test_blocks(block, budget, device):
    scores = coarse_scores(4, 333, seed=3)
    visible = torch.tensor([333, 0, 1, 200])
    scores.masked_fill_(torch.arange(333) >= visible[:, None], -INF)
    selected = select_blocks(scores.to(device), visible.to(device), block, budget)
    assert selected.tolist() == candidate_blocks(scores, visible, block, budget).tolist()


def test_more_blocks_than_a_program_takes(device):
    scores = coarse_scores(1, 8 * 600 + 3, seed=4)
    visible = torch.tensor([4803])
    selected = select_blocks(scores.to(device), visible.to(device), 8, 70)
    assert selected.tolist() == candidate_blocks(scores, visible, 8, 70).tolist()
    assert selected[0, -1] == 600


def test_the_newest_block_is_kept_and_counts(device):
    """Handed case: 28 visible entries of 32, a huge value behind them in memory."""
    memory = torch.full((2, 32), 1e9, device=device)
    memory[:, :28] = torch.tensor([-1.0, -2.0, -3.0, -5.0]).repeat_interleave(8)[:28]
    visible = torch.tensor([28, 0], device=device)
    assert select_blocks(memory[:1, :28], visible[:1], 8, 2).tolist() == [[0, 3]]
    masked = memory.masked_fill(torch.arange(32, device=device) >= visible[:, None], -INF)
    assert select_blocks(masked, visible, 8, 2).tolist() == [[0, 3], [-1, -1]]


def test_a_block_with_nan_is_not_selected_unless_newest(device):
    scores = torch.zeros(1, 32)
    scores[0, [3, 30]] = NAN
    visible = torch.tensor([32])
    assert candidate_blocks(scores, visible, 8, 4).tolist() == [[1, 2, 3, -1]]
    assert select_blocks(scores.to(device), visible.to(device), 8, 4).tolist() == [[1, 2, 3, -1]]


def test_offsets_beyond_32_bits(device):
    """The second row lies 2^31 scores and more behind the first, in a buffer that is never touched elsewhere."""
    buffer = torch.empty(2**31 + 2**20, device=device)
    rows = buffer.as_strided((2, 40), (2**31 + 64, 1), storage_offset=2**10)
    scores = coarse_scores(2, 40, seed=5)
    rows.copy_(scores)
    assert select_top(rows, 9).tolist() == top_entries(scores, 9).tolist()
    out = torch.empty(2, 9, dtype=torch.int64, device=device)
    select_rows_launch(rows, out).run()
    assert out.tolist() == top_entries(scores, 9).tolist()
    visible = torch.tensor([40, 9])
    assert select_blocks(rows, visible.to(device), 8, 3).tolist() == candidate_blocks(scores, visible, 8, 3).tolist()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: select_top(torch.zeros(2, 3, dtype=torch.float16), 1), TypeError, "scores are torch.float16"),
        (lambda: select_top(torch.zeros(3), 1), ValueError, r"scores have shape \[3\]"),
        (lambda: select_top(torch.zeros(2, 3), -1), ValueError, "count is -1"),
        (lambda: select_blocks(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), 8, 1), ValueError, "visible is"),
        (lambda: select_blocks(torch.zeros(2, 3), torch.zeros(2), 8, 1), ValueError, "visible is torch.float32"),
        (lambda: select_blocks(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), 0, 1), ValueError, "block is 0"),
        (
            lambda: select_blocks(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), 8, -1),
            ValueError,
            "budget is -1",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_costs():
    assert select_top_cost(2, 1000, 10) == (2 * (4000 + 80), 0)
    assert select_top_cost(2, 5, 10) == (2 * (20 + 40), 0)
    assert select_blocks_cost(3, 1001, 8, 2048) == (3 * (4004 + 8 + 126 * 8), 0)
