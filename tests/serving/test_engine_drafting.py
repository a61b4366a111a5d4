"""An engine that drafts answers as one that does not, whatever becomes of its sessions between two turns."""

from __future__ import annotations

import pytest
import torch
from drafting_model import CONFIG, Oracle, pair

from ds41.cache import PageLayout
from ds41.dspark import Always, Drafting, Never, Optimum, Threshold, ThroughputCurve
from ds41.serving import Engine, HostWindowPool, PrefixStore, model_fingerprint

WINDOW, PAGE, FINGERPRINT = CONFIG.sliding_window, 16, b"a model that drafts"
LAYOUT = PageLayout.of(CONFIG, PAGE)
MODEL, DRAFTER = pair()


def random_ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, 512, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def engine_of(store=None, pool=None, policy=None, drafter=DRAFTER, **options) -> Engine:
    drafting = None if policy is None else Drafting(drafter, policy)
    options = {"max_tokens": 200, "fingerprint": FINGERPRINT, "drafting": drafting} | options
    return Engine(MODEL, store, pool, **options)


def store_at(path) -> PrefixStore:
    return PrefixStore(path, LAYOUT, FINGERPRINT, budget_bytes=10**8)


def oracle(truth: list[int]) -> Oracle:
    """Drafts ``truth``, the whole of a sequence, and nothing but it."""
    drafter = Oracle(CONFIG).requires_grad_(False)
    drafter.truth, drafter.wrong_at = truth, None
    return drafter


def conversation(path, policy, rows: int = 1, pool: bool = True, **options) -> tuple[list[list[int]], list[str]]:
    """Answers of three turns between which another session takes the row, and where their windows came from."""
    windows = HostWindowPool(10**7) if pool else None
    with store_at(path) as store, engine_of(store, windows, policy, rows=rows, **options) as engine:
        session, other = engine.open("a"), engine.open("b")
        answers, came = [], []
        for turn, count in enumerate((37, 9, 21)):
            list(other.say(random_ids(5, 90 + turn), 2, stop_ids=()))
            stream = session.say(random_ids(count, turn), 11, stop_ids=())
            answers.append(list(stream))
            came.append(stream.report.windows)
    return answers, came


@pytest.mark.parametrize("policy", [Always(4), Threshold(0.5), Never()])
@pytest.mark.parametrize("pool", [True, False])
def test_answers_are_those_of_an_engine_that_does_not_draft(policy, pool, tmp_path):
    alone = conversation(tmp_path / "alone", None, pool=pool)
    assert conversation(tmp_path / "drafted", policy, pool=pool) == alone
    assert alone[1] == ["cold", *["restored" if pool else "replayed"] * 2]


def test_many_sessions_at_once(tmp_path):
    def answers(policy):
        with engine_of(None, None, policy, rows=3) as engine:
            streams = [engine.open(str(n)).say(random_ids(10 + 7 * n, n), 12, stop_ids=()) for n in range(5)]
            return [list(stream) for stream in streams]

    assert answers(Always(4)) == answers(None)


def proposals_of(engine: Engine, seen: list) -> None:
    """Keep what the engine proposes."""
    propose = engine._steps._drafts._drafting.propose

    def recording(*arguments):
        found = propose(*arguments)
        seen.extend(proposal.ids for proposal in found.values())
        return found

    engine._steps._drafts._drafting.propose = recording


def test_the_drafters_windows_come_back_from_the_pool(tmp_path):
    found = []
    for rows in (2, 1):
        seen = []
        store, pool = store_at(tmp_path / str(rows)), HostWindowPool(10**7)
        with store, engine_of(store, pool, Always(4), rows=rows) as engine:
            proposals_of(engine, seen)
            session, other = engine.open("a"), engine.open("b")
            list(session.say(random_ids(40, 1), 6, stop_ids=()))
            list(other.say(random_ids(5, 2), 1, stop_ids=()))
            stream = session.say(random_ids(3, 3), 6, stop_ids=())
            list(stream)
            found.append((stream.report.windows, seen))
    assert [came for came, _ in found] == ["live", "restored"]
    assert found[0][1] == found[1][1]
    assert len(found[0][1]) > 4


