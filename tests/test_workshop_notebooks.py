"""The kit's notebooks: no solution and no output for participants, all as the book has it otherwise."""

from __future__ import annotations

import nbformat
import notebook_form
import notebook_results as results
import pytest
import tiny_book
import workshop_notebooks as kit
from notebook_form import tags
from project import HERE
from translation import edition
from workshop_plan import WorkshopError
from workshop_room import MARK, differences, marks, without_outputs

EXERCISE = 'from ds41.exercises import check, hint, verify\n\nanswer = ...\ncheck("04.1", answer)'


@pytest.fixture
def book(tmp_path):
    """A tiny book with an introduction and one numbered chapter, which has an exercise and counts as executed."""
    project = tiny_book.make(tmp_path / "book", {"intro": ["1"], "04-first": ["2"]})
    add_exercise(project, EXERCISE)
    execute(project)
    return project


def add_exercise(project, source: str) -> None:
    path = project.chapter("04-first")
    notebook = notebook_form.read(path)
    cells = nbformat.v4
    notebook.cells[-1:-1] = [
        cells.new_markdown_cell("**04.1 · easy · 5 min** Why?", id="exercises"),
        cells.new_code_cell(source, id="exercise-1"),
        cells.new_code_cell('hint("04.1")', id="hint-1", metadata={"tags": ["hint", "hide-cell"]}),
        cells.new_code_cell('verify("04.1", 42)', id="solution-1", metadata={"tags": ["solution"]}),
    ]
    notebook_form.write(notebook_form.normalise(notebook, project), path)


def execute(project, language: str = "en") -> None:
    """Publish results as a run at small scale leaves them, or as a translation does beside its stored chapters."""
    target = edition(project, language)
    target.book.mkdir(parents=True, exist_ok=True)
    for path in project.chapters:
        notebook = notebook_form.read(path)
        if language != "en":
            notebook.cells[0].source = f"# {language}"
            notebook_form.write(notebook, target.book / path.name)
        shown = {"exercise-1": "· Exercise 04.1: not answered yet", "solution-1": "✓ Exercise 04.1: right"}
        for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
            cell.execution_count = count
            if "parameters" in tags(cell):
                cell.source = results.with_values(cell.source, {"SCALE": "small", "DEVICE": "cpu"})
            if cell.id in shown:
                data = {"text/plain": shown[cell.id]}
                cell.outputs = [nbformat.v4.new_output("execute_result", data=data, execution_count=count)]
        record = {"fingerprint": results.source_fingerprint(path, project), "facts": {}}
        results.publish(notebook, target.book / path.name, target, record)


def read(folder, kind: str):
    return {cell.id: cell for cell in nbformat.read(folder / kind / "04-first.ipynb", as_version=4).cells}


def test_participants_get_no_solution_and_no_output_and_the_rest_as_it_is(book, tmp_path):
    assert kit.write(book, "en", tmp_path / "out") == 1
    assert not (tmp_path / "out" / "exercises" / "intro.ipynb").exists()
    stored = {cell.id: cell for cell in notebook_form.read(book.chapter("04-first")).cells}
    cells = read(tmp_path / "out", "exercises")
    assert list(cells) == [name for name in stored if name != "solution-1"]
    assert {name for name, cell in cells.items() if cell.source != stored[name].source} == {"parameters"}
    assert cells["parameters"].source == 'SCALE = "small"  # how much to compute\nDEVICE = "auto"  # where'
    assert tags(cells["hint-1"]) == ["hint", "hide-cell"]
    code = [cell for cell in cells.values() if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_the_solved_notebook_is_the_executed_chapter(book, tmp_path):
    kit.write(book, "en", tmp_path / "out")
    solved = nbformat.read(tmp_path / "out" / "solved" / "04-first.ipynb", as_version=4)
    assert solved == nbformat.read(results.result_path(book.chapter("04-first"), book), as_version=4)
    assert marks(solved) == {"✓": ["04.1"], "·": ["04.1"]}
    assert not any(cell.get("outputs") for cell in without_outputs(solved).cells)
    assert marks(solved)["✓"] == ["04.1"], "the copy without outputs left the notebook alone"
    exercises = nbformat.read(tmp_path / "out" / "exercises" / "04-first.ipynb", as_version=4)
    assert differences(exercises, solved) == []
    exercises.cells[-1].source = "## Other"
    del exercises.cells[3]
    assert differences(exercises, solved) == ["step-1", "summary"]


def test_another_language_comes_from_its_translated_copy(book, tmp_path):
    assert kit.languages(book) == ["en"]
    execute(book, "de")
    assert kit.languages(book) == ["en", "de"]
    kit.write(book, "de", tmp_path / "out")
    cells = read(tmp_path / "out", "exercises")
    assert [one["title"].source for one in (cells, read(tmp_path / "out", "solved"))] == ["# de", "# de"]
    assert cells["parameters"].source.endswith('DEVICE = "auto"  # where')
    assert "solution-1" not in cells
    assert not cells["exercise-1"].outputs


def test_chapters_that_are_missing_or_have_changed_are_refused(book, tmp_path, capsys):
    assert kit.main(["--root", str(book.root)]) == 0
    assert "1 notebooks of exercises, 1 solved" in capsys.readouterr().out
    path = book.chapter("04-first")
    notebook = notebook_form.read(path)
    notebook.cells[-1].source += "\n\nMore."
    notebook_form.write(notebook, path)
    assert kit.main(["--root", str(book.root)]) == 1
    assert "04-first, language 'en': notebook changed: run `make notebooks`" in capsys.readouterr().err
    results.withdraw(path, book)
    assert kit.main(["--root", str(book.root)]) == 1
    assert "04-first, language 'en': no result yet: run `make notebooks`" in capsys.readouterr().err
    assert kit.main(["--root", str(book.root), "--language", "de"]) == 1
    assert "no result yet: run `python ci/build_book.py --language de`" in capsys.readouterr().err


def test_an_exercise_that_is_answered_already_is_refused(tmp_path):
    project = tiny_book.make(tmp_path / "book", {"intro": ["1"], "04-first": ["2"]})
    add_exercise(project, 'answer = 42\ncheck("04.1", answer)')
    execute(project)
    with pytest.raises(WorkshopError, match=r"cell 'exercise-1' has no line `answer = \.\.\.`"):
        kit.write(project, "en", tmp_path / "out")


@pytest.mark.parametrize("chapter", [path for path in HERE.chapters if path.stem[:2].isdigit()], ids=lambda p: p.stem)
def test_every_chapter_of_the_book_can_be_handed_out(chapter):
    stored = notebook_form.read(chapter)
    cells = kit.without_solutions(stored).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    asked = [source for source in code if f'check("{chapter.stem[:2]}.' in source]
    assert len(asked) == sum("solution" in tags(cell) for cell in stored.cells) > 0
    assert not [source for source in code if f'verify("{chapter.stem[:2]}.' in source]
    parameters = next(cell for cell in cells if "parameters" in tags(cell))
    assert parameters.source.startswith('SCALE = "small"')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("✓ Exercise 04.1: right", ("✓", "04.1")),
        ("· Aufgabe 12.5: noch nicht beantwortet", ("·", "12.5")),
        ("Exercise 04.1: right", None),
    ],
)
def test_marks_are_read_in_any_language(text, found):
    match = MARK.match(text)
    assert (match.groups() if match else None) == found
