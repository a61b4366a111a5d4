#!/usr/bin/env python3
"""Slides of the executed chapters, for whoever teaches them: build/workshop/slides/LANGUAGE/04-fp4.html and so on.

    python ci/workshop_slides.py                       every chapter, in English
    python ci/workshop_slides.py 04-fp4 --language de  one of them, in German

A deck is a page that needs nothing but the folder it lies in: no network, no server. Arrow keys move, S opens the
speaker's notes, which hold the chapter's prose; `?print-pdf` behind the address makes a page to print. What stands
on a slide is decided by rule (`workshop_deck.py`); goals and minutes come from book/workshop.yml, where there is one.
`workshop_slides_check.py` looks at the decks in a browser.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import nbformat
import notebook_form as form
import workshop_deck as deck
import workshop_prose as prose
import yaml
from nbconvert.exporters import SlidesExporter
from nbconvert.filters import markdown2html
from nbformat import NotebookNode
from page_meta import Site
from project import HERE, Project, ProjectError
from pygments.formatters import HtmlFormatter
from workshop_deck import DeckError
from workshop_slide import Chapter, Slide

from ds41 import language
from ds41.language import say
from ds41.viz.palette import css_variables

TEMPLATES = Path(__file__).parent / "workshop_template"
REVEAL = Path(__file__).parent / "vendor" / "reveal"
_STYLES = {"light": "a11y-high-contrast-light", "dark": "a11y-high-contrast-dark"}
_LINKS = {"light": ("#1158c7", "#f6f8fa"), "dark": ("#7ab4ff", "#1c1f23")}
_DOLLAR = re.compile(r"\\\$")
_STYLE = re.compile(r"<style>.*?</style>\n?", re.DOTALL)


class SlidesError(Exception):
    """The decks cannot be made; the message says what is missing and what makes it."""


def executed(project: Project, spoken: str) -> Path:
    """Where the executed chapters of a language lie."""
    return project.executed if spoken == "en" else project.build / spoken / "executed"


def target(project: Project, spoken: str) -> Path:
    """The folder of a language's decks."""
    return project.build / "workshop" / "slides" / spoken


def plans(project: Project) -> Mapping[str, Any]:
    """What book/workshop.yml says of each chapter, by its number: `goals`, a list, and `minutes`."""
    path = project.book / "workshop.yml"
    if not path.exists():
        return {}
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("chapters", {})


def read_chapters(project: Project, spoken: str, names: Sequence[str] = ()) -> dict[str, NotebookNode]:
    """The executed chapters by name, in the book's order; those of `names`, or all.

    Raises:
        SlidesError: one is not there. ProjectError: no such chapter. NotebookError: one cannot be read.
    """
    wanted = [project.chapter(name).stem for name in names] or [path.stem for path in project.chapters]
    folder = executed(project, spoken)
    missing = [name for name in wanted if not (folder / f"{name}.ipynb").exists()]
    if missing:
        how = "make notebooks" if spoken == "en" else "make book"
        raise SlidesError(f"not executed: {', '.join(missing)} (looked in {folder}): run `{how}`")
    order = [path.stem for path in project.chapters]
    return {name: form.read(folder / f"{name}.ipynb") for name in sorted(wanted, key=order.index)}


def describe(project: Project, name: str, following: tuple[str, str] | None) -> Chapter:
    """What a deck has to know of its chapter beside the notebook."""
    site = Site.of(project).address
    pages = {Path(page).name: page for page in project.page_names}
    chapters = {path.stem for path in project.chapters}

    def link(target: str) -> str | None:
        if re.match(r"https?:", target):
            return target
        page = Path(target.partition("#")[0]).stem
        if page in chapters:
            return f"{page}.html"
        return f"{site}{pages[page]}.html" if page in pages else None

    plan = plans(project).get(name[:2], {})
    return Chapter(
        name,
        f"{site}{pages[name]}.html",
        link,
        tuple(say(goal) for goal in plan.get("goals", ())),
        plan.get("minutes", 0),
        following,
    )


def to_notebook(slides: Sequence[Slide], chapter: Chapter) -> NotebookNode:
    """The deck as nbconvert wants it: cells, of which each says where a slide begins and what it is."""
    cells: list[NotebookNode] = []
    seen: set[str] = set()

    def add(cell: NotebookNode, part: str, slide: Slide, kind: str = "-", **more: object) -> None:
        cell.metadata = nbformat.from_dict(
            {"slideshow": {"slide_type": kind}, "deck": {"part": part, "kind": slide.kind, **more}}
        )
        cells.append(cell)

    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    for slide in slides:
        level = 1 if slide.kind == "title" else 2
        begin = "subslide" if slide.below else "slide"
        add(markdown(slide.heading), "head", slide, begin, kicker=slide.kicker, level=level)
        for part in slide.parts:
            if part.kind == "figure":
                shown = nbformat.v4.new_output("display_data", {"text/html": _once(part.source, seen)})
                add(code(outputs=[shown]), "figure", slide)
            elif part.kind == "print":
                add(code(outputs=[nbformat.v4.new_output("stream", text=part.source)]), "print", slide)
            elif part.kind in ("code", "solution"):
                add(code(part.source), part.kind, slide)
            else:
                add(markdown(part.source), part.kind, slide)
        if slide.kind == "title":
            add(markdown(f"[{chapter.address.split('//')[1]}]({chapter.address})"), "address", slide)
        add(markdown("\n\n".join(filter(None, slide.notes))), "notes", slide)
    return nbformat.v4.new_notebook(cells=cells)


