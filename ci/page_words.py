"""What the theme says on every page, in the page's language: it has few words of German, and some that nobody says."""

from __future__ import annotations

import re
from html import escape

from ds41 import language
from ds41.language import say

_ATTRIBUTES = "aria-label|alt|data-bs-title|placeholder|title"


def _words() -> dict[str, str]:
    """From what the theme says, in English or in its own German, to what a page of this language should say."""
    return {
        "Back to top": say("Back to top"),
        "Color mode": say("Color mode"),
        "Colab logo": say("Colab logo"),
        "Dark": say("Dark"),
        "Durch the ds41 authors": say("By the ds41 authors"),
        "In PDF drucken": say("Print to PDF"),
        "Laden Sie diese Seite herunter": say("Download this page"),
        "Launch interactive content": say("Launch interactive content"),
        "Launch on Colab": say("Launch on Colab"),
        "Light": say("Light"),
        "Link to this definition": say("Link to this definition"),
        "Link to this heading": say("Link to this heading"),
        "Link to this term": say("Link to this term"),
        "Main": say("Main"),
        "Open issue": say("Open issue"),
        "Page": say("Page"),
        "Search this book...": say("Search this book..."),
        "Skip to main content": say("Skip to main content"),
        "Source repositories": say("Source repositories"),
        "System Settings": say("System Settings"),
        "Toggle primary sidebar": say("Toggle primary sidebar"),
        "Toggle secondary sidebar": say("Toggle secondary sidebar"),
        "Version warning": say("Version warning"),
        "next page": say("next page"),
        "previous page": say("previous page"),
        "Öffnen Sie ein Problem": say("Open issue"),
    }


def translate(page: str) -> str:
    """A page with the theme's words in the language that is spoken; an English one as it is."""
    if language.current() == "en":
        return page
    words = _words()
    known = "|".join(re.escape(word) for word in words)
    spoken = rf'(?P<before>\s(?:{_ATTRIBUTES})=")(?P<word>{known})(?=")'
    page = re.sub(spoken, lambda match: match["before"] + escape(words[match["word"]]), page)
    # What stands alone between two tags, around the text of the book: within it such words may be code.
    before, article, rest = page.partition("<article")
    text, end, after = rest.partition("</article>")
    written = rf"(?P<before>>\s*)(?P<word>{known})(?=\s*<)"
    before, after = (
        re.sub(written, lambda match: match["before"] + escape(words[match["word"]], quote=False), part)
        for part in (before, after)
    )
    return before + article + text + end + after
