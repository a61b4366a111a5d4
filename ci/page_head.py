"""The head of a built page: scripts that keep nobody waiting, the theme before the first paint, one viewport.

What Sphinx and its extensions load as they come, browsers can load while they draw: all scripts are deferred, in
their order. Two had to run early. The one that gives Sphinx's options is short and moves into the page; the theme's
own, which names light or dark only when the page stands, is replaced by one that names it at once.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

# As the theme's, but "auto" becomes the reader's preference here, not after the page was painted, and a browser that
# forbids storage goes without.
_THEME = """<script>
(() => {
  let mode, theme;
  try { mode = localStorage.getItem("mode"); theme = localStorage.getItem("theme"); } catch {}
  const page = document.documentElement.dataset;
  page.mode = mode || "auto";
  const chosen = page.mode === "auto" ? "" : theme;
  page.theme = chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
})();
</script>"""
_OUTWARD = re.compile(r'<a (class="reference external" href="(https?://[^"]+)")>(.*?)</a>', re.DOTALL)
# Letters of an address that paper shows.
PRINTED = 60
_SIDEBAR = '<div id="pst-primary-sidebar"'
SIDEBAR = "Contents of the book"
_MEASURES = "e.tabIndex=e.scrollWidth>e.clientWidth||e.scrollHeight>e.clientHeight?0:-1"
_OPTIONS = re.compile(r'\s*<script src="[^"]*documentation_options\.js[^"]*"></script>')
_ICON = re.compile(
    r'(<(?:i|span) class="(?:[\w-]+ )*(?:fa-solid|fa-brands|fa-regular|fas|fab|far)\b[^"]*")(?![^>]*aria-hidden)'
)


class HeadError(Exception):
    """The theme is another one than this program mends."""


def mend_head(page: str, options: str) -> str:
    """The page with a head that does not block; `options` is Sphinx's documentation_options.js."""
    page = re.sub(r'<script data-cfasync="false">.*?</script>', lambda _: _THEME, page, count=1, flags=re.DOTALL)
    # Search shows a passage of each page that it finds, and in a folder a page may not read another.
    options = options.replace("SHOW_SEARCH_SUMMARY: true", 'SHOW_SEARCH_SUMMARY: location.protocol !== "file:"')
    page = _OPTIONS.sub(lambda _: f"\n    <script>{re.sub(chr(10) + ' *', ' ', options).strip()}</script>", page)
    # It draws icons, for which the style sheet has a font.
    page = re.sub(
        r'\s*<!-- So that users can add custom icons -->\s*<script src="[^"]*fontawesome\.js[^"]*"></script>', "", page
    )
    page = re.sub(r'\s*<!-- Pre-loaded scripts[^>]*-->|\s*<link rel="preload" as="script"[^>]*>', "", page)
    page = _late_formulas(page)
    page = re.sub(r"<script(?![^>]*\bdefer\b)([^>]*\bsrc=)", r"<script defer\1", page)
    page = _once(page, r'\s*<meta name="viewport"[^>]*>')
    page = _once(page, r"\s*<script>var togglebuttonSelector = [^<]*</script>")
    page = re.sub(r'\s*<meta name="docsearch:version" content="" ?/?>', "", page)
    page = _OUTWARD.sub(_address_on_paper, page)
    # Its words and keys name this button better than a label that leaves the keys out.
    page = re.sub(r'(<button class="btn search-button-field[^>]*?) aria-label="[^"]*"', r"\1", page)
    # What stands beside the text is a landmark too.
    page = page.replace(_SIDEBAR, f'{_SIDEBAR} role="complementary" aria-label="{SIDEBAR}"', 1)
    return _ICON.sub(r'\1 aria-hidden="true"', page)


def _address_on_paper(match: re.Match) -> str:
    """A link out of the book with its address as paper shows it, unless its words say it already."""
    opening, address, words = match.groups()
    short = re.sub(r"^https?://(?:www\.)?", "", html.unescape(address)).rstrip("/")
    said = re.sub(r"<[^>]+>", "", words)
    if "arXiv:" in said or short in said:
        return match[0]
    shown = html.escape(short if len(short) <= PRINTED else f"{short[: PRINTED - 1]}…")
    return f'<a {opening} data-print="{shown}">{words}</a>'


def _late_formulas(page: str) -> str:
    """MathJax as an address for ds41.js, which loads it when a formula is near."""
    mathjax = re.search(r'\s*<script[^>]* src="([^"]*mathjax[^"]*)"></script>', page)
    if mathjax is None:
        return page
    page = page.replace(mathjax[0], "", 1)
    return re.sub(r'<script( src="[^"]*/ds41\.js)', rf'<script data-mathjax="{mathjax[1]}"\1', page, count=1)


def _once(page: str, pattern: str) -> str:
    """The page with the first match alone."""
    first = re.search(pattern, page)
    if first is None:
        return page
    return page[: first.end()] + re.sub(pattern, "", page[first.end() :])


def calm_theme(folder: Path) -> None:
    """Keep the theme from measuring every box of a page before it is shown: ds41.js does that in slices.

    Raises:
        HeadError: the theme's script is not the one that is known here.
    """
    path = folder / "_static" / "scripts" / "pydata-sphinx-theme.js"
    text = path.read_text(encoding="utf-8")
    if text.count(_MEASURES) != 1:
        raise HeadError(f"{path.name} does not measure scrolling boxes as pydata-sphinx-theme 0.16.1 does")
    path.write_text(text.replace(_MEASURES, ""), encoding="utf-8")


def drop_unused(folder: Path) -> None:
    """Delete from the built book what no page loads any more, and maps for debuggers of the theme."""
    static = folder / "_static"
    for pattern in ("**/*.map", "scripts/fontawesome.js*", "vendor/fontawesome/**/*.*", "*-macros.html"):
        for path in static.glob(pattern):
            path.unlink()
