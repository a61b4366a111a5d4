"""The way from a page of the built book to the same page in another language."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urljoin

from page_markup import add_to_head, replaced, to_root
from page_meta import MISSING, SEARCH, Site

from ds41.language import LANGUAGES

# Before the buttons over a page's text.
_BUTTONS = '<div class="article-header-buttons">'


def link(pages: dict[Path, str], built: Path, site: Site, languages: list[str]) -> None:
    """Give every page a link to itself in each other language, for readers and for search engines, in place.

    Raises:
        PageError: a page has no place for it.
    """
    others = [code for code in languages if code != site.language]
    if not others:
        return
    home = site.address if site.language == "en" else urljoin(site.address, "../")
    for path in pages:
        name = path.relative_to(built).as_posix()
        switch = "".join(_link(path, built, name, site.language, code) for code in others)
        pages[path] = replaced(pages[path], _BUTTONS, f"{_BUTTONS}\n{switch}", "row of buttons over the text", 1)
        if name not in (SEARCH, MISSING):
            lines = (
                f'<link rel="alternate" hreflang="{code}" href="{home}{folder(code)}{name}" />\n' for code in languages
            )
            pages[path] = add_to_head(pages[path], "".join(lines))


def folder(language: str) -> str:
    """Where an edition lies below the site: English is the site itself."""
    return "" if language == "en" else f"{language}/"


def _link(path: Path, built: Path, name: str, language: str, other: str) -> str:
    # From an edition's folder up to the site, and down again.
    up = to_root(path, built) + ("" if language == "en" else "../")
    return (
        f'<a class="btn btn-sm ds-language" href="{up}{folder(other)}{name}" lang="{other}" hreflang="{other}">'
        # A phone has no room for the name.
        f'<span class="ds-name">{LANGUAGES[other]}</span><span class="ds-code">{other.upper()}</span></a>\n'
    )
