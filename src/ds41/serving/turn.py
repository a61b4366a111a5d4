"""One turn of a session: what it was given, how far it is, and what it cost.

Source: ds41's own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from operator import index
from typing import TYPE_CHECKING, Literal

import torch

from ds41.dspark import Draw, Proposal
from ds41.sampling import check_sampling
from ds41.serving.images import SequenceImages
from ds41.serving.turn_counts import TurnCounts

if TYPE_CHECKING:
    from ds41.serving.handover import Handover, Takeover
    from ds41.serving.session import Session

Finish = Literal["stop", "length", "cancelled", "failed", "handed_over"]


@dataclass
class TurnReport(TurnCounts):
    """What a turn hit, loaded, replayed, computed and stored.

    ============================  ==================================================================================
    context_tokens                of the whole sequence when the turn's prompt had been read
    new_tokens                    of the prompt, those that this turn brought
    live_tokens                   whose entries were still in the session's own row
    resident_tokens               whose pages lay in the model's memory for another sequence
    store_tokens, store_bytes     whose pages were read from the prefix store, and the bytes of those pages
    windows                       "live": still in the row; "restored": from the window pool; "replayed": made again
                                  from the last tokens of the hit; "cold": there was no hit; "handed_over": they came
                                  from the worker that read the prompt
    window_bytes                  read from the window pool, or handed over
    handed_tokens, handed_bytes   whose pages came from the worker that read the prompt, and all bytes of the handover
    replayed_tokens               fed again although their entries were there
    computed_tokens               fed for the first time, those of the answer included
    generated_tokens              of the answer
    drafted_tokens                of the answer's places, how many were drafted; verified_tokens: of those, how many
                                  the model was fed; accepted_tokens: how many of these stand
    stored_tokens, stored_bytes   whose pages were written to the prefix store, and the bytes of those pages
    kept_window_bytes             written to the window pool
    refused                       why something could not be stored, or None
    undrafted                     why the rest of the answer was drawn without drafts, or None
    first_token_s, seconds        from the call to the first token of the answer, and to the end
    finish                        "stop", "length", "cancelled", "failed" or "handed_over"; None while it runs
    ============================  ==================================================================================
    """

    handed_tokens: int = 0
    handed_bytes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    refused: str | None = None
    undrafted: str | None = None
    first_token_s: float | None = None
    seconds: float | None = None
    finish: Finish | None = None

    def as_dict(self) -> dict:
        """All fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Sampling:
    """How tokens of an answer are drawn, as in :func:`ds41.generation.generate`."""

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    stop_ids: Collection[int]

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_p, self.seed)
        if index(self.max_new_tokens) < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; expected 1 or more")


@dataclass(eq=False)
class Turn:
    """The state of a turn.

    ids: the whole sequence, history, prompt and answer so far. images: those in it. answer: where the answer begins.
    ready: tokens of the answer that the stream has not given out. stored: leading tokens whose pages are stored.
    proposal: drafts of what follows ``ids``, to be fed and verified in the next step.
    alone_until: a step that failed had brought it to this length; until it is there again, it has steps to itself.
    hands_over: it ends with its first token and leaves a handover. takeover: where it starts from, in place of the
    tiers. given: tokens of the answer that another worker gave out before it was lost: what is drawn in their places
    does not count. hit_limit: the longest prefix that may be taken from the tiers, so that windows are made again
    where the lost worker made them. on_start: called once, with the report of what it hit, when it has its row and
    before it is fed anything.
    """

    session: Session
    ids: list[int]
    sampling: Sampling
    images: SequenceImages = field(default_factory=SequenceImages)
    answer: int = 0
    stored: int = 0
    ready: deque[int] = field(default_factory=deque)
    report: TurnReport = field(default_factory=TurnReport)
    error: BaseException | None = None
    cancelled: bool = False
    alone_until: int = 0
    began: float = field(default_factory=time.perf_counter)
    random: torch.Generator = field(default_factory=torch.Generator)
    proposal: Proposal | None = None
    hands_over: bool = False
    handover: Handover | None = None
    takeover: Takeover | None = None
    given: deque[int] = field(default_factory=deque)
    hit_limit: int | None = None
    on_start: Callable[[TurnReport], None] | None = None

    def __post_init__(self) -> None:
        self.answer = len(self.ids) if self.takeover is None else self.takeover.handover.prompt_tokens
        self.report.context_tokens = self.answer
        if self.sampling.seed is None:
            self.random.seed()
        else:
            self.random.manual_seed(self.sampling.seed)

    @property
    def tenant(self) -> str:
        return self.session.tenant

    @property
    def image_mask(self) -> torch.Tensor | None:
        """Which of its ids belong to images, bool; None without any."""
        return self.images.mask(0, len(self.ids)) if self.images else None

    @property
    def done(self) -> bool:
        return self.report.finish is not None

    @property
    def drawing(self) -> Draw:
        """How its tokens are drawn, and with which random numbers."""
        return Draw(self.sampling.temperature, self.sampling.top_p, self.random)

    @property
    def most_tokens(self) -> int:
        """The longest that the sequence can become; its last token is never fed."""
        return self.answer + self.sampling.max_new_tokens

    def draw(self, token: int) -> Finish | None:
        """Take a drawn token; says why the answer ends with it, if it does."""
        if self.given:
            self.ids.append(self.given.popleft())
        elif token in self.sampling.stop_ids:
            return "stop"
        else:
            self.ids.append(token)
            self.ready.append(token)
            self.report.generated_tokens += 1
            if self.report.first_token_s is None:
                self.report.first_token_s = time.perf_counter() - self.began
        if len(self.ids) == self.most_tokens:
            return "length"
        return "handed_over" if self.hands_over else None

    def begin_anew(self, alone_until: int) -> None:
        """Its row is lost: what it had hit and computed does not count any more."""
        self.alone_until, self.proposal = alone_until, None
        if self.takeover is not None:
            start = len(self.takeover.handover.ids)
            self.given.extendleft(reversed(self.ids[start:]))
            del self.ids[start:]
        kept = (
            "context_tokens", "new_tokens", "generated_tokens", "drafted_tokens", "verified_tokens", "accepted_tokens",
            "first_token_s", "stored_tokens", "stored_bytes", "undrafted",
        )  # fmt: skip
        self.report = TurnReport(**{name: getattr(self.report, name) for name in kept})

    def end(self, finish: Finish) -> None:
        self.report.seconds = time.perf_counter() - self.began
        self.report.finish = finish
