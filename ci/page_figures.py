"""One style sheet and one script for the figures of all pages, in place of a copy in every figure.

A figure of `ds41.viz` brings its style sheet and its script with it, because in a notebook it can rely on nothing
but itself. In the built book that would repeat some 10 KB a figure, so the builder takes them out: what all style
sheets begin with stands once in `figures.css`, then what each kind adds; each distinct script stands once in
`figures.js`, which mounts the figures when the page has been read. Data and still picture stay in the page.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from pathlib import Path

_STYLE = re.compile(r'(<figure class="ds-fig ([\w -]+)"[^>]*>\s*)<style>(.*?)</style>\n?', re.DOTALL)
_SCRIPT = re.compile(
    r'<script type="application/json" class="ds-data">([^<]*)</script>\n'
    r"<script>\(\(\) => \{\n((?:(?!</script>).)*)\n"
    r'for \(const root of document\.querySelectorAll\("#(ds-fig-\w+):not\(\[data-mounted\]\)"\)\) \{.*?</script>',
    re.DOTALL,
)
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
    """Take styles and scripts out of the figures of `pages`, in place, and write them to `folder`/_static/."""
    styles, scripts = _Shared(), _Shared()
    loads: dict[Path, set[str]] = {}
    for path, text in pages.items():
        kinds: dict[str, str] = {}
        needed: set[str] = set()

        def style(match: re.Match, kinds: dict[str, str] = kinds, needed: set[str] = needed) -> str:
            kind = match[2].split()[-1].removeprefix("ds-")
            styles.name(kind, match[3])
            needed.add("figures.css")
            identity = re.search(r'id="([^"]+)"', match[1])
            kinds[identity[1] if identity else ""] = kind
            return match[1]

        def script(match: re.Match, kinds: dict[str, str] = kinds, needed: set[str] = needed) -> str:
            data, source, identity = match.groups()
            needed.add("figures.js")
            name = scripts.name(kinds[identity], source)
            return f'<script type="application/json" class="ds-data" data-mount="{name}">{data}</script>'

        pages[path] = _SCRIPT.sub(script, _STYLE.sub(style, text))
        loads[path] = needed
    files = {"figures.css": _style_sheet(styles), "figures.js": _script(scripts)}
    for name, text in files.items():
        if any(name in needed for needed in loads.values()):
            (folder / "_static" / name).write_text(text, encoding="utf-8")
    for path, needed in loads.items():
        root = "../" * (len(path.relative_to(folder).parts) - 1)
        links = ""
        if "figures.css" in needed:
            links += f'<link rel="stylesheet" href="{root}_static/figures.css?v={_version(files["figures.css"])}" />\n'
        if "figures.js" in needed:
            links += f'<script defer src="{root}_static/figures.js?v={_version(files["figures.js"])}"></script>\n'
        pages[path] = pages[path].replace("</head>", f"{links}</head>", 1)


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


def _version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
