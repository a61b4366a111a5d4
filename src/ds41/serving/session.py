"""A conversation and the answer that it is being given.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ds41.serving.images import SequenceImages
from ds41.serving.turn import Sampling, Turn, TurnReport

if TYPE_CHECKING:
    from ds41.serving.engine import Engine


class Stream(Iterator[int]):
    """The tokens of one answer as they are drawn. Taking one drives the engine, all other answers with it.

    Leaving a ``with`` block, or dropping the stream, cancels what has not been drawn yet.
    """

    def __init__(self, engine: Engine, turn: Turn) -> None:
        self._engine, self._turn = engine, turn

    def __next__(self) -> int:
        return self._engine.next_token(self._turn)

    @property
    def report(self) -> TurnReport:
        """What the turn cost; complete once the stream has ended."""
        return self._turn.report

    def cancel(self) -> None:
        """End the answer with the tokens that have been drawn. They stay in the session, and can still be taken."""
        self._engine.cancel(self._turn)

    def cancel_soon(self) -> None:
        """Mark the answer to end before the engine's next step, without waiting: fit for a signal handler."""
        self._turn.cancelled = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        # A finaliser must not wait for the engine.
        self.cancel_soon()


class Session:
    """One conversation of a tenant: all token ids so far. Made by :meth:`Engine.open`.

    Between turns its windows and pages may be taken from it; what remains is ``ids``, with which it can also be
    opened anew, in another process.
    """

    def __init__(self, engine: Engine, tenant: str, ids: Sequence[int], images: SequenceImages) -> None:
        self.engine, self.tenant = engine, tenant
        self.ids: list[int] = list(ids)
        self.images = images
        # The engine's books: its row in the cache, tokens known to be stored, the key of its windows in the pool.
        self.row: int | None = None
        self.stored = 0
        self.window_key: bytes | None = None
        self.closed = False
        self.turn: Turn | None = None

    def say(
        self,
        ids: Sequence[int],
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_ids: Collection[int] | None = None,
        image_vectors: torch.Tensor | None = None,
    ) -> Stream:
        """Append ``ids`` to the conversation and answer.

        Args:
            max_new_tokens, temperature, top_p, seed: as in :func:`ds41.generation.generate`.
            stop_ids: ids that end the answer and are not part of it; None for the configuration's ``eos_token_id``.
            image_vectors: [I, hidden], for those of ``ids`` that are the ``image_token_id`` (:mod:`ds41.vision`).

        Raises:
            ValueError, TypeError: no ids, ids outside the vocabulary, a value out of range, or more tokens than the
                engine has room for. RuntimeError: an answer is being given, or session or engine is closed.
            The stream raises what went wrong with this answer; the conversation is then as it was before.
        """
        stops = {self.engine.model.config.eos_token_id} if stop_ids is None else set(stop_ids)
        sampling = Sampling(max_new_tokens, temperature, top_p, seed, stops)
        return Stream(self.engine, self.engine.submit(self, ids, sampling, image_vectors))

    def close(self) -> None:
        """Give back the session's row; an answer that is being given is cancelled. A second time does nothing."""
        self.engine.close_session(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