def test_a_replay_makes_the_drafters_windows_again(tmp_path):
    with store_at(tmp_path) as store, engine_of(store, None, Always(4), rows=1) as engine:
        session, other = engine.open("a"), engine.open("b")
        list(session.say(random_ids(60, 1), 4, stop_ids=()))
        list(other.say(random_ids(5, 2), 1, stop_ids=()))
        before = len(session.ids)
        stream = session.say(random_ids(2, 3), 4, stop_ids=())
        list(stream)
        assert stream.report.windows == "replayed"
        cache = engine._tiers.cache
        starts = cache.window_start[CONFIG.num_hidden_layers :, session.row]
        # The prompt's tail is a window long, and begins within what was fed again.
        assert starts.unique().tolist() == [before + 2 - WINDOW]


def test_windows_of_an_engine_without_a_drafter_are_not_taken_for_those_of_one_with_it(tmp_path):
    pool = HostWindowPool(10**7)
    with store_at(tmp_path) as store:
        with engine_of(store, pool, None) as engine:
            session = engine.open("a")
            list(session.say(random_ids(40, 1), 4, stop_ids=()))
            ids = session.ids
        with engine_of(store, pool, Always(4)) as engine:
            stream = engine.open("a", ids).say(random_ids(3, 2), 4, stop_ids=())
            list(stream)
            assert stream.report.windows == "replayed"


def test_a_stop_among_accepted_drafts(tmp_path):
    with engine_of() as engine:
        truth = list(engine.open("a").say(random_ids(20, 1), 20, stop_ids=()))
    stop = truth[6]
    expected = truth[: truth.index(stop)]
    with engine_of(policy=Always(4), drafter=oracle(random_ids(20, 1) + truth)) as engine:
        session = engine.open("a")
        stream = session.say(random_ids(20, 1), 20, stop_ids={stop})
        assert list(stream) == expected
        assert stream.report.finish == "stop"
        assert session.ids == random_ids(20, 1) + expected
        assert engine._tiers.cache.lengths[session.row] <= len(session.ids)
        # The session goes on as if the drafts behind the stop had never been.
        after = list(session.say(random_ids(4, 2), 6, stop_ids=()))
    with engine_of() as engine:
        assert list(engine.open("a", session.ids[: 20 + len(expected)]).say(random_ids(4, 2), 6, stop_ids=())) == after


