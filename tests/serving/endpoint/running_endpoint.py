"""A real server in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scripted_backend import TOKENIZER, ScriptedBackend

from ds41.serving.endpoint.api_keys import ApiKeys
from ds41.serving.endpoint.limits import Limits
from ds41.serving.endpoint.server import Stopping, serve
from ds41.serving.endpoint.service import Service

MODEL = "nano"


@dataclass
class Running:
    """port: where it listens. stop: begins to drain. thread: ends when the server has."""

    port: int
    service: Service
    stop: Stopping
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, seconds: float = 10.0, receive_buffer: int | None = None) -> socket.socket:
        """A bare connection."""
        line = socket.socket()
        if receive_buffer is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        line.settimeout(seconds)
        line.connect(("127.0.0.1", self.port))
        return line


@contextmanager
def running(
    backend: ScriptedBackend,
    keys: ApiKeys | None = None,
    limits: Limits | None = None,
    drain_s: float = 5.0,
    draining: Callable[[int], None] | None = None,
) -> Iterator[Running]:
    """Serve while the context lasts."""
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    ready, found = threading.Event(), []

    async def run() -> None:
        service = Service(backend, TOKENIZER, MODEL, keys, limits)

        def began(stop: Stopping) -> None:
            found.extend((service, stop))
            ready.set()

        await serve(service, sock, drain_s, began, draining=draining)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(10), "the server did not start"
    server = Running(port, *found, thread)
    try:
        yield server
    finally:
        if thread.is_alive():
            server.stop()
            server.stop()
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"
