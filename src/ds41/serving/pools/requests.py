"""What a client asks of the pools, and the answer as it comes: tokens, stages, an end or an error.

Source: ds41's own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from operator import index
from typing import Literal

from ds41.sampling import check_sampling
from ds41.serving.turn import Finish, TurnReport

PoolName = Literal["vision", "prefill", "decode"]
POOLS: tuple[PoolName, ...] = ("vision", "prefill", "decode")
_log = logging.getLogger(__name__)


class Overloaded(RuntimeError):
    """There is no room to wait; the same request may be sent again later. retry_after_s: when that is worth trying."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLong(ValueError):
    """Prompt and answer together are more than there is room for, pictures included."""


class WorkerLost(RuntimeError):
    """A worker ended while it had a request, or took so many requests' workers with it that nobody tries again."""


class NoWorkers(RuntimeError):
    """A pool has no worker left and may not start another."""


@dataclass(frozen=True)
class Request:
    """One turn of a conversation, which the pools see for the first time: they find what they have by its ids.

    tenant: whose prefixes are found and kept. ids: all of the conversation, with one ``image_token_id`` for each
    picture. pictures: files as they came, in the order of their places. The rest as in
    :func:`ds41.generation.generate`.

    Raises:
        ValueError, TypeError: a value out of its range.
    """

    tenant: str
    ids: tuple[int, ...]
    pictures: tuple[bytes, ...] = ()
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: frozenset[int] | None = None

    def __post_init__(self) -> None:
        # Whoever made the lists may change them.
        object.__setattr__(self, "ids", tuple(self.ids))
        object.__setattr__(self, "pictures", tuple(self.pictures))
        check_sampling(self.temperature, self.top_p, self.seed)
        if not isinstance(self.tenant, str):
            raise TypeError(f"tenant is {self.tenant!r}; expected a string")
        if index(self.max_new_tokens) < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; expected 1 or more")
        if not len(self.ids):
            raise ValueError("the request has no ids; expected one or more")


@dataclass(frozen=True)
class Stage:
    """One visit to a worker: how long the request waited for it, how long it was there, and how that ended.

    began_s: from the request's arrival to the beginning of its wait.
    """

    pool: PoolName
    worker: str
    began_s: float
    waited_s: float
    seconds: float
    outcome: Literal["done", "lost", "failed", "cancelled"]


@dataclass
class RequestReport:
    """What a request cost; complete once its answer has ended.

    prompt_tokens: with the spans of its pictures, which have picture_tokens of them. prefill, decode: what the two
    engines counted. prompt_pages: of the prompt; those that the decode worker lacked travelled. handed_bytes: travelled
    from prefill to decode; window_bytes: of them, what is private to the sequence. stages: every visit to a worker,
    lost ones too. first_token_s, seconds: from arrival.
    """

    prompt_tokens: int = 0
    picture_tokens: int = 0
    generated_tokens: int = 0
    prompt_pages: int = 0
    handed_bytes: int = 0
    window_bytes: int = 0
    prefill: TurnReport | None = None
    decode: TurnReport | None = None
    stages: list[Stage] = field(default_factory=list)
    first_token_s: float | None = None
    seconds: float | None = None
    finish: Finish | None = None

    def as_dict(self) -> dict:
        """All fields, for JSON."""
        return asdict(self)


class Answer(Iterator[int]):
    """The tokens of one request as they come, for one reader in whatever thread.

    Iterating waits. An event loop uses :meth:`listen` and :meth:`take`, which never do.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.report = RequestReport()
        self._arrived = time.perf_counter()
        self._tokens: deque[int] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = self._cancelled = False
        self._listeners: list[Callable[[], None]] = []
        self._cancellers: list[Callable[[], None]] = []

    @property
    def tenant(self) -> str:
        """Whose request it answers."""
        return self.request.tenant

    @property
    def ended(self) -> bool:
        """Whether nothing more will come. Tokens may still wait to be taken."""
        return self._ended

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, by :meth:`cancel` or by whoever asked."""
        return self._cancelled

    @property
    def error(self) -> BaseException | None:
        """What went wrong, once the answer has ended."""
        return self._error

    @property
    def age_s(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self._arrived

    def __next__(self) -> int:
        with self._changed:
            while not self._tokens and not self._ended:
                self._changed.wait()
            if self._tokens:
                return self._tokens.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def take(self) -> list[int]:
        """The tokens that have come since the last time; does not wait."""
        with self._changed:
            taken = list(self._tokens)
            self._tokens.clear()
        return taken

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` now, and whenever tokens or the end have come, in the thread that brings them.

        It must not wait for this answer. One that raises is logged and not called again.
        """
        with self._changed:
            if not self._ended:
                self._listeners.append(wake)
        wake()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end; False if it has not come within ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, seconds)

    def cancel(self) -> None:
        """End the answer with the tokens that have been drawn. A second time, or after the end, does nothing."""
        with self._changed:
            if self._ended or self._cancelled:
                return
            self._cancelled = True
            cancellers = list(self._cancellers)
        for cancel in cancellers:
            cancel()

    # What follows is for the pools.

    def on_cancel(self, cancel: Callable[[], None]) -> None:
        """Call ``cancel`` when the reader cancels, unless the answer has ended; at once if that has happened."""
        with self._changed:
            if self._ended:
                return
            self._cancellers.append(cancel)
            if not self._cancelled:
                return
        cancel()

    @contextmanager
    def cancelling(self, cancel: Callable[[], None]) -> Iterator[None]:
        """:meth:`on_cancel` for the length of a block: nothing that ``cancel`` refers to is kept after it."""
        self.on_cancel(cancel)
        try:
            yield
        finally:
            with self._changed:
                if cancel in self._cancellers:
                    self._cancellers.remove(cancel)

    def add(self, tokens: Sequence[int]) -> None:
        """Give out tokens."""
        if tokens:
            with self._changed:
                self._tokens.extend(tokens)
                self.report.generated_tokens += len(tokens)
                if self.report.first_token_s is None:
                    self.report.first_token_s = self.age_s
                self._changed.notify_all()
            self.tell_listeners()

    def end(self, finish: Finish, error: BaseException | None = None) -> None:
        """Nothing more will come."""
        self.end_silently(finish, error)
        self.tell_listeners()

    def end_silently(self, finish: Finish, error: BaseException | None = None) -> None:
        """:meth:`end` for who holds a lock: calls nobody. :meth:`tell_listeners` has to follow."""
        with self._changed:
            self.report.finish, self.report.seconds, self._error = finish, self.age_s, error
            self._ended = True
            self._cancellers.clear()
            self._changed.notify_all()

    def tell_listeners(self) -> None:
        """Call those who listen; none of them can harm the answer."""
        with self._changed:
            listeners = list(self._listeners)
        for wake in listeners:
            try:
                wake()
            except Exception:
                _log.exception("a listener of an answer raised; it is not called again")
                with self._changed:
                    if wake in self._listeners:
                        self._listeners.remove(wake)
        with self._changed:
            if self._ended:
                self._listeners.clear()
