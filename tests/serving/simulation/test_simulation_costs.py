"""What steps cost: lines through measured ones, roofline bounds; and loads, the same for the same seed."""

import random
import statistics
from dataclasses import replace

import pytest
from engine_load import Samples

from ds41 import ModelConfig, flops, roofline
from ds41.agent_workspace import Workspace
from ds41.roofline import DEVICES
from ds41.serving.simulation import (
    Finished,
    Line,
    MeasuredCosts,
    Pauses,
    RooflineCosts,
    Started,
    StepWork,
    agent_sessions,
    poisson_arrivals,
)
from ds41.serving.simulation.costs import STEP_FEATURES, rounded
from ds41.serving.simulation.report import quantile, thinned
from ds41.serving.simulation.workload import quarter_of_bytes

FLASH = ModelConfig.flash()
H200 = DEVICES["H200"]


def random_work(source: random.Random) -> StepWork:
    pieces = [
        (source.randint(2, 400), source.randint(0, 900), source.randint(0, 2)) for _ in range(source.randint(0, 3))
    ]
    return StepWork.of(pieces, [source.randint(10, 2000) for _ in range(source.randint(0, 6))])


def test_a_line_finds_the_coefficients_that_made_the_times():
    source, made = random.Random(0), {"constant": 0.01, "turns": 0.002, "reading": 3e-4, "answering_context": 1e-6}
    work = [random_work(source) for _ in range(200)]
    samples = [(one, Line(made).at(one)) for one in work]
    found = Line.fit(STEP_FEATURES, samples)
    assert {name: value for name, value in found.coefficients.items() if value > 1e-9} == pytest.approx(made, rel=1e-4)
    assert found.spread < 1e-6


def test_a_line_never_goes_below_zero():
    # Times that fall with the tokens, as noise may make them: a slope below zero would make long steps free.
    samples = [(StepWork.of([(tokens, 0, 0)], []), 1.0 - tokens / 1000) for tokens in range(100, 900, 50)]
    found = Line.fit(("constant", "reading"), samples)
    assert found.coefficients["reading"] == 0
    assert found.coefficients["constant"] > 0


@pytest.mark.parametrize(
    ("samples", "message"),
    [([(StepWork(), 1.0)], "1 samples for 2 features"), ([(StepWork(), 1.0), (StepWork(), 0.0)], "0.0 s")],
)
def test_samples_that_fit_nothing_are_named(samples, message):
    with pytest.raises(ValueError, match=message):
        Line.fit(("constant", "reading"), samples)


def test_samples_of_an_engine_become_costs():
    source = random.Random(3)
    line = Line({"constant": 0.02, "reading": 1e-3, "answering": 5e-3})
    samples = Samples(
        [(work, line.at(work)) for work in (random_work(source) for _ in range(60))],
        [(Started(pages, 10 * pages), 0.1 + 0.01 * pages) for pages in range(1, 9)] + [(Started(live=True), 0.5)],
        [(Finished(pages, 7), 0.2) for pages in range(1, 9)],
        [0.03, 0.05],
    )
    costs = samples.costs()
    work = StepWork.of([(100, 0, 0)], [50, 60])
    assert costs.step(work) == pytest.approx(0.02 + 0.1 + 0.01 + 0.04, rel=0.01)
    assert costs.start(Started(5, 50)) == pytest.approx(0.15)
    assert costs.start(Started(live=True)) == 0.5
    assert costs.finish(Finished(3, 7)) == pytest.approx(0.2)
    assert costs.to_dict()["step_line"]["coefficients"]["reading"] == pytest.approx(1e-3, rel=0.01)
    assert MeasuredCosts.from_dict(costs.to_dict()) == costs


@pytest.mark.parametrize(("batch", "context"), [(1, 1 << 20), (64, 1 << 17), (500, 1 << 20)])
def test_a_step_of_answers_is_the_rooflines_decode_step(batch, context):
    bound = roofline.decode_step(FLASH, context, H200, batch=batch, devices=8).seconds
    for efficiency in (1.0, 0.4):
        costs = RooflineCosts(FLASH, H200, 8, efficiency, overhead_s=0.001)
        assert costs.step(StepWork.of([], [context] * batch)) == pytest.approx(bound / efficiency + 0.001)


def test_a_long_prompt_is_bound_by_its_operations():
    tokens = 8192
    costs = RooflineCosts(FLASH, H200, 1, 1.0)
    whole = costs.step(StepWork.of([(tokens, 0, FLASH.sliding_window)], []))
    work = sum(layer.total for layer in flops.by_layer(FLASH, tokens, "bounded"))
    assert whole == pytest.approx(work / H200.best_flops)
    without_end = costs.step(StepWork.of([(tokens, 0, 0)], []))
    all_layers = costs.step(StepWork.of([(tokens, 0, tokens)], []))
    # The layers above the last source are as many as those below.
    assert without_end < whole < 0.6 * all_layers
    assert costs.step(StepWork()) == 0


def test_contexts_are_rounded_a_little():
    for tokens in (1, 63, 64, 1000, 12345, 999_999, 1 << 20):
        assert rounded(tokens) == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize(
    ("field", "value"), [("efficiency", 0.0), ("efficiency", 1.1), ("devices", 0), ("store_bytes_per_s", 0.0)]
)
def test_costs_that_cannot_be_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        replace(RooflineCosts(FLASH, H200), **{field: value})


def test_arrivals_and_pauses_have_the_stated_distributions():
    times = poisson_arrivals(4000, 2.0, random.Random(1))
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(0.5, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.5, rel=0.1)
    source, pauses = random.Random(2), Pauses(20.0, 1.0, 0.1, 36_000.0, 0.5)
    drawn = [pauses.draw(source) for _ in range(4000)]
    short = [one for one in drawn if one < 2000]
    assert len(short) / len(drawn) == pytest.approx(0.9, abs=0.02)
    assert statistics.median(short) == pytest.approx(20.0, rel=0.1)


def test_agents_over_files_are_the_same_for_the_same_seed(tmp_path):
    body = "\n".join(f"    total = total + {n}" for n in range(40))
    files = {f"m{n}.py": f'def work{n}(total):\n    """Adds up."""\n{body}\n    return total\n' for n in range(3)}
    options = {"workspace": Workspace(files), "turns": (2, 4)}
    plans = agent_sessions(5, 0.1, seed=3, **options)
    assert plans == agent_sessions(5, 0.1, seed=3, **options)
    assert plans != agent_sessions(5, 0.1, seed=4, **options)
    assert all(2 <= len(plan.turns) <= 4 for plan in plans)
    assert len({plan.shared_tokens for plan in plans}) == 1 < plans[0].shared_tokens
    with pytest.raises(ValueError, match="count is 0"):
        agent_sessions(0, 1.0, **options)


def test_bytes_become_tokens():
    assert [quarter_of_bytes(text) for text in ("", "a", "abcd", "abcde", "é" * 4)] == [0, 1, 1, 2, 2]


def test_quantiles_and_staircases():
    values = [5, 1, 4, 2, 3]
    assert [quantile(values, share) for share in (0.2, 0.21, 0.5, 0.95, 1.0)] == [1, 2, 3, 5, 5]
    assert quantile([], 0.5) == 0
    with pytest.raises(ValueError, match="share is 0"):
        quantile(values, 0)
    points = [(float(n), n % 10) for n in range(1000)]
    few = thinned(points, 20)
    assert len(few) <= 20
    assert max(height for _, height in few) == 9
    assert thinned(points[:5], 20) == points[:5]
