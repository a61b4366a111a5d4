"""The texts of Markdown: what is one text, that a page is whole again, and how the translated page is put together."""

import nbformat
import pytest
import translation_prose as prose
from project import HERE


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("## A heading", ["A heading"]),
        ("Two lines of\none paragraph.\n\nAnother.", ["Two lines of one paragraph.", "Another."]),
        ("- one item\n  that goes on\n- another", ["one item that goes on", "another"]),
        ("1. first\n2. second", ["first", "second"]),
        ("> said\n> by somebody", ["said > by somebody"]),
        ("| name | size |\n|---|---:|\n| one row | 5 B |", ["name", "size", "one row"]),
        ("```{admonition} Mind this\n:class: note\nWhat it says.\n```", ["Mind this", "What it says."]),
        (":::{note}\nA note.\n:::", ["A note."]),
        ("```python\nsome code = 1\n```", []),
        ("$$\nx^2\n$$", []),
        ("$$\nx \\ \\text{tokens}\n$$", ["$$\nx \\ \\text{tokens}\n$$"]),
        ("`only_code` $x$ 12", []),
        ("**04.1 · easy · 3 min**", ["easy"]),
        (
            "```{glossary}\nword\n  What it means\n  here.\n\nother\n  More.\n```",
            ["word", "What it means here.", "other", "More."],
        ),
        ("A line that\\\nis broken.", ["A line that\\\nis broken."]),
    ],
)
def test_texts_of_markdown(text, messages):
    assert prose.messages(text) == messages


def test_a_page_is_translated_in_place():
    known = {
        "A heading": "Eine Überschrift",
        "one item that goes on": "ein Punkt",
        "Mind this": "Achtung",
        "easy": "leicht",
        "size": "Größe",
    }
    text = (
        "## A heading\n\n**04.1 · easy · 3 min**\n\n- one item\n  that goes on\n- `code`\n\n"
        "```{admonition} Mind this\n:class: note\nStays.\n```\n\n| name | size |\n|---|---:|\n| a | b |"
    )
    assert prose.rewrite(text, known.get) == (
        "## Eine Überschrift\n\n**04.1 · leicht · 3 min**\n\n- ein Punkt\n- `code`\n\n"
        "```{admonition} Achtung\n:class: note\nStays.\n```\n\n| name | Größe |\n|---|---:|\n| a | b |"
    )


def test_a_translated_glossary_is_in_the_order_of_its_terms():
    text = "```{glossary}\napple\n  A fruit.\n\nocean\n  A lot of water.\n\nzebra\n  An animal.\n```"
    known = {"apple": "Zitrone", "ocean": "Ölmeer", "zebra": "Pferd"}
    assert prose.rewrite(text, known.get) == (
        "```{glossary}\nÖlmeer\n  A lot of water.\n\nPferd\n  An animal.\n\nZitrone\n  A fruit.\n```"
    )


def sources() -> list[str]:
    cells = [
        cell.source
        for chapter in HERE.chapters
        for cell in nbformat.read(chapter, as_version=nbformat.NO_CONVERT).cells
        if cell.cell_type == "markdown"
    ]
    return cells + [page.read_text(encoding="utf-8") for page in HERE.pages if page.suffix == ".md"]


def test_the_books_texts_are_found_again_on_the_page_that_they_make():
    """Each text of the book stands in one line of its own after one pass, and is the same text then."""
    for source in sources():
        once = prose.rewrite(source, lambda text: text)
        assert prose.messages(once) == prose.messages(source)
        assert prose.rewrite(once, lambda text: text) == once


@pytest.mark.parametrize(
    ("text", "german"),
    [
        ("Es sind $131{,}072$ Byte.", "Es sind $131{.}072$ Byte."),
        ("$$\nx = 889.83 + 5{,}120.5\n$$", "$$\nx = 889{,}83 + 5{.}120{,}5\n$$"),
        ("`$1.5$` bleibt, $1.5$ nicht", "`$1.5$` bleibt, $1{,}5$ nicht"),
        ("```\na = 1.5  # $2.5$\n```", "```\na = 1.5  # $2.5$\n```"),
        ("Abschnitt 2.3 kostet 1,5 $ und 2.5 $.", "Abschnitt 2.3 kostet 1,5 $ und 2.5 $."),
        ("$i.j$ und $x_{1}.$", "$i.j$ und $x_{1}.$"),
        ("``a $x = 1.5$`` und <code>$1.5$</code>", "``a $x = 1.5$`` und <code>$1.5$</code>"),
        ("kostet $1.000 bis $2.000", "kostet $1.000 bis $2.000"),
        ("$\\hspace{0.5em} 0.5$", "$\\hspace{0.5em} 0{,}5$"),
    ],
)
def test_numbers_in_formulas(text, german):
    assert prose.with_decimal_commas(text) == german
