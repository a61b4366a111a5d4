"""What goes back to a client: one JSON object, or server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Mapping
from typing import Any

import anyio
from starlette.types import Send

from ds41.serving.endpoint.errors import ApiError

_JSON = "application/json"


class SlowReader(Exception):
    """The client has left an answer unread for too long."""


class Reply:
    """One answer on its way to one client, in the shape of chat or of text completions.

    Every method raises :class:`SlowReader` if the client does not take what is sent within ``unread_s``.
    """

    def __init__(self, send: Send, kind: str, name: str, model: str, unread_s: float) -> None:
        self._send, self._chat, self._unread_s = send, kind == "chat", unread_s
        self._with_usage = False
        self._head = {"id": name, "created": int(time.time()), "model": model}
        self.begun = False

    async def whole(self, text: str, finish: str, usage: dict) -> None:
        """All of an answer at once."""
        said: dict[str, Any] = {"text": text}
        if self._chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        kind = "chat.completion" if self._chat else "text_completion"
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        content = {**self._head, "object": kind, "choices": [choice], "usage": usage}
        body = json.dumps(content, ensure_ascii=False).encode()
        self.begun = True
        await self._start(200, {"content-type": _JSON, "content-length": str(len(body))})
        await self._body(body, more=False)

    async def begin(self, with_usage: bool) -> None:
        """Begin a stream, where that has not happened. with_usage: :meth:`end` says what the answer cost."""
        if self.begun:
            return
        self.begun, self._with_usage = True, with_usage
        # Proxies hold back what they could still join.
        head = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        await self._start(200, head)
        if self._chat:
            await self._chunk({"delta": {"role": "assistant", "content": ""}}, None)

    async def piece(self, text: str) -> None:
        """More text of a stream."""
        if text:
            await self._chunk({"delta": {"content": text}} if self._chat else {"text": text}, None)

    async def comment(self) -> None:
        """What readers of events pass over: it only shows that the stream lives."""
        await self._body(b": waiting\n\n", more=True)

    async def end(self, finish: str, usage: dict) -> None:
        """The end of a stream."""
        await self._chunk({"delta": {}} if self._chat else {"text": ""}, finish)
        if self._with_usage:
            await self._event({**self._head, "object": self._chunk_kind, "choices": [], "usage": usage})
        await self._body(b"data: [DONE]\n\n", more=False)

    async def fail(self, error: ApiError) -> None:
        """The end of a stream that breaks off."""
        await self._event(error.body())
        await self._body(b"", more=False)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    async def _chunk(self, said: dict, finish: str | None) -> None:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._with_usage else {}
        await self._event({**self._head, "object": self._chunk_kind, "choices": [choice], **usage})

    async def _event(self, content: dict) -> None:
        await self._body(b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n", more=True)

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        await in_time(start(self._send, status, {**headers, "x-request-id": self._head["id"]}), self._unread_s)

    async def _body(self, body: bytes, more: bool) -> None:
        await in_time(self._send({"type": "http.response.body", "body": body, "more_body": more}), self._unread_s)


async def start(send: Send, status: int, headers: dict[str, str]) -> None:
    """Send a response's head."""
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})


async def send_error(
    send: Send,
    error: ApiError,
    unread_s: float,
    unread: Awaitable[None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """An error as the whole response.

    Args:
        unread_s: that its client may leave it unread; then it is given up.
        unread: takes what is left of the request's body, after which the connection is closed; None if all has come.
    """
    body = json.dumps(error.body()).encode()
    lines = {"content-type": _JSON, "content-length": str(len(body)), **error.headers(), **(headers or {})}
    if unread is not None:
        lines["connection"] = "close"
    await start(send, error.status, lines)
    try:
        await in_time(send({"type": "http.response.body", "body": body, "more_body": unread is not None}), unread_s)
        if unread is not None:
            await unread
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except SlowReader:
        return


async def in_time(sending: Awaitable[None], seconds: float) -> None:
    """Send within a time.

    Raises:
        SlowReader.
    """
    try:
        with anyio.fail_after(seconds):
            await sending
    except TimeoutError:
        raise SlowReader from None
