"""Where things lie in the project, and what `_config.yml` and `_toc.yml` say. Programs in ci/ ask here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml


class ProjectError(Exception):
    """The project's settings contradict each other or the files."""


@dataclass(frozen=True)
class Project:
    """One checkout of the book: its folders, settings and chapters."""

    root: Path

    @property
    def book(self) -> Path:
        return self.root / "book"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def executed(self) -> Path:
        return self.build / "executed"

    @property
    def html(self) -> Path:
        return self.build / "html"

    @property
    def reports(self) -> Path:
        return self.build / "reports"

    @cached_property
    def config(self) -> dict[str, Any]:
        return yaml.safe_load((self.root / "_config.yml").read_text(encoding="utf-8"))

    @property
    def language(self) -> str:
        """The code of the language that the pages are in."""
        return self.config["sphinx"]["config"].get("language", "en")

    @property
    def repository_url(self) -> str:
        """The one place where the repository's address stands is `repository.url` in `_config.yml`."""
        return self.config["repository"]["url"]

    @property
    def repository_branch(self) -> str:
        return self.config["repository"]["branch"]

    @cached_property
    def page_names(self) -> list[str]:
        """Every page of `_toc.yml` as written there, in reading order."""
        toc = yaml.safe_load((self.root / "_toc.yml").read_text(encoding="utf-8"))
        return _toc_names(toc)

    @property
    def pages(self) -> list[Path]:
        """The source file of every page of `_toc.yml`, in reading order."""
        return [self.page(name) for name in self.page_names]

    @property
    def chapters(self) -> list[Path]:
        """The pages that are notebooks."""
        return [page for page in self.pages if page.suffix == ".ipynb"]

    def chapter(self, name: str) -> Path:
        """The chapter called `name`: `04-fp4`, `book/04-fp4` or `book/04-fp4.ipynb`."""
        stem = Path(name).name.removesuffix(".ipynb")
        found = [page for page in self.page_names if Path(page).name == stem]
        if not found:
            raise ProjectError(f"no chapter named {name!r} in _toc.yml; its pages are: {', '.join(self.page_names)}")
        page = self.page(found[0])
        if page.suffix != ".ipynb":
            raise ProjectError(f"{page} is a page, not a notebook")
        return page

    def page(self, name: str) -> Path:
        """The source file of the page that `_toc.yml` calls `name`."""
        found = [path for path in (self.root / f"{name}.ipynb", self.root / f"{name}.md") if path.exists()]
        if len(found) != 1:
            state = "has both a .ipynb and a .md file" if found else "has no .ipynb or .md file"
            raise ProjectError(f"_toc.yml names {name!r}, which {state} in {self.root}")
        return found[0]


def _toc_names(node: Any) -> list[str]:
    """Every `root` and `file` of a jb-book table of contents, depth first."""
    if isinstance(node, list):
        return [name for item in node for name in _toc_names(item)]
    if not isinstance(node, dict):
        return []
    names = [node[key] for key in ("root", "file") if key in node]
    return names + [name for value in node.values() for name in _toc_names(value)]


HERE = Project(Path(__file__).resolve().parents[1])
