"""The reference is complete: what readers import stands on a page, and its docstring says what it has to."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import api_pages
import api_rules
import pytest
from api_areas import AREAS
from api_names import (
    UnknownName,
    all_modules,
    exported,
    home_of,
    is_host_callable,
    public_names,
    source_file,
)
from project import HERE


def test_docstrings_say_what_they_have_to():
    found = api_rules.all_faults(public_names())
    assert not found, f"{len(found)} faults; `python ci/api_rules.py` prints them:\n" + "\n".join(found[:20])


def test_pages_are_not_stale():
    stale = [str(path.relative_to(HERE.root)) for path in api_pages.stale()]
    assert not stale, f"run `python ci/api_pages.py --write`: {', '.join(stale)}"


def test_no_page_says_a_name_twice():
    paths = [name.path for name in public_names()]
    assert len(set(paths)) == len(paths)


def test_every_package_has_a_place():
    listed = [entry.partition(": ")[0] for area in AREAS for entry in area.modules]
    for module in all_modules():
        if source_file(module).name == "__init__.py":
            assert any(entry == module or entry.startswith(f"{module}.") for entry in listed), module


def test_the_reference_needs_the_environment_of_the_book_alone():
    """Sphinx imports each module: what it imports at once has to be in requirements.txt, or be pretended."""
    api_sphinx = pytest.importorskip("api_sphinx", reason="needs Sphinx")
    requirements = (HERE.root / "requirements.txt").read_text(encoding="utf-8")
    pinned = with_requirements(re.findall(r"^([\w.-]+)==", requirements, re.MULTILINE))
    known = {"ds41", *sys.stdlib_module_names, *api_sphinx.SETTINGS["autodoc_mock_imports"]}
    distributions = packages_distributions()
    missing = {
        f"{module} imports {root}"
        for module in all_modules()
        for root in imported_at_once(module) - known
        if not pinned & {name.lower() for name in distributions.get(root, ())}
    }
    assert not missing


def with_requirements(distributions: list[str]) -> set[str]:
    """These distributions and all that they need, in lower case."""
    found: set[str] = set()
    while distributions:
        name = distributions.pop().lower()
        if name not in found:
            found.add(name)
            with suppress(PackageNotFoundError):
                needed = [one for one in requires(name) or () if "extra ==" not in one]
                distributions = distributions + [re.match(r"[\w.-]+", one)[0] for one in needed]
    return found


def imported_at_once(module: str) -> set[str]:
    """The packages that a module imports when it is imported itself, attempts included."""
    found = set()
    statements = list(ast.parse(source_file(module).read_text(encoding="utf-8")).body)
    while statements:
        match statements.pop():
            case ast.Import(names=names):
                found |= {name.name.partition(".")[0] for name in names}
            case ast.ImportFrom(module=str(name), level=0):
                found.add(name.partition(".")[0])
            case ast.Try(body=body):
                statements += body
    return found


def examples() -> Iterator[tuple[str, str]]:
    """The code of the README and of every chapter."""
    readme = (HERE.root / "README.md").read_text(encoding="utf-8")
    yield "README.md", "\n".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL))
    for path in sorted(HERE.book.glob("*.ipynb")):
        cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        code = "\n".join("".join(cell["source"]) for cell in cells)
        # Lines for IPython.
        yield path.name, re.sub(r"^( *)[%!].*$", r"\1pass", code, flags=re.MULTILINE)


def imports(code: str) -> Iterator[tuple[str, str]]:
    """Module and name of everything that a code imports from ds41, or takes from a module of it that it imports."""
    tree = ast.parse(code)
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ds41":
            for alias in node.names:
                if f"{node.module}.{alias.name}" in all_modules() and not defined(node.module, alias.name):
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                else:
                    yield node.module, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            # Names such as __file__ are Python's own.
            if f"{module}.{node.attr}" not in all_modules() and not node.attr.startswith("__"):
                yield module, node.attr


def defined(module: str, name: str) -> bool:
    try:
        return bool(home_of(module, name))
    except UnknownName:
        return False


@pytest.mark.parametrize(("where", "code"), [pytest.param(*one, id=one[0]) for one in examples()])
def test_what_readers_import_is_public(where, code):
    public = {(name.home, name.name) for name in public_names()}
    for module, name in imports(code):
        home, node = home_of(module, name)
        # Device functions of kernels/ have no page: they are called from kernels alone.
        if not home.startswith("ds41.kernels") or is_host_callable(node):
            assert (home, name) in public, f"{where} uses {module}.{name}: list it in ci/api_areas.py"


def test_imports_of_a_text_are_found():
    code = "from ds41 import ledger, Model\nfrom ds41.formats import MAIN_KV as kv\nledger.planes(1)\nother.thing"
    assert set(imports(code)) == {("ds41", "Model"), ("ds41.formats", "MAIN_KV"), ("ds41.ledger", "planes")}


def test_what_a_package_passes_on_is_followed_to_its_home():
    home, node = home_of("ds41.serving", "Engine")
    assert (home, node.name) == ("ds41.serving.engine", "Engine")
    assert "Model" in exported("ds41")
    with pytest.raises(UnknownName, match=r"ds41\.formats has no name nothing"):
        home_of("ds41.formats", "nothing")


SHAPED = '"""x [B, T]: a sum of bytes."""'
FAULTS = [
    ("def f(x): pass", "has no docstring"),
    ('def f(x: torch.Tensor):\n    """A sum of ``x``."""', "gives no shape near the name of the tensor x"),
    ('def f(x: int) -> Packed:\n    """A sum."""', "gives no shape in brackets for its result"),
    (f"def f(x: torch.Tensor, y: torch.Tensor):\n    {SHAPED}", "gives no shape near the name of the tensor y"),
    (f"def f(x: torch.Tensor):\n    {SHAPED}\n    raise KeyError(x)", "does not list under Raises: KeyError"),
    (
        'def f(x):\n    """A sum.\n\n    Args:\n        y: not there.\n    """',
        "has y under Args, which is no parameter",
    ),
    (
        'def f(x) -> int:\n    """A sum."""\n    if x:\n        raise ValueError',
        "does not list under Raises: ValueError",
    ),
    ('def timeout(x) -> float:\n    """A sum."""', "does not say in what timeout is measured"),
    ('class A:\n    """A sum."""\n    rate: float', "does not say in what rate is measured"),
    (
        'class A:\n    """A sum."""\n    def __init__(self):\n        self._check()\n'
        "    def _check(self):\n        raise TypeError",
        "does not list under Raises: TypeError",
    ),
]


def subject(code: str, module: str = "ds41.formats") -> api_rules.Subject:
    node = ast.parse(code).body[0]
    owner = node if isinstance(node, ast.ClassDef) else None
    return api_rules.Subject(node.name, module, node, ast.get_docstring(node) or "", owner=owner)


@pytest.mark.parametrize(("code", "fault"), FAULTS)
def test_rules_find(code, fault):
    assert fault in list(api_rules.faults(subject(code)))


@pytest.mark.parametrize(
    "code",
    [
        f"def f(x: torch.Tensor):\n    {SHAPED}",
        # No weights by name, and no function of tensors, has a shape.
        'def f(x: Mapping[str, torch.Tensor], y: Callable[[torch.Tensor], int]):\n    """A sum."""',
        # Errors that are caught, and those of a function that is only defined here, do not come out.
        'def f(x):\n    """A sum."""\n    try:\n        raise KeyError\n    except KeyError:\n        pass',
        'def f(x):\n    """A sum."""\n    def g():\n        raise KeyError\n    return g',
        'def f(x):\n    """A sum.\n\n    Raises:\n        KeyError: no x.\n    """\n    raise KeyError',
        'def f(pause_s: float, timeout: float):\n    """Seconds."""',
        'def f(scales: torch.Tensor):\n    """As :meth:`BlockFormat.scale_values`."""',
    ],
)
def test_rules_let_pass(code):
    assert not list(api_rules.faults(subject(code)))


def test_the_source_is_the_last_paragraph():
    assert not api_rules.source_fault("ds41.formats")
    assert not api_rules.source_fault_of("What.\n\nSource: report section 2.")
    assert api_rules.source_fault_of("What. Source: report section 2.")
    assert api_rules.source_fault_of("Source: report section 2.\n\nWhat.")


def test_entries_become_a_list():
    api_sphinx = pytest.importorskip("api_sphinx", reason="needs Sphinx")
    lines = ["What.", "", "Args:", "    a, b: one. See: two, c: three", "        four.", "", "Returns:", "    It."]
    assert api_sphinx.as_list(lines, "Args", {"a", "b", "c"}, "<{}>", "Parameters") == [
        "What.",
        "",
        ":Parameters:",
        "    * <a>, <b> -- one. See: two,",
        "    * <c> -- three four.",
        "",
        "Returns:",
        "    It.",
    ]
    assert api_sphinx.as_list(lines, "Raises", {"a"}, "<{}>") == lines
    fields = api_sphinx.fields_as_list(["What.", "", "a: one. b: two", "three.", "", "See: four."], {"a", "b"})
    assert fields == [
        "What.",
        "",
        ":Attributes:",
        "    * **a** -- one.",
        "    * **b** -- two three.",
        "",
        "See: four.",
        "",
    ]


def test_parameters_on_lines_are_no_definition_list():
    api_sphinx = pytest.importorskip("api_sphinx", reason="needs Sphinx")
    html = api_sphinx.lines_of_signature('<dt class="sig py">f(<dl><dd>a,</dd><dd>b,</dd></dl>)</dt>')
    lines = '<span class="sig-line">a,</span><span class="sig-line">b,</span>'
    assert html == f'<dt class="sig py">f(<span class="sig-lines">{lines}</span>)</dt>'


def test_links_lead_to_the_lines_of_a_source():
    api_sphinx = pytest.importorskip("api_sphinx", reason="needs Sphinx")
    from ds41.formats import BlockFormat

    address = api_sphinx.linkcode_resolve("py", {"module": "ds41.formats", "fullname": "BlockFormat.encode"})
    lines, first = inspect.getsourcelines(BlockFormat.encode)
    place = Path("src/ds41/formats.py").as_posix()
    expected = f"{HERE.repository_url}/blob/{HERE.repository_branch}/{place}#L{first}-L{first + len(lines) - 1}"
    assert address == expected
    assert api_sphinx.linkcode_resolve("py", {"module": "ds41.formats", "fullname": "MAIN_KV.nothing"}) is None
