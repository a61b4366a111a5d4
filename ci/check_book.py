#!/usr/bin/env python3
"""Look at every page of the built book in headless Chromium, as readers do: in light, in dark, on phones.

    python ci/check_book.py                      build/html, every page
    python ci/check_book.py --screenshots        also pictures of the pages in build/screens/
    python ci/check_book.py book/04-fp4          one page

A page must not log an error, fail a request, or ask any other host for anything; must not scroll sideways
from 320 px on; must give each image alt text; must draw its formulas, and load MathJax only if it has any;
must pass axe-core at WCAG A and AA and its best practices; and must stay below 500,000 bytes. Links between pages
and into the repository must lead somewhere. The book must work from a folder without a network, search included;
a dead address must show the way back; and the Tab key must pass the contents and show where it is.
Pages of another language have theme and figures of the English ones, so they are looked at in light, wide and
at the narrowest; its landing page and its chapters of the four axes must have no English text left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import book_rules as rules
import browser
import npm_tools
import page_places
import translation
from page_meta import Site
from page_server import serve
from page_visit import DESKTOP, Visit
from project import HERE, Project

from ds41.language import LANGUAGES

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PHONE = 375
NARROW = (320, 360, 375, 390)
# Each takes a Chromium of its own.
WORKERS = 2


def page_faults(chromium, site: str, address: str, axe: str, screens: Path | None) -> Iterator[str]:
    """What is wrong with one page, each sentence after where it shows."""

    def seen(where: str, found: Iterable[str]) -> Iterator[str]:
        return (f"{where}: {fault}" for fault in found)

    def picture(visit: Visit, name: str) -> None:
        if screens:
            stem = address.removesuffix(".html").replace("/", "-")
            visit.page.screenshot(path=screens / f"{stem}-{name}.png", full_page=True)

    # What a translation may spoil are lengths, names and roles.
    whole = screens is not None or not rules.is_translated(address)
    for theme in ("light", "dark") if whole else ("light",):
        with Visit(chromium, site, address, theme) as visit:
            # In both themes, as axe-core looks at drawn formulas.
            yield from seen(theme, rules.math_faults(visit.page))
            if theme == "light":
                yield from seen("page", rules.image_faults(visit.page))
            visit.come_near()
            yield from seen(f"{theme} {DESKTOP} px", rules.axe_faults(visit.page, axe))
            picture(visit, f"{theme}-{DESKTOP}")
            # The theme changes colours only, so one of the two has the small screens looked at closely.
            widths = (PHONE,) if theme == "dark" else NARROW if whole else NARROW[:1]
            for width in widths:
                visit.resize(width)
                visit.come_near()
                yield from seen(f"{width} px", rules.width_faults(visit.page))
                if width == PHONE:
                    picture(visit, f"{theme}-{PHONE}")
                    if theme == "light" and whole:
                        yield from seen(f"{PHONE} px", rules.axe_faults(visit.page, axe))
            yield from seen(theme, visit.faults)


def look(places: dict[str, Callable[[Browser], Iterable[str]]]) -> dict[str, list[str]]:
    """The faults of each place, looked at in turn in one browser; a line is printed for each."""
    from playwright.sync_api import Error

    report = {}
    with browser.chromium() as chromium:
        for place, faults_in in places.items():
            start = time.monotonic()
            faults = report[place] = []
            try:
                faults.extend(faults_in(chromium))
            except Error as error:
                # The other places are looked at all the same.
                faults.append(f"cannot be looked at: {error.message}")
            outcome = f"{len(faults)} faults" if faults else "in order"
            print(f"{place}: {outcome} ({time.monotonic() - start:.1f} s)", flush=True)
    return report


def check_pages(site: str, addresses: list[str], axe: str, screens: Path | None) -> dict[str, list[str]]:
    """The faults of each page."""
    return look({one: partial(page_faults, site=site, address=one, axe=axe, screens=screens) for one in addresses})


def check_places(site: str, folder: Path) -> dict[str, list[str]]:
    """The faults of the book in a folder, of the page for dead addresses, and of a page under the Tab key."""
    page = page_places.offline_page(folder)
    return look(
        {
            "offline": partial(page_places.offline_faults, folder=folder),
            "404.html": partial(page_places.missing_faults, site=site),
            "keyboard": partial(page_places.keyboard_faults, site=site, address=page),
        }
    )


def shares(folder: Path, pages: list[str], workers: int) -> list[list[str]]:
    """The pages in as many lists, of about the same size together: a page takes as long as it is big."""
    lists: list[list[str]] = [[] for _ in range(workers)]
    sizes = [0] * workers
    for page in sorted(pages, key=lambda page: -(folder / page).stat().st_size):
        least = sizes.index(min(sizes))
        lists[least].append(page)
        sizes[least] += (folder / page).stat().st_size
    return [pages for pages in lists if pages]


def built_languages(project: Project) -> list[str]:
    """The languages beside English that the built book has."""
    return [code for code in LANGUAGES if code != "en" and (project.html / code).exists()]


def check(project: Project, names: list[str], screenshots: bool) -> int:
    pages = rules.addresses(project.html, names)
    pages = pages or [path.relative_to(project.html).as_posix() for path in rules.book_pages(project.html)]
    screens = project.build / "screens" if screenshots else None
    if screens:
        screens.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    blob = f"/blob/{project.repository_branch}/"
    base = Site.of(project).path
    report = {
        "links": list(rules.link_faults(project.html, blob, project.root, base)),
        "sizes": list(rules.size_faults(project.html)),
        "translations": [fault for code in built_languages(project) for fault in translation.left(project, code)],
    }
    axe = (npm_tools.package(project, "axe-core") / "axe.min.js").read_text(encoding="utf-8")
    spawn = multiprocessing.get_context("spawn")
    with serve(project.html, base) as site, ProcessPoolExecutor(WORKERS, mp_context=spawn) as pool:
        jobs = [pool.submit(check_pages, site, share, axe, screens) for share in shares(project.html, pages, WORKERS)]
        if not names:
            jobs.append(pool.submit(check_places, site, project.html))
        for job in jobs:
            report |= job.result()
    project.reports.mkdir(parents=True, exist_ok=True)
    (project.reports / "pages.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    faults = [f"{place}: {fault}" for place, found in report.items() for fault in found]
    took = f"{time.monotonic() - start:.0f} s"
    print("\n".join(faults) or f"{len(pages)} pages in order, light and dark, from {NARROW[0]} px on, in {took}")
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
