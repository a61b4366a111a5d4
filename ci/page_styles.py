"""One style sheet for the built book, with the rules that some page can use, and the few icons that it draws.

The theme and its extensions load ten style sheets of 500 KB, most of them rules for things that no page of this
book has, and 1.5 MB of script to draw a dozen icons. Here the sheets become one, in their order; a selector stays
if each of its classes is one of some page, or a word of some script, because scripts add classes too; and the icon
fonts keep the glyphs that the remaining rules name, inside the sheet.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from page_markup import PageError, to_root, version

if TYPE_CHECKING:
    from fontTools.ttLib import TTFont

_LINK = re.compile(r'<link\b(?=[^>]*\brel="stylesheet")(?![^>]*\bmedia=)[^>]*\bhref="([^"]+)"[^>]*>\s*')
_LICENCE = re.compile(r"/\*!.*?\*/", re.DOTALL)
# A string or a comment, or what a rule is made of.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|/\*.*?\*/|url\([^)]*\)|[{};]|\s+|[^"\'/{};\s]+|/', re.DOTALL
)
_CLASS = re.compile(r"\.(-?[A-Za-z_][\w-]*)")
# What names classes in a page: the attribute, and scripts.
_USED = re.compile(r'\bclass="([^"]*)"|<script\b[^>]*>(.*?)</script>', re.DOTALL)
_WORD = re.compile(r"[A-Za-z0-9_-]+")
# A glyph of an icon font, by its number or as it is; in a rule or in a variable that rules take it from.
_ICON = re.compile(r"\\([ef][0-9a-f]{3})\b|([\ue000-\uf8ff])")
_GROUPS = ("@media", "@supports", "@container", "@layer")


def bundle(pages: dict[Path, str], folder: Path, scripts: Iterable[Path]) -> None:
    """Make the style sheets of all `pages` one file, `folder`/_static/styles/site.css, and have them load that.

    `scripts` are the scripts that pages load: a class that one of them names is kept. Sheets for a medium of
    their own, such as print, are left alone.

    Raises:
        PageError: a page loads no sheet, pages load the same sheets in different orders, a sheet is not well formed,
            or no font has an icon that a rule names.
    """
    loaded = {path: _sheets(text, path) for path, text in pages.items()}
    order = max(loaded.values(), key=len)
    for path, sheets in loaded.items():
        if not sheets or [sheet for sheet in order if sheet in sheets] != sheets:
            raise PageError(f"{path.name} loads {_names(sheets)}; another page loads {_names(order)}")
    words = {word for text in pages.values() for part in _USED.findall(text) for word in _WORD.findall("".join(part))}
    for script in scripts:
        words.update(_WORD.findall(script.read_text(encoding="utf-8")))
    home = folder / "_static" / "styles"
    licences: list[str] = []
    text = "\n".join(_read(sheet, home, licences) for sheet in order)
    text = purge(text, words)
    text = _embed_icons(text, home)
    text = "\n".join(['@charset "UTF-8";', *dict.fromkeys(licences), text, ""])
    home.mkdir(parents=True, exist_ok=True)
    (home / "site.css").write_text(text, encoding="utf-8")
    mark = version(text)
    for path in pages:
        link = f'<link rel="stylesheet" href="{to_root(path, folder)}_static/styles/site.css?v={mark}" />\n'
        first = _LINK.search(pages[path]).start()
        pages[path] = pages[path][:first] + link + _LINK.sub("", pages[path][first:])


def purge(css: str, words: set[str]) -> str:
    """The rules of `css` that can apply where only `words` occur as classes, without comments and idle spaces."""
    return "\n".join(_kept(css, lambda selector: _possible(selector, words)))


def _sheets(page: str, path: Path) -> list[Path]:
    return [(path.parent / urlparse(address).path).resolve() for address in _LINK.findall(page)]


def _names(sheets: list[Path]) -> str:
    return ", ".join(sheet.name for sheet in sheets) or "none"


def _read(sheet: Path, home: Path, licences: list[str]) -> str:
    """A sheet with its imports in it, and with addresses as `home` needs them."""
    text = sheet.read_text(encoding="utf-8").removeprefix("\ufeff")
    text = re.sub(r'@charset "[^"]*";', "", text)
    licences += _LICENCE.findall(text)

    def address(match: re.Match) -> str:
        target = match[1].strip("\"'")
        if urlparse(target).scheme or target.startswith("#"):
            return match[0]
        return f"url({os.path.relpath(sheet.parent / target, home)})"

    text = re.sub(r"(?<!@import )url\(([^)]*)\)", address, text)

    def imported(match: re.Match) -> str:
        return _read((sheet.parent / match[1]).resolve(), home, licences)

    return re.sub(r"""@import (?:url\()?["']?([^"')]+)["']?\)?;""", imported, text)


def _kept(css: str, possible: Callable[[str], bool]) -> Iterator[str]:
    for head, body in _rules(css):
        if body is None:
            yield f"{head};"
        elif head.startswith(_GROUPS):
            inner = list(_kept(body, possible))
            if inner:
                yield f"{head}{{{''.join(inner)}}}"
        elif head.startswith("@"):
            yield f"{head}{{{body}}}"
        else:
            selectors = [selector for selector in _split(head) if possible(selector)]
            if selectors and body:
                yield f"{','.join(selectors)}{{{body}}}"


def _rules(css: str) -> Iterator[tuple[str, str | None]]:
    """The rules of one level as (what stands before the brace, what stands in it); statements have no braces."""
    depth = 0
    head: list[str] = []
    body: list[str] = []
    for token in _TOKEN.findall(css):
        if token.startswith("/*"):
            continue
        part = " " if token.isspace() else token
        if token == "{":
            depth += 1
            if depth == 1:
                continue
        elif token == "}":
            depth -= 1
            if depth < 0:
                raise PageError(f"a brace too many after {''.join(head)[-80:]!r}")
            if depth == 0:
                yield "".join(head).strip(), _tight("".join(body))
                head, body = [], []
                continue
        elif token == ";" and depth == 0:
            yield "".join(head).strip(), None
            head = []
            continue
        (body if depth else head).append(part)
    if depth or "".join(head).strip():
        raise PageError(f"the style sheet ends within {''.join(head).strip()[:80]!r}")


def _tight(body: str) -> str:
    return re.sub(r" ?([{};]) ?", r"\1", body).strip().rstrip(";")


def _split(selectors: str) -> list[str]:
    """The selectors of a list; commas within brackets do not part them."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(selectors):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(selectors[start:position].strip())
            start = position + 1
    return [*parts, selectors[start:].strip()]


