"""What queueing theory says has to come out: conservation, Little's law, the formula for one server, bottlenecks."""

import random

import pytest
from small_loads import CONFIG, Plain, session, spec

from ds41.dspark.throughput_curve import ThroughputCurve
from ds41.serving.simulation import (
    Drafts,
    Pauses,
    Pools,
    SessionPlan,
    TierSpec,
    TurnPlan,
    poisson_arrivals,
    sessions_of,
    simulate,
)

NOTHING_KEPT = TierSpec(windows=False, store=False)


def random_load(seed=0, sessions=12, turns=4, per_second=0.5, shared=0):
    source = random.Random(seed)
    lengths = [
        [(source.randint(2, 90) + shared * (turn == 0), source.randint(1, 12)) for turn in range(turns)]
        for _ in range(sessions)
    ]
    arrivals = poisson_arrivals(sessions, per_second, source)
    return sessions_of(lengths, arrivals, Pauses(5.0, 1.0, 0.1, 500.0), seed, shared)


COSTS = Plain(0.05, 0.004, 0.01)


@pytest.mark.parametrize("pools", [Pools(), Pools(engines=3), Pools(0, 0, 2, 1)], ids=["one", "three", "apart"])
def test_no_token_is_lost_or_made_up(pools):
    plans = random_load(shared=70)
    report = simulate(plans, spec(step_tokens=64), COSTS, pools=pools)
    assert len(report.served) == len(report.turns) == 48
    by_turn = {(turn.session, turn.turn): turn for turn in report.turns}
    for plan in plans:
        tokens = 0
        for number, said in enumerate(plan.turns):
            turn = by_turn[plan.name, number]
            assert turn.context_tokens == tokens + said.prompt
            tokens += said.prompt + said.answer
            assert turn.generated_tokens == said.answer
            # All but the last token of an answer are fed, once each.
            assert turn.hit_tokens + turn.computed_tokens == tokens - 1
            assert 0 <= turn.waited_s <= turn.first_token_s <= turn.seconds
    assert report.levels["store"].points[-1][1] > 0
    assert report.total("stored_bytes") >= report.levels["store"].points[-1][1]


def test_bytes_in_the_tiers_are_the_ledgers():
    from ds41 import ledger

    plan = session("a", 0.0, (200, 11, 1.0), (30, 20, 0.0))
    report = simulate([plan], spec(), COSTS)
    fed = plan.tokens - 1
    assert report.levels["store"].points[-1][1] == ledger.global_bytes(CONFIG, fed)
    assert report.levels["windows"].points[-1][1] == ledger.window_bytes(CONFIG)
    assert report.levels["windows"].to_come == pytest.approx(600 * ledger.window_bytes(CONFIG))


def test_the_same_load_gives_the_same_report():
    first, again = (simulate(random_load(4), spec(), COSTS).to_dict() for _ in range(2))
    assert first == again
    assert simulate(random_load(5), spec(), COSTS).to_dict() != first


def test_one_server_waits_as_the_formula_says():
    """Poisson arrivals and exponential service at one row: waits are load / (rate - arrivals) in the mean."""
    source, count, arrivals, rate = random.Random(1), 3000, 0.6, 1.0
    prompts = [max(1, round(source.expovariate(rate) * 1000)) for _ in range(count)]
    plans = sessions_of(
        [[(prompt, 1)] for prompt in prompts], poisson_arrivals(count, arrivals, source), Pauses(), seed=1
    )
    one = spec(rows=1, max_tokens=2**15, step_tokens=2**15, page_tokens=2048)
    report = simulate(plans, one, Plain(reading=0.001), NOTHING_KEPT, watch=0)
    assert report.mean("waited_s") == pytest.approx(arrivals / rate / (rate - arrivals), rel=0.2)
    assert report.pools[0].utilisation(report.seconds) == pytest.approx(arrivals / rate, rel=0.05)
    # Little: turns in the system are their rate times their stay.
    stays = sorted([(t.arrived_s, 1) for t in report.turns] + [(t.arrived_s + t.seconds, -1) for t in report.turns])
    area, here, then = 0.0, 0, 0.0
    for when, change in stays:
        area, here, then = area + here * (when - then), here + change, when
    assert area / report.seconds == pytest.approx(count / report.seconds * report.mean("seconds"), rel=1e-6)