@pytest.mark.parametrize("most", [1, 2, 5, 6])
def test_reports_count_what_was_drafted(most):
    with engine_of() as engine:
        truth = list(engine.open("a").say(random_ids(20, 1), most, stop_ids=()))
    with engine_of(policy=Always(4), drafter=oracle(random_ids(20, 1) + truth)) as engine:
        session = engine.open("a")
        stream = session.say(random_ids(20, 1), most, stop_ids=())
        assert list(stream) == truth
        report = stream.report
        # The first token is drawn from the prompt; each round of four drafts then gives five.
        assert report.accepted_tokens == report.verified_tokens == max(0, most - 1 - -(-(most - 1) // 5))
        assert report.computed_tokens == len(session.ids) - 1
        assert "accepted tokens" in engine.metrics()


def test_pages_in_the_store_hold_no_draft_that_was_not_judged(tmp_path, monkeypatch):
    """With pages stored as soon as they are full, while drafts lie behind them in the cache."""
    monkeypatch.setattr("ds41.serving.steps._STORED_AT_ONCE", 1)
    answers = []
    for policy in (None, Always(4)):
        with store_at(tmp_path / str(policy)) as store:
            with engine_of(store, None, policy) as engine:
                session = engine.open("a")
                list(session.say(random_ids(30, 1), 40, stop_ids=()))
            with store.find("a", session.ids) as prefix:
                assert prefix.tokens == len(session.ids) - 1
            with engine_of(store, None, None) as engine:
                stream = engine.open("a", session.ids).say(random_ids(5, 2), 8, stop_ids=())
                answers.append((session.ids, list(stream)))
                assert stream.report.store_tokens > 4 * PAGE
    assert answers[0] == answers[1]


def test_an_interrupt_before_drafts_are_judged(monkeypatch):
    with engine_of() as engine:
        truth = list(engine.open("a").say(random_ids(20, 1), 14, stop_ids=()))
    with engine_of(policy=Always(4)) as engine:
        settle, calls = engine._steps._drafts.judge, []

        def interrupted(*arguments):
            calls.append(1)
            if len(calls) in (3, 5):
                raise KeyboardInterrupt
            return settle(*arguments)

        monkeypatch.setattr(engine._steps._drafts, "judge", interrupted)
        session, found = engine.open("a"), []
        stream = session.say(random_ids(20, 1), 14, stop_ids=())
        while len(found) < 14:
            try:
                found.append(next(stream))
            except KeyboardInterrupt:
                continue
        assert found == truth


def test_an_answer_goes_on_without_a_drafter_that_fails():
    drafter = pair()[1]
    draft = drafter.draft

    def failing(model, cache, tokens, rows=(0,), pick=None):
        if 1 in rows:
            raise RuntimeError("no drafts for row 1")
        return draft(model, cache, tokens, rows, pick)

    drafter.draft = failing

    def answers(policy):
        with engine_of(policy=policy, drafter=drafter, rows=2) as engine:
            streams = [engine.open(name).say(random_ids(8, n), 6, stop_ids=()) for n, name in enumerate("ab")]
            return [list(stream) for stream in streams], [stream.report for stream in streams]

    alone, _ = answers(None)
    found, reports = answers(Always(4))
    assert found == alone
    assert [report.undrafted for report in reports] == [None, "RuntimeError: no drafts for row 1"]
    assert reports[0].verified_tokens > 0 == reports[1].verified_tokens


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("place", ["before", "after", "layer"])
@pytest.mark.parametrize("calls", [(2,), (2, 3), (3, 5), (4, 6)])
def test_interrupts_change_nothing(monkeypatch, place, calls, known):
    """Before drafts are judged, after they were and before their tokens are taken, and in the middle of a layer."""
    with engine_of() as engine:
        truth = list(engine.open("a").say(random_ids(20, 1), 16, stop_ids=()))
    drafter = DRAFTER
    if known:
        drafter = oracle(random_ids(20, 1) + truth)
        drafter.wrong_at = 2
    with engine_of(policy=Always(4), drafter=drafter) as engine:
        count, judge, forward = [0], engine._steps._drafts.judge, MODEL.layers[3].forward

        def interrupted() -> None:
            count[0] += 1
            if count[0] in calls:
                raise KeyboardInterrupt

        def judging(*arguments):
            if place == "before":
                interrupted()
            tokens = judge(*arguments)
            if place == "after":
                interrupted()
            return tokens

        def running(*arguments):
            if place == "layer":
                interrupted()
            return forward(*arguments)

        monkeypatch.setattr(engine._steps._drafts, "judge", judging)
        monkeypatch.setattr(MODEL.layers[3], "forward", running)
        stream, found = engine.open("a").say(random_ids(20, 1), 16, stop_ids=()), []
        while len(found) < 16:
            try:
                found.append(next(stream))
            except KeyboardInterrupt:
                continue
        assert found == truth
        assert count[0] >= min(calls)


def test_drafts_are_left_out_where_they_do_not_pay_and_looked_at_again():
    """A step whose time grows with its tokens, and a drafter that takes longer than the step itself."""
    slow = ThroughputCurve((1, 64), (0.01, 0.64))
    policy = Optimum(slow, ThroughputCurve((1, 8), (0.1, 0.8)))
    with engine_of(policy=policy) as engine:
        stream = engine.open("a").say(random_ids(20, 1), 80, stop_ids=())
        list(stream)
        looked, size = stream.report.drafted_tokens, CONFIG.dspark_block_size
        assert 0 < looked <= 3 * size


def test_windows_of_another_drafter_are_not_taken(tmp_path):
    pool, fingerprint = HostWindowPool(10**7), model_fingerprint(MODEL)
    came = []
    for drafter in (DRAFTER, DRAFTER, pair(seed=5)[1]):
        store = PrefixStore(tmp_path, LAYOUT, fingerprint, budget_bytes=10**8)
        with store, engine_of(store, pool, Always(4), drafter, fingerprint=fingerprint) as engine:
            stream = engine.open("a", []).say(random_ids(40, 1), 1, stop_ids=())
            list(stream)
            came.append(stream.report.windows)
    assert came == ["cold", "restored", "replayed"]
