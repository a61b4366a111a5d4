"""Requests that nobody should send, and what the endpoint answers: for the tests, and for a table of a load test.

Every case is bytes on a bare connection. Its expected status is the contract: the client is told what is wrong, the
server goes on, and nothing is computed for it.
"""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from image_files import bomb, data_url, png

from ds41.serving.endpoint.limits import Limits

MODEL = "nano"
# The connection ended without an answer.
CLOSED = 0
_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Target:
    """Where the cases go. key: a valid one; other: of another tenant."""

    host: str
    port: int
    key: str
    other: str


@dataclass(frozen=True)
class Case:
    """One request and the statuses that are right for it.

    body: with a head that suits it; None for none. raw: all bytes in pieces, with a pause after each, instead.
    says: stands in the error's message.
    """

    name: str
    expected: tuple[int, ...]
    body: bytes | None = None
    path: str = _CHAT
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    raw: Callable[[Target], Iterable[tuple[bytes, float]]] | None = None
    says: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came back. error: the object of an error; text: the whole body. answers: statuses of all that came."""

    status: int
    error: dict
    text: str
    answers: tuple[int, ...]
    seconds: float


def play(case: Case, target: Target, seconds: float = 15.0) -> Outcome:
    """Send a case and read until the connection closes or the answer is whole."""
    began = time.monotonic()
    pieces = case.raw(target) if case.raw is not None else [(request_bytes(case, target), 0.0)]
    received = b""
    with socket.create_connection((target.host, target.port), timeout=seconds) as line:
        try:
            for piece, pause in pieces:
                line.sendall(piece)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            while not (responses := list(_responses(received))) or not responses[-1][2]:
                if not (more := line.recv(2**16)):
                    break
                received += more
            # Another answer, to what was sent behind the first request.
            line.settimeout(0.3)
            while case.raw is not None and (more := line.recv(2**16)):
                received += more
        except (ConnectionResetError, TimeoutError):
            pass
    responses = list(_responses(received))
    if not responses:
        return Outcome(CLOSED, {}, received.decode("latin-1"), (), time.monotonic() - began)
    status, body, _ = responses[0]
    try:
        error = json.loads(body).get("error", {})
    except ValueError:
        error = {}
    answers = tuple(one[0] for one in responses)
    return Outcome(status, error, body.decode("utf-8", "replace"), answers, time.monotonic() - began)


def request_bytes(case: Case, target: Target) -> bytes:
    """A request in full, with a valid key where the case names no other."""
    headers = {"Host": f"{target.host}:{target.port}", "Authorization": f"Bearer {target.key}"}
    if case.body is not None:
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(case.body))}
    headers |= {name: value.format(key=target.key, other=target.other) for name, value in case.headers.items()}
    lines = [f"{case.method} {case.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (case.body or b"")


def chat(**fields: object) -> bytes:
    """A body that is right but for ``fields``; a field of ... is left out."""
    whole = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    return json.dumps({name: value for name, value in {**whole, **fields}.items() if value is not ...}).encode()


def cases(limits: Limits) -> list[Case]:
    """All of them, sized to pass a server's limits by little."""
    return [
        *_no_json(limits),
        *_values(limits),
        *_fields(),
        *_messages(limits),
        *_pictures(limits),
        *_prompts(),
        *_keys(),
        *_paths(),
        *_bodies(limits),
        *_connections(limits),
    ]