def test_a_worker_saturates_at_its_capacity():
    # A step of two answers takes half a second: 4 tokens a second, however many wait.
    plans = [session(f"s{n}", 0.0, (2, 40, 0.0)) for n in range(20)]
    report = simulate(plans, spec(rows=2), Plain(constant=0.5), NOTHING_KEPT)
    assert report.tokens_per_s == pytest.approx(4.0, rel=0.05)
    assert report.pools[0].utilisation(report.seconds) == pytest.approx(1.0)


def test_what_finds_no_room_is_refused_and_counted():
    plans = [session(f"s{n}", 0.1 * n, (2, 40, 1.0), (2, 2, 0.0)) for n in range(6)]
    report = simulate(plans, spec(rows=1, queue=2), Plain(constant=0.5), NOTHING_KEPT)
    first = [turn for turn in report.turns if turn.turn == 0]
    assert [turn.finish for turn in first] == ["length"] * 3 + ["refused"] * 3
    assert report.refused == sum(turn.finish == "refused" for turn in report.turns) >= 3
    # A session whose turn was refused goes on without it, and without the preamble that came with it.
    last = next(turn for turn in report.turns if turn.session == "s5" and turn.turn == 1)
    assert last.finish == "refused" or last.context_tokens == 2


def test_without_its_first_turn_a_session_has_no_preamble():
    shared = {"shared": "p", "shared_tokens": 64}
    plans = [
        session("a", 0.0, (100, 40, 0.0), **shared),
        session("b", 0.1, (100, 1, 30.0), (80, 1, 0.0), **shared),
        session("c", 40.0, (100, 1, 0.0), **shared),
    ]
    report = simulate(plans, spec(rows=1, queue=0), Plain(constant=0.5), TierSpec())
    found = {(turn.session, turn.turn): turn for turn in report.turns}
    assert found["b", 0].finish == "refused"
    assert (found["b", 1].hit_tokens, found["b", 1].context_tokens) == (0, 80)
    assert found["c", 0].hit_tokens == 64


def test_encoders_queue():
    plans = [SessionPlan(f"s{n}", 0.0, (TurnPlan(10, 1, 0.0, 10),), tenant=f"t{n}") for n in range(5)]
    report = simulate(plans, spec(), Plain(constant=0.1, image=1.0), pools=Pools(1, encoders=2))
    assert (report.pools[0].name, report.pools[0].longest_queue, report.pools[0].busy_s) == ("encoder", 3, 50.0)
    assert max(turn.first_token_s for turn in report.turns) == pytest.approx(30.1)


def epd(encoders=1, prefill=1, decode=1, images=0, answer=2):
    plans = [session(f"s{n}", 0.0, (100, answer, 0.0), tenant=f"t{n}") for n in range(12)]
    if images:
        plans = [
            type(plan)(plan.name, 0.0, (TurnPlan(100, answer, 0.0, images),), tenant=plan.tenant) for plan in plans
        ]
    costs = Plain(reading=0.01, answering=0.05, image=0.1)
    pools = Pools(0, encoders, prefill, decode, link_bytes_per_s=1e12)
    return simulate(plans, spec(rows=1, step_tokens=4096), costs, NOTHING_KEPT, pools).seconds


@pytest.mark.parametrize(
    ("bottleneck", "load"),
    [("encoders", {"images": 60}), ("prefill", {}), ("decode", {"answer": 60})],
)
def test_more_of_the_bottleneck_helps_and_more_of_the_others_does_not(bottleneck, load):
    base = epd(**load)
    assert epd(**load, **{bottleneck: 2}) < 0.6 * base
    for other in {"encoders", "prefill", "decode"} - {bottleneck}:
        assert epd(**load, **{other: 2}) > 0.9 * base


