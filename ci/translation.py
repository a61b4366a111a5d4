"""The book in another language: a copy of the project below build/LANGUAGE with every text translated.

Chapters are not executed again. Their code, what it prints and their numbers are those of the English run; prose,
figures, tables and the folds of cells are translated by the catalogues. The copy has the form of a project, so it is
staged and built as the English book is. What a catalogue lacks stays English, and is counted.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import catalogues
import nbformat
import notebook_form
import notebook_results as results
import performance_page
import translation_prose
import translation_sources as sources
import workshop_plan
import yaml
from project import Project, ProjectError

from ds41.language import LANGUAGES, Catalogue, figure
from ds41.language import load as load_figures
from ds41.language.catalogue import read

AXES = "Four axes"
PERFORMANCE = performance_page.PAGE.with_suffix("").as_posix()


@dataclass(frozen=True)
class Edition(Project):
    """The translated copy of a project; what is built of it lies beside its pages.

    original: the project that it is a copy of.
    """

    original: Project | None = None

    @property
    def build(self) -> Path:
        return self.root


@dataclass
class Count:
    """The texts of one page: how many there are, and which of them are not translated."""

    texts: int = 0
    missing: list[str] = field(default_factory=list)


def edition(project: Project, language: str) -> Project:
    """The book in a language: the project itself for English, else its translated copy.

    Raises:
        ProjectError: an unknown language.
    """
    if language not in LANGUAGES:
        raise ProjectError(f"language is {language!r}; expected one of {', '.join(LANGUAGES)}")
    return project if language == "en" else Edition(project.build / language, project)


def translate(project: Project, language: str) -> dict[str, Count]:
    """Write the translated copy anew from the pages and the executed chapters; the texts of each page.

    Raises:
        OSError: a chapter has not been executed. ValueError: a catalogue cannot be used.
    """
    target = edition(project, language)
    for name in ("book", "benchmarks", "executed"):
        shutil.rmtree(target.root / name, ignore_errors=True)
    target.executed.mkdir(parents=True)
    shutil.copytree(
        project.book, target.book, ignore=shutil.ignore_patterns("*.ipynb", "*.md", "*.toml", "locale", ".*")
    )
    shutil.copytree(project.root / "benchmarks" / "results", target.root / "benchmarks" / "results")
    for name in ("requirements.txt", "CITATION.cff"):
        shutil.copy(project.root / name, target.root)
    book = Prose(project, language, sources.BOOK)
    write_settings(project, target, language, book)
    counts = {}
    for name in project.page_names:
        page = project.page(name)
        prose = Prose(project, language, catalogues.stem(name))
        place = target.root / page.relative_to(project.root)
        place.parent.mkdir(parents=True, exist_ok=True)
        counts[name] = prose.count
        if page.suffix == ".md":
            place.write_text(prose.page(page.read_text(encoding="utf-8")), encoding="utf-8")
            if name == PERFORMANCE:
                count_texts(sources.performance_texts(project), load_figures(language), prose.count)
            if name == workshop_plan.PAGE:
                count_texts(sources.tryout_texts(project), load_figures(language), prose.count)
            continue
        notebook = nbformat.read(page, as_version=nbformat.NO_CONVERT)
        translate_cells(notebook, prose, book, target)
        nbformat.write(notebook, place, version=nbformat.NO_CONVERT)
        executed = nbformat.read(results.result_path(page, project), as_version=nbformat.NO_CONVERT)
        translate_cells(executed, Prose(project, language, catalogues.stem(name)), book, target)
        translate_figures(executed, load_figures(language), results.devices(page, project), prose.count)
        nbformat.write(executed, results.result_path(page, target), version=nbformat.NO_CONVERT)
        copy_record(page, project, target)
    counts[sources.BOOK] = book.count
    return counts


class Prose:
    """The catalogue of one page's prose, and what was looked up in it."""

    def __init__(self, project: Project, language: str, name: str) -> None:
        self.count = Count()
        path = catalogues.prose_folder(project, language) / f"{name}.po"
        self._texts = read(path) if path.exists() else {}
        glossary = catalogues.prose_folder(project, language) / "glossary.po"
        self._terms = read(glossary) if glossary.exists() else {}
        self._seen: set[str] = set()

    def find(self, text: str) -> str | None:
        found = self._texts.get((text, ""))
        if text not in self._seen:
            self._seen.add(text)
            self.count.texts += 1
            if found is None:
                self.count.missing.append(text)
        return found

    def page(self, text: str) -> str:
        """A page or a cell in the other language."""
        translated = translation_prose.rewrite(text, lambda one: self.find(one) or self._with_terms(one))
        return translation_prose.with_decimal_commas(translated)

    def _with_terms(self, text: str) -> str:
        """A text that stays English, with its links to the glossary leading to the translated terms."""

        def led(match: re.Match) -> str:
            words, _, target = match[1].rpartition("<")
            term = target.rstrip(">") if words else match[1]
            translated = self._terms.get((term, ""), term)
            return f"{{term}}`{(words or term).strip()} <{translated}>`"

        return re.sub(r"\{term\}`([^`]+)`", led, text)

    def word(self, text: str) -> str:
        """One text of the settings."""
        return self.find(text) or text


