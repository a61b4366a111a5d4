"""Many sessions on one model: prompts in pieces and answers token by token, in steps that all of them share.

Global pages and windows of every turn go to the tiers below when it ends, so a row of the cache can be given to
another session at any time between two turns.

Source: report section 3.2.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import torch

from ds41.cache import CacheError, PagePool
from ds41.cache.layout import PAGE_TOKENS
from ds41.decoder_tail import Decoder, check_decoder
from ds41.dspark import Drafting
from ds41.model import Model
from ds41.replay import KeptWindows, ShortHits, plan_replay, snapshot_layers
from ds41.serving.admission import Tiers
from ds41.serving.counters import table
from ds41.serving.fingerprint import model_fingerprint
from ds41.serving.handover import Takeover
from ds41.serving.images import SequenceImages
from ds41.serving.keys import PrefixKeys, as_ids, root_key
from ds41.serving.resident import ResidentPages
from ds41.serving.session import Session
from ds41.serving.steps import Steps
from ds41.serving.store import PrefixStore
from ds41.serving.turn import Sampling, Turn
from ds41.serving.windows import WindowPool


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
        drafting: drafts for all answers, and which of them are verified; None draws token by token. What is drawn
            follows the same distribution. How many drafts are verified may depend on what else is running, so a seed
            gives the same tokens again only under the same load.

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
        drafting: Drafting | None = None,
    ) -> None:
        check_decoder(decoder)
        snapshot_layers(model.config, windows)
        plan_replay(0, model.config.sliding_window, short_hits)
        for name, value in (("rows", rows), ("step_tokens", step_tokens)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more")
        self.model, self.decoder = model, decoder
        self.max_tokens = model.config.max_position_embeddings if max_tokens is None else max_tokens
        page_tokens = PAGE_TOKENS if store is None else store.layout.page_tokens
        if pages is None:
            pages = rows * (-(-self.max_tokens // page_tokens) + 1)
        self._pages = PagePool(
            model.config, pages, page_tokens=page_tokens, storage="packed", dtype=model.dtype, device=model.device
        )
        if store is not None and store.layout != self._pages.layout:
            raise CacheError("the store's pages are those of another configuration; make it with this model's layout")
        # A decode step can be repeated if all of its tokens can be taken back: one, or a block and the one before it.
        options = {"pool": self._pages, "rollback": 1 + model.config.dspark_block_size}
        if drafting is None:
            cache = model.new_cache(self.max_tokens, rows, **options)
        else:
            cache = drafting.drafter.new_cache(model, self.max_tokens, rows, **options)
        drafter = b"" if drafting is None else model_fingerprint(drafting.drafter)
        self._root = model_fingerprint(model) if fingerprint is None else fingerprint
        resident = ResidentPages(self._pages)
        self._tiers = Tiers(model, cache, resident, store, pool, windows, short_hits, self._root, drafter)
        if store is not None and store.fingerprint != self._root:
            raise CacheError("the store's fingerprint is that of another model; make it with model_fingerprint(model)")
        self._shares = store is not None and store.share_tenants
        self._steps = Steps(self._tiers, self._keys, decoder, step_tokens, drafting)
        self.counters = self._steps.counters
        self._lock = threading.RLock()
        self._closed = False

    def open(
        self, tenant: str = "default", ids: Sequence[int] = (), image_vectors: torch.Tensor | None = None
    ) -> Session:
        """A session of ``tenant``; ``ids`` is the conversation so far, of which the tiers may still hold the state.

        Args:
            image_vectors: [I, hidden], for those of ``ids`` that are the ``image_token_id`` (:mod:`ds41.vision`).

        Raises:
            TypeError, ValueError: a tenant that is no text, or ids that are none.
        """
        root_key(self._root, tenant)
        ids = self._checked(ids)
        return Session(self, tenant, ids, self._placed(ids, image_vectors))

    def submit(
        self, session: Session, ids: Sequence[int], sampling: Sampling, image_vectors: torch.Tensor | None = None
    ) -> Turn:
        """Queue a turn; what :meth:`Session.say` does. ``image_vectors``: [I, hidden], for the places of pictures in
        ``ids``.

        Raises:
            ValueError, TypeError: no ids, ids or vectors that are none, or more tokens than there is room for.
            RuntimeError: an answer is being given, or session or engine is closed.
        """
        new = self._checked(ids)
        if not new:
            raise ValueError("there are no ids to say; expected one or more")
        with self._lock:
            self._steps.end_cancelled()
            if self._closed or session.closed:
                raise RuntimeError("the session or its engine is closed")
            if session.turn is not None:
                raise RuntimeError("the session is still being answered; end or cancel that answer first")
            images = session.images + self._placed(new, image_vectors, len(session.ids))
            turn = Turn(session, session.ids + new, sampling, images)
            turn.report.new_tokens = len(new)
            self._enqueue(turn)
        return turn

    def read(
        self,
        tenant: str,
        ids: Sequence[int],
        sampling: Sampling,
        image_vectors: torch.Tensor | None = None,
        *,
        hit_limit: int | None = None,
        given: Sequence[int] = (),
    ) -> Turn:
        """Queue a prompt that another engine will answer: the turn ends with its first token and a ``handover``.

        An answer that ends with its first token leaves none.

        Args:
            image_vectors: [I, hidden], for the places of pictures in ``ids``.
            hit_limit: the longest prefix to take from the tiers. given: tokens of the answer that were given out
                before; the first stands for the one that is drawn.

        Raises:
            ValueError, TypeError: as :meth:`submit`, and a tenant that is no text. RuntimeError: the engine is closed.
        """
        new = self._checked(ids)
        if not new:
            raise ValueError("there are no ids to read; expected one or more")
        session = Session(self, tenant, (), SequenceImages())
        root_key(self._root, tenant)
        turn = Turn(session, new, sampling, self._placed(new, image_vectors), hands_over=True, hit_limit=hit_limit)
        turn.given.extend(given[:1])
        turn.report.new_tokens = len(new)
        self._enqueue(turn)
        return turn

    def take_over(self, takeover: Takeover) -> Turn:
        """Queue a turn whose prompt another engine has read.

        Raises:
            CacheError: another model has read the prompt. ValueError: more tokens than there is room for.
            RuntimeError: the engine is closed. The turn fails with HandoverLost if its pages are gone, and with
            CacheError if they are of another size.
        """
        handover = takeover.handover
        if handover.fingerprint != self._root:
            raise CacheError(
                f"the prompt was read by a model with fingerprint {handover.fingerprint.hex()[:16]}; expected this "
                f"engine's, {self._root.hex()[:16]}"
            )
        session = Session(self, handover.tenant, (), SequenceImages())
        ids, images = list(handover.ids), handover.images
        turn = Turn(session, ids, handover.sampling, images, takeover=takeover, given=deque(takeover.given))
        self._enqueue(turn)
        return turn

    def _enqueue(self, turn: Turn) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closed")
            if turn.most_tokens > self.max_tokens:
                raise ValueError(
                    f"the conversation has {turn.answer} tokens and max_new_tokens is {turn.sampling.max_new_tokens}; "
                    f"the engine has room for {self.max_tokens} in all"
                )
            if (pages := self._steps.rows.pages_for(turn)) > self._pages.pages:
                raise ValueError(
                    f"{turn.most_tokens} tokens need {pages} pages; the engine has {self._pages.pages} in all"
                )
            turn.session.turn = turn
            self._steps.queue.put(turn)

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
            self._steps.end_cancelled()

    def close_session(self, session: Session) -> None:
        """Cancel a session's turn and take its row."""
        with self._lock:
            session.closed = True
            if session.turn is not None:
                self.cancel(session.turn)
            self._steps.rows.take_back(session)

    def close(self) -> None:
        """Cancel every turn and give back all memory; store and pool stay open. A second time does nothing.

        What the turns had reached is stored.
        """
        with self._lock:
            for turn in [*self._steps.queue, *self._steps.rows.active.values()]:
                turn.cancelled = True
            self._steps.end_cancelled()
            self._steps.rows.take_back_all()
            self._tiers.resident.clear()
            self._closed = True

    def abandon(self) -> None:
        """:meth:`close` that stores nothing: for an engine whose turns go on elsewhere, or that has broken down."""
        with self._lock:
            self._closed = True
            self._steps.drop_all()
            self._steps.rows.take_back_all()
            self._tiers.resident.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def step(self) -> bool:
        """Advance every turn that has a row: prompts by a piece, answers by a token. False if there is none."""
        with self._lock:
            return self._steps.run()

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

    def _placed(self, ids: list[int], vectors: torch.Tensor | None, first: int = 0) -> SequenceImages:
        config = self.model.config
        if vectors is not None and vectors.dim() == 2 and vectors.shape[1] != config.hidden_size:
            raise ValueError(f"image_vectors have {vectors.shape[1]} channels; expected {config.hidden_size}")
        return SequenceImages.place(ids, vectors, config.image_token_id, self.model.dtype, first)

    def _keys(self, turn: Turn, tokens: int) -> PrefixKeys:
        root = root_key(self._root, None if self._shares else turn.tenant)
        return PrefixKeys(root, turn.images.key_ids(turn.ids[:tokens]), self._pages.layout.page_tokens)
