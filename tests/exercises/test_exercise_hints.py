"""What is known of each exercise: level, minutes and hints; how hints and results show themselves; what is refused."""

import re

import pytest
from answers import CHAPTERS, EXERCISES, NAMES, RIGHT
from remarks import remarks

from ds41.exercises import LEVELS, Hint, Result, check, exercise, find, hint, of_chapter, verify

BY_NAME = pytest.mark.parametrize("one", EXERCISES, ids=NAMES)


@BY_NAME
def test_an_exercise_has_a_level_minutes_and_hints(one):
    assert one.level in LEVELS
    assert 1 <= one.minutes <= 20
    assert 1 <= len(one.hints) <= 4
    assert find(one.name) is one


@BY_NAME
def test_hints_are_sentences_and_not_remarks(one):
    said = remarks(one.name.split(".")[0])[one.name]
    for text in one.hints:
        assert text.endswith((".", "?"))
        assert text == text.strip()
        assert "  " not in text
        assert not [remark for remark in said if remark in text or text in remark]


def test_no_two_hints_are_the_same():
    hints = [text for one in EXERCISES for text in one.hints]
    assert len(hints) == len(set(hints))


@BY_NAME
def test_hints_do_not_give_the_answer_away(one):
    numbers = {number for text in one.hints for number in re.findall(r"[\d,.]*\d", text)}
    for answer in RIGHT[one.name]:
        if isinstance(answer, (int, float)):
            assert not {f"{answer:g}", f"{answer:.0f}", f"{answer:,.0f}"} & numbers


@BY_NAME
def test_a_hint_shows_itself_and_the_way_to_the_next(one):
    count = len(one.hints)
    for number, text in enumerate(one.hints, start=1):
        found = hint(one.name, number)
        assert found == Hint(one.name, number, count, text)
        more = f' (The next one: hint("{one.name}", {number + 1}))' if number < count else ""
        assert repr(found) == f"Hint {number} of {count}: {text}{more}"
    assert hint(one.name) == hint(one.name, 1)


@pytest.mark.parametrize("number", [0, -1, 3, True, 1.0, "1", None])
def test_unknown_hints_are_refused(number):
    with pytest.raises(ValueError, match=re.escape(f"number is {number!r}; exercise 01.1 has hints 1 to 2")):
        hint("01.1", number)


def test_results_show_themselves():
    right, wrong = Result("01.1", True, "right"), Result("01.1", False, "not yet. Try again.")
    assert right
    assert not wrong
    assert repr(right) == "✓ Exercise 01.1: right"
    assert repr(wrong) == "· Exercise 01.1: not yet. Try again."


@pytest.mark.parametrize("ask", [find, hint, lambda name: check(name, 1), lambda name: verify(name, 1)])
def test_unknown_exercises_are_refused(ask):
    with pytest.raises(KeyError, match=r"no exercise '01\.99'; chapter 01 has 01\.1, 01\.2, .*01\.5\"$"):
        ask("01.99")
    with pytest.raises(KeyError, match="no exercises for chapter '77'"):
        ask("77.1")
    with pytest.raises(KeyError, match=r"no exercise 4\.1; expected chapter and number as a string"):
        ask(4.1)
    with pytest.raises(KeyError, match="no exercises for chapter '4'; chapters are called '01' to '17'"):
        ask("4.1")
    with pytest.raises(KeyError, match="no exercises for chapter 'nonsense'"):
        ask("nonsense")


def test_unknown_chapters_are_refused():
    with pytest.raises(KeyError, match="no exercises for chapter '77'"):
        of_chapter("77")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_exercises_of_a_chapter_are_numbered(chapter):
    names = [one.name for one in of_chapter(chapter)]
    assert names == [f"{chapter}.{number}" for number in range(1, len(names) + 1)]
    assert 4 <= len(names) <= 6


@pytest.mark.parametrize(
    ("level", "minutes", "hints", "message"),
    [
        ("brutal", 5, ("Look.",), "level of exercise 01.9 is 'brutal'; expected one of easy, medium, hard"),
        ("easy", 0, ("Look.",), "exercise 01.9 has 0 minutes and 1 hints; expected at least one of each"),
        ("easy", 5, (), "exercise 01.9 has 5 minutes and 0 hints; expected at least one of each"),
    ],
)
def test_an_exercise_without_level_minutes_or_hints_is_refused(level, minutes, hints, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        exercise("01.9", level=level, minutes=minutes, hints=hints)
