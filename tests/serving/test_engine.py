"""Sessions on an engine: where a turn starts, who gets which row, what is refused."""

import threading

import pytest
import torch
from engine_made import CONFIG, FINGERPRINT, PAGE, WINDOW, alone, answer, engine_of, some_ids

from ds41.cache import PageLayout
from ds41.serving import HostWindowPool, PrefixStore
from ds41.serving import steps as steps_module
from ds41.serving.fairness import share_out


def test_a_cold_turn_is_a_plain_prefill_and_decode(model):
    with engine_of(model) as engine:
        given, report = answer(engine.open(), some_ids(40))
    assert given == alone(model, some_ids(40), 5)
    assert (report.windows, report.hit_tokens, report.computed_tokens) == ("cold", 0, 44)
    assert (report.context_tokens, report.new_tokens, report.generated_tokens) == (40, 40, 5)
    assert report.finish == "length"
    assert 0 < report.first_token_s <= report.seconds


def test_turns_of_a_session_go_on_in_their_row(model):
    with engine_of(model) as engine:
        session = engine.open()
        first, _ = answer(session, some_ids(40))
        ids = session.ids + some_ids(9, 1)
        second, report = answer(session, some_ids(9, 1))
    assert session.ids == ids + second
    # The last token of an answer is drawn and not yet read.
    assert (report.windows, report.live_tokens, report.computed_tokens) == ("live", 44, 1 + 9 + 4)
    cache = model.new_cache(200)
    model.prefill(torch.tensor(some_ids(40)), cache, decoder="bounded")
    for token in first[:-1]:
        model.decode(token, cache)
    logits = model.prefill(torch.tensor([first[-1], *some_ids(9, 1)]), cache, decoder="bounded")[0]
    assert int(logits.argmax()) == second[0]


@pytest.mark.parametrize("windows", ["all", "prefill"])
def test_a_second_engine_goes_on_from_store_and_pool(model, store, windows):
    pool, new = HostWindowPool(10**7), some_ids(WINDOW + 3, 1)
    with engine_of(model) as engine:
        session = engine.open()
        answer(session, some_ids(40))
        stays, _ = answer(session, new)
    with engine_of(model, store, pool, windows=windows) as engine:
        session = engine.open("ann")
        answer(session, some_ids(40))
        ids = session.ids
    with engine_of(model, store, pool, windows=windows) as engine:
        resumed, report = answer(engine.open("ann", ids=ids), new)
    assert resumed == stays
    assert (report.windows, report.store_tokens, report.replayed_tokens) == ("restored", 44, 0)


def test_without_windows_the_last_ones_are_replayed(model, store):
    with engine_of(model, store) as engine:
        session = engine.open()
        answer(session, some_ids(40))
        ids = list(session.ids)
    with engine_of(model, store) as engine:
        _, report = answer(engine.open(ids=ids), some_ids(5, 1))
        assert (report.windows, report.store_tokens, report.replayed_tokens) == ("replayed", 44, WINDOW)
        assert report.computed_tokens == 1 + 5 + 4
        assert engine.counters["replayed_tokens"] == WINDOW
        assert "replayed tokens" in engine.metrics()


def test_the_whole_prompt_can_be_a_hit(model, store):
    pool = HostWindowPool(10**7)
    with engine_of(model, store, pool) as engine:
        _, cold = answer(engine.open(), some_ids(40))
        # The same again in another session: pages up to 40 tokens, and windows of 44, which are too far on.
        again, report = answer(engine.open(), some_ids(40))
        assert report.hit_tokens == 40
        assert report.windows == "replayed"
        assert report.computed_tokens == 4
        assert cold.computed_tokens == 44
        assert len(again) == 5


@pytest.mark.parametrize(("short_hits", "windows"), [("recompute", "cold"), ("replay", "replayed")])
def test_short_hits_follow_the_policy(model, store, short_hits, windows):
    with engine_of(model, store) as engine:
        answer(engine.open(), some_ids(WINDOW), 1)
    with engine_of(model, store, short_hits=short_hits) as engine:
        given, report = answer(engine.open(), some_ids(WINDOW) + some_ids(20, 1))
    assert report.windows == windows
    assert report.hit_tokens == (0 if windows == "cold" else WINDOW)
    if windows == "cold":
        assert given == alone(model, some_ids(WINDOW) + some_ids(20, 1), 5)


def test_tenants_do_not_meet(model, store):
    pool = HostWindowPool(10**7)
    with engine_of(model, store, pool) as engine:
        answer(engine.open("ann"), some_ids(40))
        _, report = answer(engine.open("bob"), some_ids(40))
        assert (report.hit_tokens, report.windows) == (0, "cold")
        _, report = answer(engine.open("ann"), some_ids(40))
        assert report.hit_tokens == 40


