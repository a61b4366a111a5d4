#!/usr/bin/env python3
"""Look at every page of the built book in headless Chromium, as readers do: in light, in dark, on phones.

    python ci/check_book.py                      build/html, every page
    python ci/check_book.py --screenshots        also pictures of the pages in build/screens/
    python ci/check_book.py book/04-fp4          one page

A page must not log an error, fail a request, or ask any other host for anything; must not scroll sideways
from 320 px on; must give each image alt text; must draw its formulas, and load MathJax only if it has any;
and must pass axe-core at WCAG A and AA. Links between pages and into the repository must lead somewhere.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import book_rules as rules
import browser
import npm_tools
from project import HERE, Project

DESKTOP = 1280
PHONE = 375
# The theme makes what scrolls reachable by keyboard this long after a change of size, and a little.
RESIZE_MS = 400
NARROW = (320, 360, 375, 390)


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """One line for every file of every page would bury the faults."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The folder on a free port of this machine; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SilentHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Visit:
    """One page open in one theme; collects what goes wrong while it loads."""

    def __init__(self, chromium, site: str, address: str, theme: str) -> None:
        self.faults: list[str] = []
        self._site = site
        self.context = chromium.new_context(
            color_scheme=theme, viewport={"width": DESKTOP, "height": 900}, reduced_motion="reduce"
        )
        self.context.route("**/*", self._route)
        self.page = self.context.new_page()
        self.page.on("console", lambda m: m.type == "error" and self.faults.append(f"console error: {m.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"page error: {error.message}"))
        self.page.on("response", self._response)
        self.page.goto(f"{site}/{address}", wait_until="networkidle")
        shown = self.page.evaluate("document.documentElement.dataset.theme")
        if shown != theme:
            self.faults.append(f"shows the theme {shown!r} to a reader who prefers {theme}")

    def _route(self, route) -> None:
        if route.request.url.startswith((self._site, "data:", "blob:")):
            route.continue_()
        else:
            self.faults.append(f"asks another host: {route.request.url}")
            route.abort()

    def _response(self, response) -> None:
        if response.status >= 400:
            self.faults.append(f"request failed with {response.status}: {response.url.removeprefix(self._site)}")

    def resize(self, width: int) -> None:
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.wait_for_timeout(RESIZE_MS)


def check_page(chromium, site: str, address: str, axe: str, screens: Path | None) -> list[str]:
    faults: list[str] = []

    def note(where: str, found) -> None:
        faults.extend(f"{where}: {fault}" for fault in found)

    def picture(visit: Visit, name: str) -> None:
        if screens:
            stem = address.removesuffix(".html").replace("/", "-")
            visit.page.screenshot(path=screens / f"{stem}-{name}.png", full_page=True)

    for theme in ("light", "dark"):
        visit = Visit(chromium, site, address, theme)
        if theme == "light":
            note("page", rules.image_faults(visit.page))
            note("page", rules.math_faults(visit.page))
        note(f"{theme} {DESKTOP} px", rules.axe_faults(visit.page, axe))
        picture(visit, f"{theme}-{DESKTOP}")
        # The theme changes colours only, so one of the two has the small screens looked at closely.
        for width in NARROW if theme == "light" else (PHONE,):
            visit.resize(width)
            note(f"{width} px", rules.width_faults(visit.page))
            if width == PHONE:
                picture(visit, f"{theme}-{PHONE}")
                if theme == "light":
                    note(f"{PHONE} px", rules.axe_faults(visit.page, axe))
        note(theme, visit.faults)
        visit.context.close()
    return faults


def addresses(folder: Path, names: list[str]) -> list[str]:
    """The pages to visit: all but the front door, which only sends readers on."""
    found = [path.relative_to(folder).as_posix() for path in rules.built_pages(folder)]
    pages = [page for page in found if page != "index.html"]
    wanted = [f"{name.removesuffix('.html')}.html" for name in names]
    missing = sorted(set(wanted) - set(pages))
    if missing:
        raise FileNotFoundError(f"no page {', '.join(missing)} in {folder}; its pages are {', '.join(pages)}")
    return wanted or pages


def check(project: Project, names: list[str], screenshots: bool) -> int:
    if not (project.html / "index.html").exists():
        raise FileNotFoundError(f"no book in {project.html}: run `make book` first")
    screens = project.build / "screens" if screenshots else None
    if screens:
        screens.mkdir(parents=True, exist_ok=True)
    blob = f"/blob/{project.repository_branch}/"
    report = {"links": list(rules.link_faults(project.html, blob, project.root))}
    axe = (npm_tools.package(project, "axe-core") / "axe.min.js").read_text(encoding="utf-8")
    with browser.chromium() as chromium, serve(project.html) as site:
        for address in addresses(project.html, names):
            start = time.monotonic()
            report[address] = check_page(chromium, site, address, axe, screens)
            outcome = f"{len(report[address])} faults" if report[address] else "in order"
            print(f"{address}: {outcome} ({time.monotonic() - start:.1f} s)", flush=True)
    project.reports.mkdir(parents=True, exist_ok=True)
    (project.reports / "pages.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    faults = [f"{place}: {fault}" for place, found in report.items() for fault in found]
    print("\n".join(faults) or f"{len(report) - 1} pages in order, light and dark, from {NARROW[0]} px on")
    return bool(faults)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    parser.add_argument("--screenshots", action="store_true", help="write pictures to build/screens/")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        browser.find()
    except browser.NoBrowserError as error:
        return browser.without_browser(error, "the built book")
    try:
        return check(Project(options.root), options.pages, options.screenshots)
    except (FileNotFoundError, npm_tools.NpmError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
