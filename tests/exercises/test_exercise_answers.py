"""Exercises: right answers pass, and every remark of every judge is one that somebody can get."""

import re
from functools import cache

import pytest
from answers import NAMES, RIGHT, WRONG
from remarks import pattern, remarks, shared_remarks

from ds41.exercises import Result, check, verify


@cache
def outcome(number: int) -> Result:
    """What comes of a mistake, by its place in the list."""
    name, answer, _ = WRONG[number]
    return check(name, answer)


def told(name: str | None = None) -> list[str]:
    """What all mistakes are told, or those of one exercise."""
    found = [outcome(number) for number in range(len(WRONG)) if name in (None, WRONG[number][0])]
    return [result.message.removeprefix("not yet. ") for result in found]


def test_every_exercise_has_right_and_wrong_answers():
    assert list(RIGHT) == NAMES
    assert {name for name, _, _ in WRONG} == set(NAMES)


@pytest.mark.parametrize(("name", "answer"), [(name, answer) for name, found in RIGHT.items() for answer in found])
def test_right_answers_pass(name, answer):
    assert check(name, answer).message == "right"
    result = verify(name, answer)
    assert result.passed
    assert repr(result) == f"✓ Exercise {name}: right"


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[f"{name}-{words}" for name, _, words in WRONG])
def test_mistakes_get_their_remark(number):
    name, _, words = WRONG[number]
    result = outcome(number)
    assert not result
    assert result.name == name
    assert result.message.startswith("not yet. ")
    assert words in result.message


@pytest.mark.parametrize("name", NAMES)
def test_verify_refuses_mistakes(name):
    answer = next(answer for other, answer, _ in WRONG if other == name)
    with pytest.raises(AssertionError, match=f"^· Exercise {re.escape(name)}: not yet"):
        verify(name, answer)


@pytest.mark.parametrize("name", NAMES)
def test_no_remark_is_out_of_reach(name):
    assert [one for one in remarks(name[:2])[name] if not any(map(pattern(one).search, told(name)))] == []


def test_no_shared_remark_is_out_of_reach():
    assert [one for one in shared_remarks() if not any(map(pattern(one).search, told()))] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_judge_says_one_thing_at_a_time_and_each_in_one_place(name):
    found = remarks(name[:2])[name]
    assert len(found) == len(set(found))
    for message in told(name):
        said = [one for one in {*found, *shared_remarks()} if pattern(one).fullmatch(message)]
        assert len(said) == 1, message


@pytest.mark.parametrize("name", NAMES)
def test_remarks_do_not_give_the_answer_away(name):
    remark = check(name, -1).message
    for answer in RIGHT[name]:
        if isinstance(answer, (int, float)):
            assert not {f"{answer:g}", f"{answer:.0f}", f"{answer:,.0f}"} & set(re.findall(r"[\d,.]*\d", remark))
