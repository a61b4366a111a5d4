"""The files that are to run first are there, and the others follow as they were."""

from file_order import FOLDER, LONGEST, place


def test_every_file_that_is_named_exists_once():
    assert [name for name in LONGEST if not (FOLDER / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_this_session_is_in_order(request):
    places = [place(item.path) for item in request.session.items]
    assert places == sorted(places)


def test_files_that_are_not_named_keep_their_order():
    first, last = FOLDER / LONGEST[0], FOLDER / LONGEST[-1]
    others = [FOLDER / "test_z.py", FOLDER / "kernels" / "test_a.py"]
    assert sorted([others[0], last, others[1], first], key=place) == [first, last, *others]