def _once(html: str, seen: set[str]) -> str:
    """The figure without style sheets that a figure before it has brought already."""

    def keep(match: re.Match) -> str:
        first = match[0] not in seen
        seen.add(match[0])
        return match[0] if first else ""

    return _STYLE.sub(keep, html)


def slide_markdown(text: str) -> str:
    """Markdown as HTML; a dollar that the text escapes opens no formula."""
    return markdown2html(_DOLLAR.sub('<span class="mathjax_ignore">$</span>', text))


def inline_markdown(text: str) -> str:
    """A line of Markdown as HTML, without the paragraph around it."""
    return slide_markdown(text).strip().removeprefix("<p>").removesuffix("</p>")


def render(slides: Sequence[Slide], chapter: Chapter, spoken: str) -> str:
    """The deck as one HTML page; what it loads lies in the folder `vendor` beside it."""
    exporter = SlidesExporter(
        template_name="slides",
        extra_template_basedirs=[str(TEMPLATES)],
        filters={"slide_markdown": slide_markdown, "inline_markdown": inline_markdown},
    )
    words = {
        "language": spoken,
        "title": re.sub(r"[`*]", "", slides[0].heading),
        "keys": say("Keys go to the figure. Esc gives them back to the slides."),
    }
    page, _ = exporter.from_notebook_node(to_notebook(slides, chapter), {"deck": words})
    return page


def style_sheet() -> str:
    """The rules of decks and of their index, with the book's colours in both themes."""

    def theme(name: str) -> str:
        link, code = _LINKS[name]
        variables = f":root{{color-scheme:{name};--link:{link};--code:{code};{css_variables(name)}}}"
        return f"{variables}\n{HtmlFormatter(style=_STYLES[name]).get_style_defs('.slide .highlight')}\n"

    own = (TEMPLATES / "deck.css").read_text(encoding="utf-8")
    return f"{theme('light')}@media (prefers-color-scheme:dark){{\n{theme('dark')}}}\n{own}"


def vendor(project: Project, folder: Path) -> None:
    """Copy beside the decks what they load."""
    shutil.rmtree(folder / "vendor", ignore_errors=True)
    shutil.copytree(REVEAL, folder / "vendor" / "reveal")
    shutil.copytree(project.book / "_vendor" / "mathjax", folder / "vendor" / "mathjax")
    shutil.copy(TEMPLATES / "deck.js", folder / "vendor")
    (folder / "vendor" / "deck.css").write_text(style_sheet(), encoding="utf-8")


def index(project: Project, spoken: str, notebooks: Mapping[str, NotebookNode], counts: Mapping[str, int]) -> str:
    """The page that lists the decks."""
    found = []
    for name, notebook in notebooks.items():
        minutes = plans(project).get(name[:2], {}).get("minutes", 0)
        facts = [say("{count} slides", count=counts[name])]
        if minutes:
            facts.append(say("{minutes} minutes", minutes=minutes))
        number = re.match(r"\d+", name)
        found.append(
            {
                "name": name,
                "number": number[0] if number else "",
                "question": _words(deck.question(notebook)),
                "answer": _words(prose.plain(deck.answer(notebook), lambda _: None)),
                "facts": " · ".join(facts),
            }
        )
    keys = say(
        "In a deck: arrow keys move, {overview} shows all slides, {notes} the speaker's notes; "
        "{zoom} and a click enlarge what lies under the pointer."
    )
    keys = escape(keys).format(overview="<kbd>O</kbd>", notes="<kbd>S</kbd>", zoom="<kbd>Alt</kbd>")
    template = jinja2.Environment(autoescape=True).from_string((TEMPLATES / "decks.html.j2").read_text("utf-8"))
    return template.render(language=spoken, title=say("Slides of the workshop"), keys=keys, decks=found)


def _words(text: str) -> str:
    return re.sub(r"[`*$]", "", text)


def build(project: Project, spoken: str, names: Sequence[str] = ()) -> Path:
    """Write the decks of a language, which `language.use` has chosen, and the page that lists them; return the folder.

    Raises:
        SlidesError, DeckError, ProjectError, NotebookError: a chapter is not there, or is none.
    """
    notebooks = read_chapters(project, spoken, names)
    folder = target(project, spoken)
    folder.mkdir(parents=True, exist_ok=True)
    vendor(project, folder)
    order = [path.stem for path in project.chapters]
    counts = {}
    for name, notebook in notebooks.items():
        chapter = describe(project, name, _following(project, spoken, order, name))
        slides = deck.make(notebook, chapter)
        counts[name] = len(slides)
        path = folder / f"{name}.html"
        path.write_text(render(slides, chapter, spoken), encoding="utf-8")
        print(f"{name}: {len(slides)} slides, {path.stat().st_size / 1000:,.0f} kB", flush=True)
    (folder / "index.html").write_text(index(project, spoken, notebooks, counts), encoding="utf-8")
    return folder


def _following(project: Project, spoken: str, order: Sequence[str], name: str) -> tuple[str, str] | None:
    """The next chapter's name and question, from its executed form if there is one."""
    after = order[order.index(name) + 1 : order.index(name) + 2]
    if not after:
        return None
    path = executed(project, spoken) / f"{after[0]}.ipynb"
    return after[0], deck.question(form.read(path if path.exists() else project.chapter(after[0])))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER")
    parser.add_argument("--language", choices=language.LANGUAGES, default="en")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    project = Project(options.root)
    if options.language != "en" and not executed(project, options.language).is_dir():
        print(f"left out: no chapters in {language.LANGUAGES[options.language]}, no slides of them", file=sys.stderr)
        return 0
    try:
        language.use(options.language)
    except (ModuleNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        folder = build(project, options.language, options.chapters)
    except (SlidesError, DeckError, ProjectError, form.NotebookError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(folder / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