def translate_cells(notebook: nbformat.NotebookNode, prose: Prose, book: Prose, target: Project) -> None:
    """Translate a notebook's prose and the names of its folds; its set-up cell chooses the language."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = prose.page(cell.source)
        elif cell.get("id") == "colab":
            cell.source = notebook_form.colab_source(target)
        for key, text in sources.fold_prompts(cell).items():
            cell.metadata["mystnb"][key] = book.word(text)


def translate_figures(notebook: nbformat.NotebookNode, catalogue: Catalogue, devices: list[str], count: Count) -> None:
    """Translate what a notebook's cells show; `devices`: what it ran on."""
    asked = Counting(catalogue)
    for output in shown(notebook):
        output.data["text/html"] = figure.localise(output.data["text/html"], asked, devices)
    count.texts += len(asked.asked)
    count.missing += sorted(text for text, _ in asked.missed)


class Counting(Catalogue):
    """A catalogue that remembers what it was asked for."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(catalogue.language, catalogue.texts)
        self.asked: set[tuple[str, str]] = set()

    def find(self, text: str, context: str = "") -> str | None:
        self.asked.add((text, context))
        return super().find(text, context)


def count_texts(texts: list[tuple[str, str]], catalogue: Catalogue, count: Count) -> None:
    """Add texts that are translated when the page is staged."""
    count.texts += len(texts)
    count.missing += [text for text, context in texts if (text, context) not in catalogue.texts]


def shown(notebook: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    """The outputs of a notebook that are HTML."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text/html" in output.get("data", {}):
                yield output


def keep_anchors(folder: Path, project: Edition) -> None:
    """Let links into the English pages' sections lead to the same sections of the staged pages below `folder`.

    Raises:
        ProjectError: a page has not as many headings as the English one.
    """
    staged = {
        name: folder / project.original.page(name).relative_to(project.original.root) for name in project.page_names
    }
    english, slugs = {}, {}
    for name, path in staged.items():
        english[name] = [
            one for text in _texts(project.original.page(name)) for one in translation_prose.headings(text)
        ]
        translated = [one for text in _texts(path) for one in translation_prose.headings(text)]
        if len(english[name]) != len(translated):
            raise ProjectError(f"{path.name} has {len(translated)} headings; the English page has {len(english[name])}")
        slugs[path.name] = {
            translation_prose.slug(one): translation_prose.slug(other)
            for one, other in zip(english[name], translated, strict=True)
        }
    for name, path in staged.items():
        anchors = iter(english[name])

        def kept(text: str, page: str = path.name, anchors: Iterator[str] = anchors) -> str:
            return translation_prose.with_slugs(translation_prose.with_anchors(text, anchors), page, slugs)

        if path.suffix == ".md":
            path.write_text(kept(path.read_text(encoding="utf-8")), encoding="utf-8")
            continue
        notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = kept(cell.source)
        nbformat.write(notebook, path)


def _texts(page: Path) -> list[str]:
    if page.suffix == ".md":
        return [page.read_text(encoding="utf-8")]
    notebook = nbformat.read(page, as_version=nbformat.NO_CONVERT)
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def copy_record(chapter: Path, project: Project, target: Project) -> None:
    """The record of the English run, for the translated result.

    Raises:
        ProjectError: the chapter has no whole result.
    """
    record = results.read_record(chapter, project)
    if record is None:
        raise ProjectError(f"{chapter.stem} has no executed result: run `make notebooks`")
    translated = target.book / chapter.name
    record["output"] = results.digest_files([results.result_path(translated, target)], target.executed)
    results.record_path(translated, target).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def write_settings(project: Project, target: Project, language: str, book: Prose) -> None:
    """`_config.yml` and `_toc.yml` with their texts translated and the language named."""
    config = json.loads(json.dumps(project.config))
    config["title"] = book.word(config["title"])
    settings = config["sphinx"]["config"]
    settings["language"] = language
    for name in ("nb_code_prompt_show", "nb_code_prompt_hide"):
        settings[name] = book.word(settings[name])
    toc = yaml.safe_load((project.root / "_toc.yml").read_text(encoding="utf-8"))
    for part in toc.get("parts", []):
        if "caption" in part:
            part["caption"] = book.word(part["caption"])
    for name, content in (("_config.yml", config), ("_toc.yml", toc)):
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        (target.root / name).write_text(text, encoding="utf-8")


def report_path(project: Project, language: str) -> Path:
    """Where a build writes how many texts of each page there are, and which are not translated."""
    return project.reports / f"translation-{language}.json"


def left(project: Project, language: str) -> Iterator[str]:
    """The English texts on the built pages that must have none: the landing page and the chapters of the axes.

    Raises:
        OSError: no build has written its report.
    """
    counts = json.loads(report_path(project, language).read_text(encoding="utf-8"))
    for name in complete_pages(project):
        for text in counts[name]["missing"]:
            yield f"{language}, {name}: no translation of {text!r}; see ci/catalogues.py"


def complete_pages(project: Project) -> list[str]:
    """The landing page and the chapters of the part of the axes."""
    toc = yaml.safe_load((project.root / "_toc.yml").read_text(encoding="utf-8"))
    axes = [part for part in toc.get("parts", []) if part.get("caption") == AXES]
    return [toc["root"], *(chapter["file"] for part in axes for chapter in part["chapters"])]


def report(counts: dict[str, Count]) -> str:
    """A table of the texts of each page and how many of them are not translated."""
    rows = [(name.removeprefix("book/"), count.texts, len(count.missing)) for name, count in counts.items()]
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    return "\n".join(
        [f"{'page':<28}{'texts':>7}{'English':>9}", *(f"{name:<28}{texts:>7}{left:>9}" for name, texts, left in rows)]
    )
