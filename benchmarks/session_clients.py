"""Users of an engine under load: each holds several conversations, and takes tokens of several answers in turn."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ds41.serving import Session, Stream, TurnReport

if TYPE_CHECKING:
    from session_load import Load

MAX_TOKENS = 320
TENANTS = 5
LONGEST_PROMPT, LONGEST_ANSWER, OPEN_ANSWERS = 48, 12, 8
# Ids below are control tokens.
FIRST_ID = 8


@dataclass
class Conversation:
    """What a client believes of one conversation: ids are what was said and what was answered."""

    tenant: str
    session: Session
    number: int
    ids: list[int]


@dataclass
class Turn:
    """A turn that was begun; ids with its prompt, of which the first ``known`` are those of the turns before."""

    conversation: Conversation
    stream: Stream
    ids: list[int]
    known: int
    answer: list[int] = field(default_factory=list)


class Client(threading.Thread):
    """Several users of the engine, who take tokens of all their answers in turn."""

    def __init__(self, load: Load, number: int, sessions: Sequence[int], seed: int) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.load, self.random, self.running = load, random.Random(seed), []
        self.numbers = iter(range(number, 2**31, 1000))
        self.idle = [self._begin(f"tenant {session % TENANTS}") for session in sessions]

    def run(self) -> None:
        try:
            while self.running or not self.load.over:
                if not self.running:
                    # At times few run at once, and a session finds its row as it left it.
                    most = self.random.choice((1, 1, 2, OPEN_ANSWERS))
                if not self.load.over and len(self.running) < most and self.idle:
                    self._say()
                if self.running:
                    self._take(self.random.choice(self.running))
        except Exception as error:
            with self.load.lock:
                self.load.outcome.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    def _begin(self, tenant: str) -> Conversation:
        """A new conversation: with an opening of many, or from the middle of another of this tenant, or of nothing."""
        with self.load.lock:
            held = list(self.load.conversations.setdefault(tenant, {}).values())
        ids: list[int] = []
        kind = self.random.random()
        if kind < 0.5:
            ids = list(self.random.choice(self.load.openings))
        elif kind < 0.8 and held:
            other = self.random.choice(held)
            ids = other[: self.random.randrange(len(other) + 1)][: MAX_TOKENS // 2]
        session = self.load.engine.open(tenant, ids=ids)
        return Conversation(tenant, session, next(self.numbers), ids)

    def _say(self) -> None:
        # The one that was answered last goes on, or any other.
        again = self.random.random() < 0.4
        conversation = self.idle.pop(-1 if again else self.random.randrange(len(self.idle)))
        new = self._ids(self.random.randint(1, LONGEST_PROMPT))
        answer = self.random.randint(1, LONGEST_ANSWER)
        if len(conversation.ids) + len(new) + answer > MAX_TOKENS:
            conversation.session.close()
            conversation = self._begin(conversation.tenant)
        before = list(conversation.ids)
        stream = conversation.session.say(
            new, answer, self.random.choice((0.0, 1.0)), seed=self.random.randrange(2**32), stop_ids=()
        )
        self.running.append(Turn(conversation, stream, before + new, len(before)))
        with self.load.lock:
            self.load.outcome.turns += 1

    def _take(self, turn: Turn) -> None:
        chance = self.random.random()
        if chance < 0.02:
            turn.stream.cancel()
        try:
            turn.answer.append(next(turn.stream))
        except StopIteration:
            self._end(turn)
        except Exception as error:
            with self.load.lock:
                self.load.outcome.errors.append(f"turn: {type(error).__name__}: {error}")
            self._end(turn)

    def _end(self, turn: Turn) -> None:
        self.running.remove(turn)
        conversation, report = turn.conversation, turn.stream.report
        if turn.answer or report.finish in ("length", "stop"):
            conversation.ids = turn.ids + turn.answer
        lost = conversation.session.ids != conversation.ids or report.finish in (None, "failed")
        with self.load.lock:
            self._count(turn, report, lost)
        conversation.session.ids = list(conversation.ids) if lost else conversation.session.ids
        if self.random.random() < 0.1:
            # What remains of a session is its ids.
            conversation.session.close()
            conversation.session = self.load.engine.open(conversation.tenant, ids=conversation.ids)
            with self.load.lock:
                self.load.outcome.opened_again += 1
        self.idle.append(conversation)

    def _count(self, turn: Turn, report: TurnReport, lost: bool) -> None:
        outcome, tenant, number = self.load.outcome, turn.conversation.tenant, turn.conversation.number
        self.load.conversations[tenant][number] = list(turn.conversation.ids)
        self.load.hits.append((tenant, number, turn.ids, turn.known, report.hit_tokens))
        outcome.lost += lost
        outcome.cancelled += report.finish == "cancelled"
        outcome.tokens_read += report.new_tokens
        outcome.tokens_drawn += report.generated_tokens
        outcome.hit_live += report.live_tokens
        outcome.hit_memory += report.resident_tokens
        outcome.hit_store += report.store_tokens
        outcome.replayed += report.replayed_tokens
        outcome.computed += report.computed_tokens
        outcome.refused_stores += report.refused is not None
        outcome.windows[report.windows] = outcome.windows.get(report.windows, 0) + 1

    def _ids(self, count: int) -> list[int]:
        return [self.random.randrange(FIRST_ID, self.load.engine.model.config.vocab_size) for _ in range(count)]
