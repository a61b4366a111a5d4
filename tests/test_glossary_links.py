"""Words of the glossary become links in the staged chapters: once a page, in prose only, never in what is stored."""

from __future__ import annotations

import re

import glossary_links
import nbformat
import notebook_form
import pytest
import tiny_book
from glossary_links import Page, Term
from project import HERE, ProjectError

GLOSSARY = """\
# Glossary

```{glossary}
entry
  What an {term}`owner` keeps. And more. [Chapter 1](01-first.ipynb).

index key
  A short key. Compare [chapter 2](02-second.ipynb). [Chapter 1](01-first.ipynb).

owner
  A layer that writes. [Chapter 2](02-second.ipynb).

turn
  One request; see [Chapter 9](09-other.ipynb). [Chapter 2](02-second.ipynb).
```
"""
TERMS = glossary_links.read_terms(GLOSSARY)


def linked(text: str, chapter: str = "01-first") -> str:
    return Page(chapter, TERMS).linked(text)


def markdown(path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]


def test_terms_are_read_with_the_chapter_that_teaches_them():
    wanted = [("entry", "01-first"), ("index key", "01-first"), ("owner", "02-second"), ("turn", "02-second")]
    assert [Term(*one) for one in wanted] == TERMS
    with pytest.raises(ProjectError, match=r"no ```\{glossary\} block"):
        glossary_links.read_terms("# Glossary\n\nwindow\n  128 tokens.\n")
    with pytest.raises(ProjectError, match="'window' does not say which chapter"):
        glossary_links.read_terms("```{glossary}\nwindow\n  128 tokens.\n```\n")


def test_the_first_use_of_each_term_is_linked_in_the_words_of_the_text():
    page = Page("01-first", TERMS)
    assert (
        page.linked("Entries of *an\nowner*: an entry.") == "{term}`Entries <entry>` of *an\n{term}`owner`*: an entry."
    )
    assert page.linked("- An index\n  key; its owners.") == "- An {term}`index\n  key <index key>`; its owners."
    assert page.found == ["entry", "owner", "index key"]


@pytest.mark.parametrize(
    "text",
    [
        "# An owner\n\nAn entry\n---",
        "| owner | b |\n| --- | --- |\n| entry | owner |",
        "```\nowner\n```\n\n    entry\n\n```{code-block} python\nowner\n```",
        "```{figure} owner.png\n:alt: an entry\n\nAn owner.\n```",
        "$$\n\\text{owner}\n$$\n\n$\\text{an entry}$ and $$owner$$",
        "`owner` and ``an ` entry`` and {cite}`owner`",
        "[the owner](01-first.ipynb) and ![an entry](a.png) and [owner][1]\n\n[1]: owner.html",
        "https://owner.org/entry <a title='owner'> {{ owner }}",
        "<div>\nowner\n</div>\n\n(owner)=\n\n% entry",
        "co-owner, owner-first, entry/exit, an_entry, ownership",
        "```{note}\n:class: owner\n`entry`\n```",
    ],
)
def test_only_prose_is_touched(text):
    assert linked(text) == text


def test_content_of_notes_is_prose_and_their_titles_and_options_are_not():
    note = "```{{admonition}} An owner\n:class: entry\n\nThe {}.\n\n- an {}\n```\n\nEvery owner."
    assert linked(note.format("owner", "entry")) == note.format("{term}`owner`", "{term}`entry`")
    assert linked(":::{tip}\nAn entry.\n:::") == ":::{tip}\nAn {term}`entry`.\n:::"


def test_everyday_words_are_linked_only_where_they_are_taught():
    assert "turn" in glossary_links.ONLY_WHERE_TAUGHT["en"]
    assert linked("A turn.") == "A turn."
    assert linked("Two turns.", "02-second") == "Two {term}`turns <turn>`."
    assert linked("Nothing at the entry\nof layers. An entry.") == "Nothing at the entry\nof layers. An {term}`entry`."


def test_names_keep_their_capitals_and_words_get_plurals():
    assert glossary_links.forms("Full") == {"Full", "Fulls"}
    assert glossary_links.forms("patch") == {"patch", "patches", "Patch", "Patches"}
    assert glossary_links.forms("index key") == {"index key", "index keys", "Index key", "Index keys"}
    assert "candidate entries" in glossary_links.forms("candidate entry")


