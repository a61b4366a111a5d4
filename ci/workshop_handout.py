#!/usr/bin/env python3
"""The byte ledger on one page of paper, for a workshop: build/workshop/handout/ledger-en.html and .pdf.

    python ci/workshop_handout.py                  in English
    python ci/workshop_handout.py --language de    in German

Every number is computed from the published configuration. Headless Chromium prints the page; the PDF has to be one
page of A4 that is vectors throughout, with its fonts in it, and nothing on it is smaller than 9 pt.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import browser
from page_meta import Site
from project import HERE, Project
from pypdf import PdfReader
from workshop_handout_page import page as handout_page

from ds41 import ModelConfig, language

SMALLEST = 12
"""CSS pixels of the smallest letters: 9 pt."""
_A4 = (595, 842)
# Letters that are too small, with their size in pixels as drawn; what leaves the margins or its own place; labels of
# a picture that lie on each other.
_MEASURE = """
() => {
  const every = [...document.querySelectorAll("body *")];
  const words = (element) => element.textContent.trim().slice(0, 40);
  const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const drawn = (element) => {
    const matrix = element.getScreenCTM ? element.getScreenCTM() : null;
    return parseFloat(getComputedStyle(element).fontSize) * (matrix ? Math.hypot(matrix.a, matrix.b) : 1);
  };
  const small = every.filter((element) => own(element) && drawn(element) < SMALLEST - 0.01)
    .map((element) => [drawn(element), words(element)]);
  const sheet = document.body.getBoundingClientRect();
  const out = every.filter((element) => {
    const box = element.getBoundingClientRect();
    const beyond = box.right > sheet.right - 30 || box.bottom > sheet.bottom - 20 || box.left < sheet.left + 30;
    const cut = element.clientWidth && element.scrollWidth > element.clientWidth + 1;
    return (box.width && beyond) || (cut && !(element instanceof SVGElement));
  }).map(words);
  const labels = [...document.querySelectorAll("svg[role=img]")].flatMap((picture) => {
    const texts = [...picture.querySelectorAll("text")].map((text) => [text.getBoundingClientRect(), words(text)]);
    return texts.flatMap(([one, name], place) => texts.slice(place + 1)
      .filter(([other]) => one.left < other.right - 1 && other.left < one.right - 1
        && one.top < other.bottom - 4 && other.top < one.bottom - 4)
      .map(([, other]) => `${name} / ${other}`));
  });
  return { small, out: [...new Set(out)], labels };
}
""".replace("SMALLEST", str(SMALLEST))


class HandoutError(Exception):
    """The page is not what paper needs; the message says in what."""


def print_page(page, html: str) -> bytes:
    """The page as a PDF.

    Raises:
        HandoutError: letters that are too small, something that does not fit, labels that lie on each other, or a PDF
            with :func:`faults`.
    """
    page.set_viewport_size({"width": 794, "height": 1123})
    page.set_content(html, wait_until="load")
    measured = page.evaluate(_MEASURE)
    found = [f"{size:.1f} px is too small: {text}" for size, text in measured["small"]]
    found += [f"does not fit: {text}" for text in measured["out"]]
    found += [f"labels lie on each other: {texts}" for texts in measured["labels"]]
    printed = page.pdf(format="A4", print_background=True, prefer_css_page_size=True, tagged=True)
    found += faults(PdfReader(io.BytesIO(printed)))
    if found:
        raise HandoutError("; ".join(found))
    return printed


def faults(reader: PdfReader) -> Iterator[str]:
    """What is wrong with a PDF that has to be one page of vectors and embedded fonts."""
    if len(reader.pages) != 1:
        yield f"{len(reader.pages)} pages; expected 1"
    for sheet in reader.pages:
        size = tuple(round(float(side)) for side in (sheet.mediabox.width, sheet.mediabox.height))
        if size != _A4:
            yield f"the page is {size[0]} × {size[1]} points; expected {_A4[0]} × {_A4[1]}"
        if list(sheet.images):
            yield f"{len(list(sheet.images))} pictures of pixels; expected vectors"
        for name, font in (sheet["/Resources"].get("/Font") or {}).items():
            if not _embedded(font.get_object()):
                yield f"font {name} is not embedded"


def _embedded(font) -> bool:
    if font["/Subtype"] == "/Type3":
        # Its letters are drawings in the font itself.
        return True
    described = [child.get_object() for child in font.get("/DescendantFonts", [font])]
    descriptors = [one["/FontDescriptor"].get_object() for one in described if "/FontDescriptor" in one]
    return len(descriptors) == len(described) and all(
        any(f"/FontFile{kind}" in one for kind in ("", "2", "3")) for one in descriptors
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=tuple(language.LANGUAGES), default="en")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    project = Project(options.root)
    try:
        language.use(options.language)
        html = handout_page(ModelConfig.flash(), Site.of(project).address)
        with browser.chromium() as chromium:
            page = chromium.new_page(color_scheme="light", reduced_motion="reduce")
            printed = print_page(page, html)
    except (browser.NoBrowserError, HandoutError, ModuleNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    folder = project.build / "workshop" / "handout"
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, content in (("html", html.encode()), ("pdf", printed)):
        path = folder / f"ledger-{options.language}.{suffix}"
        path.write_bytes(content)
        print(f"{path}: {len(content) / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
