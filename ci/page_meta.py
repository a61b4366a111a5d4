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

from page_markup import PageError, add_to_head, replaced
from project import Project

from ds41.language import say

LENGTH = 200
_SHORTEST = 60
# Sidenotes, figures, folded things and code do not open a page.
_SKIPPED = {"aside", "figure", "details", "pre", "table", "style", "script", "nav", "svg"}

_SEARCH_SCRIPT = re.compile(r'\s*<script[^>]* src="[^"]*(?:searchtools|language_data|searchindex)\.js[^"]*"></script>')
_SEARCH_HEADING = re.compile(
    r'(<div class="bd-search-container">\s*)<h1>.*?</h1>\s*<noscript>.*?</noscript>', re.DOTALL
)
_SEARCH_FORM = re.compile(r'(<div class="bd-search-container">.*?)action="#"', re.DOTALL)

# Pages beside those of the book: the one that a site's address shows, and what a host shows at a dead one.
DOOR, SEARCH, MISSING = "index.html", "search.html", "404.html"


@dataclass(frozen=True)
class Site:
    """Where the book is published, ending in a slash; its title; its first page, as `book/intro.html`; its language."""

    address: str
    title: str
    first: str
    language: str = "en"

    @classmethod
    def of(cls, project: Project) -> Site:
        """The book at its repository's pages address."""
        owner, name = urlparse(project.repository_url).path.strip("/").split("/")
        address = f"https://{owner}.github.io/{name}/"
        # Other languages than English lie in folders of their own.
        address += "" if project.language == "en" else f"{project.language}/"
        return cls(address, project.config["title"], f"{project.page_names[0]}.html", project.language)

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
        PageError: a page has no title, no text or no head; or the search page has not what 404.html is made of.
    """
    titles = {}
    for name in names:
        title, text = describe(pages[folder / name])
        if not title or not text:
            raise PageError(f"{name} has {'no text' if title else 'no title'} to describe it by")
        tags = head_tags(site, name, title, text, card_name(name))
        pages[folder / name] = add_to_head(pages[folder / name], tags)
        titles[name] = title
    pages[folder / DOOR] = door(site, pages[folder / site.first])
    pages[folder / MISSING] = missing_page(pages[folder / SEARCH], site)
    (folder / "robots.txt").write_text(
        f"User-agent: *\nAllow: /\nSitemap: {urljoin(site.address, 'sitemap.xml')}\n", encoding="utf-8"
    )
    for name in (SEARCH, MISSING):
        page = re.sub(r'\s*<link rel="canonical"[^>]*>', "", pages[folder / name])
        pages[folder / name] = add_to_head(page, '<meta name="robots" content="noindex" />\n')
    return titles


def card_name(page: str) -> str:
    """The address within the site of the card for the page `book/intro.html`."""
    return f"_static/cards/{page.removesuffix('.html').replace('/', '-')}.png"


def door(site: Site, first: str) -> str:
    """`index.html`: sends readers on to the first page, with its words for whoever shows a card of the address."""
    title = html.escape(site.title)
    tags = "".join(re.findall(r'<meta (?:name="(?:description|twitter)|property="og)[^>]*>\n', first))
    # A browser that is told of no icon asks for /favicon.ico, which is not there.
    icons = re.findall(r'<link rel="icon" href="([^"]+)"', first)
    tags += "".join(f'<link rel="icon" href="{urljoin(site.first, icon)}" />\n' for icon in icons)
    return (
        f'<!doctype html>\n<html lang="{site.language}">\n<head>\n<meta charset="utf-8" />\n<title>{title}</title>\n'
        f'<meta http-equiv="refresh" content="0; url={site.first}" />\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        f'<link rel="canonical" href="{urljoin(site.address, site.first)}" />\n{tags}'
        f'</head>\n<body><p><a href="{site.first}">{title}</a></p></body>\n</html>\n'
    )


def missing_page(search: str, site: Site) -> str:
    """`404.html`, made of the search page.

    Raises:
        PageError: the search page has not what the theme that is known here puts there.
    """
    heading = say("Page not found")
    title = f"<title>{heading} — {html.escape(site.title)}</title>"
    page = replaced(search, r"<title>.*?</title>", title, "title", 1)
    page = replaced(page, _SEARCH_SCRIPT, "", "scripts that search")
    text = say("There is no page at this address. It may have moved: look for its words, or begin at the first page.")
    said = f"<h1>{heading}</h1>\n<p>{text}</p>"
    page = replaced(page, _SEARCH_HEADING, lambda match: match[1] + said, "heading of the search", 1)
    link = f'<p><a href="{site.first}">{say("The first page")}</a></p>'
    page = replaced(page, '<div id="search-results"></div>', link, "place for results", 1)
    # The first form is in the dialog that every page has.
    page = replaced(page, _SEARCH_FORM, lambda match: f'{match[1]}action="{SEARCH}"', "form in the text", 1)
    page = replaced(page, r"(?s)\s*<script>\s*// Activate the search field.*?</script>", "", "focus on the search", 1)

    # No edition has this page: the switch leads to the first one.
    page = re.sub(rf'(<a class="[^"]*ds-language" href="[^"]*?){SEARCH}"', rf'\1{site.first}"', page)

    def absolute(match: re.Match) -> str:
        if match[2].startswith("#") or urlparse(match[2]).scheme:
            return match[0]
        return f'{match[1]}"{urljoin(site.path, match[2])}"'

    page = re.sub(r'(\s(?:href|src|action)=)"([^"]*)"', absolute, page)
    return replaced(page, r'data-content_root="[^"]*"', f'data-content_root="{site.path}"', "root of its content", 1)
