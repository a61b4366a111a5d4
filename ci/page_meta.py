"""What a built page says of itself to search engines, to chats that show a card of it, and to the lost.

A page's description is its opening: the one-line answer to its question. `index.html` is a door with the same words
as the first page. `404.html` is the search page with addresses that work at any depth, as it is shown at any.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlparse

LENGTH = 200
_SHORTEST = 60
# Sidenotes, figures, folded things and code do not open a page.
_SKIPPED = {"aside", "figure", "details", "pre", "table", "style", "script", "nav", "svg"}

MISSING_TITLE = "Page not found"
MISSING_TEXT = "There is no page at this address. It may have moved: look for its words, or begin at the first page."
MISSING_LINK = "The first page"


class MetaError(Exception):
    """A page says too little of itself."""


@dataclass(frozen=True)
class Site:
    """Where the book is published, ending in a slash; what it is called; its first page, as `book/intro.html`."""

    address: str
    title: str
    first: str

    @property
    def path(self) -> str:
        """The part of the address that belongs to the site: `/ds41/`."""
        return urlparse(self.address).path


class _Opening(HTMLParser):
    """The title and the paragraphs of a page's text, as plain words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.title = ""
        self.paragraphs: list[str] = []
        self._open: str | None = None
        self._words: list[str] = []
        self._depth = 0
        self._article = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        classes = (dict(attributes).get("class") or "").split()
        if tag == "article":
            self._article = True
        if not self._article:
            return
        if tag in _SKIPPED or (self._depth and tag == "div") or {"admonition", "margin"} & set(classes):
            self._depth += tag in _SKIPPED or tag == "div"
        elif tag in ("h1", "p") and not self._depth:
            self._open, self._words = tag, []
        elif "headerlink" in classes:
            self._close()

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._article = False
        elif self._depth and (tag in _SKIPPED or tag == "div"):
            self._depth -= 1
        elif tag == self._open:
            self._close()

    def handle_data(self, text: str) -> None:
        if self._open:
            self._words.append(text)

    def _close(self) -> None:
        words = " ".join("".join(self._words).split())
        if self._open == "h1" and not self.title:
            self.title = words
        elif self._open == "p" and words:
            self.paragraphs.append(words)
        self._open = None


def describe(page: str) -> tuple[str, str]:
    """The page's title and its opening in at most :data:`LENGTH` letters, cut at the end of a sentence or word."""
    opening = _Opening(page)
    text = ""
    for paragraph in opening.paragraphs:
        # Formulas are TeX until a script has drawn them; numbers of references mean nothing here.
        words = re.sub(r"\\[(\[].*?\\[)\]]", "", paragraph)
        words = re.sub(r"\s*\[\d+\]", "", words)
        text = f"{text} {' '.join(words.split())}".strip()
        if len(text) >= _SHORTEST:
            break
    return opening.title, _cut(text)


def _cut(text: str) -> str:
    if len(text) <= LENGTH:
        return text
    ends = [match.end() for match in re.finditer(r"[.?!](?= )", text[: LENGTH + 1])]
    if ends and ends[-1] >= _SHORTEST:
        return text[: ends[-1]]
    return text[: text.rfind(" ", 0, LENGTH)].rstrip(" ,;:—–-") + "…"


def head_tags(site: Site, name: str, title: str, text: str, card: str) -> str:
    """The tags for one page: description, Open Graph, and the card's picture, an address within the site."""
    facts = [
        ("name", "description", text),
        ("property", "og:type", "website" if name == site.first else "article"),
        ("property", "og:site_name", site.title),
        ("property", "og:title", title),
        ("property", "og:description", text),
        ("property", "og:url", urljoin(site.address, name)),
        ("property", "og:image", urljoin(site.address, card)),
        ("property", "og:image:width", "1200"),
        ("property", "og:image:height", "630"),
        ("property", "og:image:alt", title),
        ("name", "twitter:card", "summary_large_image"),
    ]
    return "".join(f'<meta {kind}="{key}" content="{html.escape(value)}" />\n' for kind, key, value in facts)


def add_meta(pages: dict[Path, str], folder: Path, site: Site, names: list[str]) -> dict[str, str]:
    """Describe the book's pages, whose addresses within the site are `names`; returns the title of each.

    Raises:
        MetaError: a page has no title or no text.
    """
    titles = {}
    for name in names:
        title, text = describe(pages[folder / name])
        if not title or not text:
            raise MetaError(f"{name} has {'no text' if title else 'no title'} to describe it by")
        tags = head_tags(site, name, title, text, card_name(name))
        pages[folder / name] = pages[folder / name].replace("</head>", f"{tags}</head>", 1)
        titles[name] = title
    pages[folder / "index.html"] = door(site, pages[folder / site.first])
    pages[folder / "404.html"] = missing_page(pages[folder / "search.html"], site)
    (folder / "robots.txt").write_text(
        f"User-agent: *\nAllow: /\nSitemap: {urljoin(site.address, 'sitemap.xml')}\n", encoding="utf-8"
    )
    for name in ("search.html", "genindex.html", "404.html"):
        if folder / name in pages:
            page = pages[folder / name]
            page = re.sub(r'\s*<link rel="canonical"[^>]*>', "", page)
            pages[folder / name] = page.replace("</head>", '<meta name="robots" content="noindex" />\n</head>', 1)
    return titles


def card_name(page: str) -> str:
    """The address within the site of the card for the page `book/intro.html`."""
    return f"_static/cards/{Path(page).stem}.png"


def door(site: Site, first: str) -> str:
    """`index.html`: sends readers on to the first page, with its words for whoever shows a card of the address."""
    title = html.escape(site.title)
    tags = "".join(re.findall(r'<meta (?:name="(?:description|twitter)|property="og)[^>]*>\n', first))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n<title>{title}</title>\n'
        f'<meta http-equiv="refresh" content="0; url={site.first}" />\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        f'<link rel="canonical" href="{urljoin(site.address, site.first)}" />\n{tags}'
        f'</head>\n<body><p><a href="{site.first}">{title}</a></p></body>\n</html>\n'
    )


def missing_page(search: str, site: Site) -> str:
    """`404.html`, made of the search page."""
    page = re.sub(r"<title>.*?</title>", f"<title>{MISSING_TITLE} — {html.escape(site.title)}</title>", search, count=1)
    page = re.sub(r'\s*<script[^>]* src="[^"]*(?:searchtools|language_data|searchindex)\.js[^"]*"></script>', "", page)
    start = page.index('<div class="bd-search-container">')
    before, after = page[:start], page[start:]
    after = re.sub(
        r"<h1>.*?</h1>\s*<noscript>.*?</noscript>",
        f"<h1>{MISSING_TITLE}</h1>\n<p>{MISSING_TEXT}</p>",
        after,
        count=1,
        flags=re.DOTALL,
    )
    link = f'<p><a href="{site.first}">{MISSING_LINK}</a></p>'
    after = after.replace('<div id="search-results"></div>', link, 1).replace('action="#"', 'action="search.html"', 1)
    after = re.sub(r"\s*<script>\s*// Activate the search field.*?</script>", "", after, count=1, flags=re.DOTALL)
    page = before + after

    def absolute(match: re.Match) -> str:
        if match[2].startswith("#") or urlparse(match[2]).scheme:
            return match[0]
        return f'{match[1]}"{urljoin(site.path, match[2])}"'

    page = re.sub(r'(\s(?:href|src|action)=)"([^"]*)"', absolute, page)
    return re.sub(r'data-content_root="[^"]*"', f'data-content_root="{site.path}"', page, count=1)
