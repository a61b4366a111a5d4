"""Where and how else readers meet the book: in a folder without a network, at a dead address, with the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import book_rules as rules
from page_meta import DOOR, SEARCH
from page_visit import Visit

SEARCHED = "token"
_MOUNTED = """
() => [...document.querySelectorAll(".ds-fig:has(.ds-data)")].filter(figure => !("mounted" in figure.dataset)).length
"""
# How often the Tab key is pressed.
STOPS = 60
# Where the focus is, and whether an outline, a shadow or a label beside it says so. A radio button's label shows it.
_STOP = """
() => {
  const shows = (element) => {
    if (!element) return false;
    const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(element);
    return (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
  };
  const at = document.activeElement;
  const tag = `${at.tagName.toLowerCase()}.${[...at.classList].join(".")}`;
  return { tag, seen: at === document.body || shows(at) || shows(at.nextElementSibling) };
}
"""


def offline_page(folder: Path) -> str:
    """The address of the smallest page with formulas and figures that answer.

    Raises:
        FileNotFoundError: no page has both, so neither could be tried.
    """
    pages = {path: path.read_text(encoding="utf-8") for path in rules.book_pages(folder)}
    both = [path for path, text in pages.items() if "data-mathjax" in text and "data-mount" in text]
    if not both:
        raise FileNotFoundError(f"no page in {folder} has both formulas (data-mathjax) and figures (data-mount)")
    return min(both, key=lambda path: len(pages[path])).relative_to(folder).as_posix()


def offline_faults(chromium, folder: Path) -> Iterator[str]:
    """What a reader misses who opens the built book from a folder, with no network at all."""
    from playwright.sync_api import TimeoutError as NothingCame

    site = folder.resolve().as_uri()
    with Visit(chromium, site, DOOR, offline=True, leads_to="main article") as door:
        yield from (f"front door: {fault}" for fault in door.faults)

    address = offline_page(folder)
    with Visit(chromium, site, address, offline=True) as visit:
        found = [*rules.math_faults(visit.page)]
        still = visit.page.evaluate(_MOUNTED)
        if still:
            found.append(f"{still} figures do not answer")
        yield from (f"{address}: {fault}" for fault in [*found, *visit.faults])

    with Visit(chromium, site, f"{SEARCH}?q={SEARCHED}", offline=True) as visit:
        try:
            visit.page.wait_for_selector("#search-results li a", timeout=10_000)
        except NothingCame as error:
            yield f"search for {SEARCHED!r} finds nothing: {str(error).splitlines()[0]}"
        yield from (f"search: {fault}" for fault in visit.faults)


def keyboard_faults(chromium, site: str, address: str) -> Iterator[str]:
    """What is wrong for a reader with a Tab key and no mouse: no way past the contents, a focus that is not seen."""
    with Visit(chromium, site, address) as visit:
        page = visit.page
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") != "#main-content":
            yield "the first stop of the Tab key is no link past the contents"
        else:
            page.keyboard.press("Enter")
            page.keyboard.press("Tab")
            if not page.evaluate("document.getElementById('main-content').contains(document.activeElement)"):
                yield "the link past the contents does not lead into the text"
        hidden = {}
        for _ in range(STOPS):
            stop = page.evaluate(_STOP)
            if not stop["seen"]:
                hidden[stop["tag"]] = None
            page.keyboard.press("Tab")
        yield from (f"nothing shows that {tag} has the focus" for tag in hidden)
        yield from visit.faults


def missing_faults(chromium, site: str) -> Iterator[str]:
    """What is wrong with the page at an address that leads nowhere, two folders deep."""
    with Visit(chromium, site, "no/such/page.html", status=404) as visit:
        home = visit.page.locator("main a[href$='.html']:not([hreflang])").first
        if home.count() == 0:
            yield "no link leads to a page of the book"
        else:
            home.click()
            visit.page.wait_for_selector("main article")
            if visit.page.locator("h1").count() == 0 or "/no/such/" in visit.page.url:
                yield f"its link leads to {visit.page.url}"
        yield from visit.faults
