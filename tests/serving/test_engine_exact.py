"""What a turn computes, beside definitions that know no tiers: exact where that is promised, close elsewhere."""

from __future__ import annotations

import pytest
import torch
from engine_reference import CONFIG, FINGERPRINT, PAGE, Shadow, WatchedPool, WatchedStore, check_books, small_model
from replay_reference import replayed_logits
from test_engine_machine import LAYOUT, random_ids

from ds41.serving import HostWindowPool, PrefixStore
from ds41.serving.engine import Engine

WINDOW = CONFIG.sliding_window
# Two ways of summing in float32 tip an FP4 code over now and then.
CLOSE = 2e-3


class Recorder:
    """The logits that every session's tokens were drawn from, by session."""

    def __init__(self, monkeypatch, *sessions) -> None:
        model, self.logits = small_model(), {session: [] for session in sessions}
        extend = model.extend

        def recording(rows, cache, wanted, tails=None, *images):
            logits = extend(rows, cache, wanted, tails, *images)
            for place, row in enumerate(wanted):
                for session, seen in self.logits.items():
                    if session.row == row:
                        seen.append(logits[place].clone())
            return logits

        monkeypatch.setattr(model, "extend", recording, raising=False)

    def of(self, session) -> torch.Tensor:
        return torch.stack(self.logits[session])


def engine_of(store=None, pool=None, **options) -> Engine:
    return Engine(small_model(), store, pool, **({"max_tokens": 160, "fingerprint": FINGERPRINT} | options))


def store_at(path) -> PrefixStore:
    return PrefixStore(path, LAYOUT, FINGERPRINT, budget_bytes=10**8)


def relative(ours, theirs) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("decoder", ["bounded", "full", "exact"])
def test_live_and_restored_turns_are_one_sequence_that_never_stopped(decoder, tmp_path, monkeypatch):
    model = small_model()
    with store_at(tmp_path) as store, engine_of(store, HostWindowPool(10**7), rows=1, decoder=decoder) as engine:
        session, other = engine.open("a"), engine.open("b")
        recorder, windows = Recorder(monkeypatch, session), []
        for turn, count in enumerate((23, 9, 31, 1)):
            if turn % 2 == 0:
                list(other.say(random_ids(5, 9), 1, stop_ids=()))
            stream = session.say(random_ids(count, turn), 5, stop_ids=())
            list(stream)
            windows.append(stream.report.windows)
            assert stream.report.replayed_tokens == 0
    assert windows == ["cold", "live", "restored", "live"]
    cache, fed, wanted = model.new_cache(160, rollback=1), 0, []
    monkeypatch.undo()
    for turn, count in enumerate((23, 9, 31, 1)):
        end = turn * 5 + sum((23, 9, 31, 1)[: turn + 1])
        piece = session.ids[fed:end]
        assert piece[-count:] == random_ids(count, turn)
        wanted.append(model.prefill([piece], cache, decoder=decoder)[0])
        wanted += [model.decode(token, cache)[0, 0] for token in session.ids[end : end + 4]]
        fed = end + 4
    assert torch.equal(recorder.of(session), torch.stack(wanted))


# One window and more, odd ones, around and at a page, all but one token, everything.
@pytest.mark.parametrize("hit", [WINDOW + 1, PAGE - 1, PAGE, PAGE + 1, 31, 45, 59, 60])
def test_a_replayed_turn_is_what_its_definition_gives(hit, tmp_path, monkeypatch):
    """The hit ends inside another conversation's page, wherever it is no multiple of one."""
    ids = random_ids(60, 1)
    with store_at(tmp_path) as store, engine_of(store, decoder="full") as engine:
        list(engine.open("a").say(ids[:hit] + [id_ ^ 1 for id_ in ids[hit:]] + [7], 1, stop_ids=()))
    with store_at(tmp_path) as store, engine_of(store, decoder="full") as engine:
        session = engine.open("a")
        recorder, stream = Recorder(monkeypatch, session), session.say(ids, 1, stop_ids=())
        list(stream)
        assert (stream.report.windows, stream.report.hit_tokens) == ("replayed", hit)
        assert (stream.report.replayed_tokens, stream.report.computed_tokens) == (WINDOW, 60 - hit)
        wanted = replayed_logits(small_model(), torch.tensor(ids), hit, hit - WINDOW)[-1]
        assert relative(recorder.of(session)[0], wanted) < CLOSE


def test_sessions_together_are_close_to_each_alone(monkeypatch):
    """576 logits of such batches differed by 1e-6 in the median, 6e-6 at the 99th of 100, and 1.5e-4 at most."""

    def answered(tenants):
        with engine_of(rows=len(tenants), step_tokens=40 * len(tenants)) as engine, monkeypatch.context() as patch:
            sessions = [engine.open(tenant) for tenant in tenants]
            recorder = Recorder(patch, *sessions)
            for turn in range(2):
                streams = [
                    session.say(random_ids(20 + 7 * int(session.tenant), turn), 6, stop_ids=()) for session in sessions
                ]
                engine.run()
                assert all(stream.report.finish == "length" for stream in streams)
        return {session.tenant: (session.ids, recorder.of(session)) for session in sessions}

    together, errors = answered(("0", "1", "2")), []
    for tenant, (ids, logits) in together.items():
        own_ids, own_logits = answered((tenant,))[tenant]
        assert ids == own_ids
        errors += [relative(*pair) for pair in zip(logits, own_logits, strict=True)]
    assert sorted(errors)[len(errors) // 2] < 1e-5
    assert max(errors) < CLOSE


def test_windows_are_those_of_every_id(tmp_path):
    """Two conversations of a tenant, alike but for their last page, of one length, in one row."""
    pool = WatchedPool(10**7)
    store = WatchedStore(tmp_path, LAYOUT, FINGERPRINT, budget_bytes=10**8)
    shadow = Shadow(small_model())
    store.shadow = pool.shadow = shadow
    with store, engine_of(store, pool, rows=1) as engine:
        shadow.attach(engine, pool)
        try:
            opening = random_ids(2 * PAGE, 1)
            sessions = [engine.open("a", ids=opening) for _ in range(2)]
            shadow.sessions += sessions
            for turn in range(2):
                for number, session in enumerate(sessions):
                    stream = session.say(random_ids(5, 2 + number), 3, seed=0, stop_ids=())
                    shadow.say(session, session.turn)
                    list(stream)
                    shadow.poll()
                    assert shadow.problems == []
                    if turn:
                        assert stream.report.windows == "restored"
                        assert stream.report.hit_tokens == len(opening) + 5 + 2
            check_books(engine)
        finally:
            shadow.detach()
