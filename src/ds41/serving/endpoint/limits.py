"""What one client, and all of them together, may ask of the endpoint.

Source: ds41's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

_BYTES, _TOKENS, _SECONDS, _COUNT = "bytes", "tokens", "seconds", "count"


def _limit(default: float, unit: str, meaning: str) -> float:
    return field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True)
class Limits:
    """Bounds of requests. Each field's metadata has its ``unit`` and its ``meaning`` in words, for the command line.

    Raises:
        ValueError: a bound that is not a positive number.
    """

    body_bytes: int = _limit(2**24, _BYTES, "of a request's body")
    body_s: float = _limit(30.0, _SECONDS, "for a body to arrive")
    header_bytes: int = _limit(2**14, _BYTES, "of a request's headers")
    header_s: float = _limit(10.0, _SECONDS, "for a request's headers to arrive")
    idle_s: float = _limit(60.0, _SECONDS, "of a connection between two requests")
    connections: int = _limit(1024, _COUNT, "connections at once")
    running: int = _limit(64, _COUNT, "requests at once")
    running_tenant: int = _limit(32, _COUNT, "requests of one tenant at once")
    request_s: float = _limit(600.0, _SECONDS, "of a request in total")
    unread_s: float = _limit(30.0, _SECONDS, "that a client may leave an answer unread")
    quiet_s: float = _limit(10.0, _SECONDS, "of a stream without a word, before a comment says that it lives")
    prompt_tokens: int = _limit(2**20, _TOKENS, "of a prompt")
    answer_tokens: int = _limit(4096, _TOKENS, "of an answer")
    messages: int = _limit(4096, _COUNT, "messages of a conversation")
    pictures: int = _limit(16, _COUNT, "pictures of a request")
    picture_bytes: int = _limit(2**23, _BYTES, "of one picture's file")
    json_depth: int = _limit(16, _COUNT, "levels of a body's JSON")
    json_values: int = _limit(2**21, _COUNT, "values in a body's JSON")

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"limit {bound.name} is {value}; expected a positive number")
