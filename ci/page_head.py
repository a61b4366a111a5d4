"""The head of a built page: scripts that keep nobody waiting, the theme before the first paint, one viewport.

What Sphinx and its extensions load as they come, browsers can load while they draw: all scripts are deferred, in
their order. Two had to run early. The one that gives Sphinx's options is short and moves into the page; the theme's
own, which names light or dark only when the page stands, is replaced by one that names it at once.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from page_markup import PageError, first_alone, replaced

from ds41.language import say

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
# The theme adds a class of its own to links to GitHub.
_OUTWARD = re.compile(r'<a (class="[^"]*\breference external" href="(https?://[^"]+)")>(.*?)</a>', re.DOTALL)
# Letters of an address that paper shows.
PRINTED = 60
_SIDEBAR = '<div id="pst-primary-sidebar"'
_MEASURES = "e.tabIndex=e.scrollWidth>e.clientWidth||e.scrollHeight>e.clientHeight?0:-1"
_OPTIONS = re.compile(r'\s*<script src="[^"]*documentation_options\.js[^"]*"></script>')
_ICON_SCRIPT = re.compile(
    r'\s*<!-- So that users can add custom icons -->\s*<script src="[^"]*fontawesome\.js[^"]*"></script>'
)
_PRELOADS = re.compile(r'\s*<!-- Pre-loaded scripts[^>]*-->|\s*<link rel="preload" as="script"[^>]*>')
_MATHJAX = re.compile(r'\s*<script[^>]* src="([^"]*mathjax[^"]*)"></script>')
_SEARCH_LABEL = re.compile(r'(<button class="btn search-button-field[^>]*?) aria-label="[^"]*"')
_ICON = re.compile(
    r'(<(?:i|span) class="(?:[\w-]+ )*(?:fa-solid|fa-brands|fa-regular|fas|fab|far)\b[^"]*")(?![^>]*aria-hidden)'
)


def mend_head(page: str, options: str) -> str:
    """The page with a head that does not block; `options` is Sphinx's documentation_options.js.

    Raises:
        PageError: the page has not what the theme that is known here puts there.
    """
    page = replaced(page, r'(?s)<script data-cfasync="false">.*?</script>', _THEME, "script that names the theme", 1)
    # Search shows a passage of each page that it finds, and in a folder a page may not read another.
    options = replaced(
        options,
        "SHOW_SEARCH_SUMMARY: true",
        'SHOW_SEARCH_SUMMARY: location.protocol !== "file:"',
        "option for passages of what is found",
    )
    options = re.sub(r"\n *", " ", options).strip()
    page = replaced(page, _OPTIONS, f"\n    <script>{options}</script>", "script with Sphinx's options")
    # It draws icons, for which the style sheet has a font.
    page = replaced(page, _ICON_SCRIPT, "", "script that draws icons")
    page = replaced(page, _PRELOADS, "", "preloads of scripts")
    page = _late_formulas(page)
    page = re.sub(r"<script(?![^>]*\bdefer\b)([^>]*\bsrc=)", r"<script defer\1", page)
    page = first_alone(page, r'\s*<meta name="viewport"[^>]*>', "viewport")
    page = first_alone(page, r"\s*<script>var togglebuttonSelector = [^<]*</script>", "selector of what folds")
    page = re.sub(r'\s*<meta name="docsearch:version" content="" ?/?>', "", page)
    # Its words and keys name this button better than a label that leaves the keys out.
    page = replaced(page, _SEARCH_LABEL, lambda match: match[1], "labelled search button")
    # What stands beside the text is a landmark too.
    landmark = f'{_SIDEBAR} role="complementary" aria-label="{say("Contents of the book")}"'
    page = replaced(page, _SIDEBAR, landmark, "sidebar", 1)
    return _ICON.sub(r'\1 aria-hidden="true"', page)


def print_addresses(page: str) -> str:
    """The page whose links out of the book bring their addresses for paper with them, unless their words say them."""
    return _OUTWARD.sub(_address_on_paper, page)


def _address_on_paper(match: re.Match) -> str:
    opening, address, words = match.groups()
    short = re.sub(r"^https?://(?:www\.)?", "", html.unescape(address)).rstrip("/")
    said = re.sub(r"<[^>]+>", "", words)
    if "arXiv:" in said or short in said:
        return match[0]
    shown = html.escape(short if len(short) <= PRINTED else f"{short[: PRINTED - 1]}…")
    return f'<a {opening} data-print="{shown}">{words}</a>'


def _late_formulas(page: str) -> str:
    """MathJax as an address for ds41.js, which loads it when a formula is near; without formulas there is none.

    Sphinx loads it on the front page, too, whenever any page that it leads to has a formula.
    """
    if 'class="math ' not in page:
        page = re.sub(r"\s*<script>window\.MathJax = .*?</script>", "", page)
        return _MATHJAX.sub("", page)
    source = _MATHJAX.search(page)
    page = replaced(page, _MATHJAX, "", "MathJax for its formulas")
    given = f'<script data-mathjax="{source[1]}"'
    return replaced(page, r'<script(?= src="[^"]*/ds41\.js)', given, "ds41.js to load its formulas", 1)


def calm_theme(folder: Path) -> None:
    """Keep the theme from measuring every box of a page before it is shown: ds41.js does that in slices.

    Raises:
        PageError: the theme's script is not the one that is known here.
    """
    path = folder / "_static" / "scripts" / "pydata-sphinx-theme.js"
    text = path.read_text(encoding="utf-8")
    if text.count(_MEASURES) != 1:
        raise PageError(f"{path.name} does not measure scrolling boxes as pydata-sphinx-theme 0.16.1 does")
    path.write_text(text.replace(_MEASURES, ""), encoding="utf-8")


def drop_unused(folder: Path) -> None:
    """Delete from the built book what no page loads any more, and maps for debuggers of the theme."""
    static = folder / "_static"
    for pattern in ("**/*.map", "scripts/fontawesome.js*", "vendor/fontawesome/**/*.*", "*-macros.html"):
        for path in static.glob(pattern):
            path.unlink()
