"""A second cache beside an engine's: the same pieces in the same steps, and nothing is ever taken from it.

The engine's steps are followed through :meth:`Model.extend`, which both share, so the logits of every step have to
be the same bit by bit. Where a turn starts from a hit, the shadow starts from what itself had computed for the same
ids of the same tenant: a page or a window that was mixed up, overwritten, or given to the wrong tenant shows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from contextlib import contextmanager, nullcontext
from itertools import chain

import golden_model
import numpy as np
import torch

from ds41.cache import PagePool, WindowSnapshot
from ds41.decoder_tail import Tails, begin_tail, tail_starts
from ds41.model import Model
from ds41.replay import feed_again, snapshot_layers
from ds41.sampling import sample
from ds41.serving import page_bytes
from ds41.serving.engine import Engine
from ds41.serving.store import PrefixStore
from ds41.serving.windows import HostWindowPool

_TINY = golden_model.config_of("tinyA")
# An owner at each ratio, a pool of candidates, a layer above the last source, Engram; window 8.
CONFIG = dataclasses.replace(
    _TINY,
    num_hidden_layers=3,
    compress_ratios=(2, 1, 1),
    kv_source_layer_ids=(0, 1),
    index_source_layer_ids=(0, 1),
    candidate_source_layer_id=1,
    hc_mult=2,
    hc_sinkhorn_iters=2,
    n_routed_experts=2,
    num_experts_per_tok=1,
    engram_layer_ids=(1,),
    engram_num_embeddings=_TINY.engram_num_embeddings[:1],
    initializer_range=0.3,
)
FINGERPRINT = b"one model and its formats"
PAGE = 16


@functools.cache
def small_model() -> Model:
    """Random weights, large enough that no two logits are close."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        map_of_ids = torch.arange(CONFIG.vocab_size) % CONFIG.engram_compressed_vocab_size
        return Model(CONFIG, token_map=map_of_ids).requires_grad_(False)


