"""Whatever an answer is, a check says something about it: no traceback, and nothing odd passes."""

import math
from decimal import Decimal
from functools import cache

import numpy as np
import pytest
import torch
from answers import NAMES, RIGHT
from remarks import remarks

from ds41.exercises import chapter_01, chapter_04, chapter_08, chapter_09, check

ODD = [
    *("", "nonsense", "-7.5", b"nonsense"),
    *([], ["a", "b"], [None, None], [math.nan] * 3, [[1, 2], [3]], {}, {"a": 1}, {-7}, (one for one in "ab")),
    *(True, -1, math.nan, -math.inf, 10**400, [10**400] * 2, complex(1, 2), Decimal("NaN"), object(), math),
    *(np.float64(-7.5), np.complex128(5), np.bool_(True), np.array([-7.5, np.nan]), np.array(["a", "b", "c"])),
    *(torch.tensor(-7.5), torch.tensor(5 + 1j), torch.tensor([]), torch.zeros(3, 3), torch.nn.Linear(1, 1)),
    *(torch.zeros(2, requires_grad=True), torch.zeros(3, dtype=torch.complex64), torch.zeros(3).to_sparse()),
    *(torch.zeros((), device="meta"), torch.zeros(2, device="meta"), torch.zeros(3, 3, device="meta")),
]
# What turns one right number into something that is no real number.
DISGUISES = {
    "a text": str,
    "bytes": lambda one: str(one).encode(),
    "complex": lambda one: one + 1j,
    "NumPy's complex": lambda one: np.complex128(one + 1j),
    "a complex tensor": lambda one: torch.tensor(one + 1j),
    "NumPy's text": lambda one: np.array(str(one)),
}


def raiser(error):
    def answer(*_):
        raise error

    return answer


RAISING = [
    raiser(error)
    for error in (Exception(), ValueError("{odd}"), KeyError("x"), StopIteration(), OverflowError(), RecursionError())
]
# Of every odd thing a function that returns it, and some that return several.
RETURNING = [(lambda *_, one=one, n=n: [one] * n if n else one) for one in ODD for n in (0, 2, 3)]


def once(function):
    """The function, but it computes only its first result and gives that again."""
    found = []

    def first(*given):
        if not found:
            found.append(function(*given))
        return found[0]

    return first


@pytest.fixture
def quick(monkeypatch):
    """Judges that look at one answer after the other without computing what they expect again."""
    monkeypatch.setattr(chapter_01, "_overtakes", cache(chapter_01._overtakes))
    monkeypatch.setattr(chapter_08, "_commutes", cache(chapter_08._commutes))
    for module, name in ((chapter_04, "scale_rounded_up"), (chapter_09, "hash_constants"), (chapter_09, "Hasher")):
        monkeypatch.setattr(module, name, once(getattr(module, name)))


@pytest.mark.parametrize("name", NAMES)
def test_odd_answers_get_a_remark(name, quick):
    asks_for_a_function = "Give the function itself, not a value of it." in remarks(name.split(".")[0])[name]
    for answer in [*ODD, *RAISING, *(RETURNING if asks_for_a_function else RETURNING[:3])]:
        result = check(name, answer)
        assert not result.passed, answer
        assert result.message.startswith("not yet. ")
        assert repr(result).startswith(f"· Exercise {name}: not yet. ")


def disguised(answer, disguise):
    """An answer whose numbers, or those that it returns if it is a function, are disguised."""
    if callable(answer):
        return lambda *given: disguised(answer(*given), disguise)
    if isinstance(answer, (np.ndarray, torch.Tensor)):
        answer = answer.tolist()
    if isinstance(answer, (list, tuple, set)):
        return [disguised(one, disguise) for one in answer]
    return list(answer) if isinstance(answer, str) else disguise(answer)


@pytest.mark.parametrize("name", NAMES)
def test_right_numbers_that_are_no_real_numbers_do_not_pass(name):
    for kind, disguise in DISGUISES.items():
        result = check(name, disguised(RIGHT[name][0], disguise))
        assert not result.passed, kind
        assert result.message.startswith("not yet. ")
    if not callable(RIGHT[name][0]):
        numbers = disguised(RIGHT[name][0], DISGUISES["complex"])
        assert not check(name, torch.tensor(numbers))
        assert not check(name, np.array(numbers))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_not_an_answer(name):
    for empty in (None, ...):
        result = check(name, empty)
        assert not result
        assert repr(result) == f"· Exercise {name}: not answered yet"


def test_a_remark_quotes_no_more_than_can_be_read():
    for name in ("02.2", "03.5", "04.4"):
        assert len(repr(check(name, lambda *given: "9" * 10**6))) < 1000
