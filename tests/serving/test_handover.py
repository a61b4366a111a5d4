"""A prompt read by one engine and answered by another: the same tokens as from one, also after a worker was lost."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from engine_reference import check_books
from test_engine_drafting import MODEL, engine_of, oracle, random_ids, store_at
from test_engine_images import engine_of as engine_with_images
from test_engine_images import store_at as store_with_images
from test_model_images import build, prompt, vectors_of

from ds41.cache import CacheError
from ds41.dspark import Always
from ds41.serving import HostWindowPool, handover
from ds41.serving.handover import HandoverLost, Takeover
from ds41.serving.turn import Sampling

GREEDY = Sampling(12, 0.0, 1.0, 0, frozenset())
# Of an engine without a store.
PAGE = 64
SAMPLED = Sampling(12, 1.0, 0.9, 5, frozenset())


def run(engine, turn) -> list[int]:
    """The tokens of a turn, and no session left behind."""
    engine.run()
    assert turn.done
    engine.close_session(turn.session)
    if turn.error is not None:
        raise turn.error
    return list(turn.ready)


def read(engine, ids, sampling=GREEDY, tenant="a", **options):
    turn = engine.read(tenant, ids, sampling, **options)
    return run(engine, turn), turn


def answer(engine, handed, given=(), fetch=lambda chunk: chunk):
    turn = engine.take_over(Takeover(handed, fetch, given))
    return run(engine, turn), turn


def alone(ids, sampling=GREEDY, **options) -> list[int]:
    return list(_alone(tuple(ids), sampling, **options))


@cache
def _alone(ids, sampling, **options) -> tuple[int, ...]:
    with engine_of(**options) as engine:
        say = engine.open("a").say
        rest = sampling.temperature, sampling.top_p, sampling.seed, sampling.stop_ids
        return tuple(say(ids, sampling.max_new_tokens, *rest))


@cache
def handed_over(ids: tuple[int, ...], sampling):
    with engine_of() as reading:
        return read(reading, ids, sampling)[1].handover


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("policy", [None, Always(4)])
@pytest.mark.parametrize("length", [1, 7, 64])
def test_two_engines_answer_as_one(sampling, policy, length):
    ids = random_ids(length, 3)
    expected = alone(ids, sampling, policy=policy)
    with engine_of(policy=policy) as reading, engine_of(policy=policy) as answering:
        first, turn = read(reading, ids, sampling)
        rest, end = answer(answering, turn.handover)
        assert first + rest == expected
        assert first == [turn.handover.first_token]
        assert (turn.report.finish, end.report.finish) == ("handed_over", "length")
        assert (end.report.handed_tokens, end.report.windows) == (length, "handed_over")
        check_books(reading)
        check_books(answering)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("lost_after", range(12))
def test_tokens_that_were_given_out_stand_and_the_rest_is_the_same(sampling, lost_after):
    ids = random_ids(37, 3)
    expected = alone(ids, sampling)
    with engine_of() as answering:
        rest, again = answer(answering, handed_over(tuple(ids), sampling), given=expected[1 : 1 + lost_after])
        assert rest == expected[1 + lost_after :]
        assert again.report.generated_tokens == len(rest)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("length", [1, 33])
def test_a_prompt_read_again_whose_last_token_is_a_step_of_its_own(length, sampling):
    """What was given out is not fed by the engine that reads."""
    ids = random_ids(length, 3)
    expected = alone(ids, sampling, step_tokens=32)
    with engine_of(step_tokens=32) as reading, engine_of() as answering:
        none, turn = read(reading, ids, sampling, given=expected[:2])
        assert (none, turn.report.computed_tokens) == ([], length)
        rest, _ = answer(answering, turn.handover, given=expected[1:2])
        assert rest == expected[2:]
        check_books(reading)


def test_given_tokens_stand_even_where_others_would_be_drawn():
    """What a reader has seen cannot be taken back, whatever this machine would have said."""
    ids = random_ids(37, 3)
    given = [7, 8, 9, 10, 11, 12, 13]
    with engine_of() as reading, engine_of() as answering:
        _, turn = read(reading, ids, given=[6])
        assert turn.handover.first_token == 6
        rest, _ = answer(answering, turn.handover, given=given)
    assert rest == alone([*ids, 6, *given], dataclasses.replace(GREEDY, max_new_tokens=4), decoder="full")


def test_drafts_after_a_loss():
    ids = random_ids(37, 3)
    expected = alone(ids)
    policy, drafter = Always(4), oracle([*ids, *expected])
    with engine_of(policy=policy, drafter=drafter) as reading, engine_of(policy=policy, drafter=drafter) as answering:
        _, turn = read(reading, ids)
        rest, end = answer(answering, turn.handover, given=expected[1:4])
        assert rest == expected[4:]
        assert end.report.accepted_tokens > 0


def test_steps_that_fail_begin_anew_from_the_handover(monkeypatch):
    ids = random_ids(37, 3)
    expected = alone(ids, SAMPLED)
    with engine_of() as reading, engine_of() as answering:
        _, turn = read(reading, ids, SAMPLED)
        turn = answering.take_over(Takeover(turn.handover, lambda chunk: chunk, expected[1:3]))
        for _ in range(4):
            answering.step()
        real, failures = MODEL.extend, [CacheError("left half done")]

        def extend(*arguments):
            if failures:
                raise failures.pop()
            return real(*arguments)

        monkeypatch.setattr(MODEL, "extend", extend, raising=False)
        assert run(answering, turn) == expected[3:]
        assert answering.counters["restarted"] == 1


def test_pages_that_are_there_are_not_fetched(monkeypatch):
    monkeypatch.setattr(handover, "CHUNK_PAGES", 2)
    ids = random_ids(2 * PAGE + 37, 4)
    with engine_of(max_tokens=256) as reading, engine_of(max_tokens=256) as answering:
        fetched = []

        def fetch(chunk):
            fetched.append(len(chunk))
            return chunk

        _, turn = read(reading, ids)
        rest, end = answer(answering, turn.handover, fetch=fetch)
        assert fetched == [2, 1]
        page_bytes = turn.handover.chunks[0].shape[1]
        assert end.report.handed_bytes == 3 * page_bytes + end.report.window_bytes
        fetched.clear()
        longer = [*ids, turn.handover.first_token, *rest, 9, 9]
        _, later = read(reading, longer)
        rest, end = answer(answering, later.handover, fetch=fetch)
        assert fetched == [1]
        assert (end.report.resident_tokens, end.report.handed_tokens) == (2 * PAGE, len(longer) - 2 * PAGE)
        check_books(answering)


def test_what_is_left_of_a_turn(tmp_path):
    """Both write pages; windows are left once, at the answer's end, and those of the turn before go."""
    ids, pool = random_ids(37, 3), HostWindowPool(10**7)
    with store_at(tmp_path) as store, engine_of(store, pool) as reading, engine_of(store, pool) as answering:
        first, turn = read(reading, ids)
        assert pool.usage().entries == 0
        assert store.usage().tokens == 37
        rest, _ = answer(answering, turn.handover)
        assert pool.usage().entries == 1
        assert store.usage().tokens == 37 + 11
        _, turn = read(reading, [*ids, *first, *rest, 1, 2, 3])
        assert (turn.report.windows, turn.report.hit_tokens) == ("restored", 48)
        answer(answering, turn.handover)
        assert pool.usage().entries == 1