def test_transfers_take_their_bytes_at_the_links_speed():
    plan = [session("a", 0.0, (300, 3, 5.0), (60, 3, 0.0))]
    slow, fast = (
        simulate(plan, spec(), Plain(constant=0.1), pools=Pools(0, 0, 1, 1, link_bytes_per_s=speed))
        for speed in (1e5, 1e9)
    )
    sent = slow.total("transfer_bytes")
    assert sent == fast.total("transfer_bytes")
    assert slow.seconds - fast.seconds == pytest.approx(sent / 1e5 - sent / 1e9)
    # The decode worker has kept its row, so of the second turn only what is new is sent.
    first, second = slow.turns
    assert second.transfer_bytes < first.transfer_bytes


def test_a_run_that_is_cut_leaves_turns_unfinished():
    plans = [session(f"s{n}", 1.0 * n, (2, 10, 100.0), (2, 10, 0.0)) for n in range(3)]
    whole, cut = (simulate(plans, spec(), Plain(constant=0.1), until_s=until) for until in (None, 2.5))
    assert (len(whole.served), len(cut.turns), len(cut.served)) == (6, 3, 2)
    assert cut.seconds == 2.5
    running = cut.turns[-1]
    assert running.finish is None
    assert 0 < running.generated_tokens < 10
    assert cut.served == whole.turns[:2]


def test_several_steps_at_once_are_the_same_steps():
    plans = random_load(7)
    single, together = (simulate(plans, spec(steps_at_once=count), COSTS) for count in (1, 32))
    for one, other in zip(single.turns, together.turns, strict=True):
        assert one.session == other.session
        assert one.seconds == pytest.approx(other.seconds)
        assert one.computed_tokens == other.computed_tokens
    assert single.pools[0].steps == together.pools[0].steps


def test_drafts_that_stand_shorten_answers():
    curve = ThroughputCurve((1, 2, 100), (0.1, 0.1, 0.2))
    drafts = Drafts((0.9, 0.8, 0.1), curve)
    assert drafts.length(1) == 3
    # Where verifying costs as much as decoding, nothing is drafted.
    assert Drafts((0.5,), ThroughputCurve((1, 100), (0.1, 10.0))).length(1) == 0
    plan = [session("a", 0.0, (2, 57, 0.0))]
    plain = simulate(plan, spec(), Plain(constant=0.1))
    drafted = simulate(plan, spec(), Plain(constant=0.1), drafts=drafts)
    # 2.8 tokens a step in the mean, after the first token.
    assert plain.seconds == pytest.approx(5.7)
    assert drafted.seconds == pytest.approx(0.1 + 20 * 0.1)
    assert drafted.total("computed_tokens") == plain.total("computed_tokens") == 58
    assert drafted.total("verified_tokens") == 60


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate([], spec(), COSTS), "no sessions"),
        (lambda: simulate([session("a", 0, (5000, 1, 0))], spec(), COSTS), "5,001 tokens"),
        (lambda: simulate([session("a", 0, (500, 1, 0))], spec(pages=3), COSTS), "needs 9 pages"),
        (lambda: simulate([session("a", 0, (5, 1, 0))] * 2, spec(), COSTS), "same name"),
        (lambda: session("a", 0), "no turns"),
        (lambda: session("a", 0, (5, 1, 0), shared_tokens=5), "shared_tokens"),
        (lambda: session("a", -1, (5, 1, 0)), "arrives_s"),
        (lambda: TurnPlan(0, 1), "prompt is 0"),
        (lambda: TurnPlan(1, 1, -1.0), "pause_s"),
        (lambda: TurnPlan(3, 1, 0.0, 4), "images is 4"),
        (lambda: spec(rows=0), "rows is 0"),
        (lambda: spec(queue=-1), "queue is -1"),
        (lambda: Pools(1, 0, 1, 1), "either"),
        (lambda: Pools(0, 0, 1, 0), "both"),
        (lambda: Pools(link_bytes_per_s=0), "link_bytes_per_s"),
        (lambda: Pauses(median_s=0), "median_s"),
        (lambda: Pauses(returns=2), "returns"),
        (lambda: poisson_arrivals(3, 0, random.Random()), "per_second"),
        (lambda: sessions_of([[(1, 1)]], [], Pauses()), "1 sessions and 0 arrivals"),
        (lambda: Drafts((0.5, 0.6), ThroughputCurve((1, 2), (1, 1))), r"survival\[1\]"),
    ],
)
def test_what_cannot_be_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
