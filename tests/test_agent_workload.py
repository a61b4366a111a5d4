"""The simulated agent: real files, tools that say what is in them, the same sessions every time."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys

import pytest

from ds41 import agent_workload
from ds41.agent_workload import KINDS, session, tokens, vocabulary
from ds41.agent_workspace import Workspace

LONG = "\n".join(f"    total += a * {n}" for n in range(12))
FILES = {
    "one.py": f'import two\n\n\ndef grow(a, b=1):\n    """Grow a."""\n    total = two.shrink(a)\n{LONG}\n'
    "    return print(total)\n",
    "two.py": "class Box:\n    @property\n    def size(self):\n        return len(self.items)\n\n\ndef shrink(a):\n"
    "    return a - 1\n",
    "bad.py": "def half(:\n    pass\n",
}


@pytest.fixture(scope="module")
def library():
    return Workspace.standard_library()


@pytest.fixture
def small():
    return Workspace(FILES)


def test_functions_are_those_of_the_file(small):
    (grow,) = small.functions("one.py")
    assert (grow.name, grow.first, grow.last) == ("grow", 4, 19)
    assert (grow.parameters, grow.calls, grow.docstring) == (("a", "b"), ("print",), "Grow a.")
    assert small.source(grow).splitlines()[0] == "def grow(a, b=1):"
    assert [(one.name, one.first) for one in small.functions("two.py")] == [("size", 3), ("shrink", 7)]
    assert small.functions("bad.py") == ()


def test_tools_say_what_is_there(small):
    assert small.search("shrink").splitlines() == ["one.py:6:    total = two.shrink(a)", "two.py:7:def shrink(a):"]
    assert len(small.search("a", most=3).splitlines()) == 3
    assert small.search("nowhere") == "no line holds 'nowhere'"
    assert small.outline("two.py") == "3-4 size(self)\n7-8 shrink(a)"
    assert small.read("two.py", 7, 1) == "    7 def shrink(a):"
    assert small.check("two.py") == "two.py: 2 functions, 2 without a docstring\n3 size\n7 shrink"
    assert small.check("two.py", "x = 1") == "two.py: 0 functions, 0 without a docstring"
    assert small.check("bad.py").startswith("bad.py: line 1:")
    with pytest.raises(KeyError, match=r"no file 'three.py'; there are 3, from bad.py to two.py"):
        small.read("three.py")


def test_bad_workspaces_are_named(tmp_path, small):
    with pytest.raises(ValueError, match="files is empty"):
        Workspace({})
    with pytest.raises(FileNotFoundError, match=r"has no \.py file of 4,000 to 200,000 bytes"):
        Workspace.folder(tmp_path)
    with pytest.raises(ValueError, match="no file has a function of 10 to 80 lines"):
        session(Workspace({"two.py": FILES["two.py"]}), "ask", 1)
    with pytest.raises(ValueError, match="kind is 'write'; expected one of: ask, read, edit"):
        session(small, "write", 1)
    with pytest.raises(ValueError, match="turns is 0"):
        session(small, "ask", 0)
    with pytest.raises(ValueError, match="read_lines is 0"):
        session(small, "read", 1, read_lines=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_is_the_same_in_every_process(library, kind):
    code = (
        "from ds41.agent_workload import session; from ds41.agent_workspace import Workspace; import hashlib;"
        f"text = session(Workspace.standard_library(), {kind!r}, 12, 3).text;"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    seen = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout}
    again = session(library, kind, 12, 3)
    assert seen == {hashlib.sha256(again.text.encode()).hexdigest() + "\n"}
    assert again != session(library, kind, 12, 4)
    assert again.turns[:5] == session(library, kind, 5, 3).turns


def test_what_is_read_stands_in_the_files(library):
    one = session(library, "read", 30, seed=1, read_lines=50)
    pieces = [turn.prompt for turn in one.turns if re.match(r"\n<result>\n *\d+ ", turn.prompt)]
    assert len(pieces) > 10
    everything = "\n".join(library.files.values())
    for piece in pieces:
        lines = piece.splitlines()[2:-1]
        assert len(lines) <= 50
        assert "\n".join(line[6:] for line in lines) in everything


def test_an_edit_parses_and_says_what_changed(library):
    turns = session(library, "edit", 5, seed=2).turns
    assert turns[0].prompt.startswith("\n<user>")
    changed = [line for line in turns[3].prompt.splitlines() if re.match(r"[+-][^+-]", line)]
    assert len(changed) == 1
    assert "# Takes " in changed[0]
    assert " functions, " in turns[4].prompt


def test_tokens_add_up(small):
    one = session(small, "edit", 7)
    turns = tokens(one, len)
    assert turns[0].prompt == len(one.preamble) + len(one.turns[0].prompt)
    assert [turn.history for turn in turns[1:]] == [turn.history + turn.new for turn in turns[:-1]]
    assert turns[-1].history + turns[-1].new == len(one.text)


def test_the_vocabulary_is_learnt_alike_and_loses_nothing(small):
    tokenizer = vocabulary(small, 300)
    assert tokenizer.to_str() == vocabulary(small, 300).to_str()
    text = session(small, "ask", 3).text
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text)


def test_kinds_differ_as_they_should(library):
    def mean(kind, **options):
        turns = tokens(session(library, kind, 40, **options), len)
        return sum(turn.new for turn in turns[1:]) / len(turns[1:])

    assert mean("ask") < mean("edit") < mean("read")
    assert mean("read", read_lines=50) < mean("read", read_lines=800)
    assert agent_workload.preamble(library).count("\n") > len(library.files)