def test_an_abandoned_engine_leaves_nothing_and_takes_nothing(tmp_path):
    """Its turns go on elsewhere, where the windows of the turn before may be asked for again."""
    ids, pool = random_ids(37, 3), HostWindowPool(10**7)
    with store_at(tmp_path) as store, engine_of(store, pool) as reading:
        first, turn = read(reading, ids)
        with engine_of(store, pool) as engine:
            rest, _ = answer(engine, turn.handover)
        longer = [*ids, *first, *rest, 1, 2, 3]
        _, turn = read(reading, longer)
        before = store.usage().tokens, pool.counters["puts"]
        engine = engine_of(store, pool, rows=1)
        turns = [engine.take_over(Takeover(turn.handover, lambda chunk: chunk)) for _ in range(2)]
        for _ in range(4):
            engine.step()
        engine.abandon()
        engine.close()
        assert [one.report.finish for one in turns] == ["cancelled"] * 2
        assert len(turns[0].ready) == 4
        check_books(engine)
        assert engine._pages.free_pages == engine._pages.pages
        with pytest.raises(RuntimeError, match="the engine is closed"):
            engine.read("a", ids, GREEDY)
        assert (store.usage().tokens, pool.counters["puts"]) == before
        _, again = read(reading, longer, hit_limit=48)
        assert again.report.windows == "restored"


