"""An executed chapter as a deck: which slides there are, what stands on each, and what its speaker reads.

The rules, in the order of the chapter: the question with its answer; the goals; a column of slides for each section,
which begins with its key sentences and goes on with its subsections, formulas, lists, figures and short printed
results; the exercises, below them a solution each; the chapter in one row, and which chapter is next.
"""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections.abc import Sequence
from html import unescape
from itertools import groupby

import workshop_prose as prose
import workshop_tasks
from nbformat import NotebookNode
from notebook_form import tags
from workshop_prose import Block
from workshop_slide import Chapter, Part, Slide

from ds41.language import say

LINES = 12
# Code and its result stand together only where both can be read from afar.
LINES_TOGETHER = 15
# Source that the chapter prints for its own sake.
LINES_SOURCE = 18
# Letters of exercises that fit one slide.
LETTERS = 1120
_HEADING_WORDS = 14
_TITLE = re.compile(r'<p class="ds-title"[^>]*>(.*?)</p>', re.DOTALL)
_FIGURE = '<figure class="ds-fig'
_FOLDED = {"hide-input", "hide-output", "hide-cell", "parameters"}


class DeckError(Exception):
    """An executed chapter has not the form of one; the message names the cell."""


def question(notebook: NotebookNode) -> str:
    """The chapter's title.

    Raises:
        DeckError: its first cell does not open with one.
    """
    first = notebook.cells[0]
    title = re.match(r"# +(.+)", first.source)
    if first.cell_type != "markdown" or title is None:
        raise DeckError(f"cell {first.id!r} is the first and opens with no title; expected a line such as '# Why?'")
    return title[1].strip()


def answer(notebook: NotebookNode) -> str:
    """The one-sentence answer: the first bold text under the title."""
    return prose.first_bold(notebook.cells[0].source)


def make(notebook: NotebookNode, chapter: Chapter) -> list[Slide]:
    """The slides of an executed chapter.

    Raises:
        DeckError: the notebook is no executed chapter.
    """
    return _Deck(notebook, chapter).slides


