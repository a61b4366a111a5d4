"""Sequential Temperature Scaling: temperatures that were put in come out, position by position."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds41.dspark.calibration import (
    GRID,
    Bin,
    Calibration,
    expected_calibration_error,
    fit_calibration,
    reliability,
)

TRUE = (2.0, 0.5, 1.0)


def blocks(count: int, temperatures: tuple[float, ...] = TRUE, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and drafts accepted with the probabilities that these temperatures make of them."""
    random = torch.Generator().manual_seed(seed)
    shape = (count, len(temperatures))
    logits = 1 + 2 * torch.randn(shape, generator=random, dtype=torch.float64)
    chances = torch.sigmoid(logits / torch.tensor(temperatures, dtype=torch.float64))
    return logits, (torch.rand(shape, generator=random, dtype=torch.float64) < chances).cumprod(-1).bool()


def error_of(calibration: Calibration, logits: torch.Tensor, accepted: torch.Tensor, position: int) -> float:
    products = calibration.probabilities(logits).cumprod(-1)
    return expected_calibration_error(products[:, position], accepted[:, position])


@pytest.mark.parametrize("seed", range(3))
def test_known_temperatures_are_found(seed):
    found = fit_calibration(*blocks(20_000, seed=seed))
    steps = [abs(math.log2(ours / true)) * 8 for ours, true in zip(found.temperatures, TRUE, strict=True)]
    # Later positions are reached by fewer blocks, so they are known less well.
    assert all(off <= most + 1e-9 for off, most in zip(steps, (1, 1, 2), strict=True))


def test_a_drafter_that_is_too_sure_is_put_right_on_other_blocks():
    too_sure = (2.0, 2.0, 3.0)
    found = fit_calibration(*blocks(20_000, too_sure))
    logits, accepted = blocks(20_000, too_sure, seed=9)
    for position in range(3):
        fitted = error_of(found, logits, accepted, position)
        assert error_of(Calibration((1.0, 1.0, 1.0)), logits, accepted, position) > 3 * fitted


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_the_first_position_is_never_worse_than_it_was(seed, count):
    logits, accepted = blocks(count, seed=seed)
    found = fit_calibration(logits, accepted, grid=(0.3, 3.0))
    assert set(found.temperatures) <= {0.3, 1.0, 3.0}
    plain = Calibration((1.0, 1.0, 1.0))
    assert error_of(found, logits, accepted, 0) <= error_of(plain, logits, accepted, 0)


def test_each_position_has_the_best_temperature_of_the_grid_behind_those_before_it():
    logits, accepted = blocks(500)
    found = fit_calibration(logits, accepted)
    for position in range(3):
        before = found.temperatures[:position]
        errors = [
            error_of(Calibration((*before, tried)), logits[:, : position + 1], accepted, position) for tried in GRID
        ]
        assert error_of(found, logits, accepted, position) == min(errors)


def test_later_positions_do_not_change_earlier_temperatures():
    logits, accepted = blocks(300)
    whole = fit_calibration(logits, accepted).temperatures
    others, _ = blocks(300, seed=5)
    for position in range(1, 3):
        assert fit_calibration(logits[:, :position], accepted[:, :position]).temperatures == whole[:position]
        mixed = torch.cat([logits[:, :position], others[:, position:]], -1)
        assert fit_calibration(mixed, accepted).temperatures[:position] == whole[:position]
    assert fit_calibration(others, accepted).temperatures != whole


def test_what_always_comes_true_is_made_sure_and_what_never_does_unlikely():
    logits = torch.tensor([[1.0, 2.0]] * 30)
    everything, nothing = torch.ones(30, 2, dtype=torch.bool), torch.zeros(30, 2, dtype=torch.bool)
    assert fit_calibration(logits, everything).temperatures == (GRID[0], GRID[0])
    assert fit_calibration(-logits, nothing).temperatures == (GRID[0], GRID[0])
    # Temperature cannot turn a logit's sign: nearest to "never" is then a half.
    assert fit_calibration(logits[:, :1], nothing[:, :1]).temperatures == (GRID[-1],)


def test_of_equal_errors_the_temperature_nearest_to_one_is_kept():
    # A logit of zero is a half at every temperature.
    logits = torch.zeros(4, 1)
    accepted = torch.tensor([[True], [False], [True], [True]])
    assert fit_calibration(logits, accepted, grid=(8.0, 0.25)).temperatures == (1.0,)


