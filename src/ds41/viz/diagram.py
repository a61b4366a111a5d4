"""Diagrams as HTML fragments that need nothing but the page they stand in.

A fragment is one ``<figure>``: a static picture that Python has filled in, the data as JSON, and one small script
that makes it answer. It works in the built book without a kernel, in JupyterLab, in VS Code and in Colab's
sandboxed frame: no network, no storage, no access to the host page, colours that follow whichever theme marker
the host sets.

Source: ds41's own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from importlib import resources
from pathlib import Path

from ds41 import language
from ds41.environment import device_names
from ds41.language.figure import localise
from ds41.viz.palette import css_variables

# Where the hosts say that they are dark: Sphinx theme, Colab, JupyterLab, VS Code.
_DARK_HOSTS = (
    'html[data-theme="dark"] .ds-fig,html[theme="dark"] .ds-fig,body[data-jp-theme-light="false"] .ds-fig,'
    "body.vscode-dark .ds-fig,body.vscode-high-contrast:not(.vscode-high-contrast-light) .ds-fig"
)
# The reader's system decides only where no host does.
_NO_HOST = 'html:not([data-theme]):not([theme]) body:not([data-jp-theme-light]):not([class*="vscode"]) .ds-fig'


@dataclass(frozen=True)
class Diagram:
    """One figure.

    Attributes:
        kind: names the CSS class ``ds-<kind>``, the style sheet ``<kind>.css`` and the module ``js/<kind>.js``.
        title: the figure's message, as a sentence.
        body: HTML of the picture as it stands before any script runs.
        caption: HTML under the picture; the script may rewrite it, and screen readers then read it out.
        table: HTML of the text equivalent, folded under the picture; empty where the body is a table itself.
        table_title: what the folded table is called.
        data: what the script needs, JSON-serialisable; None for a figure without a script.
        modules: further JavaScript files in ``js/`` that the module builds on, besides ``words.js``.
        like: another kind whose class and style sheet this figure takes on before its own; "" for none.
    """

    kind: str
    title: str
    body: str
    caption: str = ""
    table: str = ""
    table_title: str = "The same as a table"
    data: dict | None = None
    modules: Sequence[str] = field(default=())
    like: str = ""

    @property
    def id(self) -> str:
        """Depends on the content alone, so that building the book twice gives the same pages."""
        content = json.dumps([self.kind, self.title, self.body, self.caption, self.table, self.data])
        return "ds-fig-" + hashlib.sha256(content.encode()).hexdigest()[:10]

    def _repr_html_(self) -> str:
        return localised(self._html())

    def _html(self) -> str:
        kinds = [kind for kind in (self.like, self.kind) if kind]
        parts = [
            f'<figure class="ds-fig {" ".join(f"ds-{kind}" for kind in kinds)}" id="{self.id}" '
            f'aria-labelledby="{self.id}-title" data-lm-suppress-shortcuts="true">',
            f"<style>{style_sheet(*kinds)}</style>",
            f'<p class="ds-title" id="{self.id}-title">{escape(self.title)}</p>',
            f'<div class="ds-body">{self.body}</div>',
        ]
        if self.caption:
            live = ' aria-live="polite"' if self.data is not None else ""
            parts.append(f"<figcaption{live}>{self.caption}</figcaption>")
        if self.table:
            parts.append(
                f'<details class="ds-table"><summary>{escape(self.table_title)}</summary>'
                f'<div class="ds-table-body" role="region" aria-label="Table: {escape(self.title)}" tabindex="0">'
                f"{self.table}</div></details>"
            )
        if self.data is not None:
            parts.append(self._script())
        parts.append("</figure>")
        return "\n".join(parts)

    def __repr__(self) -> str:
        return f"<{self.kind} diagram: {self.title}>"

    def save(self, path: str | Path) -> Path:
        """Write the figure as a page of its own."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'<!doctype html>\n<html lang="{language.current()}">\n<head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>:root{{color-scheme:light dark}}</style></head>\n"
            f"<body><main>\n{self._repr_html_()}\n</main></body>\n</html>\n",
            encoding="utf-8",
        )
        return path

    def _script(self) -> str:
        data = json.dumps(self.data, separators=(",", ":"), allow_nan=False)
        # "</script>" inside the data would end the element.
        data = data.replace("<", "\\u003c")
        sources = "\n".join(_code(name) for name in ("words", *self.modules, self.kind))
        # The same figure may stand twice on a notebook's page, so every copy not yet mounted is mounted.
        return (
            f'<script type="application/json" class="ds-data">{data}</script>\n'
            f"<script>(() => {{\n{sources}\n"
            f'for (const root of document.querySelectorAll("#{self.id}:not([data-mounted])")) {{\n'
            '  root.dataset.mounted = "";\n'
            '  mount(root, JSON.parse(root.querySelector(".ds-data").textContent));\n'
            "}\n})();</script>"
        )


def localised(html: str) -> str:
    """A figure's HTML in the language that is spoken."""
    translations = language.translations()
    return html if translations is None else localise(html, translations, device_names())


def said(text: str) -> dict[str, str]:
    """A text in a figure's data that may be one word: a translation would take a bare word for an identifier."""
    return {"say": text}


@lru_cache(maxsize=32)
def style_sheet(*kinds: str) -> str:
    """Palette, the rules all figures share, and those of one kind, or of several in turn."""
    themes = (
        f".ds-fig{{color-scheme:light;{css_variables('light')}}}\n"
        f"{_DARK_HOSTS}{{color-scheme:dark;{css_variables('dark')}}}\n"
        f"@media (prefers-color-scheme:dark){{{_NO_HOST}{{color-scheme:dark;{css_variables('dark')}}}}}\n"
    )
    own = [file for kind in kinds if (file := resources.files("ds41.viz").joinpath(f"{kind}.css")).is_file()]
    return themes + asset("diagram.css") + "".join(file.read_text(encoding="utf-8") for file in own)


def choices(name: str, legend: str, options: Sequence[tuple[str, str, str]], selected: str) -> str:
    """A row of radio buttons; options are (value, label, small print). The ``<form>`` around it scopes the name."""
    buttons = "".join(
        f'<label><input type="radio" name="{name}" value="{escape(value)}"{" checked" if value == selected else ""}>'
        f"<span>{escape(label)}{f' <small>{escape(note)}</small>' if note else ''}</span></label>"
        for value, label, note in options
    )
    return f'<fieldset class="ds-choices"><legend>{escape(legend)}</legend><div>{buttons}</div></fieldset>'


def table(header: Sequence[str], rows: Sequence[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    """An HTML table; ``numeric`` columns are right-aligned, the first cell of a row names it."""

    def mark(column: int) -> str:
        return ' class="ds-number"' if column in numeric else ""

    # A header without text is no header.
    head = "".join(
        f'<th scope="col"{mark(i)}>{escape(str(cell))}</th>' if str(cell) else "<td></td>"
        for i, cell in enumerate(header)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row"{mark(i)}>{escape(str(cell))}</th>' if i == 0 else f"<td{mark(i)}>{escape(str(cell))}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _code(name: str) -> str:
    """A script without its lines of comment, which would stand on a page once for each figure."""
    return re.sub(r"^[ \t]*//.*\n", "", asset(f"js/{name}.js"), flags=re.MULTILINE)


@lru_cache(maxsize=32)
def asset(name: str) -> str:
    """A file of this package, by its path inside it."""
    return resources.files("ds41.viz").joinpath(name).read_text(encoding="utf-8").strip() + "\n"
