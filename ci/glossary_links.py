#!/usr/bin/env python3
"""The words of the glossary, made links to it in the staged chapters: the first time that a chapter's prose has one.

    python ci/glossary_links.py

lists what is linked where. Stored notebooks say nothing of it, because Colab would show the role as text. Only
paragraphs are touched, and those of notes: no heading, table, formula, code or link. The link is MyST's `{term}`, so
Sphinx checks its target; when the pages are built, `explain` adds what a reader sees on pointing at it.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import notebook_results as results
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from project import HERE, Project, ProjectError

# Everyday words. In the chapter that teaches one it is the term from its first use on; elsewhere it is mostly said
# in the sense that stands beside it here.
ONLY_WHERE_TAUGHT: dict[str, dict[str, str]] = {
    "en": {
        "block": "of layers, of drafts, of candidates",
        "chunk": "of pages, of a file",
        "dead": "of a process",
        "draft": "to draft; the layers that do",
        "floor": "the least value of anything",
        "margin": "of an estimate",
        "page": "of this book, of a disk",
        "session": "of a class",
        "shift": "of positions, of bits",
        "source": "of text and code",
        "tail": "of a distribution",
        "target": "of a size, of a loss",
        "turn": "in turn; to turn",
    },
    "de": {
        "Abstand": "zwischen Zahlen",
        "Block": "von Schichten, von Drafts, von Kandidaten",
        "Chunk": "von Seiten, einer Datei",
        "Quelle": "von Text und Code",
        "Runde": "einer Schleife",
        "Seite": "dieses Buchs, eines Datenträgers",
        "Senke": "von Daten",
        "Session": "einer Klasse",
        "Stelle": "an der etwas steht; einer Zahl",
        "Treffer": "in anderen Caches",
        "Turm": "aus Schichten",
        "Untergrenze": "der kleinste Wert von etwas",
        "Versatz": "von Positionen, von Bits",
        "tot": "von Prozessen",
    },
}
# Where a chapter says another thing by the word of a term before it says the term.
OTHER_SENSES: dict[str, tuple[str, ...]] = {
    "en": (
        "Full nodes",
        "hit ties",
        "single hit",
        "a latent of 1,280 channels",
        "the same latent",
        "decode cannot be faster than",
        "A decoder that forgets",
        "entries that are not negative",
        "entries are not negative",
        "are a scale and not",
        "or scales `pre`",
        "the entry of layers",
        "place of the window",
        "The window reaches back",
        "a window of four compressed ids",
        "decode the token",
        "tokenizer that decodes",
    ),
    "de": ("Decoder, der das vergisst",),
}

# Directives whose content is prose.
NOTES = frozenset({"admonition", "dropdown", "margin", "note", "tip", "warning"})
_OPTION = re.compile(r"\s*:[\w-]+:|\s*$")
_CHAPTER = re.compile(r"\[(?:Chapter|Kapitel) \d+\]\(([\w-]+)\.ipynb\)")
# What a paragraph holds beside words, and what keeps its words as they are: code and roles, formulas, links and
# images, addresses, tags, attributes and substitutions.
_KEPT = (
    r"\\.|(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)|\$\$.+?\$\$|\$[^$]+\$"
    r"|!?\[(?:[^\[\]]|\[[^\]]*\])*\](?:\([^)]*\)|\[[^\]]*\])|https?://\S+|<[^<>\s][^<>]*>|\{[^{}]*\}"
)
_LINK = re.compile(
    r'<a class="reference internal" href="(?P<address>[^"#]*#(?P<id>term-[^"]+))">(?=<span class="xref std std-term">)'
)
_DEFINITION = re.compile(r'<dt id="(term-[^"]+)">.*?</dt>\s*<dd>\s*<p>(.*?)</p>', re.DOTALL)


@dataclass(frozen=True)
class Term:
    """A word of the glossary and the chapter, by file stem, that teaches it."""

    name: str
    chapter: str


def read_terms(glossary: str) -> list[Term]:
    """The terms of the glossary's page, in its order.

    Raises:
        ProjectError: the page has no glossary, or a term says no chapter.
    """
    block = re.search(r"^```\{glossary\}\n(.*?)^```$", glossary, re.MULTILINE | re.DOTALL)
    if block is None:
        raise ProjectError("the glossary's page has no ```{glossary} block")
    terms = []
    for name, definition in re.findall(r"^(\S[^\n]*)\n((?:[ \t]+[^\n]*\n|\n)*)", block[1], re.MULTILINE):
        chapters = _CHAPTER.findall(definition)
        if not chapters:
            raise ProjectError(f"the glossary's {name!r} does not say which chapter teaches it")
        terms.append(Term(name, chapters[-1]))
    return terms


def link(folder: Path, project: Project) -> dict[str, list[str]]:
    """Link the glossary's terms in the chapters staged below `folder`; each chapter's terms, in reading order.

    A book without the page `book/glossary` has no links.
    """
    if "book/glossary" not in project.page_names:
        return {}
    terms = read_terms((project.book / "glossary.md").read_text(encoding="utf-8"))
    linked = {}
    for chapter in project.chapters:
        path = folder / chapter.relative_to(project.root)
        notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
        page = Page(chapter.stem, terms, project.language)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = page.linked(cell.source)
        nbformat.write(notebook, path, version=nbformat.NO_CONVERT)
        linked[chapter.stem] = page.found
    return linked


class Page:
    """The links of one chapter, cell by cell."""

    def __init__(self, chapter: str, terms: list[Term], language: str = "en") -> None:
        """Terms that mislead in `chapter` are left out."""
        self.found: list[str] = []
        self._names = {
            form: term.name
            for term in terms
            if term.chapter == chapter or term.name not in ONLY_WHERE_TAUGHT[language]
            for form in forms(term.name, language)
        }
        # The longest first, so that a page table is no page.
        words = either(sorted(self._names, key=len, reverse=True))
        self._pattern = re.compile(
            rf"{_KEPT}|(?<![\w/-])(?:{either(OTHER_SENSES[language]) or '(?!)'}|(?P<word>{words}))(?![\w/-])", re.DOTALL
        )
        self._parser = parser()

    def linked(self, text: str) -> str:
        """A Markdown text with links in its paragraphs, for terms that this page has not linked yet."""
        lines = text.split("\n")
        for start, end, note in paragraphs(self._parser, text):
            part = "\n".join(lines[start:end])
            part = self.linked(part) if note else self._pattern.sub(self._replace, part)
            # As many lines as before, so later numbers stay right.
            lines[start:end] = part.split("\n")
        return "\n".join(lines)

    def _replace(self, match: re.Match) -> str:
        word = match["word"]
        if word is None:
            return match[0]
        name = self._names[" ".join(word.split())]
        if name in self.found:
            return word
        self.found.append(name)
        return f"{{term}}`{word}`" if word == name else f"{{term}}`{word} <{name}>`"


def either(phrases: Iterable[str]) -> str:
    """A pattern of any of these phrases, wherever its line is broken."""
    return "|".join(r"\s+".join(map(re.escape, phrase.split())) for phrase in phrases)


def forms(name: str, language: str = "en") -> set[str]:
    """A term as prose writes it: singular and plural, a capital at the head of a sentence; names keep theirs."""
    words = {name, *_endings(name, language)}
    return words | {word[0].upper() + word[1:] for word in words}


def _endings(name: str, language: str) -> Iterator[str]:
    if language == "de":
        # Declined, without what changes a vowel or an adjective before it.
        yield from (name + ending for ending in ("s", "es", "n", "en", "e", "er", "ern"))
    elif re.search(r"[^aeiou]y$", name):
        yield f"{name[:-1]}ies"
    else:
        yield name + ("es" if re.search(r"(s|x|ch|sh)$", name) else "s")


def parser() -> MarkdownIt:
    """MyST's own parser, with the extensions of the book that decide where a block ends."""
    config = MdParserConfig(enable_extensions={"amsmath", "colon_fence", "deflist", "dollarmath"})
    return create_md_parser(config, RendererHTML)


