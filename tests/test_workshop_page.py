"""The workshop's plans can be held, and its page is filled from them, the registry and the recorded try-out."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import tiny_book
import workshop_page
import workshop_plan
import yaml
from notebook_rules import NUMBERED
from project import HERE, Project
from workshop_plan import Block, Plan, Workshop, WorkshopError

from ds41.exercises import of_chapter

WORKSHOP = workshop_plan.read(HERE)
PAGE = (HERE.book / "workshop.md").read_text(encoding="utf-8")


def test_every_numbered_chapter_has_goals_that_begin_with_what_a_reader_does():
    numbers = [chapter.stem[:2] for chapter in HERE.chapters if NUMBERED.match(chapter.stem)]
    assert list(WORKSHOP.chapters) == numbers
    goals = [goal for chapter in WORKSHOP.chapters.values() for goal in chapter.goals]
    assert len(set(goals)) == len(goals)
    # Nobody can check that somebody "knows" or "understands".
    vague = re.compile(r"know|understand|learn|appreciate|be |get |see ", re.IGNORECASE)
    assert not [goal for goal in goals if vague.match(goal) or not goal[0].isupper() or goal.endswith(".")]


def test_plans_teach_before_they_ask_and_repeat_nothing():
    assert list(WORKSHOP.plans) == list(workshop_plan.MINUTES)
    for plan in WORKSHOP.plans.values():
        taught: set[str | None] = set()
        asked: list[str] = []
        for block in plan.blocks:
            if block.kind == "exercise":
                assert block.chapter in taught
                asked += block.exercises
            else:
                taught.add(block.chapter)
        assert len(set(asked)) == len(asked)
    assert {block.chapter for block in WORKSHOP.plans["half_day"].blocks} - {None} == {f"0{n}" for n in range(1, 7)}


def minutes(name: str) -> int:
    return next(one.minutes for one in of_chapter(name[:2]) if one.name == name)


def broken(*blocks: Block, total: int | None = None) -> list[str]:
    """The faults of a workshop with one plan of these blocks."""
    plan = Plan(sum(block.minutes for block in blocks) if total is None else total, blocks)
    return list(workshop_plan.faults(Workshop(WORKSHOP.chapters, {"plan": plan})))


def test_a_block_has_the_minutes_of_its_exercises_and_no_more_are_asked():
    names = ("04.1", "04.3")
    needed = sum(map(minutes, names))
    block = Block(needed, "exercise", "goal", "04", names, ("04.4",))
    assert broken(block) == []
    assert broken(replace(block, minutes=needed - 1)) == [
        f"plan, block 1: its exercises need {needed} minutes, and it has {needed - 1}"
    ]
    assert "chapter 04 has no exercise 04.9, 05.1; it has 04.1" in broken(replace(block, exercises=("04.9", "05.1")))[0]
    assert broken(replace(block, exercises=())) == ["plan, block 1: a block of kind 'exercise' names 0 exercises"]
    assert broken(replace(block, kind="talk")) == ["plan, block 1: a block of kind 'talk' names 2 exercises"]


def test_a_plan_adds_up_and_has_breaks():
    talk, pause = Block(90, "talk", "goal"), Block(10, "break", "goal")
    assert broken(talk, pause, talk) == []
    assert broken(talk, total=91) == ["the blocks of plan take 90 minutes; expected 91"]
    assert broken(talk, Block(1, "demo", "goal"), pause) == [
        "plan, block 2: it ends 91 minutes after the last break; expected at most 90"
    ]
    assert "its kind is 'nap'" in broken(replace(pause, kind="nap"))[0]
    assert "chapter '18' is not among the chapters" in broken(replace(talk, chapter="18"))[0]
    most = WORKSHOP.chapters["04"].minutes
    assert broken(Block(most, "talk", "goal", "04"), Block(1, "demo", "goal", "04")) == [
        f"plan: chapter 04 is taught for {most + 1} minutes; all of it takes {most}"
    ]


def test_chapters_without_three_goals_or_without_exercises_are_faults():
    chapter = WORKSHOP.chapters["04"]
    wrong = {"04": replace(chapter, goals=chapter.goals[:2]), "18": chapter}
    assert list(workshop_plan.faults(Workshop(wrong, {}))) == [
        "chapter 04 has 2 goals; expected 3",
        "chapter '18' has no exercises in the registry",
    ]


def test_every_placeholder_of_the_page_is_filled():
    assert set(workshop_page.PLACEHOLDER.findall(PAGE)) == set(workshop_page.PARTS)
    filled = workshop_page.filled(PAGE, HERE)
    assert "{{" not in filled
    row = next(line for line in filled.splitlines() if "exercises 04.1, 04.3" in line)
    assert "[chapter 4](04-fp4.ipynb); if done early 04.4" in row
    assert "| 3:30 | end |  |" in filled
    assert "| 7:00 | end |  |" in filled
    assert WORKSHOP.chapters["17"].goals[2] in filled
    total = sum(one.minutes for number in WORKSHOP.chapters for one in of_chapter(number))
    assert re.search(rf"^\| all \|.*\| {total} \|$", filled, re.MULTILINE)
    # Every sentence of the data is there, so a list of them is all that another language has to translate.
    plain = filled.replace("\\", "")
    assert not [text for text in workshop_plan.texts(WORKSHOP) if text not in plain]


@pytest.fixture
def book(tmp_path):
    """A tiny book with a workshop page and one numbered chapter of the registry."""
    project = tiny_book.make(tmp_path / "book", {"intro": ["1"], "04-first": ["2"]})
    (project.root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nchapters:\n  - file: book/04-first\n  - file: book/workshop\n"
    )
    goals = ["Do one | thing", "Do two", "Do three"]
    blocks = [
        {"minutes": 10, "kind": "talk", "chapter": "04", "goal": "Talk"},
        {"minutes": 200, "kind": "break", "goal": "Rest"},
    ]
    plans = {"half_day": blocks}
    data = {"chapters": {"04": {"minutes": 10, "goals": goals}}, "plans": plans}
    (project.book / "workshop.yml").write_text(yaml.safe_dump(data))
    (project.book / "workshop.md").write_text("")
    return Project(project.root)


def test_the_staged_page_is_filled_if_the_book_has_it(book, tmp_path):
    staged = tmp_path / "stage" / "book" / "workshop.md"
    staged.parent.mkdir(parents=True)
    staged.write_text("{{ workshop.half_day }}\n\n{{ workshop.goals }}\n\n{{ hc_mult }}")
    workshop_page.fill(tmp_path / "stage", book)
    text = staged.read_text()
    assert "| 0:10 | 200 min: **break** | Rest |\n| 3:30 | end |  |" in text
    assert r"| [chapter 4](04-first.ipynb) | 10 | Do one \| thing<br>Do two<br>Do three |" in text
    assert text.endswith("{{ hc_mult }}")
    (book.root / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n")
    staged.write_text("{{ workshop.half_day }}")
    workshop_page.fill(tmp_path / "stage", Project(book.root))
    assert staged.read_text() == "{{ workshop.half_day }}"


def test_what_cannot_be_filled_is_refused(book):
    with pytest.raises(WorkshopError, match=r"nothing is called no_such; known are half_day"):
        workshop_page.filled("{{ workshop.no_such }}", book)
    path = book.book / "workshop.yml"
    data = yaml.safe_load(path.read_text())
    data["plans"]["half_day"][1]["minutes"] = 50
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(WorkshopError, match="blocks of half_day take 60 minutes; expected 210"):
        workshop_page.filled("{{ workshop.goals }}", book)
    data["plans"]["half_day"][0]["colour"] = "red"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(WorkshopError, match=r"is not a workshop: TypeError: .*colour"):
        workshop_page.filled("{{ workshop.goals }}", book)
    data["chapters"] = {"05": data["chapters"]["04"]}
    data["plans"] = {}
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(WorkshopError, match=r"names chapter '05', and _toc\.yml has 0 of that number"):
        workshop_page.filled("{{ workshop.goals }}", book)


def test_the_recorded_try_out_is_shown_with_its_sums(book):
    text = "{{ workshop.tryout }}"
    assert "No try-out has been recorded yet" in workshop_page.filled(text, book)
    record = {
        "device": "A CPU",
        "versions": {"python": "3.12.1", "torch": "2.13.0"},
        "date": "2026-12-01",
        "language": "en",
        "wheels": True,
        "steps": [{"step": "unpack", "seconds": 1.25, "found": "7 files"}],
        "chapters": [
            {"chapter": "04-fp4", "exercises_s": 10.0, "solved_s": 12.5, "checks": 5},
            {"chapter": "05-ledger", "exercises_s": 1.5, "solved_s": 2.0, "checks": 4},
        ],
    }
    path = book.book / workshop_page.TRYOUT
    path.write_text(json.dumps(record))
    filled = workshop_page.filled(text, book)
    assert "On 2026-12-01 the kit was tried on A CPU with python 3.12.1, torch 2.13.0, language en" in filled
    assert "Packages came from the kit's own wheels." in filled
    assert "| unpack | 1.2 | 7 files |" in filled
    assert "| 04-fp4 | 10.0 | 12.5 | 5 |" in filled
    assert "| all | 11.5 | 14.5 | 9 |" in filled
    del record["chapters"][0]["checks"]
    path.write_text(json.dumps(record))
    with pytest.raises(WorkshopError, match=r"workshop_tryout\.json is no record of a try-out: KeyError: 'checks'"):
        workshop_page.filled(text, book)
