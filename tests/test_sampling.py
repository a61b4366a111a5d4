"""Sampling: the exact nucleus, draws against probabilities, and the distribution behind them."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds41.sampling import distribution, draw, nucleus, sample


def drawn(logits: torch.Tensor, count: int, **options) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    settings = {"temperature": 1.0, "top_p": 1.0} | options
    return torch.tensor([sample(logits, random=random, **settings) for _ in range(count)])


@given(st.lists(st.integers(0, 64), min_size=1, max_size=12).filter(any), st.integers(1, 64))
def test_the_nucleus_is_the_smallest_likely_set(weights, eighths):
    total = sum(weights)
    # Powers of two as divisors: sums of such numbers are exact.
    scale = 2 ** (total - 1).bit_length()
    top_p = Fraction(eighths, 64) * Fraction(total, scale)
    probabilities = torch.tensor(weights, dtype=torch.float64) / scale
    ids, mass = nucleus(probabilities, float(top_p))
    expected, held = [], Fraction(0)
    for place in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        if held >= top_p:
            break
        expected.append(place)
        held += Fraction(weights[place], scale)
    assert ids.tolist() == expected
    assert Fraction(mass[-1].item()) == held


def test_top_p_one_keeps_every_possible_token():
    probabilities = torch.softmax(torch.randn(1000, dtype=torch.float64), 0)
    probabilities[10] = 0
    ids, mass = nucleus(probabilities, 1.0)
    assert sorted(ids.tolist()) == [i for i in range(1000) if i != 10]
    assert float(mass[-1]) == pytest.approx(1, abs=1e-3)


def test_draws_follow_the_probabilities():
    probabilities = torch.tensor([0.5, 0.0, 0.25, 0.15, 0.1], dtype=torch.float64)
    count = 4000
    ids = drawn(probabilities.log(), count)
    shares = torch.bincount(ids, minlength=5) / count
    # Five standard deviations of a share.
    assert bool(((shares - probabilities).abs() <= 5 * (probabilities * (1 - probabilities) / count).sqrt()).all())
    assert set(drawn(probabilities.log(), 300, top_p=0.7).tolist()) == {0, 2}
    assert set(drawn(probabilities.log(), 100, top_p=0.5).tolist()) == {0}


def test_temperature_sharpens_and_flattens():
    logits = torch.tensor([0.0, 1.0, 2.0])
    shares = {t: float((drawn(logits, 500, temperature=t) == 2).float().mean()) for t in (0.3, 1.0, 100.0)}
    assert shares[0.3] > shares[1.0] > shares[100.0]
    assert set(drawn(logits, 50, temperature=1e-30).tolist()) == {2}


def test_equal_largest_logits_go_to_the_lowest_id():
    assert drawn(torch.tensor([0.0, 3.0, 3.0, -torch.inf]), 1, temperature=0).item() == 1


@pytest.mark.parametrize(
    "logits", [[0.0, torch.nan], [torch.inf, 0.0], [-torch.inf, -torch.inf]], ids=["nan", "inf", "all -inf"]
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_nothing_can_be_drawn_from(logits, temperature):
    with pytest.raises(FloatingPointError, match="largest logit"):
        drawn(torch.tensor(logits), 1, temperature=temperature)


SETTINGS = [(0, 1.0), (0, 0.3), (0.4, 1.0), (1.0, 0.9), (2.0, 0.5), (1.0, 1e-9)]


def random_logits(*shape: int) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("temperature", "top_p"), SETTINGS)
def test_the_distribution_is_the_softmax_within_the_nucleus(temperature, top_p):
    logits = random_logits(2, 3, 40)
    found = distribution(logits, temperature, top_p)
    assert (found.shape, found.dtype) == (logits.shape, torch.float64)
    for row, numbers in zip(found.flatten(0, 1), logits.flatten(0, 1).double(), strict=True):
        expected = torch.zeros(40, dtype=torch.float64)
        if temperature == 0:
            expected[numbers.argmax()] = 1
        else:
            whole = torch.softmax(numbers / temperature, 0)
            held = 0.0
            for place in sorted(range(40), key=lambda i: -whole[i]):
                if held < top_p:
                    expected[place] = whole[place]
                held += float(whole[place])
            expected /= expected.sum()
        assert torch.equal(row > 0, expected > 0)
        torch.testing.assert_close(row, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("temperature", "top_p"), SETTINGS)
def test_a_draw_from_the_distribution_is_the_sample(temperature, top_p):
    for seed, logits in enumerate(random_logits(200, 50)):
        sampled = sample(logits, temperature, top_p, torch.Generator().manual_seed(seed))
        probabilities = distribution(logits, temperature, top_p)
        assert draw(probabilities, torch.Generator().manual_seed(seed)) == sampled


def test_a_distribution_gives_equal_largest_logits_to_the_lowest_id():
    found = distribution(torch.tensor([[0.0, 3.0, 3.0], [-torch.inf, -torch.inf, 1.0]]), 0, 1.0)
    assert found.tolist() == [[0, 1, 0], [0, 0, 1]]


def test_no_rows_have_no_distributions():
    assert distribution(torch.zeros(0, 7), 1.0, 1.0).shape == (0, 7)


def test_draws_take_weights_as_they_are_and_one_random_number_each():
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    random = torch.Generator().manual_seed(5)
    ids = torch.tensor([draw(weights, random) for _ in range(2000)])
    assert set(ids.tolist()) == {1, 3}
    # Five standard deviations of a share.
    assert abs(float((ids == 1).double().mean()) - 0.75) <= 5 * (0.75 * 0.25 / 2000) ** 0.5
    other = torch.Generator().manual_seed(5)
    torch.rand(2000, generator=other, dtype=torch.float64)
    assert torch.equal(random.get_state(), other.get_state())


@pytest.mark.parametrize("mark", [0.0, 1.0])
def test_the_ends_of_the_random_numbers_draw_no_impossible_id(monkeypatch, mark):
    # 1.0 is what rounding may make of the largest number below it.
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(mark, dtype=torch.float64))
    assert draw(torch.tensor([0.0, 0.7, 0.0, 0.3, 0.0], dtype=torch.float64), torch.Generator()) == (3 if mark else 1)


@pytest.mark.parametrize(
    "weights",
    [[0.0, 0.0], [0.5, torch.nan], [1.5, -0.5], [torch.inf, 0.0]],
    ids=["none", "nan", "negative", "infinite"],
)
def test_weights_that_nothing_can_be_drawn_from(weights):
    with pytest.raises(FloatingPointError, match="the probabilities sum to"):
        draw(torch.tensor(weights, dtype=torch.float64), torch.Generator())


@pytest.mark.parametrize(("temperature", "top_p", "message"), [(-1, 1.0, "temperature is -1"), (1, 0, "top_p is 0")])
def test_a_distribution_refuses_what_sampling_refuses(temperature, top_p, message):
    with pytest.raises(ValueError, match=message):
        distribution(torch.zeros(3), temperature, top_p)
    with pytest.raises(FloatingPointError, match="largest logit is nan"):
        distribution(torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]), 1.0, 1.0)
