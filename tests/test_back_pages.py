"""The back pages: symbols cover the chapters' formulas, terms are taught where they say, numbers come from the runs."""

from __future__ import annotations

import ast
import json
import re

import back_pages
import nbformat
import notebook_results as results
import pytest
import tiny_book
from project import HERE, Project

from ds41.viz import tables

PAGES = ("symbols", "glossary", "summary", "colophon")
SYMBOLS = (HERE.book / "symbols.md").read_text(encoding="utf-8")
GLOSSARY = (HERE.book / "glossary.md").read_text(encoding="utf-8")
REFERENCES = (HERE.book / "references.bib").read_text(encoding="utf-8")

MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\s][^$]*?)\$", re.DOTALL)
GREEK = re.compile(
    r"(?i:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau"
    r"|(?:var)?phi|chi|psi|omega)"
)
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(((\d\d)-[\w-]+)\.ipynb\)")


def cells(name: str) -> list[tuple[str, str]]:
    """Kind and source of a chapter's cells."""
    notebook = json.loads((HERE.book / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def identifiers(formula: str) -> set[str]:
    """The letters of a formula, Greek ones by name, and its upright words; a subscript that is a word is none."""
    formula = re.sub(r"\\(?:begin|end)\{\w+\}|\\text\{[^}]*\}|_\{[A-Za-z]{3,}\}", " ", formula)
    found = set(re.findall(r"\\mathrm\{(\w+)\}", formula))
    formula = re.sub(r"\\mathrm\{\w+\}", " ", formula)
    found |= {command for command in re.findall(r"\\([A-Za-z]+)", formula) if GREEK.fullmatch(command)}
    return found | set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", formula)))


def in_formulas(text: str) -> set[str]:
    """Identifiers of all formulas of a Markdown text; code is none, what stands in a directive counts."""
    text = FENCE.sub(lambda fence: fence[2] if fence[1].startswith("{") else "", text)
    text = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "", text)
    return {one for match in MATH.finditer(text) for one in identifiers(match[1] or match[2])}


def symbol_rows() -> list[list[str]]:
    """The cells of the tables of symbols.md, without their rules."""
    lines = [line for line in SYMBOLS.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_symbol_of_every_formula_is_listed_for_its_chapter_and_no_other():
    listed: dict[str, set[str]] = {}
    for row in symbol_rows():
        for _, number in LINK.findall(row[-1]):
            listed.setdefault(number, set()).update(in_formulas(row[0]))
    used: dict[str, set[str]] = {}
    for chapter in HERE.chapters:
        text = "\n\n".join(source for kind, source in cells(chapter.stem) if kind == "markdown")
        if chapter.stem[:2].isdigit():
            used[chapter.stem[:2]] = in_formulas(text)
    missing = {number: sorted(letters - listed.get(number, set())) for number, letters in used.items()}
    stale = {number: sorted(letters - used.get(number, set())) for number, letters in listed.items()}
    assert not {number: letters for number, letters in missing.items() if letters}, "used and not in symbols.md"
    assert not {number: letters for number, letters in stale.items() if letters}, "in symbols.md and not used"


def test_identifiers_of_a_formula():
    assert identifiers(r"L\times n_{win} = 5{,}120 \text{ tokens}") == {"L", "n"}
    assert identifiers(r"\mathrm{comb}_{jk}\, X_j + \sigma") == {"comb", "j", "k", "X", "sigma"}
    text = "`$no$` and $I_{t,j} = \\sum_h\nw_h$ for $5$\n```{note}\n$Z$\n```\n```\n$code$\n```\n```{note}\n$V$\n```"
    assert in_formulas(text) == {"I", "t", "j", "h", "w", "Z", "V"}


def test_capital_letters_of_shapes_in_docstrings_are_listed():
    listed = {letter for row in symbol_rows() if len(row) == 2 for letter in re.findall(r"`(\w)`", row[0])}
    unlisted: dict[str, list[str]] = {}
    for path in (HERE.root / "src" / "ds41").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                shapes = re.findall(r"(?<![\w`])\[([A-Za-z][^\[\]]*)\](?!\()", ast.get_docstring(node) or "")
                for letter in {one for shape in shapes for one in re.findall(r"\b[A-Z]\b", shape)} - listed:
                    unlisted.setdefault(letter, []).append(path.name)
    assert not unlisted


def glossary_entries() -> dict[str, str]:
    """Each term with its definition, in the order of the page."""
    body = GLOSSARY.split("```{glossary}\n")[1].rsplit("\n```", 1)[0]
    entries = (entry.split("\n", 1) for entry in body.strip().split("\n\n"))
    return {term: " ".join(definition.split()) for term, definition in entries}


def test_terms_are_in_alphabetical_order():
    terms = list(glossary_entries())
    assert terms == sorted(terms, key=str.lower)


@pytest.mark.parametrize("term", glossary_entries())
def test_a_term_is_defined_shortly_and_used_in_the_chapter_that_teaches_it(term):
    definition = glossary_entries()[term]
    plain = re.sub(r"\[Chapter \d+\]\([\w.-]+\)", "", definition)
    assert 1 <= len(re.findall(r"[.:;](?= |$)", plain)) <= 5
    (chapter,) = LINK.findall(definition)
    assert f"[Chapter {int(chapter[1])}]" in definition
    assert HERE.book / f"{chapter[0]}.ipynb" in HERE.chapters
    text = " ".join("\n".join(source for _, source in cells(chapter[0])).split())
    # Names in code write the same words in one: PrefixStore, index_topk.
    word = "[ _-]?".join(map(re.escape, re.split(r"[ -]", term)))
    assert re.search(rf"(?<![a-z]){word}", text, re.IGNORECASE), f"{chapter[0]} does not use the word {term!r}"
    for shown, target in re.findall(r"\{term\}`([^<`]+?)(?: <([^>]+)>)?`", definition):
        assert (target or shown) in glossary_entries()


@pytest.mark.parametrize("name", PAGES)
def test_every_placeholder_of_the_pages_has_a_value(name):
    text = (HERE.book / f"{name}.md").read_text(encoding="utf-8")
    known = set(back_pages.PARTS) | set(back_pages.configuration_values())
    names = set(back_pages.PLACEHOLDER.findall(text))
    assert names
    assert names <= known
    assert text.count("{{") == len(back_pages.PLACEHOLDER.findall(text))


def test_values_are_those_of_the_configuration_and_the_ledger():
    values = back_pages.configuration_values()
    wanted = {"bytes_per_token": "890", "hidden_size": "5,120", "v4_bytes_per_token": "3,514.25"}
    wanted |= {"kv_source_layer_ids": "2, 8, 14, 20", "rms_norm_eps": "1e-20", "reuse_layers": "30"}
    assert {name: values[name] for name in wanted} == wanted
    text = "{{ bytes_per_token }} of {{ no_such_name }}"
    assert back_pages.filled(text, HERE) == "890 of {{ no_such_name }}"


ENVIRONMENT = "Python 3.13.1, torch 2.11.0, triton 3.6.0; Tesla T4 (cuda, sm_75); float16: it has no bf16"


@pytest.fixture
def book(tmp_path):
    """A tiny book of an introduction and two chapters, executed as far as the back pages look."""
    project = tiny_book.make(tmp_path / "book", {"intro": ["1"], "01-first": ["2"], "02-second": ["3"]})
    for name in ("intro", "01-first", "02-second"):
        publish(project, name)
    return project


def publish(project, name: str, rows: int = 1, environment: str = ENVIRONMENT, **facts) -> None:
    """Publish a result with so many rows of the running summary, as a run leaves it."""
    path = project.chapter(name)
    cells = [nbformat.v4.new_code_cell("print()", outputs=[nbformat.v4.new_output("stream", text=f"{environment}\n")])]
    shown = tables.summary_row(name[:2], f"a | b* of {name}", "1 < 2", "2", "holds")._repr_html_()
    output = nbformat.v4.new_output("display_data", data={"text/html": shown})
    cells.append(nbformat.v4.new_code_cell("summary_row(...)", outputs=[output] * rows))
    facts = {"seconds": 1.5, "peak_rss_bytes": 2**30, "device": "cpu", "parameters": {"SCALE": "small"}} | facts
    notebook = nbformat.v4.new_notebook(cells=cells)
    record = {"fingerprint": results.source_fingerprint(path, project), "facts": facts}
    results.publish(notebook, path, project, record)


def test_the_running_summary_has_a_row_for_each_numbered_chapter(book):
    header, rule, *rows = back_pages.summary_table(book).splitlines()
    assert header == "| chapter | claim | predicted | measured | verdict |"
    assert rule == "| ---: | --- | --- | --- | --- |"
    assert rows == [
        rf"| {number} | [a \| b\* of {name}]({name}.ipynb) | 1 \< 2 | 2 | holds |"
        for number, name in ((1, "01-first"), (2, "02-second"))
    ]


@pytest.mark.parametrize("rows", [0, 2])
def test_a_numbered_chapter_without_one_row_is_refused(book, rows):
    publish(book, "intro", rows=0)
    publish(book, "02-second", rows=rows)
    with pytest.raises(back_pages.BackPageError, match=f"02-second.*this one has {rows}"):
        back_pages.summary_table(book)


def test_runs_are_printed_with_gpu_memory_only_where_there_is_some(book):
    table = back_pages.chapter_runs(book).splitlines()
    assert table[0] == "| chapter | seconds | memory, MiB | device | scale of the run |"
    assert table[3] == "| [01-first](01-first.ipynb) | 1.5 | 1,024 | cpu | small |"
    assert table[-1] == "| all | 4.5 |  |  |  |"
    publish(book, "01-first", device="Tesla T4", cuda_peak_bytes=2**29)
    table = back_pages.chapter_runs(book).splitlines()
    assert table[3] == "| [01-first](01-first.ipynb) | 1.5 | 1,024 | 512 | Tesla T4 | small |"
    assert table[4] == "| [02-second](02-second.ipynb) | 1.5 | 1,024 | - | cpu | small |"
    results.withdraw(book.chapter("01-first"), book)
    with pytest.raises(back_pages.BackPageError, match="01-first: no record of a run"):
        back_pages.chapter_runs(book)


def test_machines_are_named_once_or_by_chapter(book):
    assert back_pages.environments(book) == f"All chapters ran on: {back_pages.escaped(ENVIRONMENT)}."
    other = "Python 3.11.7, torch 2.13.0, triton 3.7.1 interpreted; a CPU (cpu)"
    publish(book, "02-second", environment=other)
    assert back_pages.environments(book).splitlines() == [
        f"- intro, 01-first: {back_pages.escaped(ENVIRONMENT)}",
        f"- 02-second: {back_pages.escaped(other)}",
    ]
    publish(book, "intro", environment="hello")
    publish(book, "02-second", environment="hello")
    assert back_pages.environments(book) == f"- 01-first: {back_pages.escaped(ENVIRONMENT)}"
    publish(book, "01-first", environment="hello")
    with pytest.raises(back_pages.BackPageError, match="no chapter prints on what it ran"):
        back_pages.environments(book)


def test_pages_of_the_book_are_filled_and_others_left_alone(book, tmp_path):
    (book.root / "_toc.yml").write_text("format: jb-book\nroot: book/intro\nchapters:\n  - file: book/summary\n")
    folder = tmp_path / "stage"
    (folder / "book").mkdir(parents=True)
    for name in ("summary", "other"):
        (book.book / f"{name}.md").write_text("")
        (folder / "book" / f"{name}.md").write_text("{{ hc_mult }} streams")
    back_pages.fill(folder, Project(book.root))
    assert (folder / "book" / "summary.md").read_text() == "4 streams"
    assert (folder / "book" / "other.md").read_text() == "{{ hc_mult }} streams"


def test_software_licence_and_citation_come_from_their_files():
    pins = (HERE.root / "requirements.txt").read_text(encoding="utf-8")
    assert f"torch {re.search(r'^torch==(.+)$', pins, re.MULTILINE)[1]}," in back_pages.software(HERE)
    facts = back_pages.citation_facts(HERE)
    assert back_pages.filled("{{ licence }}", HERE) == facts["license"]
    assert f"title = {{{facts['title']}}}" in back_pages.citation(HERE)
    assert f"url = {{{HERE.repository_url}}}" in back_pages.citation(HERE)


def references() -> dict[str, dict[str, str]]:
    """The fields of every entry of references.bib, by key."""
    entries = re.findall(r"^@\w+\{([\w-]+),\n(.*?)^\}", REFERENCES, re.MULTILINE | re.DOTALL)
    return {key: dict(re.findall(r"^  (\w+) = \{(.*)\},$", body, re.MULTILINE)) for key, body in entries}


def test_references_are_complete_and_printed_once():
    assert len(references()) == REFERENCES.count("\n@") + 1
    page = (HERE.book / "references.md").read_text(encoding="utf-8")
    groups = re.findall(r':filter: keywords % "(\w+)"', page)
    assert len(set(groups)) == len(groups)
    assert len(set(re.findall(r":labelprefix: (\w)", page))) == len(groups)
    for key, entry in references().items():
        assert {"author", "title", "year", "keywords"} <= set(entry), key
        assert "doi" in entry or "url" in entry or entry.get("archiveprefix") == "arXiv", key
        assert re.fullmatch(r"\d{4}\.\d{5}", entry.get("eprint", "0000.00000")), key
        assert entry["keywords"] in groups, key


def test_what_the_chapters_cite_is_there():
    cited = {
        key.strip()
        for chapter in HERE.chapters
        for _, source in cells(chapter.stem)
        for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", source)
        for key in keys.split(",")
    }
    assert cited
    assert cited <= set(references())
