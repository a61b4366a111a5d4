#!/usr/bin/env python3
"""Keep the chapters' notebooks in one form, and edit them as text.

    python ci/notebooks.py check  [CHAPTER ...]          report every fault; exit 1 if any
    python ci/notebooks.py sync   [CHAPTER ...]          write derived cell and metadata, drop outputs
    python ci/notebooks.py to-text CHAPTER [FILE.py]     book/CHAPTER.ipynb -> build/text/CHAPTER.py
    python ci/notebooks.py from-text FILE.py [CHAPTER]   build/text/CHAPTER.py -> book/CHAPTER.ipynb

CHAPTER is a name such as `04-fp4`. The notebook is the source; the text exists only while a person edits it.
The text is jupytext's percent format. Ids and tags stand in the cell headers:

    # %% [markdown] id="question"
    # # Four bits for a latent
    #
    # How few bits can a latent bear? ...

    # %% id="parameters" tags=["parameters"]
    SCALE = "full"  # "full" or "small": how much the chapter computes
    DEVICE = "auto"  # "auto", "cpu" or "cuda"

    # %% id="plot-error" tags=["hide-input"] mystnb={"image": {"alt": "Relative error against magnitude"}}
    errors.plot()

    # %% id="solution-1" tags=["solution"]
    ...

- The first code cell, id `colab`, is derived from _config.yml. Leave it out of the text; from-text adds it.
- A cell without an id is given one, after its heading or the cell before it; the text is rewritten with it.
- A cell tagged `solution` is folded in the book, in JupyterLab and in Colab; the tag alone is enough.
- A cell whose output is an image needs its alt text: mystnb={"image": {"alt": "..."}}.
- A chapter ends with the section whose cell has the id `summary`; `intro` has none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import notebook_form
import notebook_rules
import notebook_text
from notebook_form import NotebookError
from project import HERE, Project, ProjectError


def chosen(project: Project, names: list[str]) -> list[Path]:
    return [project.chapter(name) for name in names] or project.chapters


def check(project: Project, names: list[str]) -> int:
    faults = [] if names else notebook_rules.strays(project)
    paths = chosen(project, names)
    for path in paths:
        faults += [f"{path.name}: {fault}" for fault in notebook_rules.source_faults(path, project)]
    print("\n".join(faults) or f"{len(paths)} notebooks in order")
    return bool(faults)


def sync(project: Project, names: list[str]) -> int:
    for path in chosen(project, names):
        changed = notebook_form.write(notebook_form.normalise(notebook_form.read(path), project), path)
        print(f"{path.name}: {'written' if changed else 'unchanged'}")
    return 0


def to_text(project: Project, name: str, target: Path | None) -> int:
    source = project.book / f"{Path(name).name.removesuffix('.ipynb')}.ipynb"
    target = target or project.build / "text" / f"{source.stem}.py"
    target.parent.mkdir(parents=True, exist_ok=True)
    notebook = notebook_form.normalise(notebook_form.read(source), project)
    target.write_text(notebook_text.to_text(notebook), encoding="utf-8")
    print(target)
    return 0


def from_text(project: Project, source: Path, name: str | None) -> int:
    target = project.book / f"{(name or source.stem).removesuffix('.ipynb')}.ipynb"
    raw = notebook_text.from_text(source.read_text(encoding="utf-8"))
    nameless = any(cell["id"] is None for cell in raw.cells)
    notebook = notebook_form.normalise(raw, project)
    changed = notebook_form.write(notebook, target)
    if nameless:
        source.write_text(notebook_text.to_text(notebook), encoding="utf-8")
        print(f"{source}: rewritten with the ids given to cells that had none")
    print(f"{target}: {'written' if changed else 'unchanged'}")
    faults = notebook_rules.source_faults(target, project)
    print("\n".join(f"{target.name}: {fault}" for fault in faults), end="\n" if faults else "")
    return bool(faults)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("check", "sync"):
        commands.add_parser(command).add_argument("names", nargs="*", metavar="CHAPTER")
    text = commands.add_parser("to-text")
    text.add_argument("name", metavar="CHAPTER")
    text.add_argument("file", nargs="?", type=Path)
    back = commands.add_parser("from-text")
    back.add_argument("file", type=Path)
    back.add_argument("name", nargs="?", metavar="CHAPTER")
    options = parser.parse_args(argv)
    project = Project(options.root)
    try:
        match options.command:
            case "check":
                return check(project, options.names)
            case "sync":
                return sync(project, options.names)
            case "to-text":
                return to_text(project, options.name, options.file)
            case _:
                return from_text(project, options.file, options.name)
    except (NotebookError, ProjectError, OSError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
