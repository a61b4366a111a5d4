#!/usr/bin/env python3
"""The catalogues of the book's other languages.

    python ci/catalogues.py update      bring them up to date with the English texts
    python ci/catalogues.py check       faults of the translations; exit 1 if any
    python ci/catalogues.py status      how much each catalogue has translated, and what has gone stale

A page's prose has its catalogue in book/locale/LANGUAGE/, under the page's name. What its figures show stands in
src/ds41/language/LANGUAGE/, which ships with the library; texts of more than one page stand in shared.po, hints and
remarks of exercises in exercises-CHAPTER.po, other messages of Python and JavaScript in library.po. `update` reads
figures from the executed chapters. A text that changed keeps its old translation, marked fuzzy, with the old English
beside it; until a person has looked at it, pages show the English. A text that is gone goes to the end of its
catalogue, commented out, unless a comment of its translator says that it stands in
some runs only: such texts depend on what a run measures.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections import Counter
from pathlib import Path

import nbformat
import translation_rules
import translation_sources as sources
from babel.messages.catalog import Catalog
from babel.messages.pofile import PoFileError, read_po, unescape, write_po
from project import HERE, Project, ProjectError
from translation_terms import Terms

from ds41.language.catalogue import LANGUAGES

WIDTH = 100
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
# What translators write above a text.
SOME_RUNS = "in some runs"
OTHER_SENSE = "other sense"
HEADER = """msgid ""
msgstr ""
"Language: {language}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"

"""
OTHERS = tuple(code for code in LANGUAGES if code != "en")


def prose_folder(project: Project, language: str) -> Path:
    return project.book / "locale" / language


def figures_folder(project: Project, language: str) -> Path:
    return project.root / "src" / "ds41" / "language" / language


def stem(name: str) -> str:
    """What the catalogue of the page `book/02-ced` or `book/api/index` is called."""
    return name.removeprefix("book/").replace("/", "-")


def wanted(project: Project, language: str) -> dict[Path, list[tuple[str, str]]]:
    """The texts that each catalogue should have, with their contexts."""
    prose, figures = prose_folder(project, language), figures_folder(project, language)
    texts: dict[Path, list[tuple[str, str]]] = {}
    for name in project.page_names:
        texts[prose / f"{stem(name)}.po"] = [(text, "") for text in sources.page_texts(project.page(name))]
    texts[prose / f"{sources.BOOK}.po"] = [(text, "") for text in sources.book_texts(project)]
    shown = {chapter.stem: sources.figure_texts(chapter, project) for chapter in project.chapters}
    shown["performance"] = sources.performance_texts(project)
    shown["workshop"] = sources.tryout_texts(project)
    pages = Counter(text for chapter in shown.values() for text in chapter)
    for chapter, found in shown.items():
        texts[figures / f"{chapter}.po"] = [text for text in found if pages[text] == 1]
    texts[figures / "shared.po"] = [text for text in pages if pages[text] > 1]
    for chapter, said in sources.exercise_texts(project).items():
        texts[figures / f"exercises-{chapter}.po"] = [(text, "say") for text in said]
    texts[figures / "library.po"] = sources.library_texts(project)
    return texts


def read(path: Path, language: str) -> Catalog:
    if not path.exists():
        return Catalog(locale=language)
    try:
        with path.open("rb") as file:
            catalogue = read_po(file, locale=language, abort_invalid=True)
    except (PoFileError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a gettext catalogue: {error}") from error
    for message in catalogue:
        # Babel writes the English that a translation was made for, and reads it as a comment.
        before = " ".join(line[1:].strip() for line in message.user_comments if line.startswith("|"))
        message.user_comments = [line for line in message.user_comments if not line.startswith("|")]
        if message.fuzzy and before:
            message.previous_id = ["".join(map(unescape, QUOTED.findall(before)))]
    return catalogue


def update(project: Project, language: str) -> None:
    known = {}
    texts = wanted(project, language)
    for path in texts:
        catalogue = read(path, language)
        # A text that comes back finds its translation among those that were gone.
        for message in (*catalogue.obsolete.values(), *catalogue):
            if message.id and message.string and not message.fuzzy:
                known[message.id, message.context or ""] = message.string
    for path, entries in texts.items():
        template = Catalog()
        catalogue = read(path, language)
        kept = [(one.id, one.context or "") for one in catalogue if one.id and SOME_RUNS in one.user_comments]
        for text, context in dict.fromkeys([*entries, *kept]):
            template.add(text, context=context or None)
        # What a stale translation was made for, by its English; the English may have changed once more since.
        made_for = {one.id: one.previous_id for one in catalogue if one.fuzzy and one.previous_id}
        gone = {key: one for key, one in catalogue.obsolete.items() if one.string}
        catalogue.update(template, update_creation_date=False)
        for key, message in gone.items():
            back = catalogue.get(message.id, message.context) is not None
            if not back and not (key in catalogue.obsolete and catalogue.obsolete[key].string):
                catalogue.obsolete[key] = message
        for message in catalogue:
            # A text that moved from one catalogue to another takes its translation along.
            if message.id and (not message.string or message.fuzzy) and (message.id, message.context or "") in known:
                message.string = known[message.id, message.context or ""]
                message.flags.discard("fuzzy")
            elif message.id and message.fuzzy:
                last = message.previous_id[0] if message.previous_id else message.id
                message.previous_id = made_for.get(last, message.previous_id)
                if message.previous_id and message.previous_id[0] == message.id:
                    message.flags.discard("fuzzy")
        write(catalogue, path)


def write(catalogue: Catalog, path: Path) -> None:
    """Without dates and names, so that equal catalogues are equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for message in catalogue:
        # Babel takes every brace for a format of Python.
        message.flags -= {"python-format", "python-brace-format"}
    content = io.BytesIO()
    write_po(content, catalogue, width=WIDTH, omit_header=True, include_previous=True)
    # Whole or not at all: of half a catalogue the next update would make an empty one.
    partial = path.with_suffix(".partial")
    try:
        partial.write_bytes(HEADER.format(language=catalogue.locale).encode() + content.getvalue())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check(project: Project, language: str) -> list[str]:
    """Faults of the translations there are, and where they leave the term list."""
    faults = []
    terms = Terms.of(project, language)
    for folder in (prose_folder(project, language), figures_folder(project, language)):
        for path in sorted(folder.glob("*.po")):
            for message in read(path, language):
                if message.id and message.string and not message.fuzzy:
                    found = [*translation_rules.faults(message.id, message.string, message.context or "")]
                    # What stays as it is, is a name.
                    if message.string != message.id and OTHER_SENSE not in message.user_comments:
                        found += terms.faults(message.id, message.string)
                    faults += [f"{path.relative_to(project.root)}: {fault}\n    {message.id!r}" for fault in found]
    return faults


