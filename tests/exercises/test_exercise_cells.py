"""The exercises in the notebooks: what the registry says of them, in the order in which a reader meets the cells."""

import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
from answers import CHAPTERS, EXERCISES, NAMES

from ds41.exercises import of_chapter

BOOK = Path(__file__).resolve().parents[2] / "book"
LINE = re.compile(r"^\*\*(\d\d\.\d+) · (\w+) · (\d+) min\*\*$", re.MULTILINE)


@cache
def cells_of(chapter: str) -> list[nbformat.NotebookNode]:
    (path,) = BOOK.glob(f"{chapter}-*.ipynb")
    return nbformat.read(path, as_version=4).cells


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_asks_what_the_registry_knows(chapter):
    lines = [found for cell in cells_of(chapter) for found in LINE.findall(cell.source)]
    assert lines == [(one.name, one.level, str(one.minutes)) for one in of_chapter(chapter)]
    parts = [cell.id for cell in cells_of(chapter) if re.fullmatch(r"(exercise|hint|solution)-\d+", cell.id)]
    numbers = range(1, len(of_chapter(chapter)) + 1)
    assert parts == [f"{part}-{number}" for number in numbers for part in ("exercise", "hint", "solution")]


@pytest.mark.parametrize("one", EXERCISES, ids=NAMES)
def test_an_exercise_is_text_answer_hint_and_solution(one):
    chapter, number = one.name.split(".")
    ids = [cell.id for cell in cells_of(chapter)]
    place = ids.index(f"exercise-{number}")
    text, asked, helped, solved = cells_of(chapter)[place - 1 : place + 3]
    assert text.id == ("exercises" if number == "1" else f"exercise-{number}-text")
    _, head, question = text.source.rpartition(f"**{one.name} · {one.level} · {one.minutes} min**\n\n")
    assert head
    assert question.strip()
    assert helped.id == f"hint-{number}"
    assert helped.source == f'hint("{one.name}")'
    assert {"hint", "hide-cell"} <= set(helped.metadata.tags)
    assert solved.id == f"solution-{number}"
    assert re.search(rf'^verify\("{re.escape(one.name)}", \w+\)\Z', solved.source, re.MULTILINE)
    assert {"solution", "hide-cell"} <= set(solved.metadata.tags)
    imports = "from ds41.exercises import check, hint, verify\n\n" if number == "1" else ""
    assert asked.source == f'{imports}answer = ...\ncheck("{one.name}", answer)'
    assert text.cell_type == "markdown"
    assert {cell.cell_type for cell in (asked, helped, solved)} == {"code"}


@pytest.mark.parametrize("one", EXERCISES, ids=NAMES)
def test_an_exercise_cell_runs_as_it_stands_and_is_not_solved(one):
    chapter, number = one.name.split(".")
    (cell,) = (cell for cell in cells_of(chapter) if cell.id == f"exercise-{number}")
    lines = cell.source.splitlines()
    names: dict[str, object] = {}
    exec("from ds41.exercises import check", names)
    exec("\n".join(lines[:-1]), names)
    result = eval(lines[-1], names)
    assert not result
    assert repr(result) == f"· Exercise {one.name}: not answered yet"
