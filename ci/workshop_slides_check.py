#!/usr/bin/env python3
"""Look at the decks in Chromium, from their folder and without a network: what does not fit, what fails, what is small.

    python ci/workshop_slides_check.py                            every deck, light and dark
    python ci/workshop_slides_check.py 04-fp4 --language de --pictures build/pictures

Walks all slides with all their fragments shown. A fault is content beyond the slide, text that is cut off, that lies
under the arrows or is smaller than 24 px, a slide without content, an error on the console, a request that leaves the
folder, and a print-out with other than one page a slide. Figures and code are scaled to their slide; the ten smallest
are listed.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import browser
import workshop_slides as slides
from project import HERE, Project
from pypdf import PdfReader

from ds41 import language
from ds41.viz.palette import PALETTE

SIZE = {"width": 1280, "height": 720}
SMALLEST = 24
# A print-out of sixty slides on a busy machine takes longer than playwright waits of itself.
PATIENCE_MS = 180_000
_TYPESET = "MathJax.startup.promise.then(() => document.fonts.ready).then(() => true)"
_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))"
_SLIDES = """
Reveal.getSlides().map((slide) => {
  const { h, v } = Reveal.getIndices(slide);
  return { h, v: v || 0, kind: slide.dataset.kind };
})
"""
_BACKGROUNDS = """
["body", ".ds-fig"].filter((what) => document.querySelector(what)).map((what) => {
  const rgb = getComputedStyle(document.querySelector(what)).backgroundColor.match(/[0-9]+/g);
  return [what, "#" + rgb.slice(0, 3).map((part) => Number(part).toString(16).padStart(2, "0")).join("")];
})
"""
# What lies beyond the slide, or beyond the box that clips or scrolls it, or under the arrows; and the size that text is
# shown at.
_MEASURE = """
() => {
  const slide = Reveal.getCurrentSlide().querySelector(".slide");
  const page = slide.getBoundingClientRect();
  const seen = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const beyond = [];
  const unread = [];
  const controls = [...document.querySelectorAll(".controls .enabled .controls-arrow, .slide-number")].map(
    (control) => control.getBoundingClientRect());
  const sizes = { text: [], scaled: [] };
  // Inside a figure a box that scrolls or clips is the figure's own affair.
  const clipped = (element) => {
    for (let box = element.parentElement; box && box !== slide; box = box.parentElement)
      if (getComputedStyle(box).overflowX !== "visible") return true;
    return false;
  };
  for (const element of slide.querySelectorAll("*")) {
    if (!seen(element) || element.closest("mjx-assistive-mml, defs, clipPath")) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const over = Math.max(box.right - page.right, box.bottom - page.bottom, page.left - box.left, page.top - box.top);
    if (over > 1 && !clipped(element))
      beyond.push(`${element.tagName.toLowerCase()}.${element.getAttribute("class") || ""} by ${Math.round(over)} px`);
    unread.push(...[...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim()).flatMap(hidden));
    const scale = Number(element.closest(".fit")?.dataset.scale || 1);
    const words = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (words && !element.closest(".kicker, .address, mjx-container")) {
      const svg = element.ownerSVGElement && element.getScreenCTM();
      const size = parseFloat(getComputedStyle(element).fontSize) * (svg ? Math.hypot(svg.a, svg.b) : scale);
      sizes[element.closest(".fit") ? "scaled" : "text"].push(size);
    }
  }
  const scrolls = [...slide.querySelectorAll(".ds-scroll")].filter(
    (box) => box.scrollWidth > box.clientWidth + 1).map((box) => `${box.className || box.tagName} scrolls sideways`);
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1] ?? null;
  return {
    beyond: [...beyond.slice(0, 2), ...unread.slice(0, 2), ...scrolls],
    empty: !slide.querySelector(":scope > :not(header, .address)")?.matches(".fit, :has(*), .answer"),
    smallest: sizes.text.length ? Math.min(...sizes.text) : null,
    scaled: median(sizes.scaled),
    overlap: overlap(slide),
  };

  // Text that a box or a picture clips, or that an arrow lies on.
  function hidden(node) {
    const range = document.createRange();
    range.selectNodeContents(node);
    const text = range.getBoundingClientRect();
    const shown = { left: text.left, right: text.right, top: text.top, bottom: text.bottom };
    const found = [];
    for (let box = node.parentElement; box !== slide; box = box.parentElement) {
      const { overflowX, overflowY } = getComputedStyle(box);
      if (overflowX === "visible" || box.matches("text, tspan")) continue;
      const clip = box.getBoundingClientRect();
      // What only a screen reader is to find.
      if (clip.width < 2) return [];
      const across = Math.max(text.right - clip.right, clip.left - text.left);
      const down = Math.max(text.bottom - clip.bottom, clip.top - text.top);
      if ((overflowX !== "auto" && across > 1.5) || (!["auto", "scroll"].includes(overflowY) && down > 4))
        found.push(`"${node.data.trim().slice(0, 40)}" is cut off by ${Math.round(Math.max(across, down))} px`);
      shown.left = Math.max(shown.left, clip.left);
      shown.right = Math.min(shown.right, clip.right);
      shown.top = Math.max(shown.top, clip.top);
      shown.bottom = Math.min(shown.bottom, clip.bottom);
    }
    const under = controls.some((control) =>
      shown.left < control.right && shown.right > control.left &&
      shown.top < control.bottom && shown.bottom > control.top);
    return under ? [...found, `"${node.data.trim().slice(0, 40)}" lies under an arrow or the number`] : found;
  }

  // The parts of a slide stand one under another.
  function overlap(whole) {
    let bottom = -Infinity;
    for (const part of [...whole.children].filter((child) => !child.matches(".address"))) {
      const box = part.getBoundingClientRect();
      if (box.height && box.top < bottom - 1) return part.className;
      bottom = Math.max(bottom, box.bottom);
    }
    return null;
  }
}
"""


class Walk:
    """One deck in one theme."""

    def __init__(self, chromium, path: Path, theme: str, pictures: Path | None = None) -> None:
        self.faults: list[str] = []
        self.scaled: list[tuple[float, str]] = []
        self._folder = path.parent.resolve().as_uri()
        self._name, self._theme, self._pictures = path.stem, theme, pictures
        self._context = chromium.new_context(color_scheme=theme, viewport=SIZE, offline=True)
        self.page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"page error: {error.message}"))
        self.page.on("request", self._request)
        self.page.on("requestfailed", lambda request: self.faults.append(f"request failed: {request.url}"))
        self.page.goto(path.resolve().as_uri(), wait_until="load")
        self.page.wait_for_function("Reveal.isReady()")
        self.page.evaluate(_TYPESET)

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def slides(self) -> int:
        """Walk all slides and return how many there are."""
        found = self.page.evaluate(_SLIDES)
        for slide in found:
            where = f"{slide['h'] + 1}.{slide['v'] + 1} {slide['kind']}"
            self.page.evaluate("([h, v]) => Reveal.slide(h, v, 999)", [slide["h"], slide["v"]])
            self.page.evaluate(_FRAMES)
            seen = self.page.evaluate(_MEASURE)
            self.faults.extend(f"{where}: {beyond}" for beyond in seen["beyond"])
            if seen["empty"] and slide["kind"] != "section":
                self.faults.append(f"{where}: nothing under its heading")
            if seen["overlap"] is not None:
                self.faults.append(f"{where}: .{seen['overlap']} lies over what is above it")
            if seen["smallest"] and seen["smallest"] < SMALLEST:
                self.faults.append(f"{where}: text of {seen['smallest']:.0f} px, expected at least {SMALLEST}")
            if seen["scaled"]:
                self.scaled.append((seen["scaled"], f"{self._name} {where}"))
            if self._pictures:
                name = f"{self._name}-{self._theme}-{slide['h']:02}-{slide['v']:02}.png"
                self.page.screenshot(path=self._pictures / name)
        return len(found)

    def themed(self) -> None:
        """Look whether page and figures have the colours of the theme."""
        for what, background in self.page.evaluate(_BACKGROUNDS):
            if background != PALETTE["page"].on(self._theme):
                self.faults.append(f"{what} is {background} in a {self._theme} theme")

    def printed(self, path: Path, count: int) -> None:
        """Print the deck as a reader would, and count the pages."""
        self.page.goto(f"{path.resolve().as_uri()}?print-pdf", wait_until="load")
        self.page.wait_for_function("document.querySelectorAll('.pdf-page').length > 0")
        self.page.evaluate(_TYPESET)
        self.page.evaluate(_FRAMES)
        pdf = self.page.pdf(prefer_css_page_size=True, print_background=True)
        pages = len(PdfReader(io.BytesIO(pdf)).pages)
        if pages != count:
            self.faults.append(f"prints {pages} pages, expected {count}, one a slide")
        if self._pictures:
            (self._pictures / f"{self._name}.pdf").write_bytes(pdf)

    def _console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text}")

    def _request(self, request) -> None:
        if not request.url.startswith((self._folder, "data:", "blob:")):
            self.faults.append(f"asks for {request.url}")


def check(chromium, path: Path, pictures: Path | None = None) -> tuple[list[str], list[tuple[float, str]]]:
    """The faults of a deck in both themes and in print, and the sizes of the text in its figures."""
    faults: list[str] = []
    with Walk(chromium, path, "dark", pictures) as walk:
        # Both themes have the same layout.
        if pictures:
            walk.slides()
        walk.themed()
        faults.extend(f"{path.stem} dark {fault}" for fault in walk.faults)
    with Walk(chromium, path, "light", pictures) as walk:
        count = walk.slides()
        walk.themed()
        walk.printed(path, count)
        faults.extend(f"{path.stem} light {fault}" for fault in walk.faults)
    print(f"{path.stem}: {count} slides, {len(faults)} faults", flush=True)
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr, flush=True)
    return faults, walk.scaled


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER")
    parser.add_argument("--language", choices=language.LANGUAGES, default="en")
    parser.add_argument("--pictures", type=Path, help="a folder for a picture of each slide, and the print-outs")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    folder = slides.target(Project(options.root), options.language)
    paths = [folder / f"{name}.html" for name in options.chapters] or sorted(folder.glob("*.html"))
    paths = [path for path in paths if path.name != "index.html"]
    missing = [path for path in paths if not path.exists()] or ([] if paths else [folder])
    if missing:
        print(f"error: no deck {missing[0]}: `python ci/workshop_slides.py` makes it", file=sys.stderr)
        return 1
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    faults, scaled = [], []
    try:
        with browser.chromium() as chromium:
            for path in paths:
                found, sizes = check(chromium, path, options.pictures)
                faults.extend(found)
                scaled.extend(sizes)
    except browser.NoBrowserError as error:
        return browser.without_browser(error, "how the slides fit")
    print("the smallest text in figures, code and results, in px of a slide 720 px high:")
    for size, where in sorted(scaled)[:10]:
        print(f"  {size:5.1f}  {where}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
