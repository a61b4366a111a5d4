#!/usr/bin/env python3
"""Write the pages of the API reference, book/api/*.md, from the list of public names.

    python ci/api_pages.py --write     # write them
    python ci/api_pages.py             # say which are stale; exit status 1 if any is

The pages hold directives only; Sphinx fills them from the docstrings when the book is built.
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from api_areas import AREAS, Area
from api_names import PublicName, bases, is_exception, public_names, sections
from project import HERE

FOLDER = HERE.book / "api"
# Of these bases nothing is shown with a class of ds41.
OUTSIDE = ("object", "Module", "tuple", "dict", "Protocol", "Generic", "Enum")
# A constant's value is shown as it is written if it fits a line of the page.
LONGEST_VALUE = 60

INDEX = """\
# API reference

What readers import from `ds41`: {count} names on {pages} pages. Each docstring gives shapes, units, errors and the
source. Shapes stand in brackets, `[B, T, D]`, and `...` in one stands for any leading dimensions; sizes are bytes and
times seconds unless a name says otherwise.

Kernels need a CUDA device, or Triton's interpreter; everything else runs on a CPU too.

| page | what is there | names |
|---|---|---|
{rows}
"""


def pages() -> dict[Path, str]:
    """Every page of the reference by its path, as it should be."""
    found = {FOLDER / "index.md": _index()}
    for area in AREAS:
        parts = [(module, names) for owner, module, names in sections() if owner is area]
        found[FOLDER / f"{area.page}.md"] = _page(area, parts)
    return found


def stale() -> list[Path]:
    """The pages that are missing, that differ from what they should be, or that belong to no area."""
    wanted = pages()
    differing = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    return differing + sorted(set(FOLDER.glob("*.md")) - set(wanted))


def _index() -> str:
    rows = []
    for area in AREAS:
        count = sum(len(names) for owner, _, names in sections() if owner is area)
        rows.append(f"| [{area.title}]({area.page}.md) | {area.about} | {count} |")
    return INDEX.format(count=len(public_names()), pages=len(AREAS), rows="\n".join(rows))


def _page(area: Area, parts: list[tuple[str, list[PublicName]]]) -> str:
    taught = ", ".join(f"[](../{chapter}.ipynb)" for chapter in area.chapters)
    blocks = [f"# {area.title}\n\n{area.about}" + (f"\n\nTaught in {taught}." if taught else "")]
    shown = set()
    for module, names in parts:
        if not names:
            continue
        # A heading and the module's own words once, though single names of it may follow.
        lines = [] if module in shown else [f".. automodule:: {module}", ""]
        shown.add(module)
        lines += [line for name in names for line in _directive(name)]
        blocks.append(f"## `{module}`\n\n```{{eval-rst}}\n" + "\n".join(lines).rstrip() + "\n```")
    return "\n\n".join(blocks) + "\n"


def _directive(name: PublicName) -> list[str]:
    if name.kind == "data":
        # Sphinx finds the words for a constant only in the module that defines it.
        value = ast.unparse(name.node.value) if name.node.value is not None else ""
        short = "\n" not in value and 0 < len(value) <= LONGEST_VALUE
        option = f"   :annotation: = {value}" if short else "   :no-value:"
        return [f".. autodata:: {name.home}.{name.name}", option, ""]
    if name.kind == "function":
        return [f".. autofunction:: {name.path}", ""]
    lines = [f".. auto{name.kind}:: {name.path}", "   :members:", "   :exclude-members: extra_repr"]
    if any(not is_exception(home, node.name) for home, node in bases(name.home, name.node)):
        lines.append(f"   :inherited-members: {', '.join(OUTSIDE)}")
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the pages and remove those of no area")
    write = parser.parse_args().write
    found = stale()
    for path in found:
        print(f"{'written' if write else 'stale'}: {path.relative_to(HERE.root)}")
    if not write:
        return 1 if found else 0
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for path in found:
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
