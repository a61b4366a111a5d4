"""What a fault costs and whom: layers that raise, stores and pools that fail, interrupts."""

import pytest
from engine_made import CONFIG, FINGERPRINT, PAGE, alone, answer, engine_of, some_ids

from ds41.cache import PageLayout
from ds41.serving import HostWindowPool, PrefixStore
from ds41.serving import drafts as drafts_module


def test_a_fault_in_one_answer_leaves_the_others(model, monkeypatch):
    with engine_of(model) as engine:
        sessions = [engine.open() for _ in range(3)]
        prompts = [some_ids(20, n) for n in range(3)]
        real, calls = drafts_module.sample, []

        def sample(logits, temperature, *rest):
            calls.append(temperature)
            if temperature == 0.5 and calls.count(0.5) == 3:
                raise FloatingPointError("the largest logit is nan")
            return real(logits, 0.0, *rest)

        monkeypatch.setattr(drafts_module, "sample", sample)
        streams = [
            s.say(p, 6, 0.5 if n == 1 else 0.0, stop_ids=())
            for n, (s, p) in enumerate(zip(sessions, prompts, strict=True))
        ]
        for number, stream in enumerate(streams):
            if number == 1:
                with pytest.raises(FloatingPointError, match="nan"):
                    list(stream)
            else:
                assert list(stream) == alone(model, prompts[number], 6)
        assert sessions[1].ids == []
        given, _ = answer(sessions[1], prompts[1])
        assert given == alone(model, prompts[1], 5)


@pytest.mark.parametrize("layer", [0, 3])
def test_a_step_that_fails_is_repeated_one_by_one(model, layer):
    # Whenever session 1's second prompt token is in a step, a layer raises: with others in the step, and alone.
    poison = some_ids(20, 1)[10]
    prompts = [some_ids(20, 0), some_ids(20, 1), some_ids(20, 2)]
    assert all(poison not in prompts[n] + alone(model, prompts[n], 6) for n in (0, 2))
    state = {}

    def remember(module, inputs):
        state["ids"] = inputs[0]

    def fail(module, inputs):
        if (state["ids"] == poison).any():
            raise ValueError("this layer cannot bear it")

    handles = [model.embed.register_forward_pre_hook(remember), model.layers[layer].register_forward_pre_hook(fail)]
    try:
        with engine_of(model, step_tokens=30) as engine:
            sessions = [engine.open() for _ in range(3)]
            streams = [s.say(p, 6, stop_ids=()) for s, p in zip(sessions, prompts, strict=True)]
            assert list(streams[0]) == alone(model, prompts[0], 6)
            with pytest.raises(ValueError, match="cannot bear"):
                list(streams[1])
            assert list(streams[2]) == alone(model, prompts[2], 6)
            assert engine.counters["failed"] == 1
    finally:
        for handle in handles:
            handle.remove()


def test_a_full_store_is_reported_and_the_answer_stands(model, tmp_path):
    full = PrefixStore(tmp_path, PageLayout.of(CONFIG, PAGE), FINGERPRINT, budget_bytes=1)
    with full, engine_of(model, full) as engine:
        given, report = answer(engine.open(), some_ids(40))
        assert given == alone(model, some_ids(40), 5)
        assert "budget" in report.refused
        assert engine.counters["refused_stores"] == 1


def test_a_turn_that_begins_anew_counts_once(model, store, monkeypatch):
    # The first step of the second turn fails after windows were written; it is repeated from the tiers below.
    with engine_of(model, store) as engine:
        session = engine.open()
        answer(session, some_ids(20))
        held = len(session.ids) - 1
        real, left = model.extend, [1]

        def extend(*arguments):
            if left.pop() if left else 0:
                real(*arguments)
                engine._tiers.cache.rewind(0, held)
                engine._tiers.cache._progress._written[0] = held + 100
                raise RuntimeError("this step cannot be")
            return real(*arguments)

        other = engine.open().say(some_ids(9, 2), 4, stop_ids=())
        monkeypatch.setattr(model, "extend", extend)
        _, report = answer(session, some_ids(30, 1))
        assert len(list(other)) == 4
        assert engine.counters["restarted"] >= 1
    assert report.hit_tokens == held
    assert report.live_tokens == 0
    assert report.hit_tokens + report.computed_tokens == report.context_tokens + 4


class BrokenPool:
    """A window pool whose server is of no use."""

    def __init__(self):
        self.counters = {}

    def put(self, key, data):
        raise OSError("the pool's server is gone")

    def take(self, keys):
        return None


def test_a_pool_that_fails_costs_no_answer(model):
    with engine_of(model, pool=BrokenPool()) as engine:
        given, report = answer(engine.open(), some_ids(20))
    assert given == alone(model, some_ids(20), 5)
    assert report.refused == "window pool: the pool's server is gone"


def test_an_interrupt_between_step_and_draw_costs_no_answer(model, monkeypatch):
    with engine_of(model) as engine:
        prompts = [some_ids(20, n) for n in range(2)]
        streams = [engine.open().say(p, 6, stop_ids=()) for p in prompts]
        heads = [next(stream) for stream in streams]
        real = drafts_module.sample

        def interrupted(*arguments):
            monkeypatch.setattr(drafts_module, "sample", real)
            raise KeyboardInterrupt

        monkeypatch.setattr(drafts_module, "sample", interrupted)
        for stream in streams:
            stream._turn.ready.clear()
        with pytest.raises(KeyboardInterrupt):
            next(streams[0])
        rests = [list(stream) for stream in streams]
    for prompt, head, rest in zip(prompts, heads, rests, strict=True):
        wanted = alone(model, prompt, 6)
        assert head == wanted[0]
        assert rest == wanted[-len(rest) :]


def interrupt_once(monkeypatch, owner, name):
    """Let the next call of a function end in an interrupt."""
    real = getattr(owner, name)

    def interrupted(*arguments):
        monkeypatch.setattr(owner, name, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


def test_an_interrupt_inside_a_prompt_lets_its_turn_begin_anew(model, monkeypatch):
    with engine_of(model, step_tokens=16) as engine:
        stream = engine.open().say(some_ids(40), 5, stop_ids=())
        interrupt_once(monkeypatch, model.layers[2], "forward")
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert list(stream) == alone(model, some_ids(40), 5)
        assert engine.counters["restarted"] == 1


def test_two_interrupts_and_a_cancel_keep_what_was_given_out(model, monkeypatch):
    with engine_of(model, pool=HostWindowPool(10**7)) as engine:
        session = engine.open()
        stream = session.say(some_ids(20), 9, stop_ids=())
        given = [next(stream), next(stream)]
        for owner, name in ((drafts_module, "sample"), (model, "extend")):
            interrupt_once(monkeypatch, owner, name)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        stream.cancel()
        assert session.ids == some_ids(20) + given
        assert stream.report.finish == "cancelled"
        assert len(answer(session, some_ids(4, 1))[0]) == 5
