"""The HTTP server: connections within bounds of number, bytes and time, and an orderly end.

Source: ds41's own.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ds41.serving.endpoint.app import build_app
from ds41.serving.endpoint.errors import ApiError, unavailable
from ds41.serving.endpoint.limits import Limits
from ds41.serving.endpoint.service import Service

# What a connection's answers may occupy in the system: a client that does not read is noticed soon.
_SEND_BUFFER = 2**16
# After an answer in full, or when the drain is over, a connection has so long to close.
_CLOSING_S = 5.0
# So long a refused client may go on sending.
_LINGER_S = 2.0


class BoundedProtocol(H11Protocol):
    """uvicorn's connection, whose client has only so long for each request's head, and for taking what it was sent."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._received = self._refused = False
        if len(self.connections) > self.limits.connections:
            transport.abort()
            return
        line = transport.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        transport.set_write_buffer_limits(high=_SEND_BUFFER)
        # For the application, which has no other way to end a connection with what is on its way.
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._received = True
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self._received = False
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later()
        else:
            self._watch_pipelined()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    def send_400_response(self, msg: str) -> None:
        if self._busy or self.conn.our_state is not h11.IDLE:
            # What is wrong came in the middle of an answer, where no other can stand.
            self.transport.close()
        else:
            self._refuse(ApiError(400, "this is not HTTP/1.1 with a head of the allowed size", code="invalid_http"))

    @property
    def _busy(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        """Give an incomplete head its time, which more of it does not prolong."""
        if self._busy:
            self._head_came()
        elif self._head_timer is None:
            self._await_head()

    def _watch_pipelined(self) -> None:
        # A request that had come before may have begun; the body of the last one may still come.
        if self._busy:
            self._head_came()
        elif self.conn.their_state is h11.SEND_BODY:
            self._await_head()

    def _await_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.limits.header_s, self._head_is_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._received and self.conn.our_state is h11.IDLE and not self._busy:
            seconds = self.limits.header_s
            message = f"the request's head did not arrive within {seconds:g} s"
            self._refuse(ApiError(408, message, kind="timeout_error", code="timeout"))
        else:
            self.transport.close()
            self._abort_later()

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request; what still comes is taken and dropped, so that the answer arrives."""
        body = json.dumps(error.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        head = h11.Response(status_code=error.status, reason=HTTPStatus(error.status).phrase.encode(), headers=lines)
        self.transport.write(b"".join(map(self.conn.send, (head, h11.Data(data=body), h11.EndOfMessage()))))
        self._refused = True
        self._abort_later(_LINGER_S)
        # A client that has read enough may have reset the connection, which then has no end to announce.
        with suppress(OSError):
            self.transport.write_eof()

    def _abort_later(self, seconds: float = _CLOSING_S) -> None:
        self._head_came()
        self.loop.call_later(seconds, self.transport.abort)


class _Server(uvicorn.Server):
    """Leaves signals to :func:`serve`, since uvicorn's way ends the process by the signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Stopping:
    """How a server is told to end, from any thread: the first time it drains, the second time it leaves at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked, self._at_once = asyncio.Event(), asyncio.Event()

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self._ask)

    async def wait(self) -> None:
        await self._asked.wait()

    async def wait_at_once(self) -> None:
        await self._at_once.wait()

    def _ask(self) -> None:
        (self._at_once if self._asked.is_set() else self._asked).set()


async def serve(
    service: Service,
    sock: socket.socket,
    drain_s: float,
    ready: Callable[[Stopping], None],
    signals: tuple[signal.Signals, ...] = (),
    draining: Callable[[int], None] | None = None,
) -> None:
    """Serve on a bound socket until told to stop; the socket is closed then.

    While it drains, new requests get a 503 and ``/health`` says so; what runs has ``drain_s`` seconds to end, and what
    is left then ends with an error.

    Args:
        ready: called once requests are answered, with what stops the server.
        signals: that stop it as well; only in the main thread.
        draining: called when it is told to stop, with the number of requests that run.

    Raises:
        OSError: nothing can listen on the socket.
    """
    limits = service.limits
    server = _Server(uvicorn_config(service))
    running = asyncio.ensure_future(server.serve(sockets=[sock]))
    stopping = Stopping()
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stopping)
    try:
        while not server.started and not running.done():
            await asyncio.sleep(0.005)
        if not running.done():
            ready(stopping)
            await _first(stopping.wait(), running)
            service.gate.draining = True
            if draining is not None and not running.done():
                draining(service.gate.running)
            await _first(service.gate.wait_empty(drain_s), stopping.wait_at_once(), running)
            service.stop_all(unavailable("the server is shutting down"))
            await service.gate.wait_empty(min(_CLOSING_S, limits.unread_s))
        server.should_exit = True
        await running
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        service.close()


def uvicorn_config(service: Service) -> uvicorn.Config:
    """uvicorn's settings: no log of paths, which may hold what is secret, and no names of versions."""
    limits = service.limits
    protocol = type("Protocol", (BoundedProtocol,), {"limits": limits})
    return uvicorn.Config(
        build_app(service),
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_keep_alive=limits.idle_s,
        timeout_graceful_shutdown=_CLOSING_S,
    )


async def _first(*waits: Any) -> None:
    """Wait for the first of several to end; leave the others that were begun here."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    begun = [task for task, wait in zip(tasks, waits, strict=True) if task is not wait]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
