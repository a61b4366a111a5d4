"""Where and how else readers meet the book: in a folder without a network, at a dead address, with the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import book_rules as rules
from page_visit import Visit

SEARCHED = "token"
_MOUNTED = """
() => [...document.querySelectorAll(".ds-fig:has(.ds-data)")].filter(figure => !("mounted" in figure.dataset)).length
"""
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
    """The address of a page with formulas and figures that answer, if there is one; else of any page of the book."""
    pages = {path: path.read_text(encoding="utf-8") for path in rules.book_pages(folder)}
    both = [path for path, text in pages.items() if "data-mathjax" in text and "data-mount" in text]
    return min(both or pages, key=lambda path: len(pages[path])).relative_to(folder).as_posix()


def offline_faults(chromium, folder: Path) -> Iterator[str]:
    """What a reader misses who opens the built book from a folder, with no network at all."""
    site = folder.resolve().as_uri()
    door = Visit(chromium, site, "index.html", offline=True, leads_to="main article")
    yield from (f"front door: {fault}" for fault in door.faults)
    door.context.close()

    address = offline_page(folder)
    visit = Visit(chromium, site, address, offline=True)
    found = [*rules.math_faults(visit.page)]
    still = visit.page.evaluate(_MOUNTED)
    if still:
        found.append(f"{still} figures do not answer")
    yield from (f"{address}: {fault}" for fault in [*found, *visit.faults])
    visit.context.close()

    visit = Visit(chromium, site, f"search.html?q={SEARCHED}", offline=True)
    try:
        visit.page.wait_for_selector("#search-results li a", timeout=10_000)
    except Exception as error:
        yield f"search for {SEARCHED!r} finds nothing: {str(error).splitlines()[0]}"
    yield from (f"search: {fault}" for fault in visit.faults)
    visit.context.close()


def keyboard_faults(chromium, site: str, address: str) -> Iterator[str]:
    """What is wrong for a reader with a Tab key and no mouse: no way past the contents, a focus that is not seen."""
    visit = Visit(chromium, site, address)
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
    visit.context.close()


def missing_faults(chromium, site: str) -> Iterator[str]:
    """What is wrong with the page at an address that leads nowhere, two folders deep."""
    visit = Visit(chromium, site, "no/such/page.html", status=404)
    home = visit.page.locator("main a[href$='.html']").first
    if home.count() == 0:
        yield "no link leads to a page of the book"
    else:
        home.click()
        visit.page.wait_for_selector("main article")
        if visit.page.locator("h1").count() == 0 or "/no/such/" in visit.page.url:
            yield f"its link leads to {visit.page.url}"
    yield from visit.faults
    visit.context.close()
