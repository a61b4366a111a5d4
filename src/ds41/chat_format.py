"""Messages as token ids: how turns of a conversation are written for a model.

Source of the role tokens: the encoding notes of the released DeepSeek-V4 checkpoints (chat mode, without thinking).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from tokenizers import Tokenizer

from ds41.config import ModelConfig

_USER, _ASSISTANT, _NO_THOUGHT = "<｜User｜>", "<｜Assistant｜>", "</think>"


@dataclass(frozen=True)
class Message:
    """What one side said: texts, and pictures as the bytes of their files, in their order."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[str | bytes, ...]

    @property
    def text(self) -> str:
        """All texts, joined."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def pictures(self) -> tuple[bytes, ...]:
        return tuple(part for part in self.parts if isinstance(part, bytes))


class Turns:
    """Messages as token ids: with the tokenizer's role tokens, or in plain words where it has none.

    Text is text: the name of a special token in a message does not become that token. Several threads may use it.
    """

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._config = config
        self._user, self._assistant = tokenizer.token_to_id(_USER), tokenizer.token_to_id(_ASSISTANT)
        self._no_thought = tokenizer.token_to_id(_NO_THOUGHT)
        # A copy, since the switch is the tokenizer's own and others use that one.
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.encode_special_tokens = True

    def prompt(self, message: str, system: str | None = None, first: bool = False) -> list[int]:
        """What a message adds to the conversation, up to where the answer begins.

        Args:
            system: instructions before the first message. first: nothing has been said before.
        """
        begin = [self._config.bos_token_id, *self.text(system or "")] if first else []
        # The token that ends an answer is not part of it.
        ended = [] if first or not self._has_roles else [self._config.eos_token_id]
        return [*begin, *ended, *self._said((message,), gap=bool(system) or not first, answered=True)]

    def messages(self, messages: Sequence[Message]) -> list[int]:
        """A whole conversation, up to where the answer to its last message begins.

        A picture is one ``image_token_id``. The ids of a conversation, then those of its answer, begin the ids of the
        conversation that goes on, so long as the answer's text gives the answer's ids again. Turns that
        :meth:`prompt` writes one by one have the same ids.

        Raises:
            ValueError: no messages, instructions after the beginning, or an assistant's message at the end.
        """
        system = list(takewhile(lambda message: message.role == "system", messages))
        talk = messages[len(system) :]
        if not talk or talk[-1].role != "user":
            last = f"the last one is the {messages[-1].role}'s" if messages else "there is none"
            raise ValueError(f"messages end with one of the user; {last}")
        ids = [self._config.bos_token_id, *self.text("\n\n".join(message.text for message in system))]
        gap = any(message.text for message in system)
        for place, message in enumerate(talk):
            if message.role == "system":
                raise ValueError(
                    f"messages[{len(system) + place}] is the system's; expected instructions only before what is said"
                )
            before = talk[place - 1].role if place else None
            if message.role == "user":
                answered = place + 1 == len(talk) or talk[place + 1].role == "assistant"
                ids += self._said(message.parts, gap or place > 0, answered)
            else:
                opened = [] if before == "user" else self._answer(gap or place > 0)
                ids += [*opened, *self.text(message.text), *([self._config.eos_token_id] if self._has_roles else [])]
        return ids

    def text(self, text: str) -> list[int]:
        """The ids of a text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids if text else []

    @property
    def _has_roles(self) -> bool:
        return self._user is not None and self._assistant is not None

    def _said(self, parts: Sequence[str | bytes], gap: bool, answered: bool) -> list[int]:
        """A message of the user; answered: the assistant speaks next."""
        if self._has_roles:
            return [self._user, *self._content(parts), *(self._answer(gap) if answered else [])]
        # One text as far as pictures allow, for a tokenizer may merge over the ends of words.
        begin, end = ("\n\n" if gap else "") + "User: ", "\n\nAssistant:" if answered else ""
        return self._content((begin, *parts, end))

    def _answer(self, gap: bool) -> list[int]:
        """Where an answer begins."""
        if self._has_roles:
            return [self._assistant, *([] if self._no_thought is None else [self._no_thought])]
        return self.text(("\n\n" if gap else "") + "Assistant:")

    def _content(self, parts: Sequence[str | bytes]) -> list[int]:
        ids: list[int] = []
        for part in _joined(parts):
            ids += self.text(part) if isinstance(part, str) else [self._config.image_token_id]
        return ids


def _joined(parts: Sequence[str | bytes]) -> Iterator[str | bytes]:
    """The same parts with texts that stand side by side in one."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            yield text
            yield part
            text = ""
    yield text
