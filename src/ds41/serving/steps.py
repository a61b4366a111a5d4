"""The steps that all running turns share: who is let in, what each is fed, and what a fault costs whom."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ds41.cache import CacheError, OutOfPages
from ds41.decoder_tail import Decoder, Tails, begin_tail, tail_starts
from ds41.dspark import Drafting
from ds41.replay import feed_again
from ds41.serving.admission import Tiers, start_turn
from ds41.serving.counters import Counters
from ds41.serving.drafts import Drafts
from ds41.serving.fairness import FairQueue, share_out
from ds41.serving.handover import make_handover, take_over
from ds41.serving.images import SequenceImages
from ds41.serving.keys import PrefixKeys
from ds41.serving.persistence import store_pages, store_windows
from ds41.serving.rows import Rows
from ds41.serving.turn import Finish, Turn

ENGINE_COUNTERS = (
    "turns",
    "new_tokens",
    "live_tokens",
    "resident_tokens",
    "store_tokens",
    "computed_tokens",
    "replayed_tokens",
    "generated_tokens",
    "drafted_tokens",
    "verified_tokens",
    "accepted_tokens",
    "windows_live",
    "windows_restored",
    "windows_replayed",
    "windows_cold",
    "windows_handed_over",
    "cancelled",
    "failed",
    "restarted",
    "refused_stores",
)
# A long prompt is stored as it is read, in pieces of this many pages, so that a crash does not lose all of it.
_STORED_AT_ONCE = 64


class Steps:
    """Turns on the rows of a cache, from the queue to their end.

    Args:
        keys: those of a turn's first tokens, of a given number. step_tokens: the most tokens of prompts that a step
            reads. drafting: how answers are drafted, or None.
    """

    def __init__(
        self,
        tiers: Tiers,
        keys: Callable[[Turn, int], PrefixKeys],
        decoder: Decoder,
        step_tokens: int,
        drafting: Drafting | None = None,
    ) -> None:
        self._tiers, self._keys, self._decoder, self._step_tokens = tiers, keys, decoder, step_tokens
        self._drafts = Drafts(tiers, drafting)
        self.rows, self.queue, self._tails = Rows(tiers.cache, tiers.resident), FairQueue(), Tails(tiers.cache.batch)
        self.counters = Counters(ENGINE_COUNTERS)

    def run(self) -> bool:
        """Advance every turn that has a row: prompts by a piece, answers by a token. False if there is none."""
        self.end_cancelled()
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
        self._drafts.propose({row: self.rows.active[row] for row in drawn if row in self.rows.active})
        return True

    def end_cancelled(self) -> None:
        """End the turns that were cancelled with what they have."""
        for turn in [turn for turn in self.queue if turn.cancelled]:
            self.queue.remove(turn)
            self._close_turn(turn, "cancelled")
        for row, turn in [(row, turn) for row, turn in self.rows.active.items() if turn.cancelled]:
            cache = self._tiers.cache
            if cache.lengths[row] >= turn.answer:
                self._guarded(turn, row, self._finish, "cancelled")
                continue
            # In the middle of a prompt: the session is as it was, and its row is not.
            self._empty(row)
            self._close_turn(turn, "cancelled")

    def drop_all(self) -> None:
        """End all turns as cancelled, with nothing kept of them."""
        for turn in self.queue:
            self.queue.remove(turn)
            self._close_turn(turn, "cancelled")
        for row, turn in list(self.rows.active.items()):
            self._empty(row)
            self._close_turn(turn, "cancelled")

    def _admit(self) -> None:
        while (turn := self.queue.head()) is not None:
            row = self.rows.room_for(turn)
            if row is None and self.rows.active:
                return
            self.queue.remove(turn)
            if row is None:
                turn.error = OutOfPages(f"a turn needs {self.rows.pages_for(turn)} pages; others hold what is missing")
                self._close_turn(turn, "failed")
                continue
            self.rows.start(row, turn)
            self._guarded(turn, row, self._start)

    def _start(self, turn: Turn, row: int) -> None:
        cache, session, report = self._tiers.cache, turn.session, turn.report
        if session.row == row:
            report.live_tokens, report.windows, turn.stored = cache.lengths[row], "live", session.stored
        elif turn.takeover is not None:
            take_over(self._tiers, turn, row, self._keys(turn, turn.answer))
            session.row = row
        else:
            known = len(turn.ids) if turn.hit_limit is None else min(turn.hit_limit, len(turn.ids))
            start_turn(self._tiers, turn, row, self._keys(turn, known), self._decoder)
            session.row = row
        end = len(turn.ids)
        drafts = cache.follower is not None
        starts = tail_starts(self._tiers.model.config, cache.lengths[row], end, self._decoder, drafts)
        begin_tail(cache, row, starts)
        self._tails.set(row, starts)
        if turn.on_start is not None:
            turn.on_start(report)
            turn.on_start = None
        if turn.takeover is not None:
            # Its first token has been drawn.
            self._drafts.propose({row: turn})

    def _next_turns(self) -> dict[int, Turn]:
        """The turns of the next step, by row: all that have one, or one that may have made a step fail."""
        lengths = self._tiers.cache.lengths
        for row, turn in self.rows.active.items():
            if lengths[row] < turn.alone_until:
                return {row: turn}
        return dict(self.rows.active)

    def _pieces(self, turns: dict[int, Turn]) -> dict[int, list[int]]:
        """The next tokens of every turn: one of an answer and its drafts, a fair share of the step for each prompt."""
        for row, turn in turns.items():
            self._drafts.take_back(turn, row)
            if self._tiers.cache.lengths[row] == len(turn.ids):
                # An interrupt came between the last step and its draw.
                feed_again(self._tiers.model, self._tiers.cache, row, turn.ids, len(turn.ids) - 1, turn.image_mask)
        lengths = self._tiers.cache.lengths
        left = {row: len(turn.ids) - lengths[row] for row, turn in turns.items()}
        reading = [row for row, count in left.items() if count > 1]
        shares = dict(zip(reading, share_out(self._step_tokens, [left[row] for row in reading]), strict=True))
        counts = {row: shares.get(row, 1) for row in turns}
        pieces = {row: turns[row].ids[lengths[row] : lengths[row] + count] for row, count in counts.items() if count}
        for row, piece in pieces.items():
            if left[row] == 1 and turns[row].proposal is not None:
                piece += turns[row].proposal.ids
            elif left[row] == 1 and not turns[row].hands_over:
                # Their places are known; as few at a time as can be taken back.
                piece += list(turns[row].given)[: self._tiers.model.config.dspark_block_size]
        return pieces

    def _advance(self, pieces: dict[int, list[int]]) -> dict[int, torch.Tensor]:
        """Feed pieces by row; for rows whose sequence is read to its end the logits of its end and of each draft."""
        cache = self._tiers.cache
        lengths, turns = cache.lengths, self.rows.active
        beyond = {row: lengths[row] + len(piece) - len(turns[row].ids) for row, piece in pieces.items()}
        ended = {row: 1 + drafts for row, drafts in beyond.items() if drafts >= 0}
        rows = [torch.tensor(pieces.get(row, ()), dtype=torch.int64) for row in range(cache.batch)]
        images = [turns[row].images if row in pieces else SequenceImages() for row in range(cache.batch)]
        places = [(length, length + len(piece)) for length, piece in zip(lengths, rows, strict=True)]
        given = SequenceImages.of_step(images, places, self._tiers.model.config.hidden_size)
        logits = self._tiers.model.extend(rows, cache, ended, self._tails, *given)
        for row, piece in pieces.items():
            # Fed again up to what was stored; from there on for the first time.
            turns[row].report.computed_tokens += max(
                0, lengths[row] + len(piece) - max(lengths[row], cache.stored[row])
            )
            self._store_early(turns[row], row)
        for row in ended:
            self._tails.set(row, {})
        return dict(zip(ended, logits.split(list(ended.values())), strict=True))

    def _one_by_one(self, pieces: dict[int, list[int]], error: Exception) -> dict[int, torch.Tensor]:
        """After a step that failed: whoever fails alone was the reason, and the others go on."""
        if len(pieces) == 1:
            ((row, piece),) = pieces.items()
            turn = self.rows.active[row]
            if isinstance(error, CacheError) and not turn.alone_until:
                # A step before this one was interrupted.
                self._begin_anew(turn, row, piece)
            else:
                self._fail(turn, row, error)
            return {}
        drawn = {}
        for row in pieces:
            turn = self.rows.active[row]
            # Cut anew: the step may have failed after this row's tokens had been read.
            piece = self._pieces({row: turn})[row]
            try:
                drawn |= self._advance({row: piece})
            except CacheError:
                self._begin_anew(turn, row, piece)
            except Exception as own:
                self._fail(turn, row, own)
        return drawn

    def _begin_anew(self, turn: Turn, row: int, piece: list[int]) -> None:
        """A step that was left half done has overwritten this row's windows: start from the tiers, alone up to here."""
        turn.begin_anew(alone_until=self._tiers.cache.lengths[row] + len(piece))
        self._empty(row)
        self.counters.add("restarted")
        self.queue.put(turn, first=True)

    def _guarded(self, turn: Turn, row: int, what: Callable, *arguments: object) -> None:
        """Do something for one turn; if it goes wrong, that turn fails and no other."""
        try:
            what(turn, row, *arguments)
        except Exception as error:
            self._fail(turn, row, error)

    def _draw(self, turn: Turn, row: int, logits: torch.Tensor) -> None:
        for token in self._drafts.judge(turn, row, logits):
            finish = turn.draw(token)
            if finish is not None:
                self._finish(turn, row, finish)
                return

    def _store_early(self, turn: Turn, row: int) -> None:
        page_tokens = self._tiers.cache.pool.layout.page_tokens
        # Beyond the ids lie drafts that nobody has judged.
        whole = min(self._tiers.cache.lengths[row], len(turn.ids)) // page_tokens * page_tokens
        if whole - turn.stored >= _STORED_AT_ONCE * page_tokens:
            store_pages(self._tiers, turn, row, whole)

    def _finish(self, turn: Turn, row: int, finish: Finish) -> None:
        """Persist a turn's state and park its row."""
        session, cache = turn.session, self._tiers.cache
        self._drafts.take_back(turn, row)
        length = cache.lengths[row]
        keys = self._keys(turn, length)
        store_pages(self._tiers, turn, row, length)
        self._tiers.resident.keep(keys, cache.pages_of(row)[: length // keys.page_tokens])
        session.ids, session.images, session.stored = turn.ids, turn.images, turn.stored
        if finish == "handed_over":
            turn.handover = make_handover(self._tiers, turn, row)
            self._empty(row)
            self._close_turn(turn, finish)
            return
        if cache.stored[row] > length:
            # Ended while its last token was to be fed again: the windows are incomplete, ids and pages are not.
            self._empty(row)
        else:
            store_windows(self._tiers, turn, row, keys, self._decoder)
            self.rows.park(row)
        self._close_turn(turn, finish)

    def _fail(self, turn: Turn, row: int, error: BaseException) -> None:
        turn.error = error
        self._empty(row)
        turn.ready.clear()
        self._close_turn(turn, "failed")

    def _empty(self, row: int) -> None:
        """Nobody has the row any more, nor how far the layers above the last source were to run in it."""
        self._tails.set(row, {})
        self.rows.empty(row)

    def _close_turn(self, turn: Turn, finish: Finish) -> None:
        turn.end(finish)
        turn.session.turn = None
        report = turn.report
        self.counters.add("turns")
        for name in (
            "new", "live", "resident", "store", "computed", "replayed", "generated", "drafted", "verified", "accepted",
        ):  # fmt: skip
            self.counters.add(f"{name}_tokens", getattr(report, f"{name}_tokens"))
        self.counters.add(f"windows_{report.windows}")
        if finish in ("cancelled", "failed"):
            self.counters.add(finish)
        if report.refused is not None:
            self.counters.add("refused_stores")
