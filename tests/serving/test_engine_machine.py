"""Random schedules of sessions on one engine, beside a shadow that computes the same steps without any tier."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
import torch
from engine_reference import CONFIG, FINGERPRINT, PAGE, Shadow, WatchedPool, WatchedStore, check_books, small_model
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from store_made import Clock

from ds41.cache import PageLayout
from ds41.sampling import sample
from ds41.serving import drafts as drafts_module
from ds41.serving import steps as steps_module
from ds41.serving.engine import Engine

WINDOW = CONFIG.sliding_window
LAYOUT = PageLayout.of(CONFIG, PAGE)
MAX_TOKENS = 160
TENANTS = ("ada", "bob")
# An id whose embedding is NaN: whoever says it fails in the middle of a step.
BAD = CONFIG.vocab_size - 1
HUGE, TINY = 10**8, 70_000
TROUBLES = ("wait", "expire", "evict", "damage", "break step", "break step", "break draw", "close", "restart")
PROMPTS = st.fixed_dictionaries(
    {
        "count": st.integers(1, 50),
        "seed": st.integers(0, 3),
        "new": st.integers(1, 6),
        "temperature": st.sampled_from((0.0, 0.9)),
        "what": st.sampled_from(("random", "random", "again", "again", "again", "bad")),
    }
)
COUNTED = ("new", "live", "resident", "store", "computed", "replayed", "generated")


def random_ids(count: int, seed: int) -> list[int]:
    return torch.randint(3, BAD, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


class EngineMachine(RuleBasedStateMachine):
    turns = Bundle("turns")

    @initialize(
        rows=st.integers(1, 3),
        spare=st.integers(0, 12),
        step_tokens=st.sampled_from((3, 7, 32, 512)),
        decoder=st.sampled_from(("bounded", "full", "exact")),
        short_hits=st.sampled_from(("recompute", "replay")),
        windows=st.sampled_from(("all", "prefill")),
        store_budget=st.sampled_from((HUGE, HUGE, HUGE, TINY, 0)),
        pool_budget=st.sampled_from((HUGE, HUGE, 3000, 0)),
        early=st.sampled_from((1, 64)),
    )
    def begin(self, rows, spare, store_budget, pool_budget, early, **options):
        self.folder = tempfile.mkdtemp()
        self.clock, self.fails = Clock(), set()
        self.shadow = Shadow(small_model())
        self.shadow.exact_hits = store_budget == HUGE
        pages = LAYOUT.pages_for(MAX_TOKENS) + 1 + spare
        self.options = options | {"rows": rows, "pages": pages, "max_tokens": MAX_TOKENS, "fingerprint": FINGERPRINT}
        self.store_budget, self.pool_budget = store_budget, pool_budget
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(steps_module, "_STORED_AT_ONCE", early)
        self.patch.setattr(drafts_module, "sample", self._sample)
        self.hook = small_model().embed.register_forward_hook(_poison)
        # Conversations that were held, to be gone on with by anybody.
        self.held: list[list[int]] = [random_ids(40, 1)]
        self.store = None
        self._open_engine()

    def _open_engine(self):
        if self.store_budget and self.store is None:
            self.store = WatchedStore(
                self.folder, LAYOUT, FINGERPRINT, budget_bytes=self.store_budget, guaranteed_s=0, clock=self.clock
            )
            self.store.shadow = self.shadow
        self.pool = None
        if self.pool_budget:
            self.pool = WatchedPool(self.pool_budget, lifetime_s=100.0, clock=self.clock)
            self.pool.shadow = self.shadow
        self.engine = Engine(small_model(), self.store, self.pool, **self.options)
        self.shadow.attach(self.engine, self.pool)
        self.sessions, self.said, self.streams = [], [], {}
        for tenant in TENANTS:
            self._open_session(tenant, 0, 0, False)

    def _sample(self, logits, temperature, top_p, random):
        if random in self.fails:
            self.fails.discard(random)
            raise FloatingPointError("no token can be drawn")
        return sample(logits, temperature, top_p, random)

    @rule(tenant=st.sampled_from(TENANTS), source=st.integers(0, 50), cut=st.integers(0, 120), exact=st.booleans())
    def open(self, tenant, source, cut, exact):
        """A new conversation, or one that goes on from the beginning of another, at any token or at a page."""
        self._open_session(tenant, source, cut, exact)

    def _open_session(self, tenant, source, cut, exact):
        known = self.held[source % len(self.held)]
        cut = min(cut, len(known))
        ids = known[: cut // PAGE * PAGE if exact else cut]
        session = self.engine.open(tenant, ids=ids)
        self.sessions.append(session)
        self.shadow.sessions.append(session)

    def _idle(self):
        return [session for session in self.sessions if session.turn is None]

    @precondition(lambda self: self._idle())
    @rule(target=turns, which=st.integers(0, 50), prompt=PROMPTS, taken=st.integers(0, 10))
    def say(self, which, prompt, taken):
        turn = self._say(self._idle()[which % len(self._idle())], prompt)
        if turn is None:
            return multiple()
        self.take(turn, taken)
        return turn

    @rule(target=turns, prompts=st.lists(PROMPTS, min_size=2, max_size=4), drained=st.booleans())
    def all_say(self, prompts, drained):
        """Several sessions at once, their answers taken in turn."""
        turns = [turn for turn in map(self._say, self._idle(), prompts) if turn is not None]
        for _ in range(10 if drained else 2):
            for turn in turns:
                self.take(turn, 1)
        return multiple(*turns)

    def _say(self, session, prompt):
        """Queue a turn; None if the conversation is full, which then ends."""
        before, ids = list(session.ids), random_ids(prompt["count"], prompt["seed"])
        if prompt["what"] == "again":
            # What somebody else said at this place, perhaps to the last token.
            for known in self.held:
                if known[: len(before)] == before and len(known) > len(before):
                    ids = known[len(before) :][: 2 * len(ids)]
        elif prompt["what"] == "bad":
            ids[len(ids) // 2] = BAD
        new, seed = prompt["new"], prompt["seed"]
        if len(before) + len(ids) + new > MAX_TOKENS:
            with pytest.raises(ValueError, match="has room for"):
                session.say(ids, new)
            self.sessions.remove(session)
            self._close_session(session)
            return None
        stops = (random_ids(1, seed)[0],) if seed else ()
        stream = session.say(ids, new, prompt["temperature"], seed=seed, stop_ids=stops)
        turn = session.turn
        self.shadow.say(session, turn)
        self.said.append(turn)
        self.held = [*self.held[-12:], before + ids]
        self.streams[turn] = stream
        return turn

    @rule(turn=turns, count=st.integers(1, 10))
    def take(self, turn, count):
        if turn not in self.streams:
            return
        raised = None
        try:
            for _ in range(count):
                next(self.streams[turn])
        except StopIteration:
            assert turn.done
            if turn.report.finish in ("stop", "length"):
                self.held = [*self.held[-12:], list(turn.ids)]
        except (ValueError, FloatingPointError, RuntimeError) as error:
            raised = error
        if raised is not None:
            assert turn.error is raised
            assert turn.report.finish == "failed"

    @rule(count=st.integers(1, 5))
    def step(self, count):
        for _ in range(count):
            self.engine.step()

    @rule(turn=consumes(turns), dropped=st.booleans())
    def cancel(self, turn, dropped):
        if turn in self.streams and not dropped:
            self.streams[turn].cancel()
            assert turn.done
        # The last reference: a stream that is dropped is cancelled.
        self.streams.pop(turn, None)

    @rule(what=st.sampled_from(TROUBLES), share=st.floats(0, 0.99))
    def trouble(self, what, share):
        store = self.store
        if what in ("wait", "expire"):
            self.clock.now += 60 if what == "wait" else 200
        elif what == "evict" and store is not None:
            self.shadow.exact_hits = False
            usage = store.usage()
            store.evict(int(usage.index_bytes + share * usage.file_bytes))
        elif what == "damage" and store is not None:
            self._damage(share)
        elif what == "break step":
            self.shadow.broken_layer = int(share * CONFIG.num_hidden_layers)
        elif what == "break draw" and self.shadow.turns:
            _, turn, _ = self.shadow.turns[int(share * len(self.shadow.turns))]
            self.fails.add(turn.random)
        elif what == "close":
            self._close_session(self.sessions.pop(int(share * len(self.sessions))))
        elif what == "restart":
            # Another process: the store is what it was, and nothing else.
            self._end_engine(gently=share < 0.4)
            self._open_engine()

    def _close_session(self, session):
        session.close()
        session.close()
        assert session.row is None
        assert session.turn is None
        with pytest.raises(RuntimeError, match="closed"):
            session.say([5], 1)
        self._open_session(session.tenant, 0, 0, False)

    def _damage(self, share):
        self.shadow.exact_hits = False
        files = sorted(self.store.folder.glob("pages/*/*.pages"))
        for path in files[int(share * len(files)) :][:1]:
            data = bytearray(path.read_bytes())
            for at in range(int(share * len(data)), len(data), 997):
                data[at] ^= 0x5A
            path.write_bytes(data)

    def _end_engine(self, gently):
        if gently:
            self.engine.close()
            self._check_closed()
        else:
            # A process that dies while the store goes on: its turns never end.
            self.shadow.turns.clear()
        self.shadow.detach()
        self.engine, self.sessions = None, []
        self.streams.clear()
        if self.store is not None:
            self.store.close()
            self.store = None

    def _check_closed(self):
        self.shadow.poll()
        assert not self.shadow.problems, self.shadow.problems
        assert not self.shadow.turns
        pages = self.engine._pages
        assert pages.free_pages == pages.pages
        assert self.engine.counters["turns"] == len(self.said)
        for name in COUNTED:
            total = sum(getattr(turn.report, f"{name}_tokens") for turn in self.said)
            assert self.engine.counters[f"{name}_tokens"] == total, name
        for name in ("cancelled", "failed"):
            assert self.engine.counters[name] == sum(turn.report.finish == name for turn in self.said)

    @invariant()
    def nothing_is_wrong(self):
        if getattr(self, "engine", None) is None:
            return
        self.shadow.poll()
        assert not self.shadow.problems, self.shadow.problems
        check_books(self.engine)
        if self.store is not None and self.store_budget != HUGE:
            assert self.store.usage().held_bytes <= self.store_budget

    def teardown(self):
        if not hasattr(self, "patch"):
            return
        try:
            if self.engine is not None:
                self.engine.run()
                self.nothing_is_wrong()
                self._end_engine(gently=True)
        finally:
            self.hook.remove()
            self.patch.undo()
            small_model().__dict__.pop("extend", None)
            shutil.rmtree(self.folder, ignore_errors=True)


def _poison(embedding, arguments, output):
    (ids,) = arguments
    return output.masked_fill((ids == BAD)[..., None], torch.nan) if bool((ids == BAD).any()) else output


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=int(os.environ.get("DS41_EXAMPLES", "12")),
    stateful_step_count=25,
    deadline=None,
    derandomize="DS41_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
