"""Text to train on: files, their split, and what is read of them."""

import random

import pytest

from ds41.training.corpus import Corpus, is_held_out, standard_library

SMALL = Corpus({"a.py": b"one\ntwo\nthree\n" * 9, "b.py": b"no line end", "pkg/c.py": b"\n\nx = 1\r\n"})


@pytest.fixture
def folder(tmp_path):
    """A hundred files in three folders, and some that do not count."""
    for number in range(100):
        place = tmp_path / ("" if number % 3 else "pkg" if number % 2 else "pkg/inner")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"m{number}.py").write_text(f"value = {number}\n")
    for other in ("test/t.py", "pkg/tests/t.py", "pkg/data.txt", "site-packages/s.py"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text("never = 0\n")
    return tmp_path


def test_the_split_is_disjoint_and_complete(folder):
    train, held_out = (set(standard_library(split, folder).files) for split in ("train", "held-out"))
    assert not train & held_out
    expected = {path.relative_to(folder).as_posix() for path in folder.rglob("m*.py")}
    assert train | held_out == expected
    assert len(expected) == 100


def test_the_split_goes_by_name_and_holds_out_a_tenth(folder):
    (folder / "m1.py").write_text("changed = True\n")
    assert all(is_held_out(name) for name in standard_library("held-out", folder).files)
    share = sum(is_held_out(f"module_{number}.py") for number in range(5000)) / 5000
    assert share == pytest.approx(26 / 256, abs=0.015)


def test_the_running_python_has_text_in_both_splits():
    train, held_out = standard_library("train"), standard_library("held-out")
    assert train.nbytes > 5 * held_out.nbytes > 500_000
    assert not any(part in ("test", "tests") for name in train.files for part in name.split("/"))


@pytest.mark.parametrize(
    "files",
    [
        {"a": b"x\n", "b": b"z\n"},
        {"a": b"x\n", "c": b"y\n"},
        {"a": b"x\n"},
        {"a": b"x\nb\0", "": b"y\n"},
        {"a": b"x\n", "b": b"y\n", "c": b"w"},
    ],
)
def test_the_digest_follows_names_and_contents(files):
    assert Corpus(files).digest != Corpus({"a": b"x\n", "b": b"y\n"}).digest


def test_the_digest_ignores_order_and_empty_files():
    assert Corpus({"b": b"y\n", "a": b"x\n"}).digest == Corpus({"a": b"x\n", "b": b"y\n", "c": b""}).digest


@pytest.mark.parametrize("length", [0, 1, 10, 100, 5000])
def test_reads_have_their_length_and_repeat(length):
    first, second = (SMALL.read(random.Random("seed"), length) for _ in range(2))
    assert len(first) == length
    assert first == second
    if length >= 100:
        assert first != SMALL.read(random.Random("other"), length)


def test_a_read_is_whole_lines_of_named_files():
    line_starts = {
        name: {0} | {at + 1 for at, byte in enumerate(content) if byte == ord("\n")}
        for name, content in SMALL.files.items()
    }
    for seed in range(30):
        read = SMALL.read(random.Random(seed), 400)
        pieces = read.split(b"# ")[1:]
        assert read.startswith(b"# ")
        # What the end cut off is left out.
        for piece in pieces[:-1]:
            name, _, text = piece.partition(b"\n")
            content = SMALL.files[name.decode()]
            tails = {content[start:] for start in line_starts[name.decode()]}
            assert text in tails | {tail + b"\n" for tail in tails if not tail.endswith(b"\n")}


def test_files_are_drawn_by_their_size():
    corpus = Corpus({"large": b"l\n" * 900, "small": b"s\n" * 100})
    drawn = [corpus.read(random.Random(seed), 7)[2:7] for seed in range(2000)]
    assert drawn.count(b"small") / 2000 == pytest.approx(0.1, abs=0.02)


def test_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="no content"):
        Corpus({"a": b""})
    with pytest.raises(ValueError, match="split is 'test'; expected one of 'train', 'held-out'"):
        standard_library("test")
    with pytest.raises(ValueError, match=r"has no Python files of the split 'train'"):
        standard_library("train", tmp_path)
