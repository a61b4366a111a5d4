"""The plans of a workshop, `book/workshop.yml`: what each chapter teaches, and two days as lists of blocks.

`read` refuses a plan that cannot be held: exercises that need longer than their block by the registry, minutes that do
not add up, too long a stretch without a break.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from project import Project, ProjectError

from ds41.exercises import of_chapter

PAGE = "book/workshop"
KINDS = ("talk", "demo", "exercise", "break", "setup")
GOALS = 3
# What each plan has to fill, breaks included.
MINUTES = {"half_day": 210, "full_day": 420}
MAX_STRETCH = 90


class WorkshopError(ProjectError):
    """The workshop's data or a part of its kit is missing, or contradicts itself; the message says what to do."""


@dataclass(frozen=True)
class Chapter:
    """What a reader of a chapter can do afterwards, and the minutes that it takes to teach all of it."""

    goals: tuple[str, ...]
    minutes: int


@dataclass(frozen=True)
class Block:
    """One entry of a plan.

    Attributes:
        minutes: how long it takes.
        kind: one of :data:`KINDS`.
        goal: what it is for, one line.
        chapter: "04", or None.
        exercises: names of those that everybody does.
        more: names of those for who is done early.
    """

    minutes: int
    kind: str
    goal: str
    chapter: str | None = None
    exercises: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The blocks of one workshop, and the minutes that they have to fill."""

    minutes: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Workshop:
    chapters: dict[str, Chapter]
    plans: dict[str, Plan]


def read(project: Project) -> Workshop:
    """What `book/workshop.yml` says.

    Raises:
        WorkshopError: it cannot be read, or a plan of it cannot be held.
    """
    path = project.book / "workshop.yml"
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        workshop = Workshop(
            {name: Chapter(tuple(one["goals"]), one["minutes"]) for name, one in raw["chapters"].items()},
            {name: Plan(MINUTES[name], tuple(map(_block, blocks))) for name, blocks in raw["plans"].items()},
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise WorkshopError(f"{path} is not a workshop: {type(error).__name__}: {error}") from error
    if wrong := list(faults(workshop)):
        raise WorkshopError(f"{path}:\n  " + "\n  ".join(wrong))
    return workshop


def _block(raw: dict[str, Any]) -> Block:
    lists = {name: tuple(raw.get(name, ())) for name in ("exercises", "more")}
    return Block(**raw | lists)


def texts(workshop: Workshop) -> list[str]:
    """Every sentence of the data that a reader sees, in its order and once: what another language translates."""
    goals = [goal for chapter in workshop.chapters.values() for goal in chapter.goals]
    return list(dict.fromkeys(goals + [block.goal for plan in workshop.plans.values() for block in plan.blocks]))


@cache
def exercise_minutes(chapter: str) -> dict[str, int]:
    """The minutes of a chapter's exercises by their names, from the registry; empty if it has none."""
    try:
        return {exercise.name: exercise.minutes for exercise in of_chapter(chapter)}
    except KeyError:
        return {}


def faults(workshop: Workshop) -> Iterator[str]:
    """What is wrong with chapters and plans, as sentences."""
    for name, chapter in workshop.chapters.items():
        if not exercise_minutes(name):
            yield f"chapter {name!r} has no exercises in the registry"
        if len(chapter.goals) != GOALS:
            yield f"chapter {name} has {len(chapter.goals)} goals; expected {GOALS}"
    for name, plan in workshop.plans.items():
        total = sum(block.minutes for block in plan.blocks)
        if total != plan.minutes:
            yield f"the blocks of {name} take {total} minutes; expected {plan.minutes}"
        yield from (f"{name}, block {n}: {fault}" for n, fault in _block_faults(plan, workshop))
        yield from (f"{name}: {fault}" for fault in _teaching_faults(plan, workshop))


def _block_faults(plan: Plan, workshop: Workshop) -> Iterator[tuple[int, str]]:
    stretch = 0
    for n, block in enumerate(plan.blocks, start=1):
        if block.kind not in KINDS:
            yield n, f"its kind is {block.kind!r}; expected one of {', '.join(KINDS)}"
        if block.chapter is not None and block.chapter not in workshop.chapters:
            yield n, f"chapter {block.chapter!r} is not among the chapters"
        if (block.kind == "exercise") != bool(block.exercises):
            yield n, f"a block of kind {block.kind!r} names {len(block.exercises)} exercises"
        known = exercise_minutes(block.chapter) if block.chapter else {}
        if unknown := [one for one in block.exercises + block.more if one not in known]:
            yield n, f"chapter {block.chapter} has no exercise {', '.join(unknown)}; it has {', '.join(known)}"
        elif (needed := sum(known[one] for one in block.exercises)) > block.minutes:
            yield n, f"its exercises need {needed} minutes, and it has {block.minutes}"
        before, stretch = stretch, 0 if block.kind == "break" else stretch + block.minutes
        if before <= MAX_STRETCH < stretch:
            yield n, f"it ends {stretch} minutes after the last break; expected at most {MAX_STRETCH}"


def _teaching_faults(plan: Plan, workshop: Workshop) -> Iterator[str]:
    for name, chapter in workshop.chapters.items():
        taught = sum(b.minutes for b in plan.blocks if b.chapter == name and b.kind in ("talk", "demo"))
        if taught > chapter.minutes:
            yield f"chapter {name} is taught for {taught} minutes; all of it takes {chapter.minutes}"
