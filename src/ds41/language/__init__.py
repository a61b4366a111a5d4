"""The language that figures, tables and the checks of exercises speak: English as written, or German by catalogue.

English is the source: every text stands in the code as it is said. Another language is a folder of gettext
catalogues beside this file. What a catalogue lacks stays English. Code, and what code prints, stay as they are.

Source: ds41's own.
"""

from __future__ import annotations

import os
import string
from numbers import Real

from ds41.language.catalogue import LANGUAGES, Catalogue, load
from ds41.language.numbers import german

__all__ = ["LANGUAGES", "Catalogue", "current", "load", "say", "translations", "use"]

_current = "en"


def use(language: str) -> None:
    """Speak ``language``, a code of :data:`LANGUAGES`, from now on.

    Raises:
        ValueError: an unknown language.
        ModuleNotFoundError: the language needs Babel, which reads its catalogues and is not installed.
    """
    global _current
    if language not in LANGUAGES:
        raise ValueError(f"language is {language!r}; expected one of {', '.join(map(repr, LANGUAGES))}")
    if language != "en":
        load(language)
    _current = language


def current() -> str:
    """The code of the language that is spoken now."""
    return _current


def translations() -> Catalogue | None:
    """The translations of the current language; None for English."""
    return None if _current == "en" else load(_current)


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
