"""Gettext catalogues: which text stands for which in another language.

Source: ds41's own; the file format is GNU gettext's.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

LANGUAGES = {"en": "English", "de": "Deutsch"}
"""The languages there are by their codes, each by its own name."""

FOLDER = Path(__file__).parent
"""Where the catalogues of a language lie, in a folder that has its code."""


class Catalogue:
    """Translations by text and context.

    Attributes:
        language: code of the language.
        texts: the translations by (text, context).
        missed: texts that were asked for and not found, with their contexts.
    """

    def __init__(self, language: str, texts: dict[tuple[str, str], str]) -> None:
        self.language = language
        self.texts = texts
        self.missed: set[tuple[str, str]] = set()

    @property
    def locale(self) -> str:
        """What browsers call the language's way to write numbers."""
        return {"de": "de-DE"}[self.language]

    def of(self, context: str) -> list[tuple[str, str]]:
        """The texts of a context and their translations."""
        return [(text, translated) for (text, where), translated in self.texts.items() if where == context]

    def find(self, text: str, context: str = "") -> str | None:
        """The translation of ``text``, or None.

        Args:
            text: as the source says it.
            context: where such texts stand: "" in pages and figures, "say" in messages of Python, "script" in
                JavaScript.
        """
        found = self.texts.get((text, context))
        if found is None:
            self.missed.add((text, context))
        return found


def read(path: Path) -> dict[tuple[str, str], str]:
    """The translated messages of one catalogue by (text, context); fuzzy ones are not translated.

    Raises:
        ModuleNotFoundError: Babel is not installed.
        ValueError: the file is not a catalogue.
    """
    try:
        from babel.messages.pofile import PoFileError, read_po
    except ModuleNotFoundError:
        raise ModuleNotFoundError("another language than English needs Babel: pip install babel") from None
    try:
        with path.open("rb") as file:
            catalogue = read_po(file, abort_invalid=True)
    except (PoFileError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a gettext catalogue: {error}") from error
    return {
        (message.id, message.context or ""): message.string
        for message in catalogue
        if message.id and message.string and not message.fuzzy
    }


@lru_cache
def load(language: str) -> Catalogue:
    """The catalogues of a language as one.

    Raises:
        ValueError: there are none.
        ModuleNotFoundError: Babel is not installed.
    """
    paths = sorted((FOLDER / language).glob("*.po"))
    if not paths:
        raise ValueError(f"no catalogue of the language {language!r} in {FOLDER}")
    return Catalogue(language, {key: text for path in paths for key, text in read(path).items()})
