"""``POST /v1/chat/completions`` and ``POST /v1/completions``: from a body to an answer, streamed or whole."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Coroutine
from typing import Any, Literal

import anyio
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from ds41.serving.endpoint.bodies import check_headers, discard_body, read_json, receive_body
from ds41.serving.endpoint.errors import ApiError, ClientGone, internal, no_model, of_submission, refused, too_late
from ds41.serving.endpoint.fields import Asked, Fields, read_asked
from ds41.serving.endpoint.prompts import chat_ids, completion_ids, read_messages
from ds41.serving.endpoint.reader import Reader
from ds41.serving.endpoint.replies import Reply, SlowReader, send_error
from ds41.serving.endpoint.service import Service
from ds41.serving.endpoint.text import AnswerText
from ds41.serving.pools.requests import Answer, Request

Kind = Literal["chat", "text"]
_log = logging.getLogger(__name__)
# Of a body that is refused before it has come, so much is still taken, so that its sender hears why.
_LINGER_BYTES, _LINGER_S = 2**22, 2.0
_TOO_LONG = "context_length_exceeded"
# Tokens of an answer whose request names no number, as OpenAI's API has it: of chat there may be all there is room for.
_UNASKED_TEXT_TOKENS = 16


class Completions:
    """One of the two endpoints, as an ASGI application."""

    def __init__(self, service: Service, kind: Kind) -> None:
        self._service, self._kind = service, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self._service, self._kind, scope, receive, send)
        await exchange.run()


class _Exchange:
    """One request and its answer."""

    def __init__(self, service: Service, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
        self._service, self._limits, self._kind = service, service.limits, kind
        self._path, self._headers = scope["path"], Headers(scope=scope)
        self._abort = scope.get("state", {}).get("abort")
        self._receive, self._raw_send = receive, send
        self._sending = self._whole_sent = False
        self._began = asyncio.get_running_loop().time()
        self._id = ("chatcmpl-" if kind == "chat" else "cmpl-") + secrets.token_hex(12)
        self._has_body = False
        self._status = 499

    async def run(self) -> None:
        """Answer, whatever comes."""
        try:
            tenant = self._service.tenant(self._headers)
            with self._service.gate.enter(tenant):
                check_headers(self._headers, self._limits)
                await self._while_connected(self._answer(await self._body(), tenant))
        except ApiError as error:
            await self._fail(error)
        except ClientGone:
            self._service.meters.ended["disconnected"] += 1
        except SlowReader:
            self._service.meters.ended["unread"] += 1
            await self._cut()
        except Exception:
            _log.exception("request %s failed", self._id)
            await self._fail(internal())
        finally:
            self._service.meters.requests[self._path, self._status] += 1

    async def _send(self, message: Message) -> None:
        self._sending = True
        await self._raw_send(message)
        self._whole_sent = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def _body(self) -> bytes:
        body = await receive_body(self._receive, self._limits)
        self._has_body = True
        return body

    async def _answer(self, body: bytes, tenant: str) -> None:
        asked, answer = await self._submitted(body, tenant)
        # It may be large, and the answer may take long.
        del body
        reader = Reader(answer, self._began + self._limits.request_s, self._limits.request_s)
        try:
            with self._service.following(reader):
                text = AnswerText(self._service.tokenizer, asked.stops)
                reply = Reply(self._send, self._kind, self._id, self._service.model_name, self._limits.unread_s)
                await (self._stream if asked.stream else self._whole)(reader, text, reply, asked)
        finally:
            answer.cancel()

    async def _whole(self, reader: Reader, text: AnswerText, reply: Reply, asked: Asked) -> None:
        pieces = []
        while not text.stopped and (tokens := await reader.tokens(self._limits.request_s)) is not None:
            pieces.append(text.feed(tokens))
        pieces.append(text.finish())
        finish, usage = await self._ended(reader, text)
        self._status = 200
        await reply.whole("".join(pieces), finish, usage)

    async def _stream(self, reader: Reader, text: AnswerText, reply: Reply, asked: Asked) -> None:
        try:
            while not text.stopped and (tokens := await reader.tokens(self._limits.quiet_s)) is not None:
                self._status = 200
                await reply.begin(asked.usage_in_stream)
                await (reply.piece(text.feed(tokens)) if tokens else reply.comment())
            self._status = 200
            await reply.begin(asked.usage_in_stream)
            await reply.piece(text.finish())
            finish, usage = await self._ended(reader, text)
        except ApiError as error:
            if not reply.begun:
                raise
            self._service.meters.ended["failed"] += 1
            await reply.fail(error)
        except (ClientGone, SlowReader):
            raise
        except Exception:
            if not reply.begun:
                raise
            _log.exception("request %s failed", self._id)
            self._service.meters.ended["failed"] += 1
            await reply.fail(internal())
        else:
            await reply.end(finish, usage)

    async def _ended(self, reader: Reader, text: AnswerText) -> tuple[str, dict]:
        """Why the answer ended, and what it cost."""
        if text.stopped:
            await reader.end_early()
        report = reader.answer.report
        finish = "stop" if text.stopped else report.finish
        cached = report.prefill.hit_tokens if report.prefill is not None else 0
        prompt = report.prompt_tokens or len(reader.answer.request.ids)
        meters = self._service.meters
        meters.ended[finish] += 1
        meters.tokens.update(prompt=prompt, cached=cached, completion=text.tokens)
        meters.seconds.add(reader.answer.age_s)
        if report.first_token_s is not None:
            meters.first_token.add(report.first_token_s)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": text.tokens,
            "total_tokens": prompt + text.tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return finish, usage

    async def _submitted(self, body: bytes, tenant: str) -> tuple[Asked, Answer]:
        service = self._service

        def prepare() -> tuple[Asked, Answer]:
            asked, request = _read(service, self._kind, body, tenant)
            try:
                return asked, service.backend.submit(request)
            except Exception as error:
                known = of_submission(error)
                raise error if known is None else known from None

        loop, seconds = asyncio.get_running_loop(), self._limits.request_s
        with anyio.move_on_after(self._began + seconds - loop.time()):
            return await service.submit(prepare)
        raise too_late(seconds)

    async def _while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; leave it as soon as the client is gone.

        Raises:
            ClientGone.
        """
        failure: Exception | None = None
        gone = False
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                nonlocal gone
                while (await self._receive())["type"] != "http.disconnect":
                    pass
                # The end of an answer is told in the same way.
                gone = not self._whole_sent
                group.cancel_scope.cancel()

            group.start_soon(leave)
            try:
                await work
            except Exception as error:
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if gone:
            raise ClientGone

    async def _cut(self) -> None:
        """End the connection with what is on its way."""
        if self._abort is not None:
            self._abort()
            # The server hears of it in the loop's next round.
            await asyncio.sleep(0)

    async def _fail(self, error: ApiError) -> None:
        if self._sending:
            # Half an answer cannot become an error; that it is none is seen by how the connection ends.
            await self._cut()
            return
        self._status = error.status
        taken: Awaitable[None] | None = None
        if not self._has_body:
            taken = discard_body(self._receive, _LINGER_BYTES, _LINGER_S)
        await send_error(self._send, error, self._limits.unread_s, taken, {"x-request-id": self._id})


