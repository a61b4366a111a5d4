"""The page of measured results: every file of benchmarks/results/ becomes tables when the book is staged.

`book/performance.md` says in its own words what was compared and writes `{{ results.KIND }}` where the tables of a kind
of file belong. A kind without a file says so there. A file without a kind, or without its place on the page, stops the
build, so nothing that was recorded stays unseen. Tables are those that the benchmark programs print, taken from them
where this environment has what they import.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import performance_tables
import translation_prose
from back_pages import escaped
from project import HERE, Project, ProjectError

sys.path.append(str(HERE.root / "benchmarks"))

from origin import faults

from ds41 import language
from ds41.language import phrase, say

if TYPE_CHECKING:
    from ds41.viz.tables import Table

PAGE = Path("book") / "performance.md"
PLACEHOLDER = re.compile(r"\{\{ *results\.([a-z_]+) *\}\}")


class PerformanceError(ProjectError):
    """A file of results that the page cannot show."""


@dataclass(frozen=True)
class Kind:
    """Files that one program writes: the pattern of their names, and their tables and sentences in order.

    show: from a file's content to its tables, and its sentences in plain text.
    missing: Markdown for the page while there is no file.
    """

    pattern: str
    show: Callable[[dict[str, Any]], Iterator[Table | str]]
    missing: str


def _none(command: str, what: str = "No result of this kind", then: str = "") -> str:
    return f"{what} has been recorded yet; `{command}` writes one{then}."


def _none_on_a_gpu(command: str, what: str) -> str:
    return _none(command, what, ", and `python ci/record_results.py` keeps it")


KINDS = {
    "gpu": Kind("gpu_*.json", performance_tables.gpu, _none_on_a_gpu("python ci/gpu_check.py", "No GPU result")),
    "chapters": Kind(
        "chapters_*.json",
        performance_tables.chapters,
        _none_on_a_gpu("python ci/run_notebooks.py --scale full --device cuda", "No run of the chapters on a GPU"),
    ),
    "kernels": Kind(
        "kernels_compiled.json", performance_tables.compiled, _none("python ci/compile_kernels.py --record")
    ),
    "formats": Kind("formats_*.json", performance_tables.formats, _none("python benchmarks/formats.py --json FILE")),
    "million": Kind("million_*.json", performance_tables.million, _none("python benchmarks/million.py --json FILE")),
    "peers": Kind("peers_*.json", performance_tables.peers, _none("python benchmarks/peers.py --json FILE")),
    "sessions": Kind(
        "sessions_*.json", performance_tables.sessions, _none("python benchmarks/sessions.py --json FILE")
    ),
    "serve_load": Kind(
        "serve_load_*.json", performance_tables.serve_load, _none("python benchmarks/serve_load.py --json FILE")
    ),
}


def fill(folder: Path, project: Project) -> None:
    """Put the tables into the staged page below `folder`, if the book has that page.

    Raises:
        PerformanceError: a file of results has no kind, no place on the page, no origin, or lacks what its kind shows.
    """
    page = folder / PAGE
    if PAGE.with_suffix("").as_posix() in project.page_names:
        page.write_text(filled(page.read_text(encoding="utf-8"), project), encoding="utf-8")


def filled(text: str, project: Project) -> str:
    """The text of the page with the tables of all files of results."""
    found = recorded(project)
    places = PLACEHOLDER.findall(text)
    if unknown := sorted(set(places) - set(KINDS)):
        raise PerformanceError(f"{PAGE}: no results are called {', '.join(unknown)}; known are {', '.join(KINDS)}")
    unseen = [path.name for kind, paths in found.items() if kind not in places for path in paths]
    if unseen:
        raise PerformanceError(
            f"{PAGE} has no place for {', '.join(unseen)}; it is a line such as {{{{ results.gpu }}}}"
        )
    return PLACEHOLDER.sub(lambda match: section(KINDS[match[1]], found[match[1]], project), text)


def recorded(project: Project) -> dict[str, list[Path]]:
    """The JSON files of benchmarks/results/ by kind, in alphabetical order."""
    folder = project.root / "benchmarks" / "results"
    paths = sorted(folder.glob("*.json"))
    found = {name: [path for path in paths if path.match(kind.pattern)] for name, kind in KINDS.items()}
    for path in paths:
        if not any(path in of_kind for of_kind in found.values()):
            known = ", ".join(kind.pattern for kind in KINDS.values())
            raise PerformanceError(f"{path.name} is no file that the page of results knows; it knows {known}")
    return found


def section(kind: Kind, paths: Sequence[Path], project: Project) -> str:
    """Markdown of all files of one kind, each below the name of its device if there are several."""
    if not paths:
        return translation_prose.rewrite(kind.missing, told)
    records = {path: read(path) for path in paths}
    parts = []
    for path, record in records.items():
        device = f"{record['device']}, torch {record['versions']['torch']}"
        if len(paths) > 1:
            parts.append(f"### {escaped(device)}")
        try:
            shown = list(kind.show(record))
        except (KeyError, TypeError, AttributeError) as error:
            raise PerformanceError(
                f"{path.name} is not what its kind shows: {type(error).__name__}: {error}"
            ) from error
        # Equal tables of two devices have to differ in their titles, which the figures' names are made from.
        place = f" ({device})" if len(paths) > 1 else ""
        parts += [escaped(phrase(one)) if isinstance(one, str) else grid(one, place) for one in shown]
        parts.append(origin_list(path, record, project))
    return "\n\n".join(parts)


def told(text: str) -> str | None:
    """A sentence of this page in the language of the book."""
    translations = language.translations()
    return None if translations is None else translations.find(text)


def read(path: Path) -> dict[str, Any]:
    """A file's content.

    Raises:
        PerformanceError: it does not say where its numbers come from.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    if wrong := faults(record):
        raise PerformanceError(f"{path.name}: {'; '.join(wrong)}")
    return record


def grid(table: Table, place: str) -> str:
    """A table as the chapters show theirs, folded if it is long: in a box of its own that scrolls and has a name."""
    from ds41.viz.tables import Table

    titled = Table(table.title + place, table.header, table.rows, table.numeric)
    html = titled._repr_html_()
    if len(table.rows) > performance_tables.LONG:
        html = (
            f'<details style="margin-block: 1rem"><summary>{escape(phrase(titled.title))}</summary>\n{html}\n</details>'
        )
    return f"```{{raw}} html\n{html}\n```"


def origin_list(path: Path, record: dict[str, Any], project: Project) -> str:
    """Where a file's numbers come from, as a list."""
    device = record["device"]
    if "threads" in record:
        device += f", {record['threads']} thread" + "s" * (record["threads"] > 1)
    gpu = {"capability": record.get("capability"), "driver": record.get("driver"), "CUDA": record.get("cuda")}
    versions = {name: version for name, version in (gpu | record["versions"]).items() if version}
    lines = {
        say("Device"): escaped(device),
        say("Versions"): escaped(", ".join(f"{name} {version}" for name, version in versions.items())),
        say("Date"): escaped(record.get("date", "")),
        say("Command"): f"`{record['command']}`",
        say("File"): f"[{escaped(path.name)}]({file_address(path, project)})",
    }
    return "\n".join(f"- {name}: {text}" for name, text in lines.items() if text)


def file_address(path: Path, project: Project) -> str:
    """Of a file of the project, in its repository."""
    place = path.relative_to(project.root).as_posix()
    return f"{project.repository_url}/blob/{project.repository_branch}/{place}"
