"""Which exceptions a function raises: by itself, or through the private and checking functions that it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress

from api_names import UnknownName, home_of, own_name

# Functions that raise for their callers.
CHECKS = re.compile(r"_|check|require")


def raised_by(node: ast.stmt, module: str, owner: ast.ClassDef | None = None) -> set[str]:
    """Names of the exceptions of a function, a method of ``owner``, or what builds an object of a class."""
    starts = [node]
    if isinstance(node, ast.ClassDef):
        starts = [part for part in node.body if own_name(part) in ("__init__", "__post_init__", "__new__")]
    seen: set[int] = set()
    return {name for start in starts for name in _raised(start, module, owner, seen)}


def _raised(node: ast.stmt, module: str, owner: ast.ClassDef | None, seen: set[int]) -> set[str]:
    """Names of the exceptions that a function raises, or a private function of its module that it calls."""
    if id(node) in seen or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    seen.add(id(node))
    found = set()
    for part in _unguarded(node):
        if isinstance(part, ast.Raise) and part.exc is not None:
            found |= _exception_names(part.exc, module)
        if isinstance(part, ast.Call):
            for called, home in _helper(part.func, module, owner):
                found |= _raised(called, home, owner if home == module else None, seen)
    return found


def _unguarded(node: ast.AST) -> Iterator[ast.AST]:
    """What a function runs itself, without the bodies of ``try`` that have handlers: their errors may end there."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Try) and child.handlers:
            for part in (*child.handlers, *child.orelse, *child.finalbody):
                yield from _unguarded(part)
            continue
        yield child
        yield from _unguarded(child)


def _exception_names(raised: ast.expr, module: str) -> set[str]:
    if isinstance(raised, ast.IfExp):
        return _exception_names(raised.body, module) | _exception_names(raised.orelse, module)
    name = ast.unparse(raised.func if isinstance(raised, ast.Call) else raised).rpartition(".")[2]
    if name[:1].isupper():
        return {name}
    # A function that makes the error says which in its annotation.
    try:
        _, maker = home_of(module, name)
    except UnknownName:
        return set()
    returns = getattr(maker, "returns", None)
    return {ast.unparse(returns)} if returns else set()


def _helper(function: ast.expr, module: str, owner: ast.ClassDef | None) -> Iterator[tuple[ast.stmt, str]]:
    """What is called, if it is a private function, or one of ds41 whose name says that it checks; with its module."""
    if isinstance(function, ast.Name) and CHECKS.match(function.id):
        with suppress(UnknownName):
            home, node = home_of(module, function.id)
            yield node, home
    own = owner is not None and isinstance(function, ast.Attribute) and function.attr.startswith("_")
    if own and ast.unparse(function.value) in ("self", "cls", owner.name):
        yield from ((part, module) for part in owner.body if own_name(part) == function.attr)
