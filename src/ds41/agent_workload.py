"""A simulated coding agent: sessions of turns over real source files, and how many tokens each turn adds.

The files and what the tools print of them are real; the agent is a script. It asks its tools and writes answers in
the order in which a coding agent does, and knows nothing. So the lengths of prompts are those of real tool results
for the limits that the tools have, and the lengths of answers are an assumption.

Source: ds41's own; lengths of answers are an assumption.
"""

from __future__ import annotations

import difflib
import inspect
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ds41.agent_workspace import Function, Workspace

Kind = Literal["ask", "read", "edit"]
"""Kinds of work that the simulated agent does."""
KINDS: dict[Kind, str] = {
    "ask": "questions about one function each",
    "read": "reads files piece by piece",
    "edit": "finds a function, reads around it, rewrites it, checks",
}
"""What the agent does in each kind, in words."""
# Pieces of one file that the agent reads before it goes on to the next.
_PIECES = 6
# Lines of a function worth a question.
_TOPIC_LINES = range(10, 81)


@dataclass(frozen=True)
class Turn:
    """One request. prompt: what it adds to the conversation, a message or a tool result. answer: what is generated."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Session:
    """A conversation. preamble: instructions and tools, the same for all sessions of a workspace."""

    kind: Kind
    preamble: str
    turns: tuple[Turn, ...]

    @property
    def text(self) -> str:
        """The whole conversation as text: preamble, prompts and answers."""
        return self.preamble + "".join(turn.prompt + turn.answer for turn in self.turns)


@dataclass(frozen=True)
class TurnTokens:
    """A turn in tokens. history: those there before it; prompt, answer: those it adds."""

    history: int
    prompt: int
    answer: int

    @property
    def new(self) -> int:
        """Tokens that the turn adds: prompt and answer."""
        return self.prompt + self.answer


def session(workspace: Workspace, kind: Kind, turns: int, seed: int = 0, read_lines: int = 200) -> Session:
    """One session of ``turns`` turns; the same for the same files and arguments.

    Args:
        read_lines: lines that one call of the reading tool gives.

    Raises:
        ValueError: an unknown kind, no turn, no line, or files without a function to talk about.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of: {', '.join(KINDS)}")
    for name, value in (("turns", turns), ("read_lines", read_lines)):
        if value < 1:
            raise ValueError(f"{name} is {value}; expected 1 or more")
    script = {"ask": _ask, "read": _read, "edit": _edit}[kind]
    # Seeded by text, which unlike a tuple's hash is the same in every process.
    generator = random.Random(f"{kind} {seed}")
    return Session(kind, preamble(workspace), tuple(islice(script(workspace, generator, read_lines), turns)))


def tokens(one: Session, count: Callable[[str], int]) -> list[TurnTokens]:
    """A session in tokens; ``count`` gives those of a text. The preamble counts as prompt of the first turn."""
    history, found = 0, []
    for number, turn in enumerate(one.turns):
        prompt = count(turn.prompt) + (count(one.preamble) if number == 0 else 0)
        found.append(TurnTokens(history, prompt, count(turn.answer)))
        history += found[-1].new
    return found


