"""The language that figures, tables and the checks of exercises speak: English as written, or German by catalogue.

English is the source: every text stands in the code as it is said. Another language is a folder of gettext
catalogues beside this file. What a catalogue lacks stays English. Code, and what code prints, stay as they are.

Source: ds41's own.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real

from ds41.language import markup
from ds41.language.catalogue import LANGUAGES, Catalogue, load
from ds41.language.numbers import german

__all__ = ["LANGUAGES", "Catalogue", "current", "load", "phrase", "say", "speaking", "translations", "use"]

_current = "en"
_spoken: Catalogue | None = None


def use(language: str) -> None:
    """Speak ``language``, a code of :data:`LANGUAGES`, from now on.

    Raises:
        ValueError: an unknown language.
        ModuleNotFoundError: the language needs Babel, which reads its catalogues and is not installed.
    """
    global _current, _spoken
    if language not in LANGUAGES:
        raise ValueError(f"language is {language!r}; expected one of {', '.join(map(repr, LANGUAGES))}")
    _spoken = None if language == "en" else load(language)
    _current = language


def current() -> str:
    """The code of the language that is spoken now."""
    return _current


def translations() -> Catalogue | None:
    """The translations of the current language; None for English."""
    return _spoken


@contextmanager
def speaking(catalogue: Catalogue) -> Iterator[None]:
    """Have ``catalogue`` asked for every text meanwhile."""
    global _current, _spoken
    before = _current, _spoken
    _current, _spoken = catalogue.language, catalogue
    try:
        yield
    finally:
        _current, _spoken = before


def phrase(text: str) -> str:
    """A composed text without markup in the current language, as figures have theirs: its numbers are places."""
    return text if _spoken is None else markup.plain(text, _spoken.find)


def say(message: str, /, **values: object) -> str:
    """A message in the current language, with ``values`` in the places that its braces name, as by str.format.

    Messages are literals, so that ``ci/catalogues.py`` finds them in the source.
    """
    book = translations()
    translated = book.find(message, "say") if book is not None else None
    if not values:
        return translated or message
    if translated is None:
        return message.format(**values)
    return _German().vformat(translated, (), values)


class _German(string.Formatter):
    """Numbers as prose has them; what is shown as code, by !r, stays as it is."""

    def format_field(self, value: object, format_spec: str) -> str:
        text = super().format_field(value, format_spec)
        return german(text) if isinstance(value, Real) and not isinstance(value, bool) else text


if os.environ.get("DS41_LANGUAGE"):
    use(os.environ["DS41_LANGUAGE"])
