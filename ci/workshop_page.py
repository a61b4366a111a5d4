"""The tables of the workshop's page, `book/workshop.md`, filled in when the book is staged.

The page writes `{{ workshop.NAME }}`: the plans and goals of `book/workshop.yml`, the exercises' minutes from the
registry, and what the last recorded try-out took, from `book/workshop_tryout.json`. Texts are said in the language
that `ds41.language` speaks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import workshop_plan
from back_pages import escaped, table
from project import Project
from workshop_plan import PAGE, Block, Workshop, WorkshopError

from ds41.exercises import LEVELS, of_chapter
from ds41.language import phrase, say

PLACEHOLDER = re.compile(r"\{\{ *workshop\.([a-z_]+) *\}\}")
TRYOUT = "workshop_tryout.json"


def fill(folder: Path, project: Project) -> None:
    """Put the tables into the staged page below `folder`, if the book has that page.

    Raises:
        WorkshopError: the page asks for something unknown, a plan cannot be held, or the record of the try-out lacks
            what its table shows.
    """
    if PAGE in project.page_names:
        page = folder / f"{PAGE}.md"
        page.write_text(filled(page.read_text(encoding="utf-8"), project), encoding="utf-8")


def filled(text: str, project: Project) -> str:
    """The text of the page with its tables."""
    places = PLACEHOLDER.findall(text)
    if unknown := sorted(set(places) - set(PARTS)):
        raise WorkshopError(f"{PAGE}.md: nothing is called {', '.join(unknown)}; known are {', '.join(PARTS)}")
    if not places:
        return text
    workshop = workshop_plan.read(project)
    return PLACEHOLDER.sub(lambda match: PARTS[match[1]](workshop, project), text)


def plan_table(name: str) -> Callable[[Workshop, Project], str]:
    """What draws the plan called `name`: one row a block, with the time since the start."""

    def draw(workshop: Workshop, project: Project) -> str:
        rows, start = [], 0
        for block in workshop.plans[name].blocks:
            what = say("{minutes} min: {what}", minutes=block.minutes, what=_what(block, project))
            rows.append((_clock(start), what, escaped(say(block.goal))))
            start += block.minutes
        rows.append((_clock(start), say("end"), ""))
        return table((say("at"), say("what"), say("for")), rows, right=(0,))

    return draw


def _clock(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"


def _what(block: Block, project: Project) -> str:
    """A block's kind, its chapter and its exercises, in Markdown."""
    kinds = {
        "talk": say("talk"),
        "demo": say("demonstration"),
        "exercise": say("exercises"),
        "break": say("**break**"),
        "setup": say("set-up"),
    }
    what = kinds[block.kind] if len(block.exercises) != 1 else say("exercise")
    if block.exercises:
        what += " " + ", ".join(block.exercises)
    if block.chapter:
        what += f", {chapter_link(block.chapter, project)}"
    if block.more:
        what += "; " + say("if done early {names}", names=", ".join(block.more))
    return what


def chapter_link(number: str, project: Project) -> str:
    """A chapter by its number as a link.

    Raises:
        WorkshopError: the book has no chapter of that number.
    """
    found = [chapter.name for chapter in project.chapters if chapter.name.startswith(f"{number}-")]
    if len(found) != 1:
        raise WorkshopError(f"workshop.yml names chapter {number!r}, and _toc.yml has {len(found)} of that number")
    return f"[{say('chapter {number}', number=int(number))}]({found[0]})"


def goals(workshop: Workshop, project: Project) -> str:
    """The learning goals, chapter by chapter."""
    rows = []
    for number, chapter in workshop.chapters.items():
        items = "<br>".join(escaped(say(goal)) for goal in chapter.goals)
        rows.append((chapter_link(number, project), str(chapter.minutes), items))
    return table((say("chapter"), say("minutes"), say("afterwards you can")), rows, right=(1,))


def exercises(workshop: Workshop, project: Project) -> str:
    """How many exercises of each level a chapter has, and the minutes of all of them."""
    rows = []
    totals = [0] * (len(LEVELS) + 1)
    for number in workshop.chapters:
        of_this = of_chapter(number)
        counts = [sum(one.level == level for one in of_this) for level in LEVELS]
        counts.append(sum(one.minutes for one in of_this))
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        rows.append((chapter_link(number, project), *(str(count or "") for count in counts)))
    rows.append((say("all"), *map(str, totals)))
    levels = {"easy": say("easy"), "medium": say("medium"), "hard": say("hard")}
    header = (say("chapter"), *(levels[level] for level in LEVELS), say("minutes"))
    return table(header, rows, right=tuple(range(1, len(header))))


def tryout(workshop: Workshop, project: Project) -> str:
    """Seconds of the recorded try-out: of each step, and of each chapter without and with its solutions.

    Raises:
        WorkshopError: the record lacks something.
    """
    path = project.book / TRYOUT
    if not path.exists():
        return say("No try-out has been recorded yet; `python ci/workshop_try.py BUNDLE.zip --record` writes one.")
    record = json.loads(path.read_text(encoding="utf-8"))
    try:
        return _tryout(record)
    except (KeyError, TypeError, AttributeError) as error:
        raise WorkshopError(f"{path.name} is no record of a try-out: {type(error).__name__}: {error}") from error


def _tryout(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    opening = say(
        "On {date} the kit was tried on {device} with {versions}, language {language}, in a network namespace without "
        "a network. Packages came from {packages}.",
        date=record["date"],
        device=escaped(record["device"]),
        versions=escaped(versions),
        language=record["language"],
        packages=say("the kit's own wheels") if record["wheels"] else say("an environment that had them"),
    )
    steps = [
        (escaped(phrase(step["step"])), phrase(f"{step['seconds']:,.1f}"), escaped(phrase(step["found"])))
        for step in record["steps"]
    ]
    keys = ("exercises_s", "solved_s")
    rows = [
        (escaped(row["chapter"]), *(phrase(f"{row[key]:,.1f}") for key in keys), str(row["checks"]))
        for row in record["chapters"]
    ]
    sums = [sum(row[key] for row in record["chapters"]) for key in (*keys, "checks")]
    rows.append((say("all"), *(phrase(f"{seconds:,.1f}") for seconds in sums[:2]), str(sums[2])))
    chapters = table((say("notebook"), say("exercises, s"), say("solved, s"), say("checks")), rows, right=(1, 2, 3))
    return "\n\n".join([opening, table((say("step"), say("seconds"), say("found")), steps, right=(1,)), chapters])


PARTS: dict[str, Callable[[Workshop, Project], str]] = {
    "half_day": plan_table("half_day"),
    "full_day": plan_table("full_day"),
    "goals": goals,
    "exercises": exercises,
    "tryout": tryout,
}
