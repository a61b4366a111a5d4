"""Verification leaves the target's distribution as it is: chi-square tests of two tokens, and rules that break it."""

from collections.abc import Callable
from functools import cache

import pytest
import torch

from ds41.dspark.schedule import Optimum, Threshold, survival, throughput
from ds41.dspark.throughput_curve import ThroughputCurve
from ds41.dspark.verification import Verified, verify

VOCAB = 4
# Seeds are fixed, so a test that passes passes always; a right program has had one chance in a thousand to miss this.
RIGHT = 1e-3
# And what is called broken is so beyond doubt.
BROKEN = 1e-9


def table(*rows: list[float]) -> torch.Tensor:
    """Distributions of the next token: a row for the beginning, and one behind each of the tokens."""
    weights = torch.tensor(rows, dtype=torch.float64)
    return weights / weights.sum(-1, keepdim=True)


def random_table(seed: int, sharpness: float) -> torch.Tensor:
    logits = torch.randn(VOCAB + 1, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(sharpness * logits, -1)


ONE_HOT = table([0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0])
PAIRS = {
    "near": (random_table(0, 1.0), random_table(0, 0.6)),
    "far": (random_table(1, 1.5), random_table(2, 1.5)),
    "little in common": (
        table([3, 1, 0.01, 0], [0, 5, 1, 0.01], [1, 1, 0, 0], [0, 0, 1, 4], [2, 0, 0, 1]),
        table([0, 0.02, 2, 3], [4, 0.03, 0, 1], [0, 1, 3, 3], [5, 1, 0.05, 0], [0, 3, 1, 0.1]),
    ),
    "zeros": (
        table([1, 0, 2, 1], [0, 1, 1, 0], [1, 2, 0, 4], [1, 0, 0, 3], [1, 1, 1, 0]),
        table([2, 1, 0, 1], [1, 1, 0, 0], [3, 0, 1, 0], [1, 1, 1, 1], [0, 0, 1, 2]),
    ),
    "equal": (random_table(3, 1.0), random_table(3, 1.0)),
    "one-hot drafts": (random_table(4, 1.0), ONE_HOT),
}


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """The chance that counts as far from the probabilities as these, or farther, come up; 0 for an impossible one."""
    counts, expected = counts.flatten().double(), probabilities.flatten() * counts.sum()
    if bool((counts[expected == 0] > 0).any()):
        return 0.0
    # Cells too rare for the approximation are one.
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def joint(target: torch.Tensor) -> torch.Tensor:
    """[first, second], from the rows of the beginning and behind each first token."""
    return target[0][:, None] * target[1:]


Length = Callable[[tuple[int, ...]], int]


def first_two(
    target: torch.Tensor, proposed: torch.Tensor, drafts: int, samples: int, length: Length | None = None
) -> torch.Tensor:
    """Counts [first, second] of the first two tokens, drafted and verified as often as it takes.

    length: how many of a block's drafts are verified, by (the token before the block, the drafts); None for all.
    """
    random = torch.Generator().manual_seed(100 * drafts + samples)
    # No row is asked for more: a sample has at most two blocks.
    guesses = [
        iter(row.tolist()) for row in torch.multinomial(proposed, 2 * drafts * samples + 1, True, generator=random)
    ]
    counts = torch.zeros(VOCAB, VOCAB, dtype=torch.int64)
    for _ in range(samples):
        text: list[int] = []
        while len(text) < 2:
            # Row 0 is the beginning, row 1 + token what follows a token.
            rows = [1 + text[-1] if text else 0]
            for _ in range(drafts):
                rows.append(1 + next(guesses[rows[-1]]))
            tokens = tuple(row - 1 for row in rows)
            block = tokens[1:] if length is None else tokens[1 : 1 + length(tokens)]
            kept = len(block)
            found = verify(target[rows[: kept + 1]], block, proposed[rows[:kept]], random)
            text += [*block[: found.accepted], found.token]
        counts[text[0], text[1]] += 1
    return counts


@pytest.mark.parametrize(("pair", "drafts"), [("near", 0), *((pair, drafts) for pair in PAIRS for drafts in (1, 2, 3))])
def test_the_first_two_tokens_follow_the_target(pair, drafts):
    target, proposed = PAIRS[pair]
    counts = first_two(target, proposed, drafts, 700)
    assert chi_square(counts.sum(1), target[0]) > RIGHT
    assert chi_square(counts, joint(target)) > RIGHT


def test_the_drafter_alone_would_be_noticed():
    target, proposed = PAIRS["near"]
    random = torch.Generator().manual_seed(0)
    first = torch.multinomial(proposed[0], 1200, True, generator=random)
    assert chi_square(torch.bincount(first, minlength=VOCAB), target[0]) < RIGHT


# What the drafter believes of its next token, by the token before it; the last row is the beginning's.
CONFIDENCE = torch.tensor([0.95, 0.2, 0.7, 0.45, 0.6], dtype=torch.float64)
# The second and third token cost a third of the first each, the fourth little, the fifth much.
DEAR = ThroughputCurve((1, 2), (0.3, 0.3))
STAIRS = ThroughputCurve((1, 2, 3, 4, 5), (1.0, 1.3, 1.6, 1.7, 2.5))
# Only two drafts together can pay.
LATE = ThroughputCurve((1, 2, 3), (1.0, 2.0, 2.01))


def confidences(tokens: tuple[int, ...]) -> torch.Tensor:
    """[1, k], of each draft by the token before it."""
    return CONFIDENCE[list(tokens[:-1])][None]


@pytest.mark.parametrize(
    "policy",
    [Optimum(STAIRS), Optimum(STAIRS, DEAR), Threshold(0.5)],
    ids=["stairs", "dear drafts", "threshold"],
)
@pytest.mark.parametrize("pair", ["far", "zeros"])
def test_lengths_by_what_came_before_leave_the_target_as_it_is(policy, pair):
    target, proposed = PAIRS[pair]
    chosen = set()

    @cache
    def length(tokens):
        found = policy.lengths(confidences(tokens))[0]
        chosen.add(found)
        return found

    counts = first_two(target, proposed, 3, 700, length)
    assert len(chosen) > 1
    assert chi_square(counts.sum(1), target[0]) > RIGHT
    assert chi_square(counts, joint(target)) > RIGHT


def test_a_length_that_looks_at_the_draft_itself_breaks_the_target():
    target, proposed = PAIRS["near"]
    counts = first_two(target, proposed, 1, 1000, lambda tokens: int(tokens[1] == 3))
    assert chi_square(counts.sum(1), target[0]) < BROKEN


def test_looking_past_a_draft_that_does_not_pay_breaks_the_target():
    # Draft 1 is verified only together with draft 2, whose confidence depends on what draft 1 is.
    @cache
    def best(tokens):
        products = survival(confidences(tokens))
        return max(range(3), key=lambda count: throughput(products, [count], LATE))

    target, proposed = PAIRS["near"]
    counts = first_two(target, proposed, 2, 1000, best)
    assert chi_square(counts.sum(1), target[0]) < BROKEN
    # The greedy rule stops before it, and verifies nothing.
    assert all(Optimum(LATE).lengths(confidences((-1, token, 0))) == [0] for token in range(VOCAB))


@pytest.mark.parametrize("pair", PAIRS)
def test_the_accepted_share_is_what_the_two_have_in_common(pair):
    target, proposed = (rows[:1] for rows in PAIRS[pair])
    random = torch.Generator().manual_seed(7)
    rows, samples = target.expand(2, -1), 1000
    guesses = torch.multinomial(proposed[0], samples, True, generator=random).tolist()
    accepted = sum(verify(rows, [token], proposed, random).accepted for token in guesses)
    share = float(torch.minimum(target, proposed).sum())
    assert share == pytest.approx(1 - float((target - proposed).abs().sum()) / 2)
    # Five standard deviations.
    assert abs(accepted / samples - share) <= 5 * (share * (1 - share) / samples) ** 0.5 + 1e-12


def test_temperature_zero_is_a_comparison_of_ids():
    target = ONE_HOT[[0, 2, 1]]
    random = torch.Generator().manual_seed(0)
    # The target says 1, 0, 2.
    for drafts, expected in (
        ([1, 0], Verified(2, 2)),
        ([1, 3], Verified(1, 0)),
        ([2, 0], Verified(0, 1)),
        (torch.tensor([1, 0]), Verified(2, 2)),
    ):
        proposed = torch.eye(VOCAB, dtype=torch.float64)[torch.as_tensor(drafts)]
        assert verify(target, drafts, proposed, random) == expected
    assert verify(target[:1], [], torch.zeros(0, VOCAB, dtype=torch.float64), random) == Verified(0, 1)


def test_a_rejected_one_hot_draft_does_not_come_back():
    target, proposed = table([1, 1, 1, 1], [1, 0, 0, 0]), table([0, 1, 0, 0])
    random = torch.Generator().manual_seed(0)
    found = [verify(target, [1], proposed, random) for _ in range(300)]
    assert {each.token for each in found if not each.accepted} == {0, 2, 3}
    assert {each.token for each in found if each.accepted} == {0}


def test_a_residual_that_is_only_rounding_is_not_drawn_from(monkeypatch):
    # The draft is rejected though the two are all but equal; what is left over, all on id 3, is 5e-9.
    target = table([0.5 - 5e-9, 0.5, 0, 5e-9], [1, 0, 0, 0])
    proposed = table([0.5, 0.5, 0, 0])
    marks = iter([1 - 1e-12, 0.1])
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(next(marks), dtype=torch.float64))
    assert verify(target, [0], proposed, torch.Generator()) == Verified(0, 1)