def _responses(received: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Status, body and whether it is whole, of each response but interim ones."""
    while received.startswith(b"HTTP/1."):
        head, end, rest = received.partition(b"\r\n\r\n")
        if not end:
            return
        status = int(head.split(b" ")[1])
        if status == 100:
            received = rest
            continue
        names = {
            name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))
        }
        if b"chunked" in names.get(b"transfer-encoding", b""):
            yield status, rest, rest.endswith(b"0\r\n\r\n")
            return
        length = int(names.get(b"content-length", b"0"))
        yield status, rest[:length], len(rest) >= length
        received = rest[length:]


def _bad(name: str, body: bytes, says: str = "", **options) -> Case:
    return Case(name, (400,), body, says=says, **options)


def _no_json(limits: Limits) -> list[Case]:
    deep = limits.json_depth + 1
    good = chat()
    return [
        _bad("empty body", b"", "not JSON"),
        _bad("no JSON", b"model=nano&messages=Hi", "not JSON"),
        _bad("JSON cut short", good[:-9], "not JSON"),
        _bad("two objects", good + good, "Extra data"),
        _bad("an array", b"[" + good + b"]", "an array; expected an object"),
        _bad("a number", b"1", "a number; expected an object"),
        _bad("null", b"null", "null; expected an object"),
        _bad("a level too deep", chat(metadata=json.loads("[" * (deep - 1) + "]" * (deep - 1))), "levels deep"),
        _bad("a hundred thousand levels", b"[" * 10**5, "levels deep"),
        _bad("levels of objects", b'{"a":' * 10**4 + b"1" + b"}" * 10**4, "levels deep"),
        _bad("too many values", b"[" + b"0," * limits.json_values + b"0]", "values"),
        _bad("NaN", good.replace(b'"temperature": 0', b'"temperature": NaN'), "NaN is no number"),
        _bad("-Infinity", good.replace(b'"temperature": 0', b'"temperature": -Infinity'), "no number"),
        _bad("1e999", good.replace(b'"temperature": 0', b'"temperature": 1e999'), "temperature is inf"),
        _bad("an integer of 5,000 digits", good.replace(b": 4,", b": " + b"9" * 5000 + b","), "not JSON"),
        _bad("an integer of 4,000 digits", good.replace(b": 4,", b": " + b"9" * 4000 + b","), "max_tokens is 999"),
        _bad("invalid UTF-8", good.replace(b"Hi", b"H\xff"), "not UTF-8 at byte"),
        _bad("UTF-16", good.decode().encode("utf-16")),
        _bad("a byte order mark", b"\xef\xbb\xbf" + good),
        _bad("half a surrogate pair", good.replace(b"Hi", b"\\ud800"), "half of a surrogate pair"),
        _bad("half a pair as a name", good.replace(b'"temperature"', b'"\\udc00"'), "no field"),
        _bad("a name twice", good.replace(b"{", b'{"model": "nano", ', 1), "'model' stands twice"),
        _bad("a name twice inside", good.replace(b'{"role"', b'{"role": "system", "role"'), "'role' stands twice"),
        _bad("a bare NUL in a string", good.replace(b"Hi", b"H\x00"), "not JSON"),
    ]


def _values(limits: Limits) -> list[Case]:
    wrong = {
        "max_tokens": (0, -1, 2**63, limits.answer_tokens + 1, 1.5, True, "5", [1]),
        "max_completion_tokens": (0,),
        "temperature": (-1, 2.1, "hot", True, 10**400, {}),
        "top_p": (0, -0.1, 1.1, "all"),
        "seed": (-1, 2**64, 1.5, "s"),
        "stream": (1, "true", []),
        "stop": ("", [""], ["a"] * 5, [1], 7, "x" * 1000, {"a": 1}),
        "stream_options": ({"include_usage": True}, 1),
    }
    found = [
        _bad(f"{name} = {str(value)[:24]}", chat(**({"max_tokens": ...} | {name: value})), name)
        for name, values in wrong.items()
        for value in values
    ]
    return [
        *found,
        _bad("max_tokens twice over", chat(max_completion_tokens=4), "expected one of them"),
        _bad("an answer longer than the context", chat(messages=_said("x" * 3000)), "the context is of"),
        _bad("stream_options without sense", chat(stream=True, stream_options={"x": 1}), "stream_options.x"),
    ]


def _fields() -> list[Case]:
    unsupported = {
        "n": 2, "logprobs": True, "top_logprobs": 5, "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required", "functions": [{"name": "f"}], "response_format": {"type": "json_object"},
        "logit_bias": {"5": 100}, "presence_penalty": 1, "frequency_penalty": 0.5, "modalities": ["audio"],
        "audio": {"voice": "alloy"}, "prediction": {"type": "content", "content": "x"}, "reasoning_effort": "high",
        "web_search_options": {}, "best_of": 3, "echo": True, "suffix": "x",
    }  # fmt: skip
    return [
        *(_bad(f"{name} is not supported", chat(**{name: value}), name) for name, value in unsupported.items()),
        _bad("n = true", chat(n=True), "n is not supported"),
        _bad("a tenant named", chat(tenant="bob"), "tenant is no field"),
        _bad("a field of no meaning", chat(**{"x" * 10_000: 1}), "is no field"),
        _bad("a prototype", chat(__proto__={"admin": True}), "__proto__ is no field"),
        _bad("no model", chat(model=...), "model is missing"),
        _bad("a model that is a number", chat(model=5), "model is 5"),
        Case("another model", (404,), chat(model="gpt-5"), says="there is no model 'gpt-5'"),
        Case("a path as a model", (404,), chat(model="../../etc/passwd"), says="there is no model"),
    ]


def _messages(limits: Limits) -> list[Case]:
    wrong = {
        "messages = null": None,
        "messages = text": "Hi",
        "messages = object": {"role": "user"},
        "no messages": [],
        "messages of numbers": [1],
        "messages of lists": [[]],
        "a message without role": [{"content": "Hi"}],
        "a message without content": [{"role": "user"}],
        "a role that is none": [{"role": "root", "content": "Hi"}],
        "a role that is a number": [{"role": 1, "content": "Hi"}],
        "a tool's message": [{"role": "tool", "content": "Hi", "tool_call_id": "1"}],
        "content = number": [{"role": "user", "content": 5}],
        "content = object": [{"role": "user", "content": {"text": "Hi"}}],
        "content of no parts": [{"role": "user", "content": []}],
        "content of texts": [{"role": "user", "content": ["Hi"]}],
        "a part of no kind": [{"role": "user", "content": [{"text": "Hi"}]}],
        "a part of an unknown kind": [{"role": "user", "content": [{"type": "video", "text": "Hi"}]}],
        "a text that is a number": [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        "a part with more than it has": [{"role": "user", "content": [{"type": "text", "text": "Hi", "x": 1}]}],
        "a name": [{"role": "user", "content": "Hi", "name": "ann"}],
        "tool calls": [{"role": "assistant", "content": "", "tool_calls": [{}]}, *_said("Hi")],
        "the assistant last": [*_said("Hi"), {"role": "assistant", "content": "Ho"}],
        "instructions alone": [{"role": "system", "content": "Hi"}],
        "instructions in the middle": [*_said("Hi"), {"role": "system", "content": "x"}, *_said("Hi")],
    }
    million = b'{"model": "nano", "messages": [' + b"0," * (10**6 - 1) + b"0]}"
    return [
        *(_bad(name, chat(messages=value), "messages") for name, value in wrong.items()),
        _bad("a message too many", chat(messages=_said("Hi") * (limits.messages + 1)), "expected up to"),
        Case("a million messages", (400, 413), million),
    ]


def _pictures(limits: Limits) -> list[Case]:
    small = data_url(png(16, 16))
    urls = {
        "http": ("http://169.254.169.254/latest/meta-data/", "this server fetches nothing"),
        "https": ("https://example.com/a.png", "this server fetches nothing"),
        "file": ("file:///etc/passwd", "this server fetches nothing"),
        "gopher": ("gopher://127.0.0.1:6379/_FLUSHALL", "this server fetches nothing"),
        "a path": ("/etc/passwd", "is no URL"),
        "javascript": ("javascript:alert(1)", "this server fetches nothing"),
        "an SVG": (data_url(b"<svg/>", "svg+xml"), "this server fetches nothing"),
        "a page": ("data:text/html;base64,PGI+", "this server fetches nothing"),
        "no base64": ("data:image/png;base64,%%%%", "is not base64"),
        "base64 with line breaks": (small[:60] + "\n" + small[60:], "is not base64"),
        "base64 cut short": (small[:-3], "is not base64"),
        "base64 beyond ASCII": ("data:image/png;base64,äöü=", "is not base64"),
        "nothing": ("data:image/png;base64,", "holds 0 bytes"),
        "no picture": (data_url(b"no picture at all"), "is not an image"),
        "half a picture": (data_url(png(64, 64)[:60]), "image"),
        "a decompression bomb": (data_url(bomb()), "pixels"),
        "too large": (data_url(bytes(limits.picture_bytes + 1)), "holds"),
    }
    part = {"type": "image_url", "image_url": {"url": small}}
    odd = {
        "a picture of the system's": [{"role": "system", "content": [part]}, *_said("Hi")],
        "a picture of the assistant's": [*_said("Hi"), {"role": "assistant", "content": [part]}, *_said("Hi")],
        "a picture too many": [{"role": "user", "content": [part] * (limits.pictures + 1)}],
        "image_url = text": [{"role": "user", "content": [{"type": "image_url", "image_url": small}]}],
        "detail": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": small, "detail": "low"}}]}],
        "a URL of a number": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}],
    }
    return [
        *(_bad(f"a picture by {name}", chat(messages=_shown(url)), says) for name, (url, says) in urls.items()),
        *(_bad(name, chat(messages=value), "messages[") for name, value in odd.items()),
    ]  # fmt: skip


def _prompts() -> list[Case]:
    wrong = {
        "a number": 5, "an empty list": [], "ids out of range": [1, 10**6], "negative ids": [-1], "true": [True],
        "half an id": [1.5], "two texts": ["a", "b"], "two lists": [[1], [2]], "lists in lists": [[[1]]],
        "a picture's id": [0, 4], "an object": {"text": "a"}, "half a pair": "\ud800",
    }  # fmt: skip
    return [
        *(_bad(f"a prompt of {name}", _text(value), "prompt", path=_TEXT) for name, value in wrong.items()),
        _bad("three texts", _text(["a", "b", "c"]), "prompt holds several texts; expected one text, or", path=_TEXT),
        _bad("several lists", _text([[1], [2], [3]]), "prompt holds several lists of token ids", path=_TEXT),
        _bad("messages for a text", chat(), "prompt is missing", path=_TEXT),
        _bad("a prompt for a chat", _text("Hi"), "messages is missing"),
    ]


def _keys() -> list[Case]:
    def denied(name: str, **headers: str) -> Case:
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        return Case(name, (401,), chat(), headers=given, says="no valid key was given")

    def twice(target: Target) -> Iterable[tuple[bytes, float]]:
        request = request_bytes(Case("", (), chat()), target)
        yield request.replace(b"\r\n", b"\r\nAuthorization: Bearer " + target.other.encode() + b"\r\n", 1), 0.0

    return [
        denied("no key", Authorization=""),
        denied("a wrong key", Authorization="Bearer " + "0" * 32),
        denied("a key without its end", Authorization="Bearer {key}x"),
        denied("a key as a password", Authorization="Basic {key}"),
        denied("a key alone", Authorization="{key}"),
        denied(
            "a key of bytes", Authorization="Bearer \xe4\xf6\xfc\xe4\xf6\xfc\xe4\xf6\xfc\xe4\xf6\xfc\xe4\xf6\xfc\xe4"
        ),
        denied("two keys in one line", Authorization="Bearer {key}, Bearer {other}"),
        Case("two lines of keys", (401,), raw=twice),
        Case("a key in the query", (401,), chat(), path=f"{_CHAT}?api_key=x", headers={"Authorization": ""}),
        Case("no key for the models", (401,), path="/v1/models", method="GET", headers={"Authorization": ""}),
        Case("no key for the metrics", (401,), path="/metrics", method="GET", headers={"Authorization": ""}),
    ]


def _paths() -> list[Case]:
    def at(path: str, expected: int, method: str = "GET", also: int | None = None) -> Case:
        body = chat() if method in ("POST", "PUT", "PATCH") else None
        statuses = (expected,) if also is None else (expected, also)
        return Case(f"{method} {path[:40]}", statuses, body, path=path, method=method)

    return [
        *(at(_CHAT, 405, method) for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")),
        at("/v1/models", 405, "POST"),
        at("/health", 405, "DELETE"),
        at("/v1/embeddings", 404, "POST"),
        at(f"{_CHAT}/", 404, "POST"),
        at("/v1//chat/completions", 404, "POST"),
        at("/v1/../v1/chat/completions", 404, "POST"),
        at("/v1/%2e%2e/%2e%2e/etc/passwd", 404),
        at("/v1/models/..%2f..%2fetc%2fpasswd", 404),
        at("/v1/models/%00", 404),
        at("/v1/models/%ff%fe", 404),
        at("/docs", 404),
        at("/openapi.json", 404),
        at("//example.com/v1/models", 404),
        at("http://example.com/v1/models", 404),
        at("/" + "a" * 100_000, 400, also=431),
    ]


def _bodies(limits: Limits) -> list[Case]:
    large = chat(user="x" * limits.body_bytes)

    def kind(name: str, **headers: str) -> Case:
        return Case(name, (415,), chat(), headers={key.replace("_", "-"): value for key, value in headers.items()})

    def endless(target: Target) -> Iterable[tuple[bytes, float]]:
        yield _chunked_head(target), 0.0
        for _ in range(limits.body_bytes // 2**14 + 8):
            yield b"4000\r\n" + bytes(2**14) + b"\r\n", 0.0

    def stalled(target: Target) -> Iterable[tuple[bytes, float]]:
        yield _chunked_head(target) + b'5\r\n{"mod\r\n', 0.0

    def dripping(target: Target) -> Iterable[tuple[bytes, float]]:
        whole = request_bytes(Case("", (), chat()), target)
        yield whole[:-60], 0.0
        for byte in whole[-60:-50]:
            yield bytes([byte]), limits.body_s / 5

    def broken_chunk(target: Target) -> Iterable[tuple[bytes, float]]:
        yield _chunked_head(target) + b"zz\r\n{}\r\n0\r\n\r\n", 0.0

    def left(target: Target) -> Iterable[tuple[bytes, float]]:
        yield request_bytes(Case("", (), chat()), target)[:-9], 0.05

    return [
        Case("a body too large", (413,), large, says="expected at most"),
        Case("a length too large", (413,), b"{}", headers={"Content-Length": str(10**12)}),
        Case("a length of 30 digits", (413, 400), b"{}", headers={"Content-Length": "9" * 30}),
        Case("a negative length", (400,), b"{}", headers={"Content-Length": "-1"}),
        Case("a length in words", (400,), b"{}", headers={"Content-Length": "two"}),
        Case("too large, asked beforehand", (413,), headers={"Content-Length": "9" * 10, "Expect": "100-continue"}),
        Case("chunks without end", (413,), raw=endless),
        Case("a chunked body that stalls", (408,), raw=stalled, says="did not arrive within"),
        Case("a body byte by byte", (408,), raw=dripping, says="did not arrive within"),
        Case("a chunk of no size", (400, CLOSED), raw=broken_chunk),
        Case("gone within its body", (CLOSED, 408), raw=left),
        Case("both a length and chunks", (400,), chat(), headers={"Transfer-Encoding": "chunked"}),
        kind("text/plain", Content_Type="text/plain"),
        kind("a form", Content_Type="application/x-www-form-urlencoded"),
        kind("no kind", Content_Type=""),
        Case("gzip", (415,), gzip.compress(chat()), headers={"Content-Encoding": "gzip"}),
    ]  # fmt: skip


def _connections(limits: Limits) -> list[Case]:
    def bare(*pieces: bytes, pause: float = 0.0) -> Callable[[Target], Iterable[tuple[bytes, float]]]:
        return lambda target: [(piece, pause) for piece in pieces]

    def headers(number: int, size: int) -> Callable[[Target], Iterable[tuple[bytes, float]]]:
        lines = b"".join(b"X-%d: %s\r\n" % (place, b"a" * size) for place in range(number))
        return bare(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")

    def slowly(target: Target) -> Iterable[tuple[bytes, float]]:
        yield b"GET /health HTTP/1.1\r\nHost: localhost\r\n", 0.0
        for place in range(8):
            yield b"X-%d: a\r\n" % place, limits.header_s / 5

    def pipelined(target: Target) -> Iterable[tuple[bytes, float]]:
        one = request_bytes(Case("", (), path="/health", method="GET"), target)
        bad = request_bytes(Case("", (), chat(n=2)), target)
        yield one + bad + one, 0.0

    smuggled = b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde"
    return [
        Case("binary", (400,), raw=bare(bytes(range(256)) * 4 + b"\r\n\r\n")),
        Case("a TLS hello", (400,), raw=bare(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(80) + b"\r\n\r\n")),
        Case("HTTP/2", (400, 404), raw=bare(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
        Case("HTTP/0.9", (400,), raw=bare(b"GET /\r\n\r\n")),
        Case("no host", (400,), raw=bare(b"GET /health HTTP/1.1\r\n\r\n")),
        Case("a line without a colon", (400,), raw=bare(b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n")),
        Case("NUL in a header", (400,), raw=bare(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n")),
        Case("two lengths", (400,), raw=bare(smuggled)),
        Case("a flood of headers", (400, 431), raw=headers(4000, 50)),
        Case(
            "one header without end", (400,), raw=bare(b"GET / HTTP/1.1\r\nX: " + b"a" * (limits.header_bytes + 2**14))
        ),
        Case("headers line by line", (408,), raw=slowly, says="head did not arrive within"),
        Case("not a byte", (CLOSED,), raw=bare()),
        Case("pipelined", (200,), raw=pipelined),
        Case("an upgrade", (405,), None, method="GET", headers={"Connection": "Upgrade", "Upgrade": "websocket"}),
    ]


def _chunked_head(target: Target) -> bytes:
    case = Case("", (), None, headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
    return request_bytes(case, target)


def _said(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def _shown(url: str) -> list[dict]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


def _text(prompt: object) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 4}).encode()
