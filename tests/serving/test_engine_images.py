"""Pictures in a conversation: what is generated, what a prefix of them finds again, and what it must not find."""

from __future__ import annotations

import pytest
import torch
from test_model_images import CONFIG, IMAGE, build, prompt, vectors_of

from ds41.cache import PageLayout
from ds41.generation import generate
from ds41.replay import begin_replay, plan_replay
from ds41.serving import HostWindowPool, PrefixStore
from ds41.serving.engine import Engine
from ds41.serving.images import SequenceImages

PAGE = 16
LAYOUT = PageLayout.of(CONFIG, PAGE)
KEY = b"a model with pictures"


@pytest.fixture(scope="module")
def model():
    return build("cache")


def store_at(path) -> PrefixStore:
    return PrefixStore(path, LAYOUT, KEY, budget_bytes=10**8)


def engine_of(model, store=None, pool=None, **options) -> Engine:
    return Engine(model, store, pool, **({"max_tokens": 160, "fingerprint": KEY} | options))


def test_an_answer_is_what_generate_gives(model):
    ids, mask = prompt()
    vectors = vectors_of(mask)
    expected = list(generate(model, ids, 8, temperature=0, stop_ids=(), decoder="bounded", image_vectors=vectors))
    blind = list(generate(model, ids, 8, temperature=0, stop_ids=(), decoder="bounded"))
    assert expected != blind
    for step_tokens in (512, 7):
        with engine_of(model, step_tokens=step_tokens) as engine:
            session, other = engine.open(), engine.open()
            beside = other.say(ids[:20].tolist(), 12, stop_ids=())
            answer = session.say(ids.tolist(), 8, stop_ids=(), image_vectors=vectors)
            assert list(answer) == expected
            beside.cancel()


def test_the_same_picture_is_found_and_another_is_not(model, tmp_path):
    ids, mask = prompt()
    vectors = vectors_of(mask)
    changed = vectors.clone()
    # One number of the second picture, which begins before token 16 and ends after 32.
    changed[10, 3] += 0.5
    tail = torch.randint(16, 500, (9,)).tolist()
    with store_at(tmp_path) as store, engine_of(model, store) as engine:
        list(engine.open().say(ids.tolist(), 4, stop_ids=(), image_vectors=vectors))
    for given, hit in ((vectors, 64), (changed, 13), (None, 5)):
        with store_at(tmp_path) as store, engine_of(model, store) as engine:
            stream = engine.open().say([*ids.tolist(), *tail], 1, stop_ids=(), image_vectors=given)
            list(stream)
            assert stream.report.hit_tokens == (hit if hit > CONFIG.sliding_window else 0), (hit, stream.report)


@pytest.mark.parametrize("kept", ["restored", "replayed"])
def test_the_next_turn_goes_on_behind_the_picture(model, tmp_path, kept):
    """A picture ends the first prompt, so that its last positions are replayed, with their vectors."""
    ids, mask = prompt()
    vectors, more = vectors_of(mask), [20, 21, 22]
    with (
        store_at(tmp_path) as store,
        engine_of(model, store, HostWindowPool(10**7) if kept == "restored" else None, rows=1) as engine,
    ):
        session = engine.open()
        first = list(session.say(ids.tolist(), 1, stop_ids=(), image_vectors=vectors))
        list(engine.open("other").say([40, 41, 42], 1, stop_ids=()))
        stream = session.say(more, 4, stop_ids=())
        answer, report = list(stream), stream.report
        assert report.windows == kept
        assert report.replayed_tokens == (CONFIG.sliding_window if kept == "replayed" else 0)
    sequence = torch.tensor([*ids.tolist(), *first, *more])
    images = sequence == IMAGE
    cache = model.new_cache(160, page_tokens=PAGE)
    model.prefill(sequence[:64], cache, "bounded", image_vectors=vectors)
    start = 64
    if kept == "replayed":
        again = model.new_cache(160, pool=cache.pool)
        begin_replay(model, again, 0, sequence.tolist(), cache.pages_of(0), plan_replay(64, 8), images)
        cache, start = again, 56
    logits = model.prefill(
        sequence[start:],
        cache,
        "bounded",
        image_mask=images[start:],
        image_vectors=vectors[int(images[:start].sum()) :],
    )
    expected = [int(logits.argmax())]
    while len(expected) < 4:
        expected.append(int(model.decode(expected[-1], cache)[0, -1].argmax()))
    assert answer == expected


def test_a_conversation_opened_anew_finds_its_picture(model, tmp_path):
    ids, mask = prompt()
    vectors = vectors_of(mask)
    with store_at(tmp_path) as store, engine_of(model, store) as engine:
        session = engine.open()
        list(session.say(ids.tolist(), 4, stop_ids=(), image_vectors=vectors))
        again = engine.open(ids=session.ids, image_vectors=vectors).say([30], 2, stop_ids=())
        list(again)
        assert again.report.hit_tokens >= 64


def test_errors(model):
    ids, mask = prompt()
    vectors = vectors_of(mask)
    with engine_of(model) as engine:
        with pytest.raises(ValueError, match=r"\[31, .*\]; expected \[32, hidden\]"):
            engine.open().say(ids.tolist(), 1, image_vectors=vectors[1:])
        with pytest.raises(ValueError, match=f"5 channels; expected {CONFIG.hidden_size}"):
            engine.open(ids=ids.tolist(), image_vectors=vectors[:, :5])


def test_key_ids_are_no_token_ids_and_name_the_whole_picture():
    vectors = torch.arange(24.0).reshape(6, 4)
    ids = [3, IMAGE, IMAGE, 4, IMAGE, IMAGE, IMAGE, IMAGE]
    images = SequenceImages.place(ids, vectors, IMAGE, torch.float32)
    assert [(run.start, run.stop) for run in images.runs] == [(1, 3), (4, 8)]
    keys = images.key_ids(ids)
    assert keys[[0, 3]].tolist() == [3, 4]
    assert (keys[[1, 2, 4, 5, 6, 7]] < 0).all()
    assert len(set(keys.tolist())) == 8
    # The last vector of a picture changes the id of its first position.
    vectors[5, 0] += 1
    other = SequenceImages.place(ids, vectors, IMAGE, torch.float32).key_ids(ids)
    assert (other[:4] == keys[:4]).all()
    assert (other[4:] != keys[4:]).all()
    assert images.key_ids(ids[:6]).tolist() == keys[:6].tolist()
    assert images.mask(2, 6).tolist() == [True, False, True, True]
    assert images.vectors(2, 6, 4)[:, 0].tolist() == [4, 8, 12]
    assert images.vectors(3, 4, 4).shape == (0, 4)
