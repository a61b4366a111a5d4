"""The language that figures, tables and the checks of exercises speak: English as written, or German by catalogue.

English is the source: every text stands in the code as it is said. Another language is a folder of gettext
catalogues beside this file. What a catalogue lacks stays English. Code, and what code prints, stay as they are.

Source: ds41's own.
"""

from __future__ import annotations

import os

from ds41.language.catalogue import LANGUAGES, Catalogue, load

__all__ = ["LANGUAGES", "Catalogue", "catalogue", "current", "load", "say", "use"]

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


def catalogue() -> Catalogue | None:
    """The translations of the current language; None for English."""
    return None if _current == "en" else load(_current)


def say(message: str, /, **values: object) -> str:
    """A message in the current language, with ``values`` in the places that its braces name, as by str.format.

    Messages are literals, so that ``ci/catalogues.py`` finds them in the source.
    """
    book = catalogue()
    if book is not None:
        message = book.find(message, "say") or message
    return message.format(**values) if values else message


if os.environ.get("DS41_LANGUAGE"):
    use(os.environ["DS41_LANGUAGE"])