class _Deck:
    def __init__(self, notebook: NotebookNode, chapter: Chapter) -> None:
        self.chapter = chapter
        self.slides: list[Slide] = []
        self._section = ""
        self._pending: list[str] = []
        self._opening = True
        self._open(notebook)
        exercises: list[tuple[str, Block]] = []
        solutions: dict[str, str] = {}
        for cell in notebook.cells[1:]:
            if re.fullmatch(r"solution-\d+", cell.id):
                solutions[cell.id.removeprefix("solution-")] = cell.source
            elif cell.id == "exercises" or re.fullmatch(r"exercise-\d+-text", cell.id):
                found = self._blocks(cell)
                self._section = next((block.text for block in found if block.kind == "heading"), self._section)
                exercises.extend(workshop_tasks.tasks(found))
            elif cell.cell_type == "markdown" and cell.id != "summary":
                self._text(cell)
            elif cell.cell_type == "code" and cell.id not in ("colab", "summary-row"):
                self._code(cell)
        self._flush()
        self._exercises(exercises, solutions)
        self._last(notebook)

    def _open(self, notebook: NotebookNode) -> None:
        kicker = say("Chapter {number}", number=int(self.chapter.number)) if self.chapter.number else ""
        first = self._blocks(notebook.cells[0])[1:]
        text = prose.first_bold(prose.as_notes(first))
        slide = Slide("title", question(notebook), kicker, [Part("answer", text)] if text else [], below=False)
        slide.notes.append(prose.as_notes(first))
        self.slides.append(slide)
        if self.chapter.goals:
            points = Part("text", _bullets(self.chapter.goals))
            goals = Slide("goals", say("What you will be able to do"), parts=[points], below=False)
            if self.chapter.minutes:
                goals.kicker = say("{minutes} minutes", minutes=self.chapter.minutes)
            self.slides.append(goals)

    def _blocks(self, cell: NotebookNode) -> list[Block]:
        return prose.blocks(prose.plain(cell.source, self.chapter.link))

    def _text(self, cell: NotebookNode) -> None:
        found = self._blocks(cell)
        while found:
            cut = next((at for at, block in enumerate(found) if at and block.kind == "heading"), len(found))
            segment, found = found[:cut], found[cut:]
            if segment[0].kind == "heading":
                self._headed(segment)
            else:
                self._continued(segment, reads_back=cell.id.endswith("-reading"))

    def _headed(self, segment: list[Block]) -> None:
        heading, *rest = segment
        self._flush()
        below = heading.level > 2
        kicker = self._section if below else ""
        if not below:
            self._section, self._opening = heading.text, False
        lead, special = _apart(segment)
        points = prose.key_sentences(lead)
        slide = Slide("section", heading.text, kicker, below=below)
        slide.parts = [Part("text", _said(points))] if points else []
        slide.notes.append(prose.as_notes(rest))
        self.slides.append(slide)
        self._special(special, heading.text)

    def _continued(self, segment: list[Block], reads_back: bool) -> None:
        lead, special = _apart(segment)
        text = prose.as_notes(segment)
        bold = [sentence for paragraph in lead for sentence in prose.sentences(paragraph) if "**" in sentence]
        if special or bold:
            self._flush()
            before = len(self.slides)
            if bold:
                self._add(Slide("section", self._section, parts=[Part("text", _said(prose.key_sentences(bold)))]))
            self._special(special, self._section)
            self.slides[before].notes.append(text)
        elif reads_back and self.slides:
            self.slides[-1].notes.append(text)
        else:
            self._pending.append(text)

    def _special(self, special: list[tuple[str, Block]], heading: str) -> None:
        for lead, block in special:
            said = prose.sentences(lead)
            title, body = heading, said[-1] if said else ""
            if len(said) > 1 and prose.words(said[0]) <= _HEADING_WORDS:
                title = said[0].rstrip(".")
            if block.kind == "note":
                parts, title = _noted(block), block.title or heading
            elif block.kind == "list":
                parts = [body, _bullets(prose.list_points(block))]
            else:
                parts = [body, block.text]
            shown = Part("text", "\n\n".join(filter(None, parts)))
            self._add(Slide(block.kind, title, "" if title == self._section else self._section, [shown]))

    def _code(self, cell: NotebookNode) -> None:
        if "hint" in tags(cell) or re.fullmatch(r"exercise-\d+", cell.id):
            return
        folded = _FOLDED & set(tags(cell))
        for output in cell.outputs:
            html = "".join(output.get("data", {}).get("text/html", ""))
            if _FIGURE in html and "hide-output" not in folded:
                self._figure(html)
            elif output.output_type == "stream" and output.name == "stdout" and not folded:
                self._printed(cell.source.rstrip(), output.text.rstrip())

    def _figure(self, html: str) -> None:
        title = _TITLE.search(html)
        heading = " ".join(unescape(re.sub(r"<[^>]+>", "", title[1])).split()) if title else self._section
        heading = re.sub(r"([\\`*_$<\[])", r"\\\1", heading)
        kicker = self._section if heading != self._section else ""
        self._add(Slide("figure", heading, kicker, [Part("figure", html)], below=not self._opening))

    def _printed(self, code: str, text: str) -> None:
        shows_source = "inspect.getsource" in code and _is_python(text)
        printed, written = len(text.split("\n")), len(code.split("\n"))
        if not text or printed > (LINES_SOURCE if shows_source else LINES):
            return
        if shows_source:
            self._add(Slide("printed", self._section, parts=[Part("code", text)]))
            return
        parts = [Part("print", text)]
        if written <= LINES:
            if written + printed > LINES_TOGETHER:
                self._add(Slide("printed", self._section, parts=[Part("code", code)]))
            else:
                parts.insert(0, Part("code", code))
        self._add(Slide("printed", self._section, parts=parts))

    def _add(self, slide: Slide) -> None:
        slide.notes = [*self._pending, *slide.notes]
        self._pending = []
        self.slides.append(slide)

    def _flush(self) -> None:
        self.slides[-1].notes.extend(self._pending)
        self._pending = []

    def _exercises(self, exercises: list[tuple[str, Block]], solutions: dict[str, str]) -> None:
        if not exercises:
            return
        points = [f"**{label}** {workshop_tasks.shortened(block.text)}" for label, block in exercises]
        slides = math.ceil(sum(map(len, points)) / LETTERS)
        each = math.ceil(len(points) / slides)
        for start in range(0, len(points), each):
            asked = Part("text", _bullets(points[start : start + each]))
            slide = Slide("exercises", self._section, parts=[asked], below=start > 0)
            slide.notes.extend(f"**{label}** {block.text}" for label, block in exercises[start : start + each])
            self.slides.append(slide)
        for number, (label, block) in enumerate(exercises, start=1):
            if solution := solutions.get(str(number)):
                parts = [Part("text", workshop_tasks.shortened(block.text)), Part("solution", solution.rstrip())]
                heading = say("{number} solved", number=label.split(" ")[0])
                self.slides.append(Slide("solution", heading, self._section, parts, [block.text]))

    def _last(self, notebook: NotebookNode) -> None:
        self._section, self._opening = "", True
        for cell in notebook.cells:
            if cell.id == "summary-row":
                self._code(cell)
        if self.chapter.following is None:
            return
        name, title = self.chapter.following
        link = Part("text", say("Next: [{title}]({address})", title=title, address=f"{name}.html"))
        if self.slides[-1].kind != "figure" or self.slides[-1].below:
            self.slides.append(Slide("last", say("What comes next"), below=False))
        self.slides[-1].kind = "last"
        self.slides[-1].parts.append(link)


def _apart(found: list[Block]) -> tuple[list[str], list[tuple[str, Block]]]:
    """The paragraphs, and what deserves a slide of its own, each with the paragraph that leads up to it."""
    lead: list[str] = []
    special: list[tuple[str, Block]] = []
    opening = ""
    for at, block in enumerate(found):
        following = found[at + 1].kind if at + 1 < len(found) else ""
        if block.kind == "paragraph" and following in ("list", "table", "math"):
            opening = block.text
            *before, last = prose.sentences(block.text)
            # The section's own slide would be empty.
            if before and not lead and found[0].kind == "heading":
                lead.append(" ".join(before))
                opening = last
        elif block.kind == "paragraph":
            lead.append(block.text)
        elif block.kind in ("list", "table", "math", "note"):
            special.append((opening, block))
            opening = ""
    return lead, special


def _noted(note: Block) -> list[str]:
    """What a slide shows of a note, in the note's order: key sentences of its paragraphs, two sentences of an item.

    An item opens with what the note corrects; its opening alone would say the opposite of the note.
    """
    shown: list[str] = []
    for kind, found in groupby(prose.blocks(note.text), key=lambda block: block.kind):
        if kind == "paragraph":
            shown.append(_said(prose.key_sentences(block.text for block in found)))
        elif kind == "list":
            items = [item for block in found for item in block.text.split("\n")]
            shown.append(_bullets([" ".join(prose.sentences(item)[:2]) for item in items]))
    return shown


def _is_python(text: str) -> bool:
    """Whether a cell that looks at source has printed it, and not only something about it."""
    try:
        ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return False
    return True


def _bullets(points: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(point.split())}" for point in points)


def _said(points: Sequence[str]) -> str:
    """Sentences as paragraphs of their own."""
    return "\n\n".join(points)