def test_tenants_share_where_the_store_does(model, tmp_path):
    layout = PageLayout.of(CONFIG, PAGE)
    shared = PrefixStore(tmp_path, layout, FINGERPRINT, budget_bytes=10**8, share_tenants=True)
    with shared, engine_of(model, shared) as engine:
        answer(engine.open("ann"), some_ids(40))
        _, report = answer(engine.open("bob"), some_ids(40))
    assert report.resident_tokens == 32
    assert report.hit_tokens == 40


def test_more_sessions_than_rows(model, store):
    with engine_of(model, store, HostWindowPool(10**7), rows=2) as engine:
        sessions = [engine.open(f"tenant {number % 3}") for number in range(7)]
        for turn in range(3):
            prompts = [some_ids(5 + 4 * number, 100 * turn + number) for number in range(7)]
            before = [list(session.ids) for session in sessions]
            streams = [s.say(ids, 4, stop_ids=()) for s, ids in zip(sessions, prompts, strict=True)]
            answers = [list(stream) for stream in reversed(streams)][::-1]
            for session, old, ids, given in zip(sessions, before, prompts, answers, strict=True):
                assert session.ids == old + ids + given
        assert engine.counters["turns"] == 21
        assert engine.counters["windows_restored"] + engine.counters["windows_live"] == 14


def test_short_turns_pass_long_prompts(model):
    # A long prompt takes its share of each step and no more: the short ones end while it is being read.
    with engine_of(model, rows=3, step_tokens=8) as engine:
        long = engine.open("long").say(some_ids(150), 2, stop_ids=())
        short = [engine.open("short").say(some_ids(6, n), 3, stop_ids=()) for n in (1, 2)]
        for stream in short:
            list(stream)
        assert long.report.finish is None
        assert len(list(long)) == 2


def test_a_tenant_with_many_turns_does_not_hold_up_another(model):
    with engine_of(model, rows=1) as engine:
        many = [engine.open("many").say(some_ids(6, n), 2, stop_ids=()) for n in range(5)]
        one = engine.open("one").say(some_ids(6, 9), 2, stop_ids=())
        list(one)
        assert sum(stream.report.finish is not None for stream in many) <= 2
        assert all(len(list(stream)) == 2 for stream in many)


def test_shares_of_a_step():
    assert share_out(10, [3, 100, 100]) == [3, 3, 4]
    assert share_out(10, [100]) == [10]
    assert share_out(2, [5, 5, 5]) == [1, 1, 0] or sum(share_out(2, [5, 5, 5])) == 2
    assert share_out(100, [1, 0, 5]) == [1, 0, 5]
    assert share_out(0, [4]) == [0]


def test_cancelled_in_the_answer_keeps_what_was_drawn(model, store):
    with engine_of(model, store) as engine:
        session = engine.open()
        stream = session.say(some_ids(20), 50, stop_ids=())
        drawn = [next(stream), next(stream)]
        stream.cancel()
        rest = list(stream)
        assert session.ids == some_ids(20) + drawn + rest
        assert stream.report.finish == "cancelled"
        _, report = answer(session, some_ids(4, 1))
        assert report.windows == "live"


def test_cancelled_in_the_prompt_leaves_the_session_as_it_was(model):
    with engine_of(model, step_tokens=4) as engine:
        session = engine.open()
        answer(session, some_ids(10))
        before = list(session.ids)
        stream = session.say(some_ids(60, 1), 5, stop_ids=())
        engine.step()
        stream.cancel()
        assert list(stream) == []
        assert session.ids == before
        given, report = answer(session, some_ids(6, 2))
        assert report.finish == "length"
        assert len(given) == 5


def test_a_dropped_stream_is_cancelled(model):
    with engine_of(model) as engine:
        session = engine.open()
        stream = session.say(some_ids(20), 50, stop_ids=())
        next(stream)
        del stream
        engine.run()
        assert engine.counters["cancelled"] == 1
        answer(session, some_ids(4, 1))


