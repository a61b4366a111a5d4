"""What must hold of a built page in a browser, and of the links between pages. Each rule yields sentences."""

from __future__ import annotations

import html.parser
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

from page_meta import DOOR, MISSING

from ds41.language import LANGUAGES

AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# A page before images: what a phone has to read before it can show the end of a chapter.
PAGE_BYTES = 500_000
IMAGES_WITHOUT_ALT = """
() => [...document.images].filter(i => !(i.getAttribute("alt") || "").trim()).map(i => i.getAttribute("src"))
"""
SIDEWAYS = """
() => {
  window.scrollTo(9999, 0);
  const moved = window.scrollX;
  window.scrollTo(0, 0);
  const width = document.documentElement.clientWidth;
  const clipped = element => {
    for (let box = element.parentElement; box && box !== document.body; box = box.parentElement)
      if (getComputedStyle(box).overflowX !== "visible") return true;
    return false;
  };
  const wide = [...document.querySelectorAll("main article *")]
    .filter(e => e.getBoundingClientRect().right > width + 1 && !clipped(e))
    .map(e => `${e.tagName.toLowerCase()}.${[...e.classList].join(".")}`);
  return {moved, wide: [...new Set(wide)].slice(0, 3)};
}
"""
# Pages draw formulas when a reader is near them, or when they are printed.
MATH = """
async (wait) => {
  const formulas = [...document.querySelectorAll(".math")];
  const written = formulas.length;
  const loaded = !!document.querySelector('script[data-mathjax], script[src*="mathjax"]');
  const state = document.documentElement.dataset;
  if (loaded && written && state.math !== "drawn") {
    const drawn = new Promise((done) => addEventListener("ds41:math", done));
    dispatchEvent(new Event("beforeprint"));
    await Promise.race([drawn, new Promise((done) => setTimeout(done, wait))]);
  }
  return {
    written, loaded,
    drawn: formulas.filter(formula => formula.querySelector("mjx-container")).length,
    errors: [...document.querySelectorAll("mjx-merror, [data-mjx-error]")].map(e => e.textContent.slice(0, 80)),
  };
}
"""
MATH_MS = 20_000
# Preloading would fetch styles again, from addresses that axe resolves wrongly.
AXE = """
tags => axe.run(document, {runOnly: {type: "tag", values: tags}, resultTypes: ["violations"], preload: false})
  .then(result => result.violations.map(v => ({id: v.id, help: v.help, nodes: v.nodes.map(n => n.html)})))
"""


def image_faults(page) -> Iterator[str]:
    for source in page.evaluate(IMAGES_WITHOUT_ALT):
        yield f"image without alt text: {(source or '')[:80]}"


def width_faults(page) -> Iterator[str]:
    found = page.evaluate(SIDEWAYS)
    if found["moved"] or found["wide"]:
        wide = ", ".join(found["wide"]) or "an element outside the text"
        yield f"scrolls sideways by {found['moved']:g} px: too wide is {wide}"


def math_faults(page) -> Iterator[str]:
    math = page.evaluate(MATH, MATH_MS)
    if math["loaded"] and not math["written"]:
        yield "loads MathJax and has no formula"
    if math["drawn"] < math["written"]:
        yield f"{math['drawn']} of {math['written']} formulas are drawn"
    for error in math["errors"]:
        yield f"a formula has an error: {error}"


def axe_faults(page, axe_source: str) -> Iterator[str]:
    page.evaluate(axe_source)
    for violation in page.evaluate(AXE, AXE_TAGS):
        for node in violation["nodes"]:
            yield f"accessibility, {violation['id']}: {violation['help']}: {' '.join(node.split())[:160]}"


def built_pages(folder: Path) -> list[Path]:
    """Every page of a built book; the theme keeps templates of its own among the static files."""
    return [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.relative_to(folder).parts]


def book_pages(folder: Path) -> list[Path]:
    """The built pages that readers come to read: all but the editions' front doors and pages for dead addresses."""
    aside = {edition / name for edition in (folder, *(folder / code for code in LANGUAGES)) for name in (DOOR, MISSING)}
    return [path for path in built_pages(folder) if path not in aside]


def is_translated(address: str) -> bool:
    """Whether a page belongs to an edition beside the English one."""
    return address.split("/")[0] in LANGUAGES


def addresses(folder: Path, names: list[str]) -> list[str]:
    """The addresses of built pages, which may be called `book/04-fp4` or `book/04-fp4.html`.

    Raises:
        FileNotFoundError: there is no book, or it has no such page.
    """
    if not (folder / DOOR).exists():
        raise FileNotFoundError(f"no book in {folder}: run `make book` first")
    wanted = [f"{name.removesuffix('.html')}.html" for name in names]
    if missing := [address for address in wanted if not (folder / address).exists()]:
        pages = ", ".join(path.relative_to(folder).as_posix() for path in built_pages(folder))
        raise FileNotFoundError(f"no page {', '.join(missing)} in {folder}; its pages are {pages}")
    return wanted


def size_faults(folder: Path) -> Iterator[str]:
    for path in built_pages(folder):
        size = path.stat().st_size
        if size > PAGE_BYTES:
            yield f"{path.relative_to(folder).as_posix()}: has {size:,} bytes; a page has at most {PAGE_BYTES:,}"


class _Page(html.parser.HTMLParser):
    """The ids and the links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.ids.add(value)
            elif name == "href" and tag == "a" and value:
                self.links.append(value)


def link_faults(folder: Path, blob: str, root: Path, base: str = "/") -> Iterator[str]:
    """Links to pages, anchors and repository files that do not exist.

    `blob` is the address under which the repository's files are shown; a link that contains it, as Colab's
    do, must name a file below `root`. `base` is the path that the site is published below, as `/ds41/`.
    """
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in built_pages(folder)}
    for path, page in pages.items():
        here = path.relative_to(folder).as_posix()
        for link in page.links:
            if blob in link:
                name = unquote(urlparse(link.split(blob, 1)[1]).path)
                if not (root / name).exists():
                    yield f"{here}: {link} names no file of the repository"
            elif not urlparse(link).scheme:
                address = urlparse(urljoin(base + here, link))
                target = folder / unquote(address.path).removeprefix(base)
                if address.netloc or not address.path.startswith(base) or not target.is_file():
                    yield f"{here}: {link} leads nowhere"
                elif address.fragment and target in pages and unquote(address.fragment) not in pages[target].ids:
                    yield f"{here}: {link} names no place on its page"