def common(a, b) -> int:
    """How many leading ids two sequences share."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def check_books(engine: Engine) -> None:
    """Every page is free, or referred to exactly as often as there are rows and resident pages that have it."""
    pool, tiers = engine._pages, engine._tiers
    holders = Counter(chain(*tiers.cache._table.pages, tiers.resident._pages.values()))
    assert [pool.references(page) for page in range(pool.pages)] == [holders[page] for page in range(pool.pages)]
    assert pool.free_pages == pool.pages - len(holders)


class WatchedStore(PrefixStore):
    """A store that tells a shadow what is put."""

    shadow: Shadow | None = None

    def put(self, tenant, ids, pages, first_page=0):
        ids = tuple(ids)
        watched = (self.shadow.checked_page(tenant, ids, n, page) for n, page in enumerate(pages, first_page))
        stored = super().put(tenant, ids, watched, first_page)
        self.shadow.stored.setdefault(tenant, []).append(ids)
        return stored


class WatchedPool(HostWindowPool):
    """A pool of windows that tells a shadow what goes in and out."""

    shadow: Shadow | None = None

    def put(self, key, data):
        owners = self.shadow.owners_of(data)
        done = super().put(key, data)
        if done:
            self.shadow.new_windows[key] = owners, bytes(data)
        return done

    def take(self, keys):
        lease = super().take(keys)
        if lease is not None:
            self.shadow.taken.append(lease.key)
        return lease

    def has(self, key: bytes) -> bool:
        """Whether a look-up now would find ``key``."""
        with self._lock:
            self._settle()
            return key in self._entries


class Shadow:
    """The reference for one store's life, over any number of engines.

    problems: what was found wrong; an exception within a step would be taken for the model's own.
    stored: per tenant the ids whose state some tier was given. exact_hits: nothing was taken from the store so far
    but by its rules, so hits are as long as they can be.
    """

    def __init__(self, model: Model) -> None:
        self.model, self._run = model, model.extend
        self.problems: list[str] = []
        self.stored: dict[str, list[tuple[int, ...]]] = {}
        self.kept: dict[str, list[tuple[int, ...]]] = {}
        self.exact_hits = True
        self._archive: list[tuple[str, tuple[int, ...], list[np.ndarray]]] = []

    @contextmanager
    def _noting(self):
        try:
            yield
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    def attach(self, engine: Engine, pool: WatchedPool | None) -> None:
        """Follow an engine whose pool of windows is empty."""
        self.engine, self.pool, cache = engine, pool, engine._tiers.cache
        self.layout = cache.pool.layout
        pages = PagePool(
            self.model.config,
            cache.batch * (self.layout.pages_for(engine.max_tokens) + 1),
            page_tokens=self.layout.page_tokens,
            dtype=self.model.dtype,
        )
        pages.data.fill_(0x33)
        self.cache = self.model.new_cache(engine.max_tokens, cache.batch, pool=pages, rollback=cache.rollback)
        self.tails = Tails(cache.batch)
        self.kept_windows, self.short_hits = engine._tiers.kept_windows, engine._tiers.short_hits
        self.sessions, self.turns, self.drawn, self.randoms = [], [], {}, {}
        self.new_windows, self.taken, self.windows = {}, [], {}
        self._rows: dict[int, tuple] = {}
        self._seen = set()
        self.kept.clear()
        self.broken_layer: int | None = None
        self.model.extend = self._extend

    def detach(self) -> None:
        """The engine is gone; what was computed stays known, as it may be stored."""
        self.poll()
        for row in list(self._rows):
            self._retire(row)
        del self.model.extend

    def say(self, session, turn) -> None:
        """A turn was queued."""
        self.turns.append((session, turn, list(session.ids)))
        self.drawn[turn] = []
        self.randoms[turn] = torch.Generator().manual_seed(turn.sampling.seed)

    def poll(self) -> None:
        """Look at turns that have ended since."""
        for key in list(self.new_windows):
            owners, data = self.new_windows[key]
            for session in owners:
                if session.window_key == key:
                    length = WindowSnapshot.from_bytes(data).length
                    self.windows[key] = session.tenant, tuple(session.ids[:length]), data
                    self.new_windows.pop(key, None)
        running = []
        for entry in self.turns:
            if entry[1].done:
                with self._noting():
                    self._ended(*entry)
            else:
                running.append(entry)
        self.turns = running

    def _ended(self, session, turn, before) -> None:
        report, answered = turn.report, turn.ids[turn.answer :]
        drawn = self.drawn.pop(turn)
        if report.finish == "failed":
            assert turn.error is not None
            assert session.ids[: len(before)] == before
            return
        assert len(answered) == report.generated_tokens
        assert answered == drawn[: len(answered)], "the tokens are not those of the reference"
        assert set(drawn[len(answered) :]) <= set(turn.sampling.stop_ids)
        if report.finish == "cancelled" and not answered:
            assert session.ids[: len(before)] == before
            return
        fed = turn.ids if report.finish == "stop" else turn.ids[:-1]
        assert session.ids[: len(turn.ids)] == turn.ids, "the conversation is not prompt and answer"
        assert report.hit_tokens + report.computed_tokens == len(fed), (report, len(fed))
        page = self.layout.page_tokens
        self.kept.setdefault(session.tenant, []).append(tuple(fed[: len(fed) // page * page]))

    def _extend(self, rows, cache, wanted, tails=None, *images):
        with self._noting():
            self._starts(cache)
        layer, self.broken_layer = self.broken_layer, None
        with nullcontext() if layer is None else _breaking(self.model.layers[layer]):
            # A step that ends below the layer succeeds.
            logits = self._run(rows, cache, wanted, tails, *images)
        with self._noting():
            self._follow(rows, cache, wanted, logits)
        return logits

    def _starts(self, cache) -> None:
        self.poll()
        for session, turn, _ in self.turns:
            row = session.row
            # A turn may still wait behind others while its session has kept a row.
            if row is None or (turn.report.windows == "cold" and cache.lengths[row]):
                continue
            ours = self.cache.lengths[row], self.cache.stored[row]
            if self._rows.get(row, (None, None))[1] is not turn or ours != (cache.lengths[row], cache.stored[row]):
                self._start(row, session, turn, cache)
        self.taken.clear()

    def _start(self, row, session, turn, cache) -> None:
        report, ids = turn.report, turn.ids
        first, before = turn not in self._seen, self._rows.get(row)
        self._seen.add(turn)
        if report.windows == "live":
            assert first
            assert before is not None
            assert before[0] is session
            assert before[2] == ids[: report.live_tokens]
            assert self.cache.lengths[row] == cache.lengths[row] == report.live_tokens
        else:
            self._retire(row)
            self._spoil(row)
            self.cache.reset(row)
            hit, asked = report.hit_tokens, self._longest(self.stored, session.tenant, ids)
            found = max(asked, self._longest(self.kept, session.tenant, ids))
            assert hit <= found, f"a hit of {hit} tokens where at most {found} are stored"
            at = self._windows_at(session.tenant, ids, hit)
            if self.exact_hits and first:
                self._check_longest(session.tenant, ids, asked, report, at)
            if report.windows == "cold":
                assert hit == report.replayed_tokens == cache.lengths[row] == 0
            else:
                self._adopt(row, session.tenant, ids, hit, cache)
                start = self._begin(row, session.tenant, ids, hit, at, report.windows)
                assert (cache.lengths[row], report.replayed_tokens) == (start, hit - start), report
        starts = tail_starts(self.model.config, self.cache.lengths[row], len(ids), self.engine.decoder)
        begin_tail(self.cache, row, starts)
        self.tails.set(row, starts)
        self._rows[row] = session, turn, list(ids[: self.cache.lengths[row]]), ids

    def _longest(self, what, tenant, ids) -> int:
        return max((common(ids, other) for other in what.get(tenant, ())), default=0)

    def _windows_at(self, tenant, ids, hit) -> int | None:
        """The length of the windows that were taken for this hit."""
        found = [len(self.windows[key][1]) for key in self.taken if self._fits(key, tenant, ids, hit)]
        return max(found, default=None)

    def _fits(self, key, tenant, ids, hit) -> bool:
        owner, of, _ = self.windows.get(key, (None, (), b""))
        inside = hit - self.model.config.sliding_window < len(of) <= hit
        return owner == tenant and inside and list(of) == ids[: len(of)]

    def _check_longest(self, tenant, ids, stored, report, at) -> None:
        """Hits when no tier lost anything: all that is stored, with windows if the pool has any near its end."""
        if self.engine._tiers.store is None:
            return
        window = self.model.config.sliding_window
        has = self.pool is not None and any(
            self._fits(key, tenant, ids, stored) and self.pool.has(key) for key in self.windows
        )
        if has:
            assert at is not None, (report, stored)
            assert report.windows == "restored", (report, stored)
        elif stored == 0 or (stored <= window and self.short_hits == "recompute"):
            assert report.windows == "cold", (report, stored)
        else:
            assert report.windows == "replayed", (report, stored)
        if report.windows != "cold":
            assert report.hit_tokens == stored, f"a hit of {report.hit_tokens} tokens, {stored} are stored"

    def _adopt(self, row, tenant, ids, hit, cache) -> None:
        count = self.layout.pages_for(hit)
        theirs = cache._table.pages[row][:count]
        pages = []
        for number, page in enumerate(theirs):
            tokens = min(self.layout.page_tokens, hit - number * self.layout.page_tokens)
            self._check_known(tenant, tuple(ids[:hit]), number, tokens, cache.pool.read_page(page).numpy())
            own = np.full(self.layout.nbytes, 0x33, np.uint8)
            used = page_bytes.trim(cache.pool.read_page(page).numpy(), self.layout, tokens)
            own[:] = np.where(page_bytes.expand(np.ones_like(used), self.layout, tokens) == 1, 0, own)
            own |= page_bytes.expand(used, self.layout, tokens)
            pages.append(self.cache.pool.allocate())
            self.cache.pool.write_page(pages[-1], torch.from_numpy(own))
        self.cache.adopt(row, pages, hit)
        self.cache.pool.release_many(pages)

    def _begin(self, row, tenant, ids, hit, at, windows) -> int:
        window = self.model.config.sliding_window
        if windows == "replayed":
            start = max(0, hit - window)
            feed_again(self.model, self.cache, row, ids, start)
            return start
        assert at is not None, "windows were restored that nobody of this tenant had put for these ids"
        data = next(data for owner, of, data in self.windows.values() if owner == tenant and list(of) == ids[:at])
        feed_again(self.model, self.cache, row, ids, at)
        self.cache.restore_windows(row, WindowSnapshot.from_bytes(data))
        start = min(at, len(ids) - 1)
        if self.kept_windows == "prefill":
            start = max(0, min(start, len(ids) - window))
        if start < at:
            feed_again(self.model, self.cache, row, ids, start)
        return start

    def _follow(self, rows, cache, wanted, logits) -> None:
        ours = self._run(rows, self.cache, wanted, self.tails)
        for row, piece in enumerate(rows):
            if len(piece):
                _session, turn, fed, _ids = self._rows[row]
                fed.extend(piece.tolist())
                assert fed == turn.ids[: len(fed)], "a row was fed what is not its turn's"
                assert self.cache.lengths[row] == cache.lengths[row]
                assert torch.equal(self.cache.window_start[:, row], cache.window_start[:, row])
        for place, row in enumerate(wanted):
            self.tails.set(row, {})
            turn = self._rows[row][1]
            assert torch.equal(ours[place], logits[place]), (
                f"logits of row {row} differ by {float((ours[place] - logits[place]).abs().max())} "
                f"({turn.report.windows}, hit {turn.report.hit_tokens})"
            )
            sampling = turn.sampling
            token = sample(ours[place], sampling.temperature, sampling.top_p, self.randoms[turn])
            self.drawn[turn].append(token)

    def checked_page(self, tenant, ids, number, page) -> np.ndarray:
        """A page that goes into the store, found to be one that was computed for its ids."""
        with self._noting():
            tokens = min(self.layout.page_tokens, len(ids) - number * self.layout.page_tokens)
            self._check_known(tenant, ids, number, tokens, page)
        return page

    def _check_known(self, tenant, ids, number, tokens, page) -> None:
        end = number * self.layout.page_tokens + tokens
        wanted = page_bytes.trim(page, self.layout, tokens)
        for owner, of, pages in chain(self._archive, map(self._contents, self._rows)):
            same = owner == tenant and of[:end] == ids[:end] and len(of) >= end
            if same and np.array_equal(page_bytes.trim(pages(number), self.layout, tokens), wanted):
                return
        raise AssertionError(f"page {number} with {tokens} tokens is none that was computed for these ids of {tenant}")

    def _contents(self, row):
        session, _, _, ids = self._rows[row]
        pages, pool = self.cache._table.pages[row], self.cache.pool
        known = max(self.cache.lengths[row], self.cache.stored[row])
        return session.tenant, tuple(ids[:known]), lambda number: pool.read_page(pages[number]).numpy()

    def _spoil(self, row) -> None:
        """Whatever a row still has must not come back: here it is NaN, there what another sequence left."""
        for ring in (self.cache._windows, *self.cache._open.values()):
            for part in ring.parts:
                part[:, row * ring.slots : (row + 1) * ring.slots] = 255 if part.dtype == torch.uint8 else torch.nan

    def _retire(self, row) -> None:
        if row in self._rows:
            owner, ids, pages = self._contents(row)
            held = [pages(number) for number in range(self.layout.pages_for(len(ids)))]
            self._archive.append((owner, ids, held.__getitem__))
            del self._rows[row]

    def owners_of(self, data) -> list:
        """Whose windows go into the pool: sessions with a row here that has the same ones."""
        with self._noting():
            theirs, layers = WindowSnapshot.from_bytes(data), snapshot_layers(self.model.config, self.kept_windows)
            rows = [row for row in self._rows if self.cache.lengths[row] == theirs.length]
            same = [row for row in rows if _same(self.cache.window_snapshot(row, layers), theirs)]
            assert same, f"windows of {theirs.length} tokens were put that no row has"
            return [self._rows[row][0] for row in same]
        return []


def _same(ours: WindowSnapshot, theirs: WindowSnapshot) -> bool:
    """Whether two snapshots of one length are the same, bit by bit."""
    assert ours.open_groups.keys() == theirs.open_groups.keys()
    pairs = [*zip(ours.windows, theirs.windows, strict=True), (ours.history, theirs.history)]
    pairs += [(rows, theirs.open_groups[layer]) for layer, rows in ours.open_groups.items()]
    return (ours.layers, ours.starts) == (theirs.layers, theirs.starts) and all(torch.equal(*pair) for pair in pairs)


@contextmanager
def _breaking(layer):
    """A layer that fails once, in the middle of a step."""

    def fail(*_):
        raise RuntimeError("this step fails")

    handle = layer.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()
