"""ci/workshop_slides.py: what stands on the slides of a small executed chapter, and what its deck loads."""

from __future__ import annotations

import re

import nbformat
import pytest
import workshop_deck as deck
import workshop_prose as prose
import workshop_slides as slides
import yaml
from notebook_form import NotebookError
from project import HERE, Project
from workshop_deck import DeckError
from workshop_slide import Chapter, Part, Slide

from ds41.viz import table

SOLUTION = "answer = 6 * 448"
FORMULA = "$$\n|z| \\le 22.6\\,\\gamma\n$$"
QUESTION = """\
# How few *bits*?

**Four and a half. They fit, and `2,688` is the reach.** A latent has 512 channels {cite}`deepseek-v41`.
"""
SECTION = """\
## Prediction

Nothing here needs data. The widths come from the configuration ([chapter 5](05-ledger.ipynb)).

The bound on the norm is short:

$$
|z| \\le 22.6\\,\\gamma
$$

### The rules

They are strict.
"""
RULES = """\
Two rules decide bits. Each has a report behind it:

- **Ties go to the even code.** 0.25 becomes 0.
- **The scale has a floor**, so that nothing divides by zero.
"""
NOTE = "```{admonition} A correction\n:class: note\nThe article has it the other way round. It costs \\$5.\n```"
EXERCISES = """\
## Exercises

Fill in an answer.

**04.1 · easy · 5 min**

What is the reach of the format?
"""