def test_an_empty_row_beside_a_prompt_is_not_read(model):
    """A prompt was cancelled in it; its slots hold whatever memory held, here what decodes to NaN."""
    with engine_of(model, rows=2, step_tokens=8) as engine:
        sessions = [engine.open(name) for name in "ab"]
        cancelled = sessions[0].say(some_ids(60), 5, stop_ids=())
        beside = sessions[1].say(some_ids(WINDOW // 2, 2), 9, stop_ids=())
        engine._steps._admit()
        cancelled.cancel()
        for part in engine._tiers.cache._windows.parts:
            part.fill_(255 if part.dtype == torch.uint8 else torch.nan)
        assert list(beside) == alone(model, some_ids(WINDOW // 2, 2), 9)


def test_long_prompts_are_stored_on_the_way(model, store, monkeypatch):
    monkeypatch.setattr(steps_module, "_STORED_AT_ONCE", 2)
    with engine_of(model, store, step_tokens=20) as engine:
        stream = engine.open().say(some_ids(150), 5, stop_ids=())
        for _ in range(3):
            engine.step()
        with store.find("default", some_ids(150)) as prefix:
            assert prefix.tokens == 32
        list(stream)


def test_threads_share_an_engine(model, store):
    answers, faults = {}, []
    with engine_of(model, store, HostWindowPool(10**7), rows=2) as engine:

        def talk(number):
            try:
                session = engine.open(f"tenant {number}")
                answers[number] = [answer(session, some_ids(12, 10 * number + turn))[0] for turn in range(3)]
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults
    for number in range(5):
        assert answers[number][0] == alone(model, some_ids(12, 10 * number), 5)


@pytest.mark.parametrize("pages", [14, 20])
def test_few_pages_are_waited_for(model, pages):
    # A turn needs up to 8 pages: one or two run at a time, and nobody loses a page that is in use.
    with engine_of(model, rows=3, pages=pages) as engine:
        streams = [engine.open().say(some_ids(90, n), 5, stop_ids=()) for n in range(5)]
        for number, stream in enumerate(streams):
            assert list(stream) == alone(model, some_ids(90, number), 5)


def test_all_pages_come_back(model, store):
    engine = engine_of(model, store, HostWindowPool(10**7), rows=2)
    sessions = [engine.open() for _ in range(4)]
    for turn in range(2):
        for session in sessions:
            answer(session, some_ids(20, turn))
    engine.close()
    assert engine._pages.free_pages == engine._pages.pages


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda s: s.say([]), ValueError, "no ids to say"),
        (lambda s: s.say([3, 512]), ValueError, "token id 512 at place 1"),
        (lambda s: s.say([0.5]), TypeError, "token ids are float64"),
        (lambda s: s.say([3], 0), ValueError, "max_new_tokens is 0"),
        (lambda s: s.say([3] * 10, 200), ValueError, "room for 200"),
        (lambda s: s.say([3], 5, -1.0), ValueError, "temperature is -1.0"),
        (lambda s: s.engine.open(3), TypeError, "tenant is 3"),
        (lambda s: s.engine.open(ids=[-1]), ValueError, "token id -1"),
    ],
)
def test_what_a_session_refuses(model, call, kind, message):
    with engine_of(model) as engine:
        session = engine.open()
        with pytest.raises(kind, match=message):
            call(session)
        assert len(answer(session, some_ids(5))[0]) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "half"}, "decoder is 'half'"),
        ({"windows": "some"}, "windows is 'some'"),
        ({"short_hits": "drop"}, "short_hits is 'drop'"),
        ({"step_tokens": 0}, "step_tokens is 0"),
        ({"rows": 0}, "rows is 0"),
        ({"pages": 0}, "pages is 0"),
        ({"max_tokens": 10**6}, "max_tokens is 1000000"),
    ],
)
def test_what_an_engine_refuses(model, options, message):
    with pytest.raises(ValueError, match=message):
        engine_of(model, **options)


def test_one_answer_at_a_time_and_none_after_the_end(model):
    engine = engine_of(model)
    session = engine.open()
    stream = session.say(some_ids(5), 5, stop_ids=())
    with pytest.raises(RuntimeError, match="still being answered"):
        session.say([3])
    list(stream)
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.say([3])


def test_a_dropped_stream_frees_its_session_at_once(model):
    with engine_of(model) as engine:
        session = engine.open()
        for _ in session.say(some_ids(20), 50, stop_ids=()):
            break
        assert len(answer(session, some_ids(4, 1))[0]) == 5


def test_pages_of_a_short_hit_do_not_take_the_room_of_its_turn(model, tmp_path):
    page = 4
    with PrefixStore(tmp_path, PageLayout.of(CONFIG, page), FINGERPRINT, budget_bytes=10**8) as small:
        options = {"rows": 1, "max_tokens": 40}
        with engine_of(model, small, **options) as engine:
            answer(engine.open(), some_ids(WINDOW), 1)
        with engine_of(model, small, HostWindowPool(10**6), pages=11, **options) as engine:
            ids = some_ids(WINDOW) + some_ids(27, 1)
            given, report = answer(engine.open(), ids)
    assert report.windows == "cold"
    assert given == alone(model, ids, 5)


def test_closed_sessions_and_odd_numbers_are_refused(model, store):
    with engine_of(model) as engine:
        session = engine.open()
        with pytest.raises(TypeError):
            session.say([3], 2.5)
        session.close()
        session.close()
        with pytest.raises(RuntimeError, match="closed"):
            session.say([3])
    with pytest.raises(ValueError, match="fingerprint is that of another model"):
        engine_of(model, store, fingerprint=b"other")