def test_each_look_takes_one_random_number():
    target, proposed = PAIRS["equal"]
    rows, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    assert verify(target[:3], [0, 1], proposed[:2], rows).accepted == 2
    torch.rand(3, generator=other, dtype=torch.float64)
    assert torch.equal(rows.get_state(), other.get_state())


HALF = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("target", "drafts", "proposed", "message"),
    [
        (HALF, [0, 1], [[0.5, 0.5]] * 2, r"target has shape \[2, 2\]; expected \[3, vocab\] for 2 drafts"),
        ([0.5, 0.5], [], HALF, r"target has shape \[2\]"),
        (HALF, [0], HALF, r"proposed has shape \[2, 2\]; expected \[1, 2\]"),
        (HALF, [0], [[1.0, 0.0, 0.0]], r"proposed has shape \[1, 3\]"),
        (HALF, [2], [[0.5, 0.5]], r"drafts\[0\] is 2; expected an id from 0 to 1"),
        (HALF, [-1], [[0.5, 0.5]], r"drafts\[0\] is -1"),
        (HALF, [1], [[1.0, 0.0]], r"drafts\[0\] is 1, to which proposed\[0\] gives no probability"),
        (HALF, [0], [[0.5, 0.4]], r"proposed\[0\] sums to 0\.9"),
        (HALF, [0], [[1.5, -0.5]], r"proposed\[0\] sums to 1\.0, its smallest is -0\.5"),
        ([[0.5, 0.5], [float("nan"), 0.5]], [0], [[0.5, 0.5]], r"target\[1\] sums to nan"),
    ],
)
def test_what_cannot_be_verified_is_refused(target, drafts, proposed, message):
    with pytest.raises(ValueError, match=message):
        verify(
            torch.tensor(target, dtype=torch.float64),
            drafts,
            torch.tensor(proposed, dtype=torch.float64),
            torch.Generator(),
        )