def _read(service: Service, kind: Kind, body: bytes, tenant: str) -> tuple[Asked, Request]:
    """What a body asks for.

    Raises:
        ApiError: 400, 404.
    """
    limits, backend = service.limits, service.backend
    fields = Fields(read_json(body, limits))
    model = fields.text("model")
    if model != service.model_name:
        raise no_model(model, service.model_name)
    asked = read_asked(fields, limits)
    given = fields.needed("messages" if kind == "chat" else "prompt")
    fields.refuse_rest()
    pictures: tuple[bytes, ...] = ()
    unasked = limits.answer_tokens
    if kind == "chat":
        ids, pictures = chat_ids(service.turns, read_messages(given, limits))
    else:
        ids = completion_ids(service.turns, backend.config, given)
        unasked = min(unasked, _UNASKED_TEXT_TOKENS)
    if len(ids) > limits.prompt_tokens:
        raise refused(None, f"the prompt has {len(ids)} tokens; expected up to {limits.prompt_tokens}", _TOO_LONG)
    return asked, Request(
        tenant=tenant,
        ids=tuple(ids),
        pictures=pictures,
        max_new_tokens=_room(service, len(ids), len(pictures), asked.max_tokens, unasked),
        temperature=asked.temperature,
        top_p=asked.top_p,
        seed=asked.seed,
    )


def _room(service: Service, prompt: int, pictures: int, asked: int | None, unasked: int) -> int:
    """Tokens that the answer may have: those that were asked for, or else up to ``unasked`` where there is room.

    How long the span of a picture is, only its decoder knows. Without a wish each counts as the longest; with one, the
    pools say whether it was too much.
    """
    most, vision = service.backend.max_tokens, service.backend.config.vision
    if asked is None:
        prompt += pictures * (vision.max_image_tokens - 1 if vision is not None else 0)
    room = most - prompt
    if room < (asked or 1):
        wish = "" if asked is None else f" and {asked} were asked for"
        raise refused(None, f"the prompt has {prompt} tokens{wish}; the context is of {most} in all", _TOO_LONG)
    return min(unasked, room) if asked is None else asked
