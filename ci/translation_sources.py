"""Where the texts of the book stand: its pages, what their cells show, and what the library and its scripts say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import nbformat
import notebook_results as results
import performance_page
import script_messages
import translation_prose
import workshop_page
import yaml
from project import Project

from ds41.language import figure, speaking
from ds41.language.catalogue import Catalogue

# Programs beside the library that speak to readers.
SPEAKING = ("workshop_*.py", "page_*.py", "back_pages.py", "performance_*.py", "build_book.py")
# Texts of settings and of the folds of cells, which stand on no page.
BOOK = "book"


def page_texts(page: Path) -> list[str]:
    """The texts of a page's prose, in reading order, each once."""
    if page.suffix == ".md":
        return unique(translation_prose.messages(page.read_text(encoding="utf-8")))
    notebook = nbformat.read(page, as_version=nbformat.NO_CONVERT)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return unique(text for source in cells for text in translation_prose.messages(source))


def book_texts(project: Project) -> list[str]:
    """Title and captions of the table of contents, and what the folds of cells are called."""
    toc = yaml.safe_load((project.root / "_toc.yml").read_text(encoding="utf-8"))
    captions = [part["caption"] for part in toc.get("parts", []) if "caption" in part]
    settings = project.config["sphinx"]["config"]
    prompts = [settings[name] for name in ("nb_code_prompt_show", "nb_code_prompt_hide") if name in settings]
    for chapter in project.chapters:
        for cell in nbformat.read(chapter, as_version=nbformat.NO_CONVERT).cells:
            prompts += fold_prompts(cell).values()
    return unique([project.config["title"], *captions, *prompts])


def fold_prompts(cell: nbformat.NotebookNode) -> dict[str, str]:
    """What a folded cell is called, by the key in its metadata."""
    folds = cell.metadata.get("mystnb", {})
    return {key: folds[key] for key in ("code_prompt_show", "code_prompt_hide") if key in folds}


def figure_texts(chapter: Path, project: Project) -> list[tuple[str, str]]:
    """What the executed cells of a chapter show, as texts with their contexts, each once.

    Raises:
        OSError: the chapter has not been executed.
    """
    notebook = nbformat.read(results.result_path(chapter, project), as_version=nbformat.NO_CONVERT)
    heard = Hearing()
    devices = results.devices(chapter, project)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text/html" in output.get("data", {}):
                figure.localise(output.data["text/html"], heard, devices)
    return unique(heard.heard)


def performance_texts(project: Project) -> list[tuple[str, str]]:
    """What the page of measured results says of its files."""
    page = project.root / performance_page.PAGE
    heard = Hearing()
    with speaking(heard):
        performance_page.filled(page.read_text(encoding="utf-8"), project)
    return unique(text for text in heard.heard if text[1] == "")


def tryout_texts(project: Project) -> list[tuple[str, str]]:
    """What the workshop's page says of the recorded try-out."""
    heard = Hearing()
    with speaking(heard):
        workshop_page.filled("{{ workshop.tryout }}", project)
    return unique(text for text in heard.heard if text[1] == "")


class Hearing(Catalogue):
    """A catalogue without translations that keeps what it is asked for, in order."""

    def __init__(self) -> None:
        super().__init__("de", {})
        self.heard: list[tuple[str, str]] = []

    def find(self, text: str, context: str = "") -> None:
        self.heard.append((text, context))


def exercise_texts(project: Project) -> dict[str, list[str]]:
    """Hints and remarks of the exercises by chapter, such as "04"; those of several chapters stand with the first."""
    texts: dict[str, list[str]] = {}
    known: set[str] = set()
    for path in sorted((project.root / "src" / "ds41" / "exercises").glob("chapter_*.py")):
        found = [text for text in unique(said(path.read_text(encoding="utf-8"), path)) if text not in known]
        texts[path.stem.removeprefix("chapter_")] = found
        known.update(found)
    return texts


def library_texts(project: Project) -> list[tuple[str, str]]:
    """The other messages of Python, and those of JavaScript, with their contexts, each once."""
    sources = sorted((project.root / "src" / "ds41").rglob("*.py"))
    sources += sorted(path for pattern in SPEAKING for path in (project.root / "ci").glob(pattern))
    sources = [path for path in sources if not _of_exercises(path)]
    texts = [(text, "say") for path in sources for text in said(path.read_text(encoding="utf-8"), path)]
    scripts = sorted((project.root / "src" / "ds41" / "viz" / "js").glob("*.js"))
    for path in scripts:
        texts += [(text, "script") for text in script_messages.messages(path.read_text(encoding="utf-8"))]
    return unique([*texts, *((text, "say") for text in workshop_goals(project))])


def workshop_goals(project: Project) -> list[str]:
    """What the plan of the workshop says."""
    plan = yaml.safe_load((project.book / "workshop.yml").read_text(encoding="utf-8"))
    goals = [goal for chapter in plan["chapters"].values() for goal in chapter["goals"]]
    return goals + [block["goal"] for blocks in plan["plans"].values() for block in blocks if "goal" in block]


def _of_exercises(path: Path) -> bool:
    return path.parent.name == "exercises" and path.stem.startswith("chapter_")


def said(source: str, path: Path) -> Iterator[str]:
    """Messages of a Python source: what `say` is called with; of an exercise also its hints and plain remarks."""
    of_exercises = _of_exercises(path)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name(id="say") | ast.Attribute(attr="say"), args=[ast.Constant(value=str(text)), *_]
            ):
                yield text
            case ast.Call(func=ast.Name(id="exercise"), keywords=keywords) if of_exercises:
                hints = next(keyword.value for keyword in keywords if keyword.arg == "hints")
                yield from (one.value for one in hints.elts)
            case ast.Return(value=ast.Constant(value=str(text))) if of_exercises:
                yield text
            case ast.Return(value=ast.IfExp(body=body, orelse=other)) if of_exercises:
                yield from (one.value for one in (body, other) if isinstance(one, ast.Constant) and one.value)


def unique(texts) -> list:
    return list(dict.fromkeys(texts))