def test_a_hit_can_be_limited_to_what_it_was(tmp_path):
    ids = random_ids(64, 3)
    with store_at(tmp_path) as store, engine_of(store) as engine:
        list(engine.open("a").say(ids, 1, stop_ids=()))
    with store_at(tmp_path) as store, engine_of(store) as engine:
        for limit, hit in ((None, 64), (48, 48), (41, 41), (0, 0)):
            _, turn = read(engine, [*ids, 1, 2], hit_limit=limit)
            assert turn.report.hit_tokens == hit


def test_an_answer_of_one_token_is_not_handed_over():
    ids = random_ids(20, 3)
    with engine_of() as engine:
        first, turn = read(engine, ids, dataclasses.replace(GREEDY, max_new_tokens=1))
        assert (first, turn.handover, turn.report.finish) == (alone(ids)[:1], None, "length")
        stop = dataclasses.replace(GREEDY, stop_ids=frozenset(first))
        none, turn = read(engine, ids, stop)
        assert (none, turn.handover, turn.report.finish) == ([], None, "stop")
        check_books(engine)


def test_pictures_are_handed_over(tmp_path):
    model = build("cache")
    ids, mask = prompt()
    with engine_with_images(model) as engine:
        expected = list(engine.open("a").say(ids.tolist(), 6, stop_ids=(), image_vectors=vectors_of(mask)))
    sampling = dataclasses.replace(GREEDY, max_new_tokens=6)
    with store_with_images(tmp_path) as store, engine_with_images(model, store) as reading:
        with engine_with_images(model, store) as answering:
            first, turn = read(reading, ids.tolist(), sampling, image_vectors=vectors_of(mask))
            assert sum(run.vectors.untyped_storage().nbytes() for run in turn.handover.images.runs) == 0
            rest, _ = answer(answering, turn.handover)
            assert first + rest == expected
        # What the second engine has stored is found by the picture.
        with engine_with_images(model, store) as engine:
            _, turn = read(engine, [*ids.tolist(), *expected], sampling, image_vectors=vectors_of(mask))
            assert turn.report.hit_tokens == len(ids) + 5


def test_errors():
    ids = random_ids(20, 3)

    def gone(chunk):
        raise HandoverLost("the worker that had the pages is gone")

    with engine_of() as engine, engine_of(policy=Always(4)) as other, engine_of(max_tokens=30) as small:
        _, turn = read(engine, ids)
        with pytest.raises(HandoverLost):
            answer(engine, turn.handover, fetch=gone)
        with pytest.raises(CacheError, match="expected uint8"):
            answer(small, dataclasses.replace(turn.handover, sampling=dataclasses.replace(GREEDY, max_new_tokens=2)),
                   fetch=lambda chunk: chunk[:, :-1])  # fmt: skip
        with pytest.raises(ValueError, match="room for 30"):
            small.take_over(Takeover(turn.handover, lambda chunk: chunk))
        # Without windows of the drafter it drafts worse, and says the same.
        assert answer(other, turn.handover)[0] == alone(ids)[1:]
        _, drafted = read(other, ids)
        with pytest.raises(CacheError, match="layer 5 has no window"):
            answer(engine, drafted.handover)
        with pytest.raises(ValueError, match="no ids"):
            engine.read("a", [], GREEDY)
        with (
            engine_of(fingerprint=b"another") as stranger,
            pytest.raises(CacheError, match=r"a model with fingerprint 61206d6f64656c20; expected .* 616e6f74686572"),
        ):
            stranger.take_over(Takeover(turn.handover, lambda chunk: chunk))
        for one in (engine, other, small):
            check_books(one)


def test_many_at_once_are_each_their_own():
    prompts = [random_ids(count, seed) for seed, count in enumerate((5, 40, 17, 33, 64))]
    with engine_of(rows=5) as engine:
        streams = [engine.open("a").say(ids, 12, 1.0, 0.9, 5, ()) for ids in prompts]
        expected = [list(stream) for stream in streams]
    with engine_of(rows=3) as reading, engine_of(rows=3) as answering:
        turns = [reading.read("a", ids, SAMPLED) for ids in prompts]
        reading.run()
        taken = [answering.take_over(Takeover(turn.handover, lambda chunk: chunk)) for turn in turns]
        answering.run()
        for turn, end, whole in zip(turns, taken, expected, strict=True):
            assert [turn.handover.first_token, *end.ready] == whole
        assert answering.counters["windows_handed_over"] == 5
