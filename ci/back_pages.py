"""What the book's back pages say of the chapters, the runs and the configuration: filled in when the book is staged.

A page writes `{{ name }}`. The name is a key of the published configuration, one of `derived`, or one of `PARTS`:
the running summary from the executed chapters, their machine, seconds and memory from the records of the runs,
software, licence and citation from the files that hold them. So no such page holds a typed number. What has another
name is left to MyST, which warns of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import notebook_results as results
import yaml
from notebook_rules import NUMBERED
from project import Project, ProjectError

from ds41.language import phrase, say

PLACEHOLDER = re.compile(r"\{\{ *([a-z][a-z0-9_.]*) *\}\}")
SUMMARY_HEADER = ("claim", "predicted", "measured", "verdict")


class BackPageError(ProjectError):
    """A back page asks for something that the chapters or their records do not have."""


def fill(folder: Path, project: Project) -> None:
    """Replace the placeholders in the staged pages below `folder`.

    Raises:
        BackPageError: a numbered chapter has no row of the running summary, a chapter no record of its run, or none
            of them says on what it ran.
    """
    for page in project.pages:
        staged = folder / page.relative_to(project.root)
        if page.suffix == ".md" and PLACEHOLDER.search(text := staged.read_text(encoding="utf-8")):
            staged.write_text(filled(text, project), encoding="utf-8")


def filled(text: str, project: Project) -> str:
    """The text of a page with the values of its known placeholders."""

    def value(match: re.Match) -> str:
        name = match[1]
        if name in PARTS:
            return PARTS[name](project)
        return configuration_values().get(name, match[0])

    return PLACEHOLDER.sub(value, text)


@cache
def configuration_values() -> dict[str, str]:
    """The published configuration's keys, `vision.` before those of the tower, and what follows from them."""
    from ds41 import ModelConfig

    config = ModelConfig.flash()
    values = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "vision"}
    values |= {f"vision.{field.name}": getattr(config.vision, field.name) for field in fields(config.vision)}
    return {name: shown(value) for name, value in (values | derived(config)).items() if value is not None}


def derived(config) -> dict[str, Any]:
    """Numbers of the back pages that are no key of the configuration: counts, and bytes from the ledger."""
    from ds41 import ledger
    from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
    from ds41.small_floats import E4M3_MAX
    from ds41.systems import system

    modes = [layer.mode for layer in config.layers]
    streams = config.hc_mult
    return {
        "ratios": tuple(sorted({layer.ratio for layer in config.layers})),
        **{f"{mode}_layers": modes.count(mode) for mode in set(modes)},
        "last_layer": config.num_hidden_layers - 1,
        "last_site": 2 * config.num_hidden_layers - 1,
        "last_channel": config.head_dim - 1,
        "last_expert": config.n_routed_experts - 1,
        "last_stream": streams - 1,
        "last_draft": config.dspark_block_size - 1,
        "engram_vocab_size_less_one": config.engram_vocab_size - 1,
        "main_record_bytes": MAIN_KV.bytes_per_row(config.head_dim),
        "index_record_bytes": INDEX_KEY.bytes_per_row(config.index_head_dim),
        "window_record_bytes": WINDOW_KV.bytes_per_row(config.head_dim),
        "entry_bytes": ledger.entry_bytes(config),
        "bytes_per_token": ledger.bytes_per_token(config),
        "window_bytes": ledger.window_bytes(config),
        "v4_bytes_per_token": system("deepseek-v4-flash").bytes_per_token,
        "e4m3_max": E4M3_MAX,
    }


