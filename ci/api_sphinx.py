"""The Sphinx extension behind the API reference: docstrings as they are written here, references, links to source.

It sets up autodoc and napoleon for them. Nothing is fetched: a type of another library is shown and not linked.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from api_names import (
    PublicName,
    UnknownName,
    all_modules,
    bases,
    definitions,
    home_of,
    imported,
    is_exception,
    public_names,
)
from project import HERE
from sphinx.addnodes import pending_xref
from sphinx.ext.napoleon import GoogleDocstring

SETTINGS = {
    "add_module_names": False,
    "autodoc_member_order": "bysource",
    # The book's own environment is without it, and the pages must not depend on what else is installed.
    "autodoc_mock_imports": ["ray"],
    "autodoc_preserve_defaults": True,
    "autodoc_typehints": "signature",
    # Nothing leads to them; the search finds names.
    "html_domain_indices": False,
    "html_use_index": False,
    "maximum_signature_line_length": 80,
    # Napoleon is called here: by itself it takes "Bytes of a row: 288." of a property for a type and its words.
    "napoleon_google_docstring": False,
    "napoleon_numpy_docstring": False,
    "napoleon_use_rtype": False,
    "python_use_unqualified_type_names": True,
    "toc_object_entries": False,
}
# Long names break where they must, so that a page is as wide as a phone.
STYLE = """
<style>
.bd-article dl.py code, .bd-article dl.py .pre { overflow-wrap: anywhere; white-space: normal; }
.bd-article .sig-lines, .bd-article .sig-line { display: block; }
.bd-article .sig-line { padding-inline-start: 2rem; }
.bd-article dl.py table { display: block; overflow-x: auto; }
.bd-article dl[class].py dl.field-list { grid-template-columns: minmax(0, 1fr); }
.bd-sidebar-secondary code { overflow-wrap: anywhere; white-space: normal; }
@media (max-width: 40rem) { .bd-article dl[class].py:not(.simple) dd { margin-inline-start: 0.75rem; } }
</style>
"""
_SIGNATURE = re.compile(r'<dt class="sig .*?</dt>', re.DOTALL)
_ENTRY = re.compile(r"(?:^|(?<=[.;,] ))((?:\w+, )*\w+): ")


def setup(app) -> dict[str, Any]:
    """Called by Sphinx."""
    for extension in ("sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode"):
        app.setup_extension(extension)
    app.connect("config-inited", _configure)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _process)
    app.connect("doctree-read", _complete)
    app.connect("missing-reference", _resolve)
    app.connect("html-page-context", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _configure(app, config) -> None:
    for name, value in SETTINGS.items():
        config[name] = value
    config["linkcode_resolve"] = linkcode_resolve


def _skip(app, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """The fields of a named tuple document themselves as "Alias for field number 0"; the class's docstring has them."""
    return True if type(member).__name__ == "_tuplegetter" else None


def _process(app, what: str, name: str, subject: object, options: object, lines: list[str]) -> None:
    made = as_list(lines, "Raises", _exceptions(), r":py:exc:`{}`")
    if known := _parameters(subject):
        made = as_list(made, "Args", known, "**{}**", "Parameters")
        made = as_list(made, "Attributes", known, "**{}**")
        made = fields_as_list(made, known)
    # Any kind but "data", "attribute" and "property", whose first colon would end a type.
    lines[:] = GoogleDocstring(made, app.config, app, "function", name, subject, options).lines()


def _parameters(subject: object) -> set[str]:
    """The names of a function's parameters, or of a class's parameters and fields."""
    names: set[str] = set()
    if isinstance(subject, type):
        names = {name for base in subject.__mro__ for name in getattr(base, "__annotations__", {})}
    elif not callable(subject):
        return names
    try:
        return names | set(inspect.signature(subject).parameters)
    except (TypeError, ValueError):
        return names


def as_list(lines: list[str], title: str, known: set[str], form: str, label: str = "") -> list[str]:
    """A docstring whose section ``title`` is a list with an entry for each of its names.

    An entry may follow another on one line, and say the same of several: "a, b: one. c: two." Only ``known`` names
    begin an entry within a line. ``form``: how a name is written; ``label``: the title on the page, if it is another.
    """
    if f"{title}:" not in lines:
        return lines
    start = lines.index(f"{title}:")
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
        end += 1
    body = lines[start + 1 : end]
    at_start = re.findall(r"^    ((?:\w+, )*\w+): ", "\n".join(body), re.MULTILINE)
    known = known.union(*(names.split(", ") for names in at_start))
    entries = _entries(" ".join(line.strip() for line in body), known, form)
    return [*lines[:start], f":{label or title}:", *entries, "", *lines[end:]] if entries else lines


def fields_as_list(lines: list[str], known: set[str]) -> list[str]:
    """A docstring whose paragraphs of the form "a: one. b: two.", of known names, are lists."""
    made: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        first = _ENTRY.match(paragraph)
        if first and set(first[1].split(", ")) <= known:
            text = " ".join(line.strip() for line in paragraph.splitlines())
            made += [":Attributes:", *_entries(text, known, "**{}**"), ""]
        else:
            made += [*paragraph.split("\n"), ""]
    return made


