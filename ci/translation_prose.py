"""The texts of a page's Markdown, block by block, and the page with them translated.

A text is what stands in one heading, paragraph, list item, cell of a table, title of a note, or displayed formula
with words. It is one line, whatever its lines in the source, so that a paragraph filled anew is no new text. Code,
formulas without words and the directives themselves are no texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import glossary_links
from docutils.nodes import make_id
from myst_parser.mdit_to_docutils.base import default_slugify

Translate = Callable[[str], "str | None"]

# Marks of lists, quotes and definitions before the words of a paragraph.
_MARKS = re.compile(r"\s*(?:(?:[-*+]|\d+[.)]|>|:)\s+)*")
_HEADING = re.compile(r"(#{1,6}\s+)(.*?)\s*$")
_DIRECTIVE = re.compile(r"(\s*[`:~]{3,}\{([\w-]+)\}[ \t]*)(.*?)\s*$")
_OPTION = re.compile(r"(\s*:(?:alt|caption|label):\s+)(.*?)\s*$")
_FORMULA_WORDS = re.compile(r"\\text\{[^}]*[A-Za-z]{2}")
# Code is taken first, so that a dollar sign in it begins no formula.
_FORMULA = re.compile(
    r"(?s)(?P<code>(?P<ticks>`+|~~~+)(?![`~]).*?(?<![`~])(?P=ticks)(?![`~])|<code>.*?</code>)"
    r"|\$\$.*?\$\$|(?<![\\$])\$(?=\S)[^$`]+?(?<=\S)\$(?![\d$])"
)
_DELIMITER = re.compile(r"\s*\|?[\s:|-]+\|?\s*$")
# What is no word: code, formulas, addresses, tags, substitutions.
_WORDLESS = re.compile(r"`+[^`]*`+|\$[^$]*\$|\]\([^)]*\)|<[^>]*>|\{\{.*?\}\}|https?://\S+")
_WORD = re.compile(r"[A-Za-zÀ-ÿ]{2}")
# The line over an exercise: its name, its level, its time.
_EXERCISE = re.compile(r"(\*\*\d\d\.\d · )(\w+)( · \d+ min\*\*)")


def rewrite(text: str, translate: Translate) -> str:
    """A page or a cell with each of its texts translated; one without a translation stays as it is."""
    lines = text.split("\n")
    tokens = _parser().parse(text)
    # From the end, so that the numbers of the lines above stay right.
    for token in reversed(tokens):
        if token.map is None:
            continue
        start, end = token.map
        if token.type == "heading_open":
            lines[start:end] = [_part(_HEADING, lines[start], translate)]
        elif token.type == "paragraph_open":
            lines[start:end] = _paragraph(lines[start:end], token.level, translate)
        elif token.type == "tr_open":
            lines[start:end] = [_row(lines[start], translate)]
        elif token.type == "math_block" and _FORMULA_WORDS.search(token.content):
            lines[start:end] = (translate("\n".join(lines[start:end])) or "\n".join(lines[start:end])).split("\n")
        elif token.type in ("fence", "colon_fence"):
            lines[start:end] = _directive(lines[start:end], translate)
    return "\n".join(lines)


def with_decimal_commas(text: str) -> str:
    """The text with the numbers of its formulas written the German way, whether in a sentence or displayed.

    TeX takes a comma for a mark of punctuation, which has space after it, unless it stands in braces.
    """

    def written(match: re.Match) -> str:
        if match["code"]:
            return match[0]
        grouped = re.sub(r"(?<=\d)\{,\}(?=\d{3})", "{.}", match[0])
        # TeX takes lengths with a point alone.
        return re.sub(r"(?<=\d)\.(?=\d+(?!\d|em|ex|mu|pt))", "{,}", grouped)

    return _FORMULA.sub(written, text)


def messages(text: str) -> list[str]:
    """The texts of a page or a cell, in their order."""
    found: list[str] = []
    rewrite(text, found.append)
    return found[::-1]


def headings(text: str) -> list[str]:
    """The headings of a page or a cell below its title, as they stand there."""
    return [lines for _, lines in _sections(text)]


def with_anchors(text: str, originals: Iterator[str]) -> str:
    """The text with the anchor of the next original heading before each of its own.

    Raises:
        StopIteration: there are more headings than originals.
    """
    lines = text.split("\n")
    anchors = [(at, make_id(re.sub(r"[`*$]", "", next(originals)))) for at, _ in _sections(text)]
    for at, anchor in reversed(anchors):
        lines[at:at] = [f'<span id="{anchor}"></span>', ""]
    return "\n".join(lines)


def slug(heading: str) -> str:
    """What MyST calls a heading in the addresses of links."""
    return default_slugify(re.sub(r"[`*$]", "", heading))


def with_slugs(text: str, page: str, slugs: dict[str, dict[str, str]]) -> str:
    """The text with its links into sections leading to what these are called now.

    Args:
        page: name of the file that the text stands in.
        slugs: by file, from what a section was called to what it is called.
    """

    def led(match: re.Match) -> str:
        known = slugs.get(Path(match[1] or page).name, {})
        return f"]({match[1]}#{known.get(match[2], match[2])})"

    return re.sub(r"\]\(([^)#\s]*)#([^)\s]+)\)", led, text)


def _sections(text: str) -> Iterator[tuple[int, str]]:
    """Line and words of each heading below the title."""
    lines = text.split("\n")
    for token in _parser().parse(text):
        if token.type == "heading_open" and token.tag != "h1" and token.level == 0:
            yield token.map[0], _HEADING.match(lines[token.map[0]])[2]


@cache
def _parser():
    return glossary_links.parser()


def _translated(text: str, translate: Translate) -> str:
    if not _WORD.search(_WORDLESS.sub(" ", text)):
        return text
    exercise = _EXERCISE.fullmatch(text)
    if exercise:
        return exercise[1] + (translate(exercise[2]) or exercise[2]) + exercise[3]
    return translate(text) or text


def _part(pattern: re.Pattern, line: str, translate: Translate) -> str:
    """A line whose second group is the text."""
    match = pattern.match(line)
    return match[1] + _translated(match[2], translate) if match and match[2] else line


def _paragraph(lines: list[str], level: int, translate: Translate) -> list[str]:
    mark = _MARKS.match(lines[0])[0] if level else ""
    text = "\n".join([lines[0][len(mark) :], *(line.strip() for line in lines[1:])])
    # A backslash at the end of a line breaks it on the page.
    text = re.sub(r"(?<!\\)\n", " ", text).strip()
    indent = " " * len(mark)
    return (mark + _translated(text, translate).replace("\n", f"\n{indent}")).split("\n")


def _row(line: str, translate: Translate) -> str:
    if _DELIMITER.fullmatch(line):
        return line
    cells = re.split(r"(?<!\\)\|", line)
    written = [f" {_translated(cell.strip(), translate)} " if cell.strip() else cell for cell in reversed(cells)]
    return "|".join(reversed(written))


def _directive(lines: list[str], translate: Translate) -> list[str]:
    match = _DIRECTIVE.match(lines[0])
    if match is None:
        return lines
    content = lines[1:-1]
    options = 0
    while options < len(content) and re.match(r"\s*:[\w-]+:", content[options]):
        options += 1
    if match[2] == "glossary":
        body = _glossary(content[options:], translate)
    elif match[2] in glossary_links.NOTES | {"figure", "exercise", "solution"}:
        body = rewrite("\n".join(content[options:]), translate).split("\n") if content[options:] else []
    else:
        return lines
    head = [_part(_OPTION, line, translate) for line in reversed(content[:options])][::-1]
    title = match[1] + _translated(match[3], translate) if match[2] != "figure" and match[3] else lines[0]
    return [title, *head, *body, lines[-1]]


def _glossary(lines: list[str], translate: Translate) -> list[str]:
    """The terms with their definitions, in the order of the translated terms."""
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if line and not line[0].isspace():
            entries.append((line, []))
        elif entries and line.strip():
            entries[-1][1].append(line.strip())
    written = []
    for term, definition in reversed(entries):
        text = _translated(" ".join(definition), translate)
        written.append((_translated(term, translate), text))
    written.sort(key=lambda entry: _sorted_as(entry[0]))
    return "\n\n".join(f"{term}\n  {text}" for term, text in written).split("\n")


def _sorted_as(term: str) -> str:
    """German dictionaries sort an umlaut as its vowel."""
    return term.casefold().translate(str.maketrans("äöüß", "aous"))