def status(project: Project, language: str) -> str:
    """How many texts each catalogue has and how many are translated; then those whose English has changed."""
    lines, stale, total = [], [], Counter()
    for folder in (prose_folder(project, language), figures_folder(project, language)):
        for path in sorted(folder.glob("*.po")):
            texts = [message for message in read(path, language) if message.id]
            count = Counter(
                texts=len(texts),
                stale=sum(message.fuzzy for message in texts),
                missing=sum(not message.string for message in texts),
            )
            name = str(path.relative_to(project.root))
            lines.append(f"{name:<52}{count['texts']:>7}{count['stale']:>7}{count['missing']:>9}")
            total += count
            stale += [f"{name}: {' '.join(message.id.split())}" for message in texts if message.fuzzy]
    head = f"{language + ': catalogue':<52}{'texts':>7}{'stale':>7}{'missing':>9}"
    foot = f"{'all':<52}{total['texts']:>7}{total['stale']:>7}{total['missing']:>9}"
    return "\n".join([head, *lines, foot, *(["", "stale, for the English has changed:", *stale] if stale else [])])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("update", "check", "status"))
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    project = Project(options.root)
    for language in OTHERS:
        try:
            if options.command == "update":
                update(project, language)
            elif options.command == "check":
                faults = check(project, language)
                print("\n".join(faults) or f"{language}: the translations are in order")
                if faults:
                    return 1
            else:
                print(status(project, language))
        except (OSError, ValueError, ProjectError, nbformat.reader.NotJSONError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