def test_probabilities_of_as_many_positions_as_there_are_logits():
    calibration = Calibration((2.0, 0.5))
    logits = torch.tensor([[[2.0, -1.0], [0.0, math.inf]]])
    found = calibration.probabilities(logits)
    assert (found.shape, found.dtype) == (logits.shape, torch.float64)
    one, two = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(2))
    torch.testing.assert_close(found, torch.tensor([[[one, two], [0.5, 1.0]]], dtype=torch.float64))
    assert torch.equal(calibration.probabilities(logits[..., :1]), found[..., :1])
    with pytest.raises(ValueError, match="logits have 3 positions; expected at most 2"):
        calibration.probabilities(torch.zeros(3))


def test_a_calibration_survives_json():
    calibration = Calibration((2 ** (1 / 8), 0.5))
    assert Calibration.from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration
    with pytest.raises(ValueError, match=r"fields \['temperature'\]"):
        Calibration.from_dict({"temperature": [1.0]})


def test_reliability_by_hand():
    probabilities = torch.tensor([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
    outcomes = torch.tensor([False, True, True, False, True, True])
    assert reliability(probabilities, outcomes, bins=4) == [
        Bin(0.0, 0.25, 2, 0.0625, 0.5),
        Bin(0.25, 0.5, 1, 0.25, 1.0),
        Bin(0.5, 0.75, 1, 0.5, 0.0),
        Bin(0.75, 1.0, 2, 0.875, 1.0),
    ]
    expected = (2 * 0.4375 + 0.75 + 0.5 + 2 * 0.125) / 6
    assert expected_calibration_error(probabilities, outcomes, bins=4) == pytest.approx(expected)


def test_empty_bins_have_no_row():
    rows = reliability(torch.tensor([0.05, 0.95]), torch.tensor([False, True]))
    assert [(row.low, row.high, row.count) for row in rows] == [(0.0, 0.1, 1), (0.9, 1.0, 1)]


def test_predictions_that_are_right_have_no_error():
    assert expected_calibration_error(torch.tensor([0.5, 0.5, 1.0, 0.0]), torch.tensor([True, False, True, False])) == 0


@pytest.mark.parametrize(
    ("probabilities", "outcomes", "bins", "message"),
    [
        ([], [], 10, "there are no predictions"),
        ([0.5], [True, False], 10, r"shapes \[1\] and \[2\]"),
        ([[0.5]], [[True]], 10, r"shapes \[1, 1\] and"),
        ([0.5, float("nan")], [True, True], 10, r"probabilities\[1\] is nan"),
        ([1.5], [True], 10, r"probabilities\[0\] is 1\.5"),
        ([0.5], [True], 0, "bins is 0"),
    ],
)
@pytest.mark.parametrize("count", [reliability, expected_calibration_error])
def test_what_cannot_be_counted(count, probabilities, outcomes, bins, message):
    with pytest.raises(ValueError, match=message):
        count(torch.tensor(probabilities), torch.tensor(outcomes), bins)


@pytest.mark.parametrize(
    ("logits", "accepted", "grid", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.bool), GRID, "no blocks"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bool), GRID, r"shapes \[2\] and \[2\]"),
        (torch.zeros(2, 2), torch.zeros(2, 3, dtype=torch.bool), GRID, r"shapes \[2, 2\] and \[2, 3\]"),
        (torch.zeros(2, 2), torch.zeros(2, 2), GRID, r"accepted is torch\.float32"),
        (torch.zeros(1, 2), torch.tensor([[False, True]]), GRID, r"accepted\[0, 1\] is true behind a rejected draft"),
        (torch.tensor([[0.0, torch.nan]]), torch.ones(1, 2, dtype=torch.bool), GRID, r"logits\[0, 1\] is nan"),
        (torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), (0.0, 1.0), r"of the grid is 0\.0"),
        (torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), (math.inf,), "of the grid is inf"),
    ],
)
def test_what_cannot_be_fitted(logits, accepted, grid, message):
    with pytest.raises(ValueError, match=message):
        fit_calibration(logits, accepted, grid)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_temperatures_that_are_none(temperature):
    with pytest.raises(ValueError, match=r"temperatures\[1\] is"):
        Calibration((1.0, temperature))
