#!/usr/bin/env python3
"""What of ds41 is public, and on which page of the reference it stands.

    python ci/api_names.py

Public are the names in ``__all__`` of a package, every name without an underscore that a listed module defines, and
single names that readers are told to import. They are read from the source: nothing is imported.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from api_areas import AREAS, Area
from project import HERE

# Functions of kernels/ with these endings serve its own launches and ahead-of-time compilation.
BUILD_ONLY = ("_launch", "compile_cases", "_kernel")


class UnknownName(Exception):
    """A list of the reference names what the source does not have."""


@dataclass(frozen=True)
class PublicName:
    """One public name. ``path``: as readers import it; ``home``: the module that defines it; ``node``: its source."""

    path: str
    home: str
    node: ast.stmt

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def kind(self) -> str:
        if isinstance(self.node, ast.ClassDef):
            return "exception" if is_exception(self.home, self.name) else "class"
        return "function" if isinstance(self.node, (ast.FunctionDef, ast.AsyncFunctionDef)) else "data"


def is_exception(module: str, name: str) -> bool:
    """Whether a name that a module uses is an exception, of Python or of ds41."""
    outside = getattr(builtins, name, None)
    if isinstance(outside, type):
        return issubclass(outside, BaseException)
    try:
        home, node = home_of(module, name)
    except UnknownName:
        return False
    return isinstance(node, ast.ClassDef) and any(is_exception(home, ast.unparse(base)) for base in node.bases)


def source_file(module: str) -> Path:
    """The file of a module of ds41 by its dotted name.

    Raises:
        UnknownName: there is no such module.
    """
    parts = module.split(".")[1:]
    base = HERE.root / "src" / "ds41"
    if parts[:1] == ["kernels"]:
        base, parts = HERE.root / "kernels", parts[1:]
    path = base.joinpath(*parts)
    for found in (path.with_suffix(".py") if parts else path / "__init__.py", path / "__init__.py"):
        if found.is_file():
            return found
    raise UnknownName(f"there is no module {module}")


@cache
def all_modules() -> list[str]:
    """Every module of ds41 by its dotted name."""
    found = []
    for base, package in ((HERE.root / "src" / "ds41", "ds41"), (HERE.root / "kernels", "ds41.kernels")):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found.append(".".join((package, *(part for part in parts if part != "__init__"))))
    return found


@cache
def tree(module: str) -> ast.Module:
    """The parsed source of a module."""
    return ast.parse(source_file(module).read_text(encoding="utf-8"))


@cache
def definitions(module: str) -> dict[str, ast.stmt]:
    """Functions, classes and assigned names at the top of a module, in its order."""
    found: dict[str, ast.stmt] = {}
    for node in tree(module).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = node
        for target in _targets(node):
            found.setdefault(target, node)
    return found


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def own_name(node: ast.AST) -> str:
    """The name of a function or class where it is defined; "" of another statement."""
    return getattr(node, "name", "")


def _imports(module: str) -> list[ast.Import | ast.ImportFrom]:
    """What a module imports at its top, what it imports for type checkers among it."""
    body = tree(module).body
    body = body + [part for node in body if isinstance(node, ast.If) for part in node.body]
    return [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]


@cache
def imported(module: str) -> set[str]:
    """The names that a module imports at its top, whatever from."""
    return {(alias.asname or alias.name).split(".")[0] for node in _imports(module) for alias in node.names}


@cache
def homes(module: str) -> dict[str, str]:
    """The names that a module passes on, each with the module that it has them from."""
    found = {}
    package = module if source_file(module).name == "__init__.py" else module.rpartition(".")[0]
    for node in _imports(module):
        if isinstance(node, ast.ImportFrom):
            origin = f"{package}.{node.module}" if node.level == 1 else node.module or ""
            if origin.startswith("ds41"):
                found |= {alias.asname or alias.name: origin for alias in node.names}
    # Names that are imported when they are asked for.
    if "_LATER" in definitions(module):
        found |= ast.literal_eval(definitions(module)["_LATER"].value)
    if "_MODULES" in definitions(module):
        later = ast.literal_eval(definitions(module)["_MODULES"].value)
        found |= {name: f"{module}.{home}" for home, names in later.items() for name in names}
    return found


def home_of(module: str, name: str) -> tuple[str, ast.stmt]:
    """The module that defines a name which can be imported from ``module``, and the definition.

    Raises:
        UnknownName: the name is neither defined there nor passed on.
    """
    if name in definitions(module):
        return module, definitions(module)[name]
    # "from ds41.viz import live" in ds41.viz passes on a module, which has no definition.
    if homes(module).get(name, module) != module:
        return home_of(homes(module)[name], name)
    raise UnknownName(f"{module} has no name {name}")


def bases(module: str, node: ast.ClassDef) -> list[tuple[str, ast.ClassDef]]:
    """The classes of ds41 that a class is derived from, nearest first, each with its module."""
    found = []
    for base in node.bases:
        try:
            home, above = home_of(module, ast.unparse(base).partition("[")[0])
        except UnknownName:
            continue
        if isinstance(above, ast.ClassDef):
            found += [(home, above), *bases(home, above)]
    return found


def exported(module: str) -> list[str]:
    """The public names of a module: its ``__all__``, or what it defines without an underscore."""
    if "__all__" in definitions(module):
        value = definitions(module)["__all__"].value
        names = ast.literal_eval(value) if isinstance(value, ast.List) else list(homes(module))
        return [name for name in names if not name.startswith("_") and homes(module).get(name) != module]
    in_kernels = module.startswith("ds41.kernels")
    found = [(name, node) for name, node in definitions(module).items() if not name.startswith("_")]
    return [name for name, node in found if not in_kernels or is_host_callable(node)]


def is_host_callable(node: ast.stmt) -> bool:
    """Whether a definition of kernels/ is for callers on the host: no device function, no launch, no constant."""
    if not isinstance(node, ast.FunctionDef) or node.name.endswith(BUILD_ONLY):
        return False
    return not any(ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list)


@cache
def sections() -> list[tuple[Area, str, list[PublicName]]]:
    """The pages' modules in order, each with the public names that stand there.

    A name stands where it is listed first; so a package comes before the modules whose names it passes on.
    """
    found, seen = [], set()
    for area in AREAS:
        for entry in area.modules:
            module, _, chosen = entry.partition(": ")
            names = []
            for name in chosen.split(", ") if chosen else exported(module):
                home, node = home_of(module, name)
                if (home, name) not in seen:
                    seen.add((home, name))
                    names.append(PublicName(f"{module}.{name}", home, node))
            found.append((area, module, names))
    return found


def public_names() -> list[PublicName]:
    """Every public name of ds41, in the order of the pages."""
    return [name for _, _, names in sections() for name in names]


def main() -> int:
    for area, _, names in sections():
        for name in names:
            print(f"{area.page:12} {name.kind:9} {name.path}")
    print(f"{len(public_names())} public names on {len(AREAS)} pages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