def paragraphs(parser: MarkdownIt, text: str) -> Iterator[tuple[int, int, bool]]:
    """First line and end of each paragraph of a text, and of each note's content; whether it is the latter."""
    lines = text.split("\n")
    for token in parser.parse(text):
        if token.type == "paragraph_open":
            yield *token.map, False
        elif token.type in ("fence", "colon_fence"):
            name = re.match(r"\{([\w-]+)\}", token.info.strip())
            if name and name[1] in NOTES:
                start, end = token.map[0] + 1, token.map[1] - 1
                while start < end and _OPTION.match(lines[start]):
                    start += 1
                yield start, end, True


def explain(pages: dict[Path, str]) -> None:
    """Give each link to a term the first sentence of its definition as its title, in the built `pages`, in place.

    Raises:
        ProjectError: Sphinx writes terms or links to them in another way than is known here.
    """
    sentences = {
        term: first_sentence(definition) for text in pages.values() for term, definition in _DEFINITION.findall(text)
    }

    def titled(match: re.Match) -> str:
        if match["id"] not in sentences:
            raise ProjectError(f"no page has a definition of {match['id']}; expected <dt id=...> and <dd><p> after it")
        title = html.escape(sentences[match["id"]])
        return f'<a class="reference internal" href="{match["address"]}" title="{title}">'

    for path, text in pages.items():
        pages[path], titles = _LINK.subn(titled, text)
        if titles != (terms := text.count("std-term")):
            raise ProjectError(f"{path.name} has {terms} terms of the glossary and {titles} links to them")


def restore_downloads(built: Path, project: Project) -> None:
    """Put the chapters as they were executed, without the roles, where the pages offer them for download."""
    for chapter in project.chapters:
        shutil.copy(results.result_path(chapter, project), built / "_sources" / chapter.relative_to(project.root))


def first_sentence(definition: str) -> str:
    """The words of a definition, HTML, up to its first full stop."""
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", "", definition)).split())
    return re.split(r"(?<=\.)\s", words, maxsplit=1)[0]


def main() -> int:
    terms = read_terms((HERE.book / "glossary.md").read_text(encoding="utf-8"))
    missing = {term.name for term in terms}
    for chapter in HERE.chapters:
        page = Page(chapter.stem, terms)
        for cell in nbformat.read(chapter, as_version=nbformat.NO_CONVERT).cells:
            if cell.cell_type == "markdown":
                page.linked(cell.source)
        missing -= set(page.found)
        print(f"{chapter.stem} {len(page.found)}: {', '.join(page.found)}")
    print(f"nowhere {len(missing)}: {', '.join(sorted(missing, key=str.lower))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
