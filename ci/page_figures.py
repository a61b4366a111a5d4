"""One style sheet and one script for the figures of all pages, in place of a copy in every figure.

A figure of `ds41.viz` brings its style sheet and its script with it, because in a notebook it can rely on nothing
but itself. In the built book that would repeat some 10 KB a figure, so the builder takes them out: what all style
sheets begin with stands once in `figures.css`, then what each kind adds; each distinct script stands once in
`figures.js`, which mounts the figures when the page has been read. Data and still picture stay in the page.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from page_markup import PageError, add_to_head, naming, to_root, version

_STYLE = re.compile(r'(<figure class="ds-fig ([\w -]+)"[^>]*>\s*)<style>(.*?)</style>\n?', re.DOTALL)
_SCRIPT = re.compile(
    r'<script type="application/json" class="ds-data">([^<]*)</script>\n'
    r"<script>\(\(\) => \{\n((?:(?!</script>).)*)\n"
    r'for \(const root of document\.querySelectorAll\("#(ds-fig-\w+):not\(\[data-mounted\]\)"\)\) \{.*?</script>',
    re.DOTALL,
)
# What stays behind of a figure from which style or script were not taken.
_LEFT = re.compile(r'<figure class="ds-fig[^>]*>\s*<style>|<script[^>]* class="ds-data">')
_MOUNT = """\
for (const data of document.querySelectorAll(".ds-fig .ds-data[data-mount]")) {
  const root = data.closest(".ds-fig");
  if ("mounted" in root.dataset) continue;
  root.dataset.mounted = "";
  try {
    mounts[data.dataset.mount]()(root, JSON.parse(data.textContent));
  } catch (error) {
    reportError(error);
  }
}
"""


class _Shared:
    """Texts by the name of a kind of figure; a second text under the same name gets a name of its own."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def name(self, kind: str, text: str) -> str:
        name, count = kind, 1
        while self.texts.setdefault(name, text) != text:
            count += 1
            name = f"{kind}-{count}"
        return name


def share(pages: dict[Path, str], folder: Path) -> None:
    """Take styles and scripts out of the figures of `pages`, in place, and write them to `folder`/_static/.

    Raises:
        PageError: a figure is not written as `ds41.viz.diagram` writes them.
    """
    styles, scripts = _Shared(), _Shared()
    loads: dict[Path, set[str]] = {}
    for path, text in pages.items():
        with naming(path, folder):
            pages[path], loads[path] = _take_out(text, styles, scripts)
    files = {"figures.css": _style_sheet(styles), "figures.js": _script(scripts)}
    needed = set().union(*loads.values())
    for name in needed:
        (folder / "_static" / name).write_text(files[name], encoding="utf-8")
    marks = {name: version(text) for name, text in files.items()}
    for path, names in loads.items():
        static = f"{to_root(path, folder)}_static"
        links = ""
        if "figures.css" in names:
            links += f'<link rel="stylesheet" href="{static}/figures.css?v={marks["figures.css"]}" />\n'
        if "figures.js" in names:
            links += f'<script defer src="{static}/figures.js?v={marks["figures.js"]}"></script>\n'
        pages[path] = add_to_head(pages[path], links)


def _take_out(page: str, styles: _Shared, scripts: _Shared) -> tuple[str, set[str]]:
    """The page with bare figures, and the files that it needs instead."""
    kinds: dict[str, str] = {}

    def style(match: re.Match) -> str:
        kind = match[2].split()[-1].removeprefix("ds-")
        styles.name(kind, match[3])
        identity = re.search(r'id="([^"]+)"', match[1])
        kinds[identity[1] if identity else ""] = kind
        return match[1]

    def script(match: re.Match) -> str:
        data, source, identity = match.groups()
        if identity not in kinds:
            raise PageError(f"has a script for the figure {identity}, which brings no style sheet")
        name = scripts.name(kinds[identity], source)
        return f'<script type="application/json" class="ds-data" data-mount="{name}">{data}</script>'

    page, styled = _STYLE.subn(style, page)
    page, scripted = _SCRIPT.subn(script, page)
    if left := _LEFT.search(page):
        raise PageError(f"has a figure that is written in another way than is known here: {left[0][:120]!r}")
    return page, {name for name, count in (("figures.css", styled), ("figures.js", scripted)) if count}


def _style_sheet(styles: _Shared) -> str:
    """What all sheets begin with, and the rest of each."""
    lines = [styles.texts[name].splitlines(keepends=True) for name in sorted(styles.texts)]
    shared = list(itertools.takewhile(lambda row: len(set(row)) == 1, zip(*lines, strict=False)))
    return "".join([row[0] for row in shared] + [line for sheet in lines for line in sheet[len(shared) :]])


def _script(scripts: _Shared) -> str:
    mounts = "".join(
        f"{name!r}: () => {{\n{scripts.texts[name]}\nreturn mount;\n}},\n" for name in sorted(scripts.texts)
    )
    return f"(() => {{\nconst mounts = {{\n{mounts}}};\n{_MOUNT}}})();\n"
