"""An answer of the pools in an event loop: waits without a thread, and ends when the client or the clock does."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio

from ds41.serving.endpoint.errors import ApiError, internal, of_answer, too_late, unavailable
from ds41.serving.pools.requests import Answer

# After its cancellation an answer ends within a step; longer than this nobody waits for its report.
_LAST_REPORT_S = 2.0


class Reader:
    """The tokens of one answer.

    Args:
        latest: by the loop's clock, when the whole request must have ended. seconds: how long that was, for the error.
    """

    def __init__(self, answer: Answer, latest: float, seconds: float) -> None:
        self.answer = answer
        self._latest, self._seconds = latest, seconds
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._stopped: ApiError | None = None
        answer.listen(self._wake)

    async def tokens(self, quiet_s: float) -> list[int] | None:
        """What has come since the last time, or nothing after ``quiet_s``; None at the end.

        Raises:
            ApiError: the answer failed, takes too long, or was stopped. Its cause, where it is the server's fault.
        """
        until = min(self._latest, self._loop.time() + quiet_s)
        while True:
            self._woken.clear()
            # In this order: what is there when the end is seen is all that will come.
            ended, tokens = self.answer.ended, self.answer.take()
            if self._stopped is not None:
                raise self._stopped
            if not ended and self._loop.time() >= self._latest:
                raise too_late(self._seconds)
            if tokens:
                return tokens
            if ended:
                self._raise_fault()
                return None
            if self._loop.time() >= until:
                return []
            with anyio.move_on_after(until - self._loop.time()):
                await self._woken.wait()

    def stop(self, error: ApiError) -> None:
        """Have whoever waits for tokens raise ``error``."""
        self._stopped = error
        self._woken.set()

    async def end_early(self) -> None:
        """Cancel the answer and wait for its report, though not for long."""
        self.answer.cancel()
        with anyio.move_on_after(_LAST_REPORT_S):
            while not self.answer.ended:
                self._woken.clear()
                if not self.answer.ended:
                    await self._woken.wait()

    def _raise_fault(self) -> None:
        error = self.answer.error
        if error is not None:
            known = of_answer(error)
            raise error if known is None else known from None
        if self.answer.report.finish == "cancelled":
            raise unavailable("the server ended the answer")
        if self.answer.report.finish not in ("stop", "length"):
            raise internal()

    def _wake(self) -> None:
        # Of a worker's thread; the loop may have been closed before the worker has heard of it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)
