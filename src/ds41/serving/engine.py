"""Many sessions on one model: prompts in pieces and answers token by token, in steps that all of them share.

Global pages and windows of every turn go to the tiers below when it ends, so a row of the cache can be given to
another session at any time between two turns. Source: report section 3.2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from ds41.cache import CacheError, OutOfPages, PagePool
from ds41.decoder_tail import Decoder, Tails, begin_tail, check_decoder, tail_starts
from ds41.generation import sample
from ds41.model import Model
from ds41.replay import KeptWindows, ShortHits, feed_again, plan_replay, snapshot_layers
from ds41.serving.admission import Tiers, start_turn
from ds41.serving.counters import Counters, table
from ds41.serving.fairness import FairQueue, share_out
from ds41.serving.fingerprint import model_fingerprint
from ds41.serving.keys import PrefixKeys, as_ids, root_key
from ds41.serving.persistence import store_pages, store_windows
from ds41.serving.resident import ResidentPages
from ds41.serving.rows import Rows
from ds41.serving.session import Session
from ds41.serving.store import PrefixStore
from ds41.serving.turn import Finish, Sampling, Turn
from ds41.serving.windows import WindowPool

ENGINE_COUNTERS = (
    "turns",
    "new_tokens",
    "live_tokens",
    "resident_tokens",
    "store_tokens",
    "computed_tokens",
    "replayed_tokens",
    "generated_tokens",
    "windows_live",
    "windows_restored",
    "windows_replayed",
    "windows_cold",
    "cancelled",
    "failed",
    "restarted",
    "refused_stores",
)
# A long prompt is stored as it is read, in pieces of this many pages, so that a crash does not lose all of it.
_STORED_AT_ONCE = 64


class Engine:
    """A model that serves sessions, over the tiers of the fourth axis.

    Args:
        store: where global pages persist; None keeps them in memory only. Its layout gives the page size.
        pool: where windows live between turns; None replays after every hit that finds no live row.
        max_tokens: the longest sequence; the model's positions if None.
        rows: sequences that are computed at once. Between turns a session may keep its row until another needs it.
        pages: of global KV in the model's memory; room for ``rows`` sequences of ``max_tokens`` if None.
        step_tokens: the most tokens of prompts that a step reads, split evenly among the prompts.
        decoder: how prompts run through the layers above the last source, as in :meth:`Model.prefill`.
        short_hits: what a hit of at most one window is worth, as in :func:`ds41.replay.plan_replay`.
        windows: of which layers windows are kept, as in :func:`ds41.replay.snapshot_layers`.
        fingerprint: of model and formats; :func:`model_fingerprint` if None.

    Every method may be called from any thread; a step runs in the thread that asks for a token.

    Raises:
        ValueError, CacheError: a size or policy that cannot be, or a store of another page layout.
    """

    def __init__(
        self,
        model: Model,
        store: PrefixStore | None = None,
        pool: WindowPool | None = None,
        *,
        max_tokens: int | None = None,
        rows: int = 8,
        pages: int | None = None,
        step_tokens: int = 512,
        decoder: Decoder = "bounded",
        short_hits: ShortHits = "recompute",
        windows: KeptWindows = "all",
        fingerprint: bytes | None = None,
    ) -> None:
        check_decoder(decoder)
        snapshot_layers(model.config, windows)
        plan_replay(0, model.config.sliding_window, short_hits)
        for name, value in (("rows", rows), ("step_tokens", step_tokens)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more")
        self.model, self.decoder, self.step_tokens = model, decoder, step_tokens
        self.max_tokens = model.config.max_position_embeddings if max_tokens is None else max_tokens
        page_tokens = 64 if store is None else store.layout.page_tokens
        if pages is None:
            pages = rows * (-(-self.max_tokens // page_tokens) + 1)
        self._pages = PagePool(
            model.config, pages, page_tokens=page_tokens, storage="packed", dtype=model.dtype, device=model.device
        )
        if store is not None and store.layout != self._pages.layout:
            raise CacheError("the store's pages are those of another configuration; make it with this model's layout")
        # One token that can be taken back lets a decode step be repeated.
        rollback = max(1, model.config.dspark_block_size)
        cache = model.new_cache(self.max_tokens, rows, pool=self._pages, rollback=rollback)
        self._tiers = Tiers(model, cache, ResidentPages(self._pages), store, pool, windows, short_hits)
        self._root = model_fingerprint(model) if fingerprint is None else fingerprint
        if store is not None and store.fingerprint != self._root:
            raise CacheError("the store's fingerprint is that of another model; make it with model_fingerprint(model)")
        self._shares = store is not None and store.share_tenants
        self._rows, self._queue, self._tails = Rows(cache, self._tiers.resident), FairQueue(), Tails(rows)
        self.counters = Counters(ENGINE_COUNTERS)
        self._lock = threading.RLock()
        self._closed = False

    def open(self, tenant: str = "default", ids: Sequence[int] = ()) -> Session:
        """A session of ``tenant``; ``ids`` is the conversation so far, of which the tiers may still hold the state.

        Raises:
            TypeError, ValueError: a tenant that is no text, or ids that are none.
        """
        root_key(self._root, tenant)
        return Session(self, tenant, self._checked(ids))

    def submit(self, session: Session, ids: Sequence[int], sampling: Sampling) -> Turn:
        """Queue a turn; what :meth:`Session.say` does."""
        new = self._checked(ids)
        if not new:
            raise ValueError("there are no ids to say; expected one or more")
        with self._lock:
            self._end_cancelled()
            if self._closed or session.closed:
                raise RuntimeError("the session or its engine is closed")
            if session.turn is not None:
                raise RuntimeError("the session is still being answered; end or cancel that answer first")
            turn = Turn(session, session.ids + new, sampling)
            if turn.most_tokens > self.max_tokens:
                raise ValueError(
                    f"the conversation has {len(turn.ids)} tokens and max_new_tokens is {sampling.max_new_tokens}; "
                    f"the engine has room for {self.max_tokens} in all"
                )
            if (pages := self._rows.pages_for(turn)) > self._pages.pages:
                raise ValueError(
                    f"{turn.most_tokens} tokens need {pages} pages; the engine has {self._pages.pages} in all"
                )
            turn.report.new_tokens = len(new)
            session.turn = turn
            self._queue.put(turn)
        return turn

    def next_token(self, turn: Turn) -> int:
        """The next token of a turn's answer; runs as many steps as that takes.

        Raises:
            StopIteration: the answer has ended. What went wrong, if something did.
        """
        while True:
            with self._lock:
                if turn.ready:
                    return turn.ready.popleft()
                if turn.error is not None:
                    raise turn.error
                if turn.done:
                    raise StopIteration
                self.step()

    def cancel(self, turn: Turn) -> None:
        """End a turn with what it has; nothing happens if it has ended."""
        with self._lock:
            turn.cancelled = True
            self._end_cancelled()

    def close_session(self, session: Session) -> None:
        """Cancel a session's turn and take its row."""
        with self._lock:
            session.closed = True
            if session.turn is not None:
                self.cancel(session.turn)
            self._rows.take_back(session)

    def close(self) -> None:
        """Cancel every turn and give back all memory; store and pool stay open. A second time does nothing."""
        with self._lock:
            for turn in [*self._queue, *self._rows.active.values()]:
                turn.cancelled = True
            self._end_cancelled()
            self._rows.take_back_all()
            self._tiers.resident.clear()
            self._closed = True

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def step(self) -> bool:
        """Advance every turn that has a row: prompts by a piece, answers by a token. False if there is none."""
        with self._lock:
            self._end_cancelled()
            self._admit()
            turns = self._next_turns()
            if not turns:
                return False
            pieces = self._pieces(turns)
            try:
                drawn = self._advance(pieces)
            except Exception as error:
                drawn = self._one_by_one(pieces, error)
            for row, logits in drawn.items():
                self._guarded(turns[row], row, self._draw, logits)
            return True

    def run(self) -> None:
        """Step until no turn is left."""
        while self.step():
            pass

    def metrics(self) -> str:
        """What engine, store and window pool have counted, as a table of plain text."""
        tiers = {"engine": self.counters}
        for name, tier in (("store", self._tiers.store), ("windows", self._tiers.windows)):
            if tier is not None:
                tiers[name] = tier.counters
        return table("Since the start", **tiers)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        array = as_ids(ids)
        outside = (array < 0) | (array >= self.model.config.vocab_size)
        if outside.any():
            at = int(outside.argmax())
            raise ValueError(
                f"token id {array[at]} at place {at} is outside the vocabulary; "
                f"expected 0 to {self.model.config.vocab_size - 1}"
            )
        return array.tolist()

    def _keys(self, session: Session, ids: Sequence[int]) -> PrefixKeys:
        root = root_key(self._root, None if self._shares else session.tenant)
        return PrefixKeys(root, ids, self._pages.layout.page_tokens)

    def _admit(self) -> None:
        while (turn := self._queue.head()) is not None:
            row = self._rows.room_for(turn)
            if row is None and self._rows.active:
                return
            self._queue.remove(turn)
            if row is None:
                turn.error = OutOfPages(f"a turn needs {self._rows.pages_for(turn)} pages; others hold what is missing")
                self._close_turn(turn, "failed")
                continue
            self._rows.start(row, turn)
            self._guarded(turn, row, self._start)

    def _start(self, turn: Turn, row: int) -> None:
        cache, session, report = self._tiers.cache, turn.session, turn.report
        if session.row == row:
            report.live_tokens, report.windows, turn.stored = cache.lengths[row], "live", session.stored
        else:
            start_turn(self._tiers, turn, row, self._keys(session, turn.ids), self.decoder)
            session.row = row
        end = len(turn.ids)
        starts = tail_starts(self.model.config, cache.lengths[row], end, self.decoder)
        begin_tail(cache, row, starts)
        self._tails.set(row, starts)

    def _next_turns(self) -> dict[int, Turn]:
        """The turns of the next step, by row: all that have one, or one that may have made a step fail."""
        lengths = self._tiers.cache.lengths
        for row, turn in self._rows.active.items():
            if lengths[row] < turn.alone_until:
                return {row: turn}
        return dict(self._rows.active)

    def _pieces(self, turns: dict[int, Turn]) -> dict[int, list[int]]:
        """The next tokens of every turn: one of an answer, a fair share of the step for each prompt."""
        for row, turn in turns.items():
            if self._tiers.cache.lengths[row] == len(turn.ids):
                # An interrupt came between the last step and its draw.
                feed_again(self.model, self._tiers.cache, row, turn.ids, len(turn.ids) - 1)
        lengths = self._tiers.cache.lengths
        left = {row: len(turn.ids) - lengths[row] for row, turn in turns.items()}
        reading = [row for row, count in left.items() if count > 1]
        shares = dict(zip(reading, share_out(self.step_tokens, [left[row] for row in reading]), strict=True))
        counts = {row: shares.get(row, 1) for row in turns}
        return {row: turns[row].ids[lengths[row] : lengths[row] + count] for row, count in counts.items() if count}

    def _advance(self, pieces: dict[int, list[int]]) -> dict[int, torch.Tensor]:
        """Feed pieces by row; logits of the rows whose sequence is read to its end."""
        cache = self._tiers.cache
        lengths, turns = cache.lengths, self._rows.active
        ended = [row for row, piece in pieces.items() if lengths[row] + len(piece) == len(turns[row].ids)]
        rows = [torch.tensor(pieces.get(row, ()), dtype=torch.int64) for row in range(cache.batch)]
        logits = self.model.extend(rows, cache, ended, self._tails)
        for row, piece in pieces.items():
            # Fed again up to what was stored; from there on for the first time.
            turns[row].report.computed_tokens += max(
                0, lengths[row] + len(piece) - max(lengths[row], cache.stored[row])
            )
            self._store_early(turns[row], row)
        for row in ended:
            self._tails.set(row, {})
        return dict(zip(ended, logits.unbind(0), strict=True))

    def _one_by_one(self, pieces: dict[int, list[int]], error: Exception) -> dict[int, torch.Tensor]:
        """After a step that failed: whoever fails alone was the reason, and the others go on."""
        if len(pieces) == 1:
            (row,) = pieces
            self._fail(self._rows.active[row], row, error)
            return {}
        drawn = {}
        for row, piece in pieces.items():
            turn, length = self._rows.active[row], self._tiers.cache.lengths[row]
            try:
                drawn |= self._advance({row: piece})
            except CacheError:
                # The failed step had overwritten this row's windows, so it begins anew, and alone up to here.
                self._rows.empty(row)
                turn.begin_anew(alone_until=length + len(piece))
                self.counters.add("restarted")
                self._queue.put(turn, first=True)
            except Exception as own:
                self._fail(turn, row, own)
        return drawn

    def _guarded(self, turn: Turn, row: int, what: Callable, *arguments: object) -> None:
        """Do something for one turn; if it goes wrong, that turn fails and no other."""
        try:
            what(turn, row, *arguments)
        except Exception as error:
            self._fail(turn, row, error)

    def _draw(self, turn: Turn, row: int, logits: torch.Tensor) -> None:
        sampling = turn.sampling
        finish = turn.draw(sample(logits, sampling.temperature, sampling.top_p, turn.random))
        if finish is not None:
            self._finish(turn, row, finish)

    def _store_early(self, turn: Turn, row: int) -> None:
        page_tokens = self._pages.layout.page_tokens
        whole = self._tiers.cache.lengths[row] // page_tokens * page_tokens
        if whole - turn.stored >= _STORED_AT_ONCE * page_tokens:
            store_pages(self._tiers, turn, row, whole)

    def _finish(self, turn: Turn, row: int, finish: Finish) -> None:
        """Persist a turn's state and park its row."""
        session, cache = turn.session, self._tiers.cache
        length = cache.lengths[row]
        keys = self._keys(session, turn.ids[:length])
        store_pages(self._tiers, turn, row, length)
        self._tiers.resident.keep(keys, cache.pages_of(row)[: length // keys.page_tokens])
        store_windows(self._tiers, turn, row, keys, self.decoder)
        session.ids, session.stored = turn.ids, turn.stored
        self._rows.park(row)
        self._close_turn(turn, finish)

    def _fail(self, turn: Turn, row: int, error: BaseException) -> None:
        turn.error = error
        self._rows.empty(row)
        turn.ready.clear()
        self._close_turn(turn, "failed")

    def _end_cancelled(self) -> None:
        for turn in [turn for turn in self._queue if turn.cancelled]:
            self._queue.remove(turn)
            self._close_turn(turn, "cancelled")
        for row, turn in [(row, turn) for row, turn in self._rows.active.items() if turn.cancelled]:
            cache = self._tiers.cache
            if cache.lengths[row] >= turn.answer:
                self._guarded(turn, row, self._finish, "cancelled")
                continue
            # In the middle of a prompt: the session is as it was, and its row is not.
            self._rows.empty(row)
            self._close_turn(turn, "cancelled")

    def _close_turn(self, turn: Turn, finish: Finish) -> None:
        turn.end(finish)
        turn.session.turn = None
        report = turn.report
        self.counters.add("turns")
        for name in ("new", "live", "resident", "store", "computed", "replayed", "generated"):
            self.counters.add(f"{name}_tokens", getattr(report, f"{name}_tokens"))
        self.counters.add(f"windows_{report.windows}")
        if finish in ("cancelled", "failed"):
            self.counters.add(finish)
        if report.refused is not None:
            self.counters.add("refused_stores")
