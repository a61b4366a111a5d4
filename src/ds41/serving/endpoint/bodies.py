"""A request's body: received within bounds of bytes and time, and read as JSON that is what it says."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import numpy as np

from ds41.serving.endpoint.errors import ApiError, ClientGone, refused, shown
from ds41.serving.endpoint.limits import Limits

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
_PIECE = 2**20
_QUOTE, _COMMA = ord('"'), ord(",")
_OPEN, _CLOSE = (ord("["), ord("{")), (ord("]"), ord("}"))


def check_headers(headers: Mapping[str, str], limits: Limits) -> None:
    """Refuse a body before it is received.

    Raises:
        ApiError: 413 or 415.
    """
    if "transfer-encoding" in headers and "content-length" in headers:
        # Two servers in a row could disagree where the body ends.
        raise refused(None, "the request has both content-length and transfer-encoding; expected one of them")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise refused(None, f"content-length is {shown(length)}; expected a number of bytes")
    if len(length) > 15 or int(length) > limits.body_bytes:
        raise _too_large(limits)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content-type is {shown(kind)}; expected application/json", code="unsupported_media_type")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise ApiError(
            415, f"content-encoding is {shown(coding)}; expected a body as it is", code="unsupported_media_type"
        )


async def receive_body(receive: Receive, limits: Limits) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413 as soon as it is too long, 408 if it takes too long. ClientGone.
    """
    try:
        with anyio.fail_after(limits.body_s):
            return await _whole_body(receive, limits)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_s:g} s"
        raise ApiError(408, message, kind="timeout_error", code="timeout") from None


async def _whole_body(receive: Receive, limits: Limits) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        body += event.get("body", b"")
        if len(body) > limits.body_bytes:
            raise _too_large(limits)
        if not event.get("more_body", False):
            return bytes(body)


async def discard_body(receive: Receive, most_bytes: int, seconds: float) -> None:
    """Take what a client still sends, for a while: one that is cut off while it sends does not see its answer."""
    taken = 0
    with anyio.move_on_after(seconds):
        while taken <= most_bytes:
            event = await receive()
            if event["type"] == "http.disconnect" or not event.get("more_body", False):
                return
            taken += len(event.get("body", b""))


def read_json(body: bytes, limits: Limits) -> dict[str, Any]:
    """The object that a body holds.

    Raises:
        ApiError: 400: not UTF-8, not JSON, no object, too deep, too many values, a name twice in one object, or a
            number that JSON does not have.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_json(f"it is not UTF-8 at byte {error.start}") from None
    depth, values = _shape(body)
    if depth > limits.json_depth:
        raise _not_json(f"it is more than {limits.json_depth} levels deep")
    if values > limits.json_values:
        raise _not_json(f"it has more than {limits.json_values} values")
    try:
        content = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise _not_json(f"character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise _not_json("it is too deep") from None
    except ValueError as error:
        # An integer of more digits than Python converts.
        raise _not_json(str(error)) from None
    if not isinstance(content, dict):
        raise _not_json(f"it holds {_kind(content)}; expected an object")
    return content


def _shape(body: bytes) -> tuple[int, int]:
    """The deepest level and about how many values, before anything is built from the body."""
    # Without escapes, every quote opens or closes a string.
    plain = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), dtype=np.uint8)
    deepest = level = values = 0
    quoted = False
    for start in range(0, len(plain), _PIECE):
        piece = plain[start : start + _PIECE]
        inside = (np.cumsum(piece == _QUOTE) + quoted) % 2 == 1
        quoted = bool(inside[-1])
        outside = ~inside
        opens = outside & np.isin(piece, _OPEN)
        levels = level + np.cumsum(opens.astype(np.int32) - (outside & np.isin(piece, _CLOSE)))
        values += int((outside & (piece == _COMMA)).sum() + opens.sum())
        deepest, level = max(deepest, int(levels.max())), int(levels[-1])
    return deepest, values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise _not_json(f"the name {shown(twice)} stands twice in one object")
    return found


def _no_constant(name: str) -> None:
    raise _not_json(f"{name} is no number in JSON")


def _kind(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _not_json(why: str) -> ApiError:
    return refused(None, f"the body is not JSON that can be used: {why}", code="invalid_json")


def _too_large(limits: Limits) -> ApiError:
    return ApiError(
        413, f"the body has more than {limits.body_bytes} bytes; expected at most that many", code="body_too_large"
    )