def printed(text: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_output("stream", text=text)


@pytest.fixture(scope="module")
def notebook() -> nbformat.NotebookNode:
    shown = table("Records that cost < 300 bytes", ["record", "bytes"], [["main", 288]])
    figure = nbformat.v4.new_output("execute_result", {"text/html": shown._repr_html_(), "text/plain": "-"})
    row = nbformat.v4.new_output(
        "execute_result", {"text/html": table("One row", ["claim"], [["it fits"]])._repr_html_()}
    )

    def code(name: str, source: str, *outputs, tags=()) -> nbformat.NotebookNode:
        return nbformat.v4.new_code_cell(source, id=name, outputs=list(outputs), metadata={"tags": list(tags)})

    def text(name: str, source: str) -> nbformat.NotebookNode:
        return nbformat.v4.new_markdown_cell(source, id=name)

    return nbformat.v4.new_notebook(
        cells=[
            text("question", QUESTION),
            code("colab", "import ds41", printed("a machine\n"), tags=["hide-input"]),
            code("opening", "viz.opening()", figure, tags=["hide-input"]),
            text("prediction", SECTION),
            text("rules", RULES),
            code("bytes", "viz.records()", figure),
            text("bytes-reading", "Read it from the left."),
            code("reach", "print(6 * 448)", printed("2688\n")),
            code("folded", "print('no')", printed("folded away\n"), tags=["hide-output"]),
            code("long", "print(lines)", printed("line\n" * 13)),
            text("note", NOTE),
            text("exercises", EXERCISES),
            code("exercise-1", 'answer = ...\ncheck("04.1", answer)', printed("·\n")),
            code("hint-1", 'hint("04.1")', printed("Hint\n"), tags=["hint"]),
            code("solution-1", SOLUTION, printed("✓\n"), tags=["solution", "hide-cell"]),
            text("summary", "## Running summary"),
            code("summary-row", "viz.summary_row()", row),
        ]
    )


@pytest.fixture(scope="module")
def chapter() -> Chapter:
    return Chapter(
        "04-fp4",
        "https://example.org/book/04-fp4.html",
        lambda target: target.replace(".ipynb", ".html"),
        ("Name both formats",),
        25,
        ("05-ledger", "Do the bytes add up?"),
    )


@pytest.fixture(scope="module")
def page(notebook, chapter) -> str:
    return slides.render(deck.make(notebook, chapter), chapter, "de")


def words_of(slide: Slide) -> str:
    return "\n".join(part.source for part in slide.parts)


def test_slides_follow_the_chapter(notebook, chapter):
    made = deck.make(notebook, chapter)
    assert [(slide.kind, slide.heading, slide.below) for slide in made] == [
        ("title", "How few *bits*?", False),
        ("goals", "What you will be able to do", False),
        ("figure", "Records that cost \\< 300 bytes", False),
        ("section", "Prediction", False),
        ("math", "Prediction", True),
        ("section", "The rules", True),
        ("list", "Two rules decide bits", True),
        ("figure", "Records that cost \\< 300 bytes", True),
        ("printed", "Prediction", True),
        ("note", "A correction", True),
        ("exercises", "Exercises", False),
        ("solution", "04.1 solved", True),
        ("last", "One row", False),
    ]


def test_what_the_slides_say(notebook, chapter):
    made = {(slide.kind, slide.heading): slide for slide in deck.make(notebook, chapter)}
    assert words_of(made["title", "How few *bits*?"]) == "Four and a half. They fit, and `2,688` is the reach."
    assert words_of(made["goals", "What you will be able to do"]) == "- Name both formats"
    section = made["section", "Prediction"]
    assert words_of(section).startswith("Nothing here needs data.")
    assert words_of(made["math", "Prediction"]) == f"The bound on the norm is short:\n\n{FORMULA}"
    assert "- **Ties go to the even code.**\n- **The scale has a floor**" in words_of(
        made["list", "Two rules decide bits"]
    )
    assert [part.kind for part in made["printed", "Prediction"].parts] == ["code", "print"]
    assert made["last", "One row"].parts[-1].source == "Next: [Do the bytes add up?](05-ledger.html)"


def test_the_prose_goes_into_the_notes(notebook, chapter):
    made = deck.make(notebook, chapter)
    assert "A latent has 512 channels." in made[0].notes[0]
    assert any("([chapter 5](05-ledger.html))" in note for note in made[3].notes)
    after_figure = next(slide for slide in made if slide.kind == "figure" and slide.below)
    assert after_figure.notes == ["Read it from the left."]


def test_no_solution_where_the_exercises_stand(notebook, chapter):
    exercises, solution = (s for s in deck.make(notebook, chapter) if s.kind in ("exercises", "solution"))
    assert words_of(exercises) == "- **04.1 · easy · 5 min** What is the reach of the format?"
    assert SOLUTION not in words_of(exercises) + "".join(exercises.notes)
    assert solution.parts[-1] == Part("solution", SOLUTION)


def made_of(notebook, chapter, *cells: nbformat.NotebookNode) -> list[Slide]:
    """The slides of a chapter that opens as the small one does and goes on with other cells."""
    return deck.make(nbformat.v4.new_notebook(cells=[notebook.cells[0], *cells]), chapter)[2:-1]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("def code(x):\n    return x\n", ["code"]),
        ("    return x  # an excerpt, as it is indented\n", ["code"]),
        ("  16 tokens: 1,696 bytes\n", ["code", "print"]),
    ],
)
def test_only_source_looks_like_source(notebook, chapter, text, kinds):
    cell = nbformat.v4.new_code_cell("show(inspect.getsource(code))", id="shown", outputs=[printed(text)])
    (slide,) = made_of(notebook, chapter, cell)
    assert [part.kind for part in slide.parts] == kinds
    assert slide.parts[-1].source == text.rstrip()


def test_a_note_shows_its_list(notebook, chapter):
    listed = '- *"It cannot."* It can. Here is how.\n- The article says so. The report does not.'
    text = f"## Replay\n\n```{{admonition}} Two corrections\n{listed}\n\nBoth are small.\n```"
    slide = made_of(notebook, chapter, nbformat.v4.new_markdown_cell(text, id="note"))[-1]
    assert (slide.kind, slide.heading) == ("note", "Two corrections")
    assert words_of(slide) == (
        '- *"It cannot."* It can.\n- The article says so. The report does not.\n\nBoth are small.'
    )


def test_long_exercises_stand_on_two_slides(notebook, chapter):
    asked = " ".join(["Donaudampfschiff"] * 20)
    text = "## Exercises\n\n" + "\n\n".join(f"**04.{n} · easy · 5 min**\n\n{asked} {n}?" for n in range(1, 6))
    made = made_of(notebook, chapter, nbformat.v4.new_markdown_cell(text, id="exercises"))
    assert [(slide.kind, slide.heading, slide.below) for slide in made] == [
        ("exercises", "Exercises", False),
        ("exercises", "Exercises", True),
    ]
    assert [re.findall(r"\*\*(04\.\d)", words_of(slide)) for slide in made] == [
        ["04.1", "04.2", "04.3"],
        ["04.4", "04.5"],
    ]
    assert [len(slide.notes) for slide in made] == [3, 2]