def test_staged_chapters_have_links_and_stored_ones_have_none(tmp_path):
    project = tiny_book.make(tmp_path / "project", {"intro": ["1"], "01-first": ["entry = 'owner'"]})
    folder = tmp_path / "stage"
    (folder / "book").mkdir(parents=True)
    for chapter in project.chapters:
        notebook = notebook_form.read(chapter)
        for text in ("## The owner", "An owner.", "The owner's entry."):
            notebook.cells.append(nbformat.v4.new_markdown_cell(text))
        nbformat.write(notebook, chapter)
        nbformat.write(notebook, folder / "book" / chapter.name)
    assert glossary_links.link(folder, project) == {}, "a book without a glossary"

    (project.book / "glossary.md").write_text(GLOSSARY)
    with (project.root / "_toc.yml").open("a") as toc:
        toc.write("  - file: book/glossary\n")
    project = type(project)(project.root)
    before = {chapter: chapter.read_bytes() for chapter in project.chapters}
    assert glossary_links.link(folder, project) == {"intro": ["owner", "entry"], "01-first": ["owner", "entry"]}
    assert {chapter: chapter.read_bytes() for chapter in project.chapters} == before
    staged = folder / "book" / "01-first.ipynb"
    assert markdown(staged)[-3:] == ["## The owner", "An {term}`owner`.", "The owner's {term}`entry`."]
    stored, changed = (nbformat.read(path, as_version=4).cells for path in (project.chapter("01-first"), staged))
    assert [cell for cell in changed if cell.cell_type == "code"] == [
        cell for cell in stored if cell.cell_type == "code"
    ]


def test_readers_download_the_chapters_without_the_roles(tmp_path):
    project = tiny_book.make(tmp_path / "project", {"intro": ["1"]})
    project.executed.mkdir(parents=True)
    (project.executed / "intro.ipynb").write_text("as it was executed")
    offered = tmp_path / "html" / "_sources" / "book" / "intro.ipynb"
    offered.parent.mkdir(parents=True)
    offered.write_text("{term}`owner`")
    glossary_links.restore_downloads(tmp_path / "html", project)
    assert offered.read_text() == "as it was executed"


def test_a_link_says_the_first_sentence_of_the_definition(tmp_path):
    link = '<a class="reference internal" href="{}#term-entry"{}><span class="xref std std-term">entries</span></a>'
    other = '<a class="reference internal" href="glossary.html"><span class="std std-doc">Glossary</span></a>'
    definition = (
        '<dt id="term-entry">entry<a class="headerlink" href="#term-entry">#</a></dt><dd><p>What an\n<a href="#o">'
        "owner</a> &lt;4.5 keeps. And more.</p>\n</dd>"
    )
    chapter, glossary = tmp_path / "01-first.html", tmp_path / "glossary.html"
    pages = {chapter: link.format("glossary.html", "") + other, glossary: definition + link.format("", "")}
    glossary_links.explain(pages)
    title = ' title="What an owner &lt;4.5 keeps."'
    assert pages[chapter] == link.format("glossary.html", title) + other
    assert pages[glossary] == definition + link.format("", title)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ('<a class="other" href="#term-a"><span class="xref std std-term">a</span></a>', "has 1 terms .* and 0 links"),
        (
            '<a class="reference internal" href="#term-a"><span class="xref std std-term">a</span></a>',
            "no page has a definition of term-a",
        ),
    ],
)
def test_terms_that_sphinx_writes_in_another_way_are_refused(tmp_path, page, fault):
    with pytest.raises(ProjectError, match=fault):
        glossary_links.explain({tmp_path / "a.html": page})


@pytest.fixture(scope="module")
def book():
    """The real chapters: markdown as stored, markdown with links, and the terms found, by chapter."""
    terms = glossary_links.read_terms((HERE.book / "glossary.md").read_text(encoding="utf-8"))
    chapters = {}
    for chapter in HERE.chapters:
        page, stored = Page(chapter.stem, terms), markdown(chapter)
        chapters[chapter.stem] = stored, [page.linked(text) for text in stored], page.found
    return terms, chapters


def test_no_stored_chapter_has_the_role(book):
    assert not [name for name, (stored, _, _) in book[1].items() if any("{term}" in text for text in stored)]


def test_links_of_the_book_are_calm_and_change_no_word(book):
    terms, chapters = book
    names = {term.name for term in terms}
    for name, (stored, changed, found) in chapters.items():
        assert len(found) == len(set(found))
        assert set(found) <= names
        assert sum(text.count("{term}`") for text in changed) == len(found)
        bare = [re.sub(r"\{term\}`([^`<]+?)(?: <[^`>]+>)?`", r"\1", text) for text in changed]
        assert bare == stored, name
        assert not re.search(r"^(?:#|\|).*\{term\}", "\n".join(changed), re.MULTILINE), name


def test_a_term_is_linked_somewhere_unless_the_prose_never_says_it(book):
    terms, chapters = book
    missing = {term.name for term in terms} - {name for _, _, found in chapters.values() for name in found}
    # These stand in code, headings and other forms of the word.
    assert missing <= {"amax", "back-pressure", "cadence", "clipping", "online softmax"}


def test_exceptions_are_words_that_the_book_has(book):
    terms, chapters = book
    assert set(glossary_links.ONLY_WHERE_TAUGHT["en"]) <= {term.name for term in terms}
    prose = " ".join(" ".join("\n".join(stored).split()) for stored, _, _ in chapters.values())
    assert not [phrase for phrase in glossary_links.OTHER_SENSES["en"] if phrase not in prose], (
        "delete from OTHER_SENSES"
    )
