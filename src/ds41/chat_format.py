"""Messages as token ids: how turns of a conversation are written for a model.

Source of the role tokens: the encoding notes of the released DeepSeek-V4 checkpoints (chat mode, without thinking).
"""

from __future__ import annotations

from tokenizers import Tokenizer

from ds41.config import ModelConfig

_USER, _ASSISTANT, _NO_THOUGHT = "<｜User｜>", "<｜Assistant｜>", "</think>"


class Turns:
    """Messages as token ids: with the tokenizer's role tokens, or in plain words where it has none.

    Text is text: the name of a special token in a message does not become that token.
    """

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._user, self._assistant = tokenizer.token_to_id(_USER), tokenizer.token_to_id(_ASSISTANT)
        self._no_thought = tokenizer.token_to_id(_NO_THOUGHT)

    def prompt(self, message: str, system: str | None = None, first: bool = False) -> list[int]:
        """What a message adds to the conversation, up to where the answer begins.

        Args:
            system: instructions before the first message. first: nothing has been said before.
        """
        begin = [self._config.bos_token_id, *self._text(system or "")] if first else []
        if self._user is None or self._assistant is None:
            gap = "\n\n" if system or not first else ""
            return begin + self._text(f"{gap}User: {message}\n\nAssistant:")
        # The token that ends an answer is not part of it.
        ended = [] if first else [self._config.eos_token_id]
        answer = [self._assistant, *([] if self._no_thought is None else [self._no_thought])]
        return [*begin, *ended, self._user, *self._text(message), *answer]

    def _text(self, text: str) -> list[int]:
        if not text:
            return []
        self._tokenizer.encode_special_tokens = True
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        finally:
            self._tokenizer.encode_special_tokens = False