def test_the_page_loads_nothing_from_elsewhere(page):
    loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="([^"]*)"|url\("?([^)"]*)', page)
    addresses = {one or other for one, other in loaded}
    assert {"vendor/deck.css", "vendor/reveal/reveal.js", "vendor/mathjax/tex-chtml-full.js"} <= addresses
    assert all(address.startswith(("vendor/", "data:", "#")) for address in addresses)


def test_the_page_is_a_deck(notebook, chapter, page):
    made = deck.make(notebook, chapter)
    assert '<html lang="de">' in page
    assert page.count("data-kind=") == page.count('<aside class="notes">') == len(made)
    assert page.count("<section") == page.count("</section>")
    columns = re.findall(r"<section>(.*?)</section>\s*</section>", page, re.DOTALL)
    assert len(columns) == sum(not slide.below for slide in made)
    on_exercises = next(part for part in page.split("<section data-kind=") if part.startswith('"exercises"'))
    assert "448" not in on_exercises
    hidden = next(part for part in page.split("<section data-kind=") if part.startswith('"solution"'))
    assert 'class="fit lines code fragment"' in hidden
    assert "448" in hidden


def test_formulas_and_dollars(page):
    assert FORMULA in page
    assert 'costs <span class="mathjax_ignore">$</span>5' in page


def test_figures_keep_their_names_and_bring_each_style_once(page):
    assert page.count('aria-label="Records that cost &lt; 300 bytes"') == 2
    sheets = re.findall(r"<style>.*?</style>", page, re.DOTALL)
    assert len(sheets) == len(set(sheets))


def test_bold_comes_first_and_words_are_few():
    text = "It opens. " + "A sentence of six whole words. " * 9 + "**This matters most.** It ends."
    kept = prose.key_sentences([text, "A second one. It has more."])
    assert prose.words(" ".join(kept)) <= prose.WORDS
    assert kept[0].startswith("It opens. A sentence")
    assert "**This matters most.**" in kept[0]
    assert kept[1].startswith("A second one.")


def test_a_long_sentence_is_kept_whole():
    long = " ".join(["word"] * 60) + "."
    assert prose.key_sentences([long]) == [long]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One, e.g. this. Two.", ["One, e.g. this.", "Two."]),
        ("Das ist z. B. Eins. Zwei.", ["Das ist z. B. Eins.", "Zwei."]),
        ("Take `a. B` and $x. Y$. Then 5 follows.", ["Take `a. B` and $x. Y$.", "Then 5 follows."]),
        ("**One. Two.** Three.", ["**One.**", "**Two.**", "Three."]),
        ("It is 0.5. Byte 3.", ["It is 0.5.", "Byte 3."]),
    ],
)
def test_sentences(text, expected):
    assert prose.sentences(text) == expected


def test_goals_come_from_one_file(tmp_path):
    (tmp_path / "book").mkdir()
    project = Project(tmp_path)
    assert slides.plans(project) == {}
    said = {"04": {"goals": ["Name both formats"], "minutes": 25}}
    (project.book / "workshop.yml").write_text(yaml.safe_dump({"chapters": said}))
    assert slides.plans(project) == said


def test_links_lead_to_decks_or_to_the_book():
    link = slides.describe(HERE, "04-fp4", None).link
    assert link("05-ledger.ipynb") == "05-ledger.html"
    assert link("symbols.md#letters").endswith("/book/symbols.html")
    assert link("nowhere.md") is None


def test_missing_chapters_are_named(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/01-one\n")
    (tmp_path / "book" / "01-one.ipynb").write_text("{}")
    project = Project(tmp_path)
    with pytest.raises(slides.SlidesError, match=r"not executed: 01-one .*run `make notebooks`"):
        slides.read_chapters(project, "en")
    project.executed.mkdir(parents=True)
    (project.executed / "01-one.ipynb").write_text("{}")
    with pytest.raises(NotebookError):
        slides.read_chapters(project, "en")


def test_a_chapter_opens_with_its_question():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("No title.", id="question")])
    with pytest.raises(DeckError, match="cell 'question' is the first and opens with no title"):
        deck.question(notebook)


def test_a_language_without_chapters_is_left_out(tmp_path, capsys):
    assert slides.main(["--language", "de", "--root", str(tmp_path)]) == 0
    assert "left out: no chapters in Deutsch" in capsys.readouterr().err
