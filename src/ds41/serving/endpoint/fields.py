"""The fields of a request that say how to answer: which are taken, which change nothing, which are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ds41.serving.endpoint.errors import refused, shown
from ds41.serving.endpoint.limits import Limits

_MOST_STOPS, _LONGEST_STOP = 4, 256
_HOTTEST = 2.0

# Fields that say nothing about the answer.
_WITHOUT_EFFECT = {
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    "safety_identifier", "service_tier", "store", "user",
}  # fmt: skip
# Fields whose other values would change it, with the values that ask for what is done anyway.
_ONE_WAY: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


@dataclass(frozen=True)
class Asked:
    """How a client wants to be answered.

    usage_in_stream: a last chunk says what it cost. max_tokens: None for as many as there is room for. The rest as in
    :func:`ds41.generation.generate`; stops: texts that end the answer and are not part of it.
    """

    stream: bool
    usage_in_stream: bool
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stops: tuple[str, ...]


class Fields:
    """The fields of a JSON object, each taken once; null is the same as absent.

    Raises:
        ApiError: 400: a field of another type or out of its range.
    """

    def __init__(self, content: Mapping[str, Any], within: str = "") -> None:
        self._left = {name: value for name, value in content.items() if value is not None}
        self._within = within

    def name(self, name: str) -> str:
        """The field's name in errors."""
        return f"{self._within}.{name}" if self._within else name

    def value(self, name: str) -> Any:
        """What was given, or None."""
        return self._left.pop(name, None)

    def needed(self, name: str) -> Any:
        if name not in self._left:
            raise refused(self.name(name), "is missing")
        return self.value(name)

    def text(self, name: str) -> str:
        return checked_text(self.needed(name), self.name(name))

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise refused(self.name(name), f"is {shown(value)}; expected true or false")
        return bool(value)

    def integer(self, name: str, least: int, most: int) -> int | None:
        value = self.value(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
            raise refused(self.name(name), f"is {shown(value)}; expected an integer from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float, default: float) -> float:
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise refused(self.name(name), f"is {shown(value)}; expected a number from {least:g} to {most:g}")
        return float(value)

    def refuse_rest(self) -> None:
        """Refuse what nobody has taken, but for what changes nothing."""
        for name, value in self._left.items():
            if name in _WITHOUT_EFFECT:
                continue
            if name not in _ONE_WAY:
                raise refused(shown(name)[1:-1], "is no field that this server knows", code="unknown_field")
            allowed = _ONE_WAY[name]
            if not any(_same(value, one) for one in allowed):
                expected = " or ".join(["nothing", *map(json.dumps, allowed)])
                raise refused(name, f"is not supported; expected {expected}", code="unsupported_field")

    def refuse_all(self) -> None:
        """Refuse whatever nobody has taken."""
        for name, value in self._left.items():
            if value != []:
                raise refused(self.name(shown(name)[1:-1]), "is not supported", code="unsupported_field")


def read_asked(fields: Fields, limits: Limits) -> Asked:
    """The fields that both completions have.

    Raises:
        ApiError: 400.
    """
    stream = fields.flag("stream")
    most = limits.answer_tokens
    tokens = {name: fields.integer(name, 1, most) for name in ("max_tokens", "max_completion_tokens")}
    if None not in tokens.values():
        raise refused("max_tokens", "and max_completion_tokens are the same; expected one of them")
    top_p = fields.number("top_p", 0, 1, 1.0)
    if top_p == 0:
        raise refused("top_p", "is 0; expected a number above 0 and up to 1")
    return Asked(
        stream=stream,
        usage_in_stream=_usage_in_stream(fields, stream),
        max_tokens=next((number for number in tokens.values() if number is not None), None),
        temperature=fields.number("temperature", 0, _HOTTEST, 1.0),
        top_p=top_p,
        seed=fields.integer("seed", 0, 2**64 - 1),
        stops=_stops(fields.value("stop")),
    )


def checked_text(value: Any, name: str) -> str:
    """A string that is one.

    Raises:
        ApiError: 400: something else, or a string with halves of characters.
    """
    if not isinstance(value, str):
        raise refused(name, f"is {shown(value)}; expected a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise refused(name, f"has half of a surrogate pair at character {error.start}") from None
    return value


def _same(value: Any, other: Any) -> bool:
    """Whether two values are the same in JSON, where 0.0 is 0 and true is not 1."""
    if type(value) is float and type(other) is int:
        return value == other
    return json.dumps(value) == json.dumps(other)


def _usage_in_stream(fields: Fields, stream: bool) -> bool:
    options = fields.value("stream_options")
    if options is None:
        return False
    if not stream:
        raise refused("stream_options", "is for streams; expected stream to be true")
    if not isinstance(options, dict):
        raise refused("stream_options", f"is {shown(options)}; expected an object")
    inner = Fields(options, "stream_options")
    included = inner.flag("include_usage")
    # Padding against a listener on the line, which only a false value turns off.
    if inner.flag("include_obfuscation"):
        raise refused("stream_options.include_obfuscation", "is not supported", code="unsupported_field")
    inner.refuse_all()
    return included


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    if len(values) > _MOST_STOPS:
        raise refused("stop", f"has {len(values)} strings; expected up to {_MOST_STOPS}")
    stops = tuple(checked_text(text, "stop") for text in values)
    for text in stops:
        if not 0 < len(text) <= _LONGEST_STOP:
            raise refused("stop", f"has a string of {len(text)} characters; expected 1 to {_LONGEST_STOP}")
    return stops
