"""The text of an answer while it grows: whole characters, and nothing of what a stop string cuts off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from ds41.generation import Characters


class AnswerText:
    """Tokens in, text out; what may yet become a character or a stop string is held back.

    Args:
        stops: texts that end the answer; they and what follows are cut.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._characters, self._stops = Characters(tokenizer), tuple(stops)
        self._held = ""
        self.tokens = 0
        self.stopped = False

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that has become certain with more tokens. ``tokens`` counts those up to the end of a stop string."""
        pieces = []
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            pieces.append(self._certain(self._characters.feed(token)))
        return "".join(pieces)

    def finish(self) -> str:
        """The text that was held back, once the answer has ended."""
        if self.stopped:
            return ""
        certain = self._certain(self._characters.finish())
        held, self._held = self._held, ""
        return certain if self.stopped else certain + held

    def _certain(self, piece: str) -> str:
        """What of the held text and ``piece`` cannot belong to a stop string any more."""
        text = self._held + piece
        found = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            # The one that is complete first, however the tokens divide the text.
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """The longest end of a text that begins a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if stop.startswith(text[-length:])), 0)
