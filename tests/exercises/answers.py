"""All answers to the exercises, and their names."""

import pkgutil

import answers_01_04
import answers_05_08
import answers_09_12
import answers_13_17

from ds41 import exercises

CHAPTERS = sorted(
    module.name.removeprefix("chapter_")
    for module in pkgutil.iter_modules(exercises.__path__)
    if module.name.startswith("chapter_")
)
EXERCISES = [one for chapter in CHAPTERS for one in exercises.of_chapter(chapter)]
NAMES = [one.name for one in EXERCISES]

_PARTS = (answers_01_04, answers_05_08, answers_09_12, answers_13_17)
RIGHT = {name: answers for part in _PARTS for name, answers in part.RIGHT.items()}
WRONG = [mistake for part in _PARTS for mistake in part.WRONG]
