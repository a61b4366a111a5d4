#!/usr/bin/env python3
"""Build the book from the executed chapters: build/executed/ and book/ -> build/stage/ -> build/html/.

    python ci/build_book.py                  in English
    python ci/build_book.py --language de    in English and in German, which lies in build/html/de/

Nothing is executed: `make notebooks` does that, and a chapter whose result is missing or older than its
notebook or library is refused. Every warning is an error. build/html/ is replaced at once and only by a
book that built without fault. A translated edition is made from the same results; how many of its texts are still
English is printed and kept in build/reports/translation-de.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import back_pages
import book_rules
import glossary_links
import nbformat
import notebook_results as results
import page_cards
import page_figures
import page_head
import page_languages
import page_markup
import page_meta
import page_slim
import page_styles
import page_words
import performance_page
import translation
import workshop_page
import yaml
from page_markup import PageError
from page_meta import Site
from project import HERE, Project, ProjectError

from ds41 import language
from ds41.language import say

# Its package cannot be run with -m, and its script may belong to another environment.
# The folder of this file goes onto the path for the extension api_sphinx.
JUPYTER_BOOK = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
    "from jupyter_book.cli.main import main; sys.exit(main())"
)

# Of book/: chapters, which are staged as they were executed, and what pages are made from.
UNSTAGED = ("*.ipynb", "*.toml", "*.yml", "*.json", "_vendor", "locale", ".*")


class BuildError(Exception):
    """The book cannot be built from what there is."""


def check_jupyter_book() -> None:
    version = importlib.metadata.version("jupyter-book")
    if int(version.split(".")[0]) >= 2:
        raise BuildError(f"jupyter-book {version} ignores _config.yml; requirements.txt asks for 1.x")


def check_results(project: Project) -> None:
    faults = []
    for chapter in project.chapters:
        record = results.read_record(chapter, project)
        reasons = results.differences(record, results.source_fingerprint(chapter, project))
        if reasons:
            faults.append(f"{chapter.stem}: {', '.join(reasons)}")
    if faults:
        raise BuildError("chapters to execute first, with `make notebooks`:\n  " + "\n  ".join(faults))


def stage(project: Project) -> Path:
    """Lay out afresh what Jupyter Book reads: settings, pages, executed chapters, and vendored files."""
    folder = project.build / "stage"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(project.book, folder / "book", ignore=shutil.ignore_patterns(*UNSTAGED))
    for chapter in project.chapters:
        shutil.copy(results.result_path(chapter, project), folder / chapter.relative_to(project.root))
    # Jupyter Book looks for _static, whose styles and scripts it puts on every page, beside _config.yml.
    if (project.book / "_static").exists():
        shutil.copytree(project.book / "_static", folder / "_static")
    shutil.copytree(project.book / "_vendor", folder / "extra" / "vendor")
    shutil.copy(project.root / "_toc.yml", folder)
    config = dict(project.config)
    config["html"] = config.get("html", {}) | {"baseurl": Site.of(project).address}
    (folder / "_config.yml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    clear_landing_page(folder, project)
    back_pages.fill(folder, project)
    performance_page.fill(folder, project)
    workshop_page.fill(folder, project)
    if isinstance(project, translation.Edition):
        translation.keep_anchors(folder, project)
    glossary_links.link(folder, project)
    return folder


def clear_landing_page(folder: Path, project: Project) -> None:
    """The landing page opens with its figure: nothing on it depends on the machine, so its set-up is not shown."""
    landing = project.page(project.page_names[0])
    if landing not in project.chapters:
        return
    staged = folder / landing.relative_to(project.root)
    notebook = nbformat.read(staged, as_version=4)
    for cell in notebook.cells:
        if cell.id in ("colab", "parameters"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "remove-cell"]
    nbformat.write(notebook, staged)


def mend(page: str) -> str:
    """A built page without three faults of the tools; axe-core finds each of them again, should they change its words.

    docutils gives bibliographies roles that are deprecated. MyST-NB names every fold alike, whatever it says.
    The theme does not name the folds of its table of contents.
    """
    page = page.replace('role="doc-biblioentry"', 'role="listitem"')
    page = page.replace('<summary aria-label="Toggle hidden content">', "<summary>")
    label = f'<summary aria-label="{say("Subpages")}">'
    return page.replace('<summary><span class="toctree-toggle"', f'{label}<span class="toctree-toggle"')


def finish(built: Path, project: Project, languages: list[str]) -> None:
    """Make the pages that Sphinx wrote light, and give them what they say of themselves to others.

    Args:
        languages: the editions that are built together, for the links between them.

    Raises:
        PageError: a page or a file of the theme is not what is known here.
    """
    built = built.resolve()
    static = built / "_static"
    options = (static / "documentation_options.js").read_text(encoding="utf-8")
    plain = page_slim.plain_classes((static / "pygments.css").read_text(encoding="utf-8"))
    # The front door is no page of the theme, and is written anew.
    pages = {
        path: path.read_text(encoding="utf-8")
        for path in book_rules.built_pages(built)
        if path != built / page_meta.DOOR
    }
    for path, text in pages.items():
        with page_markup.naming(path, built):
            text = page_head.print_addresses(page_head.mend_head(mend(text), options))
            pages[path] = page_slim.slim_code(page_slim.slim_plots(text), plain)
    site = Site.of(project)
    # Before the style sheets become one, which has no rule for what no page has.
    page_languages.link(pages, built, site, languages)
    glossary_links.explain(pages)
    page_head.calm_theme(built)
    page_styles.bundle(pages, built, [path for path in static.rglob("*.js") if path.name != "fontawesome.js"])
    page_figures.share(pages, built)
    titles = page_meta.add_meta(pages, built, site, [f"{name}.html" for name in project.page_names])
    bar = page_cards.Bar.of((static / "ledger.svg").read_text(encoding="utf-8"))
    page_cards.draw({built / page_meta.card_name(name): title for name, title in titles.items()}, site.title, bar)
    page_head.drop_unused(built)
    glossary_links.restore_downloads(built, project)
    for path, text in pages.items():
        path.write_text(page_words.translate(text), encoding="utf-8")


def build(folder: Path, project: Project, languages: list[str]) -> Path:
    """Run Jupyter Book and return its HTML folder; its whole output goes to reports/book.log."""
    target = project.build / "jupyter-book"
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", str(folder)]
    command += ["--path-output", str(target), "-W", "-n", "--keep-going"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    project.reports.mkdir(parents=True, exist_ok=True)
    log = project.reports / "book.log"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    log.write_text(plain, encoding="utf-8")
    if done.returncode:
        faults = [line for line in plain.splitlines() if re.search(r"WARNING|ERROR|CRITICAL|Error\b", line)]
        shown = "\n  ".join(faults or plain.splitlines()[-30:])
        raise BuildError(f"Jupyter Book found faults:\n  {shown}\nthe whole log: {log}")
    built = target / "_build" / "html"
    finish(built, project, languages)
    return built


def build_edition(root: Path, code: str, languages: list[str]) -> Path:
    """Build the book in one language, in a process of its own.

    Raises:
        BuildError: Jupyter Book found faults. ProjectError, PageError, OSError: as its parts say.
    """
    language.use(code)
    project = translation.edition(Project(root), code)
    return build(stage(project), project, languages)


def translate(project: Project, code: str) -> None:
    """Make the translated copy of the project, and say how much of it is still English."""
    counts = translation.translate(project, code)
    print(f"{language.LANGUAGES[code]}:\n{translation.report(counts)}", flush=True)
    project.reports.mkdir(parents=True, exist_ok=True)
    report = {name: {"texts": count.texts, "missing": count.missing} for name, count in counts.items()}
    path = translation.report_path(project, code)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def publish(built: Path, target: Path) -> None:
    """Put the built book in the place of the last one."""
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(built, target)
    shutil.rmtree(old, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = [code for code in language.LANGUAGES if code != "en"]
    parser.add_argument(
        "--language", action="append", default=[], choices=others, help="an edition beside the English one"
    )
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    project = Project(options.root)
    languages = ["en", *dict.fromkeys(options.language)]
    start = time.monotonic()
    try:
        check_jupyter_book()
        check_results(project)
        for code in languages[1:]:
            translate(project, code)
        # A language belongs to a process; two of them build at once.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=spawn, max_tasks_per_child=1) as pool:
            jobs = [pool.submit(build_edition, options.root, code, languages) for code in languages]
            built = [job.result() for job in jobs]
        for code, folder in zip(languages[1:], built[1:], strict=True):
            os.replace(folder, built[0] / code)
        publish(built[0], project.html)
    except (BuildError, ProjectError, PageError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    editions = " in each of two languages" if len(languages) > 1 else ""
    print(f"{len(project.pages)} pages{editions} in {time.monotonic() - start:.0f} s")
    print(f"the book: {project.html / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
