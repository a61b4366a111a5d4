#!/usr/bin/env python3
"""What a public docstring has to say, checked on the source. Prints what is missing, and counts it.

    python ci/api_rules.py [MODULE ...]

A docstring is there. It gives the shape of every tensor, in brackets and near its name, lists under ``Raises:`` what
its code raises itself or through private functions of its module, names no parameter that is not there, and says the
unit of what has one. The docstring of the module ends with the paragraph ``Source: ...``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from api_names import PublicName, UnknownName, bases, home_of, own_name, public_names, tree
from api_raises import raised_by

TENSOR = re.compile(r"\b(Tensor|Packed|ndarray)\b")
SHAPE = re.compile(r"(?:\[[^\[\]\n]+\]|\bscalar\b)")
# A number with one of these words in its name measures something.
QUANTITY = re.compile(
    r"(^|_)(age|bandwidth|budget|capacity|delay|duration|interval|latency|lifetime|memory|pause|period|price|rate"
    r"|speed|time|timeout|wait)(_|$)"
)
# And one of these says in what.
UNIT = re.compile(
    r"(?i)(?<![a-z])(bytes?|bits?|s|ms|us|ns|[num]?seconds?|hours?|days?|minutes?|tokens?|rows?|entries|entry|pages?|steps?"
    r"|pixels?|channels?|dollars?|FLOPs?|operations?|share|ratio|count|number|times|multiple|factor|probability"
    r"|[KMGT]i?B|GBs?|sequences?|sessions?|requests?|turns?|euros?|USD|\$|a second|relative|fraction)(?![a-z])"
)
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example|Source):", re.MULTILINE)
# "arguments as in :func:`x`" and its like.
LIKE = re.compile(r"(?i)\b(?:as|arguments|result|args)\s(?:in\s|of\s|to\s)?:(?:meth|func|class):`~?\.?([\w.]+)`")
# What torch.nn.Module asks of a subclass and documents itself.
OF_TORCH = {"extra_repr"}


@dataclass(frozen=True)
class Subject:
    """A function, class, method or constant, with the docstrings that speak for it.

    ``around``: the docstring of its class, which may give shapes and units for all methods.
    """

    name: str
    module: str
    node: ast.stmt
    doc: str
    around: str = ""
    owner: ast.ClassDef | None = None

    @property
    def text(self) -> str:
        """All words that count, those of a function that the docstring refers to among them."""
        return "\n".join((self.doc, self.around, *_referred(self)))


def subjects(name: PublicName) -> Iterator[Subject]:
    """A public name, and for a class its public methods and properties that it does not inherit the words for."""
    if isinstance(name.node, ast.ClassDef):
        yield Subject(name.path, name.home, name.node, _class_doc(name.node), owner=name.node)
        family = [(name.home, name.node), *bases(name.home, name.node)]
        seen = set()
        for home, owner in family:
            for node in owner.body:
                if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name in seen:
                    continue
                seen.add(node.name)
                if node.name.startswith("_") or node.name in OF_TORCH or _is_setter(node):
                    continue
                doc = ast.get_docstring(node) or _inherited(name.home, name.node, node.name)
                yield Subject(f"{name.path}.{node.name}", home, node, doc, _class_doc(name.node), owner)
    elif isinstance(name.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield Subject(name.path, name.home, name.node, ast.get_docstring(name.node) or "")
    else:
        yield Subject(name.path, name.home, name.node, _data_doc(name.home, name.node))


def _class_doc(node: ast.ClassDef) -> str:
    own = [ast.get_docstring(part) for part in node.body if own_name(part) == "__init__"]
    return "\n\n".join(filter(None, [ast.get_docstring(node), *own]))


def _data_doc(module: str, node: ast.stmt) -> str:
    """The string that follows an assignment."""
    body = tree(module).body
    after = body[body.index(node) + 1 :][:1]
    if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
        return str(after[0].value.value)
    return ""


def _is_setter(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator).endswith(".setter") for decorator in node.decorator_list)


def _inherited(module: str, node: ast.ClassDef, method: str) -> str:
    """The docstring of a method in a class of ds41 that ``node`` is derived from."""
    docs = [ast.get_docstring(p) for _, above in bases(module, node) for p in above.body if method == own_name(p)]
    return next(filter(None, docs), "")


def _referred(subject: Subject) -> list[str]:
    """The docstrings of the functions that arguments or results are said to be as in."""
    docs = []
    for path in LIKE.findall(" ".join(subject.doc.split())):
        head, _, last = path.rpartition(".")
        owner = head.rpartition(".")[2]
        places = [(subject.module, last), (subject.module, owner), (head, last)]
        places += [(head.rpartition(".")[0], owner)]
        for module, name in places:
            try:
                _, node = home_of(module, name)
            except UnknownName:
                continue
            parts = [node] if own_name(node) == last else [p for p in getattr(node, "body", []) if own_name(p) == last]
            docs += [ast.get_docstring(part) or "" for part in parts]
        body = subject.owner.body if subject.owner is not None and not head else []
        docs += [ast.get_docstring(part) or "" for part in body if own_name(part) == last]
    return docs


def section(doc: str, name: str) -> str:
    """The text of a section of a docstring, without its title; "" if there is none."""
    match = re.search(rf"^{name}:[ \t]*\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    return match[1] if match else ""


def faults(subject: Subject) -> Iterator[str]:
    """What the docstring of ``subject`` lacks, in words."""
    if not subject.doc:
        yield "has no docstring"
        return
    yield from _shape_faults(subject)
    yield from _raise_faults(subject)
    yield from _name_faults(subject)
    yield from _unit_faults(subject)


def _parameters(subject: Subject) -> dict[str, str]:
    """Parameters or fields by name, with their annotations."""
    node = subject.node
    if isinstance(node, ast.ClassDef):
        fields = {
            part.target.id: ast.unparse(part.annotation)
            for part in node.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                fields |= _arguments(part)
        return fields
    return _arguments(node) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else {}


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    spec = node.args
    arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *filter(None, [spec.vararg, spec.kwarg])]
    return {a.arg: ast.unparse(a.annotation) if a.annotation else "" for a in arguments if a.arg not in ("self", "cls")}


def _returned(subject: Subject) -> str:
    returns = getattr(subject.node, "returns", None)
    return ast.unparse(returns) if returns else ""


def _shape_faults(subject: Subject) -> Iterator[str]:
    parameters = {name: kind for name, kind in _parameters(subject).items() if not name.startswith("_")}
    tensors = [name for name, kind in parameters.items() if _is_tensor(kind)]
    result = _is_tensor(_returned(subject))
    if result and not SHAPE.search(subject.text):
        yield "gives no shape in brackets for its result"
    text = " ".join(subject.text.split())
    for name in tensors:
        if not re.search(rf"\b{name}\b[^\[]{{0,160}}{SHAPE.pattern}|{SHAPE.pattern}[^\[]{{0,40}}\b{name}\b", text):
            yield f"gives no shape near the name of the tensor {name}"


def _is_tensor(annotation: str) -> bool:
    """Whether an annotation means tensors of one shape: no function, and no weights by name."""
    return bool(TENSOR.search(annotation)) and not re.search(r"Callable|Mapping\[str|dict\[str", annotation)


def _raise_faults(subject: Subject) -> Iterator[str]:
    raised = raised_by(subject.node, subject.module, subject.owner)
    listed = section(subject.doc, "Raises")
    missing = sorted(name for name in raised if not re.search(rf"\b{name}\b", listed))
    if missing:
        yield f"does not list under Raises: {', '.join(missing)}"


def _name_faults(subject: Subject) -> Iterator[str]:
    known = set(_parameters(subject))
    if isinstance(subject.node, ast.ClassDef):
        # Attributes that __init__ sets, and members of an enumeration.
        family = [subject.node, *(above for _, above in bases(subject.module, subject.node))]
        known |= {own_name(part) for member in family for part in member.body}
        known |= {n.attr for n in ast.walk(subject.node) if isinstance(n, ast.Attribute)}
        known |= {n.id for n in ast.walk(subject.node) if isinstance(n, ast.Name)}
    for title in ("Args", "Attributes"):
        for line in section(subject.doc, title).splitlines():
            match = re.match(r"    ([a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*): ", line)
            names = match[1].replace("*", "").split(", ") if match else []
            for name in names:
                if name not in known:
                    yield f"has {name} under {title}, which is no parameter"


def _unit_faults(subject: Subject) -> Iterator[str]:
    numbers = {n: k for n, k in _parameters(subject).items() if re.fullmatch(r"(int|float)( \| None)?", k)}
    if not isinstance(subject.node, ast.ClassDef) and re.fullmatch(r"int|float", _returned(subject)):
        numbers[subject.name.rpartition(".")[2]] = _returned(subject)
    for name in numbers:
        in_name = any(UNIT.fullmatch(word) for word in name.split("_"))
        if QUANTITY.search(name) and not in_name and not UNIT.search(subject.text):
            yield f"does not say in what {name} is measured"


@cache
def source_fault(module: str) -> str:
    """What the docstring of a module lacks; "" if nothing."""
    return source_fault_of(ast.get_docstring(tree(module)) or "")


def source_fault_of(doc: str) -> str:
    """Whether the last paragraph of a module's docstring names its source."""
    if not doc:
        return "has no docstring"
    return "" if re.match(r"Source: \S", doc.split("\n\n")[-1]) else "does not end with the paragraph 'Source: ...'"


def all_faults(names: list[PublicName]) -> list[str]:
    """Every fault of the docstrings of ``names`` and of the modules that define them, one line each."""
    found = [
        f"{subject.name} ({subject.module}:{subject.node.lineno}) {fault}"
        for name in names
        for subject in subjects(name)
        for fault in faults(subject)
    ]
    modules = sorted({name.home for name in names})
    return found + [f"{module} {fault}" for module in modules if (fault := source_fault(module))]


def main() -> int:
    names = [name for name in public_names() if not sys.argv[1:] or name.home in sys.argv[1:]]
    found = all_faults(names)
    print("\n".join(found))
    count = sum(len(list(subjects(name))) for name in names)
    print(f"{len(found)} faults in {count} docstrings of {len(names)} public names")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