def vocabulary(workspace: Workspace, size: int = 8192) -> Tokenizer:
    """Byte pairs of ``size`` ids, learnt on the workspace's own files; about 4 bytes a token there.

    A stand-in where a model's own tokenizer is not at hand. Training is deterministic.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(workspace.files.values(), trainer)
    return tokenizer


def preamble(workspace: Workspace) -> str:
    """Instructions, the tools as a schema, and a list of the files."""
    tools = [_schema(tool) for tool in (workspace.search, workspace.outline, workspace.read, workspace.check)]
    listing = "\n".join(f"{name} {text.count(chr(10)) + 1}" for name, text in workspace.files.items())
    return (
        "You work on a repository of Python files. Look before you answer; change as little as the task needs; check "
        "what you changed. Call one tool at a time and wait for its result.\n\n"
        f"{json.dumps(tools, indent=1)}\n\nFiles and their lines:\n{listing}\n"
    )


def _schema(tool: Callable) -> dict:
    parameters = inspect.signature(tool).parameters.values()
    return {
        "name": tool.__name__,
        "description": inspect.getdoc(tool),
        "parameters": {one.name: str(one.annotation) for one in parameters},
    }


def _call(tool: str, **arguments: object) -> str:
    return f"\n<call>{json.dumps({'tool': tool, **arguments})}</call>\n"


def _result(text: str) -> str:
    return f"\n<result>\n{text}\n</result>\n"


def _ask(workspace: Workspace, generator: random.Random, read_lines: int) -> Iterator[Turn]:
    while True:
        function = _topic(workspace, generator)
        yield Turn(
            f"\n<user>What does {function.name} of {function.file} do?\n{workspace.source(function)}\n</user>\n",
            _explanation(function),
        )


def _read(workspace: Workspace, generator: random.Random, read_lines: int) -> Iterator[Turn]:
    while True:
        function = _topic(workspace, generator)
        name = function.file
        yield Turn(
            f"\n<user>How does {name} work, and where does {function.name} come in?</user>\n",
            f"I begin with what {name} defines.{_call('outline', name=name)}",
        )
        result = workspace.outline(name)
        lines = workspace.files[name].count("\n") + 1
        for first in range(1, min(lines, _PIECES * read_lines) + 1, read_lines):
            yield Turn(
                _result(result),
                f"Now lines {first} to {min(lines, first + read_lines - 1)}."
                f"{_call('read', name=name, first=first, lines=read_lines)}",
            )
            result = workspace.read(name, first, read_lines)
        described = [one for one in workspace.functions(name) if one.docstring][:12]
        summary = "\n".join(f"- {one.name}: {_first_line(one)}" for one in described)
        yield Turn(_result(result), f"{name}, in short:\n{summary}\n\n{_explanation(function)}")


def _edit(workspace: Workspace, generator: random.Random, read_lines: int) -> Iterator[Turn]:
    while True:
        function = _topic(workspace, generator)
        name, old = function.file, workspace.source(function)
        yield Turn(
            f"\n<user>{function.name} in {name} should say in its first line what it takes.</user>\n",
            f"First I look where {function.name} is used.{_call('search', word=function.name)}",
        )
        first = max(1, (function.first + function.last - read_lines) // 2)
        yield Turn(
            _result(workspace.search(function.name)),
            f"I read around its definition.{_call('read', name=name, first=first, lines=read_lines)}",
        )
        new = _with_first_line(old, function)
        yield Turn(
            _result(workspace.read(name, first, read_lines)),
            f"{_explanation(function)}{_call('edit', name=name, old=old, new=new)}",
        )
        difference = "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm=""))
        yield Turn(_result(difference), f"I check the file.{_call('check', name=name)}")
        changed = workspace.files[name].replace(old, new, 1)
        yield Turn(
            _result(workspace.check(name, changed)),
            f"Done: {function.name} now begins with a line on its parameters; nothing else has changed.\n",
        )


def _topic(workspace: Workspace, generator: random.Random) -> Function:
    """A function of moderate length; files are parsed only until one has any."""
    for name in generator.sample(list(workspace.files), len(workspace.files)):
        found = [one for one in workspace.functions(name) if one.last - one.first + 1 in _TOPIC_LINES]
        if found:
            return generator.choice(found)
    raise ValueError(
        f"no file has a function of {_TOPIC_LINES[0]} to {_TOPIC_LINES[-1]} lines; the agent has nothing to talk about"
    )


def _explanation(function: Function) -> str:
    takes = ", ".join(function.parameters) or "nothing"
    calls = ", ".join(function.calls) or "nothing by name"
    return f"{function.name} takes {takes}. It calls {calls}.\n{function.docstring}\n"


def _first_line(function: Function) -> str:
    return function.docstring.strip().splitlines()[0]


def _with_first_line(source: str, function: Function) -> str:
    """The function with a comment under its first line."""
    first, *rest = source.splitlines()
    indent = " " * (len(first) - len(first.lstrip()) + 4)
    return "\n".join([first, f"{indent}# Takes {', '.join(function.parameters) or 'nothing'}.", *rest])