def _possible(selector: str, words: set[str]) -> bool:
    """Whether every class that the selector asks for is one of `words`; what stands in brackets is believed."""
    if "\\" in selector:
        return True
    plain = re.sub(r"\[[^\]]*\]", "", selector)
    while "(" in plain:
        plain, before = re.sub(r"\([^()]*\)", "", plain), plain
        if plain == before:
            return True
    return all(name in words for name in _CLASS.findall(plain))


def icons(css: str) -> set[int]:
    """The code points of icon fonts that a style sheet names."""
    return {int(number, 16) if number else ord(letter) for number, letter in _ICON.findall(css)}


def _embed_icons(css: str, home: Path) -> str:
    """Icon fonts as data within the sheet, with the glyphs that the sheet's rules name."""
    from fontTools.ttLib import TTFont

    wanted = icons(css)
    drawn: set[int] = set()

    def face(match: re.Match) -> str:
        source = re.search(r"url\(([^)]+fontawesome[^)]+\.ttf)\)", match[0])
        if source is None:
            return match[0]
        font = TTFont((home / source[1]).resolve())
        present = wanted & set(font.getBestCmap())
        if not present:
            return ""
        drawn.update(present)
        data = base64.b64encode(_subset(font, present)).decode()
        return re.sub(r"src:[^}]*(?=})", f'src:url(data:font/woff;base64,{data}) format("woff")', match[0])

    css = re.sub(r"@font-face\{[^}]*\}", face, css)
    if missing := wanted - drawn:
        raise PageError(f"no icon font has {', '.join(f'U+{code:X}' for code in sorted(missing))}, which rules name")
    return css


def _subset(font: TTFont, glyphs: set[int]) -> bytes:
    from fontTools.subset import Options, Subsetter

    subsetter = Subsetter(Options(hinting=False, layout_features=[], notdef_outline=False, name_IDs=[]))
    subsetter.populate(unicodes=glyphs)
    subsetter.subset(font)
    font.flavor = "woff"
    buffer = io.BytesIO()
    font.save(buffer)
    return buffer.getvalue()