def _entries(text: str, known: set[str], form: str) -> list[str]:
    found = [match for match in _ENTRY.finditer(text) if set(match[1].split(", ")) <= known]
    made = []
    for entry, following in zip_longest(found, found[1:]):
        names = ", ".join(form.format(name) for name in entry[1].split(", "))
        made.append(f"    * {names} -- {text[entry.end() : following.start() if following else None].strip()}")
    return made


def _finish(app, page: str, template: str, context: dict[str, Any], doctree) -> None:
    if page.startswith(f"{HERE.book.name}/api/"):
        context["metatags"] = context.get("metatags", "") + STYLE
        context["body"] = _SIGNATURE.sub(lambda match: lines_of_signature(match[0]), context["body"])


def lines_of_signature(html: str) -> str:
    """The HTML of a signature whose parameters stand on lines: Sphinx makes them a list of answers without questions,
    which screen readers stumble over."""
    for old, new in (("<dl>", '<span class="sig-lines">'), ("<dd>", '<span class="sig-line">')):
        html = html.replace(old, new).replace(old.replace("<", "</"), "</span>")
    return html


@cache
def _exceptions() -> set[str]:
    """Names of exceptions, of Python and of ds41."""
    own = {(module, name) for module in all_modules() for name in definitions(module) if is_exception(module, name)}
    return {name for _, name in own} | {name for name in dir(builtins) if is_exception("ds41", name)}


def _complete(app, doctree) -> None:
    """Give bare names, as annotations and docstrings have them, the path that they mean where they stand."""
    for node in doctree.findall(pending_xref):
        target, module = node.get("reftarget", ""), node.get("py:module")
        if node.get("refdomain") != "py" or not module or "." in target:
            continue
        for place in (_home(module, node.get("py:class")), module):
            try:
                home, definition = home_of(place, target)
            except UnknownName:
                continue
            for name in public_names():
                if (name.home, name.node) == (home, definition):
                    node["reftarget"] = _documented(name)
            break


def _home(module: str, name: str | None) -> str:
    """Where the object that is described is defined; it may be described at the package that passes it on."""
    try:
        return home_of(module, name.partition(".")[0])[0] if name else module
    except UnknownName:
        return module


def _documented(name: PublicName) -> str:
    """The path under which a name stands on its page."""
    return f"{name.home}.{name.name}" if name.kind == "data" else name.path


def _resolve(app, env, node, contnode):
    """Link a name of ds41 from wherever it is spoken of; show without a link what is not public or not of ds41."""
    target = node["reftarget"]
    if node.get("refdomain") != "py":
        return None
    domain, place = env.get_domain("py"), node["refdoc"]
    for path in _paths(target, node.get("py:module")):
        for role in ("class", "func", "data", "exc", "meth", "attr"):
            found = domain.resolve_xref(env, place, app.builder, role, path, node, contnode)
            if found is not None:
                return found
    known = _exists(target) or _is_field(node.get("py:module"), node.get("py:class"), target)
    return contnode if known else None


def _is_field(module: str | None, owner: str | None, name: str) -> bool:
    """Whether a class has a field that is called so: it stands in the list of the class, which has no places."""
    try:
        home, node = home_of(module or "ds41", owner or "")
    except UnknownName:
        return False
    family = [node, *(above for _, above in bases(home, node))] if isinstance(node, ast.ClassDef) else []
    fields = [part for member in family for part in member.body if isinstance(part, ast.AnnAssign)]
    return any(ast.unparse(part.target) == name for part in fields)


def _paths(target: str, module: str | None) -> list[str]:
    """Where what ``target`` means may stand: a public name, or a member of one."""
    head, _, last = target.rpartition(".")
    owner = head.rpartition(".")[2]
    found = []
    for name in public_names():
        here = module in (name.home, name.path.rpartition(".")[0]) or target.startswith((name.home, name.path))
        if name.name == last and (here or not head):
            found.append((not here, _documented(name)))
        elif owner and name.name == owner:
            found.append((not here, f"{_documented(name)}.{last}"))
    return [path for _, path in sorted(found)]


def _exists(target: str) -> bool:
    """Whether there is such a name: in Python or another library, or in ds41 though not public."""
    parts = target.split(".")
    if parts[0] == "ds41":
        return target in all_modules() or any(_defined(".".join(parts[:n]), parts[n]) for n in range(1, len(parts)))
    return hasattr(builtins, parts[0]) or (len(parts) > 1 and parts[0] in sys.modules) or parts[0] in _known()


def _defined(module: str, name: str) -> bool:
    try:
        return module in all_modules() and bool(home_of(module, name))
    except UnknownName:
        return False


@cache
def _known() -> set[str]:
    """Every name that a module of ds41 defines or imports: what an annotation may say."""
    return {name for module in all_modules() for name in (*definitions(module), *imported(module))}


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """The address of an object's source lines on the host of the repository; None where there are none."""
    if domain != "py" or not info["module"]:
        return None
    found: Any = sys.modules.get(info["module"])
    for part in info["fullname"].split("."):
        found = getattr(found, part, None)
    found = found.fget if isinstance(found, property) else found
    try:
        found = inspect.unwrap(found)
        path = Path(inspect.getsourcefile(found)).resolve().relative_to(HERE.root)
        lines, first = inspect.getsourcelines(found)
    except (TypeError, ValueError, OSError):
        return None
    return f"{HERE.repository_url}/blob/{HERE.repository_branch}/{path.as_posix()}#L{first}-L{first + len(lines) - 1}"
