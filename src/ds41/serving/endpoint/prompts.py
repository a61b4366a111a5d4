"""What a client wants to have continued, as token ids and pictures."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from ds41.chat_format import Message, Turns
from ds41.config import ModelConfig
from ds41.serving.endpoint.errors import ApiError, refused, shown
from ds41.serving.endpoint.fields import Fields, checked_text
from ds41.serving.endpoint.limits import Limits

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_DATA_URL = re.compile(r"data:image/(?:png|jpeg|jpg|webp|gif|bmp);base64,", re.ASCII | re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:", re.ASCII)


def read_messages(value: Any, limits: Limits) -> list[Message]:
    """The messages of a conversation.

    Raises:
        ApiError: 400; ``param`` says which message is at fault.
    """
    if not isinstance(value, list) or not value:
        raise refused("messages", "is no list of messages; expected one or more")
    if len(value) > limits.messages:
        raise refused("messages", f"has {len(value)} messages; expected up to {limits.messages}")
    pictures: list[str] = []
    return [_message(one, f"messages[{place}]", limits, pictures) for place, one in enumerate(value)]


def chat_ids(turns: Turns, messages: list[Message]) -> tuple[list[int], tuple[bytes, ...]]:
    """The ids of a conversation and its pictures, in their order.

    Raises:
        ApiError: 400: an order of messages that is none.
    """
    try:
        ids = turns.messages(messages)
    except ValueError as error:
        raise ApiError(400, str(error), param="messages") from None
    return ids, tuple(picture for message in messages for picture in message.pictures)


def completion_ids(turns: Turns, config: ModelConfig, prompt: Any) -> list[int]:
    """The ids of a prompt: a text after the token that begins one, or ids as they are. A list may hold one of either.

    Raises:
        ApiError: 400.
    """
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return [config.bos_token_id, *turns.text(checked_text(prompt, "prompt"))]
    if isinstance(prompt, list) and len(prompt) > 1:
        for kind, several in ((str, "texts"), (list, "lists of token ids")):
            if all(isinstance(one, kind) for one in prompt):
                raise refused("prompt", f"holds several {several}; expected one text, or token ids")
    if not isinstance(prompt, list) or not prompt:
        raise refused("prompt", f"is {shown(prompt)}; expected one string or one list of token ids")
    for place, token in enumerate(prompt):
        if type(token) is not int or not 0 <= token < config.vocab_size:
            raise refused(f"prompt[{place}]", f"is {shown(token)}; expected a token id below {config.vocab_size}")
        if token == config.image_token_id:
            raise refused(f"prompt[{place}]", "is the place of a picture; pictures stand in chat messages")
    return prompt


def _message(value: Any, name: str, limits: Limits, pictures: list[str]) -> Message:
    if not isinstance(value, dict):
        raise refused(name, f"is {shown(value)}; expected an object with role and content")
    fields = Fields(value, name)
    role = fields.text("role")
    if role not in _ROLES:
        raise refused(fields.name("role"), f"is {shown(role)}; expected one of {', '.join(_ROLES)}")
    content = fields.needed("content")
    fields.refuse_all()
    where = fields.name("content")
    if isinstance(content, str):
        return Message(_ROLES[role], (checked_text(content, where),))
    if not isinstance(content, list) or not content:
        raise refused(where, f"is {shown(content)}; expected a string or a list of parts")
    parts = []
    for place, part in enumerate(content):
        parts.append(_part(part, f"{where}[{place}]", role, limits, pictures))
    return Message(_ROLES[role], tuple(parts))


def _part(value: Any, name: str, role: str, limits: Limits, pictures: list[str]) -> str | bytes:
    if not isinstance(value, dict):
        raise refused(name, f"is {shown(value)}; expected an object with type and content")
    fields = Fields(value, name)
    kind = fields.text("type")
    if kind == "text":
        part: str | bytes = fields.text("text")
    elif kind == "image_url" and role == "user":
        pictures.append(name)
        if len(pictures) > limits.pictures:
            raise refused(name, f"is picture {len(pictures)}; expected up to {limits.pictures} in a request")
        part = _picture(fields.needed("image_url"), fields.name("image_url"), limits)
    else:
        expected = "text or image_url" if role == "user" else "text"
        raise refused(fields.name("type"), f"is {shown(kind)}; expected {expected} in a message of the {role}'s")
    fields.refuse_all()
    return part


def _picture(value: Any, name: str, limits: Limits) -> bytes:
    if not isinstance(value, dict):
        raise refused(name, f"is {shown(value)}; expected an object with url")
    fields = Fields(value, name)
    url, detail = fields.needed("url"), fields.value("detail")
    fields.refuse_all()
    where = fields.name("url")
    if detail not in (None, "auto"):
        raise refused(fields.name("detail"), f"is {shown(detail)}; expected auto")
    if not isinstance(url, str):
        raise refused(where, f"is {shown(url)}; expected a data: URL")
    head = _DATA_URL.match(url)
    if head is None:
        scheme = _SCHEME.match(url)
        what = "is no URL" if scheme is None else f"begins with {scheme[0].lower()}"
        raise refused(
            where, f"{what} and no picture; this server fetches nothing, expected data:image/png;base64,... or the "
            "same with jpeg, webp, gif or bmp", code="invalid_image_url"
        )  # fmt: skip
    data = url[head.end() :]
    if len(data) // 4 * 3 > limits.picture_bytes + 2:
        raise refused(where, f"holds more than {limits.picture_bytes} bytes", code="image_too_large")
    try:
        picture = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise refused(where, "is not base64", code="invalid_image") from None
    if not 0 < len(picture) <= limits.picture_bytes:
        raise refused(where, f"holds {len(picture)} bytes; expected 1 to {limits.picture_bytes}", code="invalid_image")
    return picture
