#!/usr/bin/env python3
"""Build the book from the executed chapters: build/executed/ and book/ -> build/stage/ -> build/html/.

    python ci/build_book.py

Nothing is executed: `make notebooks` does that, and a chapter whose result is missing or older than its
notebook or library is refused. Every warning is an error. build/html/ is replaced at once and only by a
book that built without fault.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlparse

import back_pages
import glossary_links
import nbformat
import notebook_results as results
import page_cards
import page_figures
import page_head
import page_meta
import page_slim
import page_styles
import yaml
from project import HERE, Project, ProjectError

# Its package cannot be run with -m, and its script may belong to another environment.
# The folder of this file goes onto the path for the extension api_sphinx.
JUPYTER_BOOK = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
    "from jupyter_book.cli.main import main; sys.exit(main())"
)
FAULTS = (ProjectError, page_head.HeadError, page_meta.MetaError, page_styles.StyleError)


class BuildError(Exception):
    """The book cannot be built from what there is."""


def site_address(repository_url: str) -> str:
    """Where the built book is published: the repository's pages address."""
    owner, name = urlparse(repository_url).path.strip("/").split("/")
    return f"https://{owner}.github.io/{name}/"


def site_path(repository_url: str) -> str:
    """The path of the built book's address, such as `/ds41/`."""
    return urlparse(site_address(repository_url)).path


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
    shutil.copytree(project.book, folder / "book", ignore=shutil.ignore_patterns("*.ipynb", "*.toml", "_vendor", ".*"))
    for chapter in project.chapters:
        shutil.copy(results.result_path(chapter, project), folder / chapter.relative_to(project.root))
    # Jupyter Book looks for _static, whose styles and scripts it puts on every page, beside _config.yml.
    if (project.book / "_static").exists():
        shutil.copytree(project.book / "_static", folder / "_static")
    shutil.copytree(project.book / "_vendor", folder / "extra" / "vendor")
    shutil.copy(project.root / "_toc.yml", folder)
    config = dict(project.config)
    config["html"] = config.get("html", {}) | {"baseurl": site_address(project.repository_url)}
    (folder / "_config.yml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    clear_landing_page(folder, project)
    back_pages.fill(folder, project)
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
    """A built page without four faults of the tools.

    docutils gives bibliographies roles that are deprecated. MyST-NB names every fold alike, whatever it says.
    The theme does not name the folds of its table of contents.
    Sphinx loads MathJax on the front page whenever any page that it leads to has a formula.
    """
    page = page.replace('role="doc-biblioentry"', 'role="listitem"')
    page = page.replace('<summary aria-label="Toggle hidden content">', "<summary>")
    page = page.replace(
        '<summary><span class="toctree-toggle"', '<summary aria-label="Subpages"><span class="toctree-toggle"'
    )
    if 'class="math ' not in page:
        page = re.sub(r"\s*<script>window\.MathJax = .*?</script>", "", page)
        page = re.sub(r'\s*<script[^>]* src="[^"]*mathjax[^"]*"></script>', "", page)
    return page


def finish(built: Path, project: Project) -> None:
    """Make the pages that Sphinx wrote light, and give them what they say of themselves to others."""
    built = built.resolve()
    static = built / "_static"
    options = (static / "documentation_options.js").read_text(encoding="utf-8")
    plain = page_slim.plain_classes((static / "pygments.css").read_text(encoding="utf-8"))
    pages = {
        path: path.read_text(encoding="utf-8") for path in sorted(built.rglob("*.html")) if static not in path.parents
    }
    for path, text in pages.items():
        pages[path] = page_slim.slim_code(page_slim.slim_plots(page_head.mend_head(mend(text), options)), plain)
    glossary_links.explain(pages)
    page_head.calm_theme(built)
    page_styles.bundle(pages, built, [path for path in static.rglob("*.js") if path.name != "fontawesome.js"])
    page_figures.share(pages, built)
    site = page_meta.Site(
        site_address(project.repository_url), project.config["title"], f"{project.page_names[0]}.html"
    )
    titles = page_meta.add_meta(pages, built, site, [f"{name}.html" for name in project.page_names])
    bar = page_cards.Bar.of((static / "ledger.svg").read_text(encoding="utf-8"))
    page_cards.draw({built / page_meta.card_name(name): title for name, title in titles.items()}, site.title, bar)
    page_head.drop_unused(built)
    glossary_links.restore_downloads(built, project)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


def build(folder: Path, project: Project) -> Path:
    """Run Jupyter Book and return its HTML folder; its whole output goes to build/reports/book.log."""
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
    finish(built, project)
    return built


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
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    project = Project(parser.parse_args(argv).root)
    start = time.monotonic()
    try:
        check_jupyter_book()
        check_results(project)
        publish(build(stage(project), project), project.html)
    except (BuildError, *FAULTS, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(project.pages)} pages in {time.monotonic() - start:.0f} s")
    print(f"the book: {project.html / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
