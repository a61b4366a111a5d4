"""Source files and the tools with which an agent looks at them: search, outline, read, check.

The tools do what they say on real files, so that what they print has the lengths of real tool results.

Source: ds41's own.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True)
class Function:
    """A function or method of a file. first, last: its lines, counted from 1, without decorators."""

    file: str
    name: str
    first: int
    last: int
    parameters: tuple[str, ...]
    calls: tuple[str, ...]
    docstring: str


class Workspace:
    """Python source files by name.

    Args:
        files: name -> text. Files that do not parse have no functions.

    Raises:
        ValueError: there is no file.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        if not files:
            raise ValueError("files is empty; an agent needs at least one source file")
        self.files = MappingProxyType(dict(files))
        self._parsed: dict[str, tuple[Function, ...]] = {}

    @classmethod
    def folder(cls, path: str | Path, least: int = 4_000, most: int = 200_000) -> Workspace:
        """The ``*.py`` files of one folder whose size in bytes lies between ``least`` and ``most``, by name.

        Raises:
            FileNotFoundError: the folder has none.
        """
        path = Path(path)
        found = [file for file in sorted(path.glob("*.py")) if least <= file.stat().st_size <= most]
        if not found:
            raise FileNotFoundError(f"{path} has no .py file of {least:,} to {most:,} bytes")
        return cls({file.name: file.read_text(encoding="utf-8", errors="replace") for file in found})

    @classmethod
    def standard_library(cls, most: int = 200_000) -> Workspace:
        """The modules of the running Python's standard library; they differ a little from version to version."""
        return cls.folder(sysconfig.get_paths()["stdlib"], most=most)

    def functions(self, name: str) -> tuple[Function, ...]:
        """The functions of a file, in the order of its lines.

        Raises:
            KeyError: the file is none of the workspace's.
        """
        if name not in self._parsed:
            self._parsed[name] = _functions(name, _parse(self._text(name)))
        return self._parsed[name]

    def search(self, word: str, most: int = 40) -> str:
        """Lines that hold ``word``, at most ``most`` of them, each as ``file:line:text``."""
        found = []
        for name, text in self.files.items():
            if word in text:
                lines = enumerate(text.splitlines(), start=1)
                found += [f"{name}:{number}:{line}" for number, line in lines if word in line]
            if len(found) >= most:
                break
        return "\n".join(found[:most]) or f"no line holds {word!r}"

    def outline(self, name: str) -> str:
        """The functions of a file, each with its lines and parameters."""
        lines = [f"{f.first}-{f.last} {f.name}({', '.join(f.parameters)})" for f in self.functions(name)]
        return "\n".join(lines) or f"{name}: no functions"

    def read(self, name: str, first: int = 1, lines: int = 200) -> str:
        """``lines`` numbered lines of a file, from line ``first`` on.

        Raises:
            KeyError: the file is none of the workspace's.
        """
        text = self._text(name).splitlines()
        shown = text[first - 1 : first - 1 + lines]
        return "\n".join(f"{number:>5} {line}" for number, line in enumerate(shown, start=first))

    def check(self, name: str, text: str | None = None) -> str:
        """Parse a file, or ``text`` in its place, and say which of its functions have no docstring.

        Raises:
            KeyError: the file is none of the workspace's.
        """
        tree = _parse(self._text(name) if text is None else text)
        if isinstance(tree, SyntaxError):
            return f"{name}: line {tree.lineno}: {tree.msg}"
        functions = _functions(name, tree)
        bare = [f"{function.first} {function.name}" for function in functions if not function.docstring]
        return "\n".join([f"{name}: {len(functions)} functions, {len(bare)} without a docstring", *bare])

    def source(self, function: Function) -> str:
        """The text of a function, its lines joined.

        Raises:
            KeyError: its file is none of the workspace's.
        """
        return "\n".join(self._text(function.file).splitlines()[function.first - 1 : function.last])

    def _text(self, name: str) -> str:
        if name not in self.files:
            raise KeyError(
                f"no file {name!r}; there are {len(self.files)}, from {min(self.files)} to {max(self.files)}"
            )
        return self.files[name]


def _parse(text: str) -> ast.Module | SyntaxError:
    with warnings.catch_warnings():
        # Old escapes in somebody else's file are not this agent's business.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except SyntaxError as error:
            return error


def _functions(file: str, tree: ast.Module | SyntaxError) -> tuple[Function, ...]:
    if isinstance(tree, SyntaxError):
        return ()
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return tuple(_function(file, node) for node in sorted(found, key=lambda node: node.lineno))


def _function(file: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    calls = dict.fromkeys(
        call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    )
    parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return Function(
        file,
        node.name,
        node.lineno,
        node.end_lineno or node.lineno,
        tuple(parameter.arg for parameter in parameters),
        tuple(calls),
        ast.get_docstring(node) or "",
    )