def shown(value: object) -> str:
    """A value as the pages print it: 5,120 and 3,514.25, 1e-20, `2, 8, 14, 20`."""
    if isinstance(value, (tuple, list)):
        return ", ".join(shown(one) for one in value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        return str(value)
    if value == int(value):
        return phrase(f"{int(value):,}")
    return phrase(f"{float(value):,.6g}" if abs(value) >= 1 else f"{float(value):g}")


def summary_table(project: Project) -> str:
    """The running summary's table, in reading order: one row for each numbered chapter of this book."""
    rows = []
    for chapter in project.chapters:
        if NUMBERED.match(chapter.stem):
            claim, *others = summary_row(chapter, project)
            link = f"[{escaped(claim)}]({chapter.name})"
            rows.append((str(int(chapter.stem[:2])), link, *map(escaped, others)))
    header = (say("chapter"), say("claim"), say("predicted"), say("measured"), say("verdict"))
    return table(header, rows, right=(0,))


def summary_row(chapter: Path, project: Project) -> tuple[str, ...]:
    """Claim, prediction, measurement and verdict that an executed chapter printed by `viz.summary_row`.

    Raises:
        BackPageError: it printed none, or several.
    """
    notebook = nbformat.read(results.result_path(chapter, project), as_version=4)
    rows = [
        row
        for cell in notebook.cells
        if cell.cell_type == "code" and "summary_row(" in cell.source
        for output in cell.outputs
        for row in _Rows(output.get("data", {}).get("text/html", "")).rows
    ]
    if len(rows) != 1 or len(rows[0]) != len(SUMMARY_HEADER):
        raise BackPageError(
            f"{chapter.stem}: the running summary takes one row of {', '.join(SUMMARY_HEADER)} from each numbered "
            f"chapter, printed by viz.summary_row; this one has {len(rows)} of {[len(row) for row in rows]} cells"
        )
    return rows[0]


class _Rows(HTMLParser):
    """The texts of the cells of an HTML table's body, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[tuple[str, ...]] = []
        self._cells: list[str] = []
        self._in_body = self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self._in_body |= tag == "tbody"
        if self._in_body and tag in ("td", "th"):
            self._cells.append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False
        elif tag == "tbody":
            self._in_body = False
        elif tag == "tr" and self._cells:
            self.rows.append(tuple(" ".join(cell.split()) for cell in self._cells))
            self._cells = []

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self._cells[-1] += data


def environments(project: Project) -> str:
    """On what the chapters ran, in their own words; by chapter unless all of them say the same.

    Raises:
        BackPageError: no chapter says it.
    """
    said: dict[str, list[str]] = {}
    for chapter in project.chapters:
        if line := results.environment(chapter, project):
            said.setdefault(line, []).append(chapter.stem)
    if not said:
        raise BackPageError("no chapter prints on what it ran, in the words of Environment.report()")
    line, stems = next(iter(said.items()))
    if len(stems) == len(project.chapters):
        return say("All chapters ran on: {environment}.", environment=escaped(line))
    return "\n".join(f"- {', '.join(stems)}: {escaped(line)}" for line, stems in said.items())


def chapter_runs(project: Project) -> str:
    """Seconds, memory, device and scale of every chapter's run, and the seconds of all; GPU memory if any had it."""
    facts = {chapter: _facts(chapter, project) for chapter in project.chapters}
    header = (
        say("chapter"),
        say("seconds"),
        say("memory, MiB"),
        say("GPU memory, MiB"),
        say("device"),
        say("scale of the run"),
    )
    rows = [
        (
            f"[{escaped(chapter.stem)}]({chapter.name})",
            phrase(f"{fact['seconds']:,.1f}"),
            _mebibytes(fact, "peak_rss_bytes"),
            _mebibytes(fact, "cuda_peak_bytes"),
            escaped(fact["device"]),
            str(fact["parameters"]["SCALE"]),
        )
        for chapter, fact in facts.items()
    ]
    total = sum(fact["seconds"] for fact in facts.values())
    rows.append((say("all"), phrase(f"{total:,.1f}"), "", "", "", ""))
    if not any(fact.get("cuda_peak_bytes") for fact in facts.values()):
        header, rows = (*header[:3], *header[4:]), [(*row[:3], *row[4:]) for row in rows]
    return table(header, rows, right=tuple(range(1, len(header) - 2)))


def _facts(chapter: Path, project: Project) -> dict[str, Any]:
    record = results.read_record(chapter, project)
    if record is None or "seconds" not in record["facts"]:
        raise BackPageError(f"{chapter.stem}: no record of a run; `make notebooks` makes one")
    return record["facts"]


def _mebibytes(facts: dict[str, Any], key: str) -> str:
    return phrase(f"{facts[key] / 2**20:,.0f}") if facts.get(key) else "-"


def software(project: Project) -> str:
    """The pinned packages of the book's environment, as `requirements.txt` has them."""
    lines = (project.root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split(";")[0].strip().split("==") for line in lines if "==" in line and not line.startswith("#")]
    return ", ".join(f"{escaped(name)} {escaped(version)}" for name, version in sorted(pins)) + "."


def citation_facts(project: Project) -> dict[str, Any]:
    return yaml.safe_load((project.root / "CITATION.cff").read_text(encoding="utf-8"))


def citation(project: Project) -> str:
    """How to cite the book: a sentence and a BibTeX entry, both from `CITATION.cff`."""
    facts = citation_facts(project)
    authors = " and ".join(author["name"] for author in facts["authors"])
    year = facts["date-released"].year
    return f"""{escaped(authors)}. {escaped(facts["title"])}. Version {facts["version"]}, {year}.

```bibtex
@software{{ds41,
  author = {{{{{authors}}}}},
  title = {{{facts["title"]}}},
  version = {{{facts["version"]}}},
  year = {{{year}}},
  url = {{{project.repository_url}}},
}}
```"""


def table(header: tuple[str, ...], rows: list[tuple[str, ...]], right: tuple[int, ...] = ()) -> str:
    """A Markdown table of cells that are Markdown already; `right` lists the columns of numbers."""
    rule = tuple("---:" if column in right else "---" for column in range(len(header)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def escaped(text: str) -> str:
    """Text that Markdown takes as it is, also in a cell of a table."""
    return re.sub(r"([\\`*_{}\[\]|<>$~^#@])", r"\\\1", text)


PARTS: dict[str, Callable[[Project], str]] = {
    "summary_table": summary_table,
    "environments": environments,
    "chapter_runs": chapter_runs,
    "software": software,
    "citation": citation,
    "licence": lambda project: citation_facts(project)["license"],
    "repository_url": lambda project: project.repository_url,
}
