"""The remarks that judges can make, read off their source."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from string import Formatter
from types import ModuleType

from ds41 import exercises


@cache
def remarks(chapter: str) -> dict[str, list[str]]:
    """What each judge of a chapter can say, itself or by a function of its module: texts and templates."""
    module = importlib.import_module(f"ds41.exercises.chapter_{chapter}")
    functions = _functions(module)
    return {
        one.name: [said for name in _reached(one.judge.__name__, functions) for said in _said(functions[name])]
        for one in exercises.of_chapter(chapter)
    }


@cache
def shared_remarks() -> list[str]:
    """What the judges' common functions can say."""
    return _said(_functions(exercises)["no_number"])


@cache
def pattern(remark: str) -> re.Pattern[str]:
    """Matches a message that ends with the remark; a template's braces match anything."""
    parts = Formatter().parse(remark)
    body = "".join(re.escape(text) + ("" if field is None else ".+") for text, field, _, _ in parts)
    return re.compile(rf"(?:^|[.;] ){body}\Z", re.DOTALL)


def _functions(module: ModuleType) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _reached(name: str, functions: dict[str, ast.FunctionDef]) -> list[str]:
    """The function and all of the module that it may call."""
    found = [name]
    for caller in found:
        names = {node.id for node in ast.walk(functions[caller]) if isinstance(node, ast.Name)}
        found.extend(sorted((names & functions.keys()) - set(found)))
    return found


def _said(function: ast.FunctionDef) -> list[str]:
    return list(_literals(function))


def _literals(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
            yield ast.literal_eval(node.args[0])
        elif isinstance(node, ast.Return) and node.value is not None:
            yield from (one.value for one in _results(node.value) if isinstance(one, ast.Constant) and one.value)


def _results(value: ast.expr) -> list[ast.expr]:
    """What an expression can come to."""
    return [*_results(value.body), *_results(value.orelse)] if isinstance(value, ast.IfExp) else [value]
