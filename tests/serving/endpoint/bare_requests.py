"""Requests on bare connections to a running endpoint."""

from __future__ import annotations

import socket

from hostile import Case, Target, chat, play, request_bytes
from scripted_backend import Script, ids

KEY = "ann-secret-0123456789"
SLOW = Script(tokens=tuple(ids("x" * 1500)), pause_s=0.01)


def target(server) -> Target:
    return Target("127.0.0.1", server.port, KEY, KEY)


def ask(server, seconds: float = 10.0, path: str = "/v1/chat/completions", method: str = "POST", headers=(), **fields):
    body = chat(**{"max_tokens": 1500, **fields}) if method == "POST" else None
    return play(Case("", (), body, path=path, method=method, headers=dict(headers)), target(server), seconds)


def get(server, path: str, **options):
    return ask(server, path=path, method="GET", **options)


def opened(server, receive_buffer: int | None = None, **fields) -> socket.socket:
    """A connection with a request on its way."""
    line = server.connect(receive_buffer=receive_buffer)
    line.sendall(request_bytes(Case("", (), chat(**{"max_tokens": 1500, **fields})), target(server)))
    return line


def rest(line: socket.socket) -> bytes:
    with line:
        pieces = iter(lambda: line.recv(2**16), b"")
        return b"".join(pieces)
