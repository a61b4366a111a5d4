"""What a worker is told: the engine that it stands for, and the turns that it gets.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import simpy

from ds41 import ledger
from ds41.cache.layout import PAGE_TOKENS, PageLayout
from ds41.config import ModelConfig
from ds41.decoder_tail import Decoder, check_decoder
from ds41.replay import ShortHits, plan_replay
from ds41.serving.simulation.report import TurnRecord
from ds41.serving.simulation.store_tier import Content


@dataclass(frozen=True)
class EngineSpec:
    """The arguments of :class:`ds41.serving.Engine` that a worker follows, and two of its own.

    queue: turns that may wait for a row; one more is refused. None for no limit.
    steps_at_once: steps of answers alone that are counted as one event; their contexts stay as at the first of them.

    Raises:
        ValueError: a size below 1, a queue below 0, or a decoder or short-hit rule that is none.
    """

    config: ModelConfig
    max_tokens: int
    rows: int = 8
    pages: int | None = None
    page_tokens: int = PAGE_TOKENS
    step_tokens: int = 512
    decoder: Decoder = "bounded"
    short_hits: ShortHits = "recompute"
    queue: int | None = None
    steps_at_once: int = 1

    def __post_init__(self) -> None:
        check_decoder(self.decoder)
        plan_replay(0, self.config.sliding_window, self.short_hits)
        for name in ("max_tokens", "rows", "step_tokens", "steps_at_once"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.queue is not None and self.queue < 0:
            raise ValueError(f"queue is {self.queue}; expected 0 or more, or None for no limit")

    @cached_property
    def layout(self) -> PageLayout:
        """The layout of a page of ``page_tokens`` tokens."""
        return PageLayout.of(self.config, self.page_tokens)

    @property
    def all_pages(self) -> int:
        """Pages of global KV in a worker's memory: those given, or room for all rows at their longest."""
        if self.pages is not None:
            return self.pages
        return self.rows * (-(-self.max_tokens // self.page_tokens) + 1)

    def window_bytes(self, tokens: int) -> int:
        """Of all layers' windows of a sequence of ``tokens`` tokens, by the ledger."""
        window = self.config.sliding_window
        return self._full_windows * min(tokens, window) // window

    @cached_property
    def _full_windows(self) -> int:
        return ledger.window_bytes(self.config)


@dataclass(eq=False)
class Seat:
    """A session at one worker: its row there, if it has one, and the tokens of it that are known to be stored."""

    name: str
    tenant: str
    content: Content
    row: int | None = None
    stored: int = 0


@dataclass(eq=False)
class Job:
    """A turn on its way. context: tokens when its prompt has been read. done: fires at its end."""

    session: Seat
    record: TurnRecord
    context: int
    answer: int
    done: simpy.Event
    generated: int = 0
    credit: float = 0.0
    tail_start: int = 0
    stored: int = 0
    queued_s: float = 0.0

    @property
    def tenant(self) -> str:
        return self.session.tenant

    @property
    def most_tokens(self) -> int:
        return self.context + self.answer

    @property
    def tokens(self) -> int:
        """Prompt and answer so far; the last token of the answer has not been fed."""
        return self.context + self.generated
