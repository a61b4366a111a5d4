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
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import book_rules as rules
import browser
import build_book
import npm_tools
import page_places
from page_server import serve
from page_visit import DESKTOP, Visit
from project import HERE, Project

PHONE = 375
NARROW = (320, 360, 375, 390)
# Each takes a Chromium of its own.
WORKERS = 2


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
        found = list(rules.math_faults(visit.page))
        if theme == "light":
            note("page", found)
            note("page", rules.image_faults(visit.page))
        visit.come_near()
        note(f"{theme} {DESKTOP} px", rules.axe_faults(visit.page, axe))
        picture(visit, f"{theme}-{DESKTOP}")
        # The theme changes colours only, so one of the two has the small screens looked at closely.
        for width in NARROW if theme == "light" else (PHONE,):
            visit.resize(width)
            visit.come_near()
            note(f"{width} px", rules.width_faults(visit.page))
            if width == PHONE:
                picture(visit, f"{theme}-{PHONE}")
                if theme == "light":
                    note(f"{PHONE} px", rules.axe_faults(visit.page, axe))
        note(theme, visit.faults)
        visit.context.close()
    return faults


def check_pages(site: str, addresses: list[str], axe: str, screens: Path | None) -> dict[str, tuple[list[str], float]]:
    """The faults of each page, and the seconds that looking took."""
    found = {}
    with browser.chromium() as chromium:
        for address in addresses:
            start = time.monotonic()
            faults = check_page(chromium, site, address, axe, screens)
            found[address] = faults, time.monotonic() - start
    return found


def check_places(site: str, folder: Path) -> dict[str, tuple[list[str], float]]:
    """The faults of the book in a folder, of the page for dead addresses, and of a page under the Tab key."""
    found = {}
    with browser.chromium() as chromium:
        for name, faults in (
            ("offline", page_places.offline_faults(chromium, folder)),
            ("404.html", page_places.missing_faults(chromium, site)),
            ("keyboard", page_places.keyboard_faults(chromium, site, page_places.offline_page(folder))),
        ):
            start = time.monotonic()
            found[name] = list(faults), time.monotonic() - start
    return found


def addresses(folder: Path, names: list[str]) -> list[str]:
    """The pages to visit: all but the front door, which only sends readers on, and the page for dead addresses."""
    pages = [path.relative_to(folder).as_posix() for path in rules.book_pages(folder)]
    wanted = [f"{name.removesuffix('.html')}.html" for name in names]
    missing = sorted(set(wanted) - set(pages))
    if missing:
        raise FileNotFoundError(f"no page {', '.join(missing)} in {folder}; its pages are {', '.join(pages)}")
    return wanted or pages


def shares(folder: Path, pages: list[str], workers: int) -> list[list[str]]:
    """The pages in as many lists, of about the same size together: a page takes as long as it is big."""
    lists: list[list[str]] = [[] for _ in range(workers)]
    sizes = [0] * workers
    for page in sorted(pages, key=lambda page: -(folder / page).stat().st_size):
        least = sizes.index(min(sizes))
        lists[least].append(page)
        sizes[least] += (folder / page).stat().st_size
    return [pages for pages in lists if pages]


def check(project: Project, names: list[str], screenshots: bool) -> int:
    if not (project.html / "index.html").exists():
        raise FileNotFoundError(f"no book in {project.html}: run `make book` first")
    screens = project.build / "screens" if screenshots else None
    if screens:
        screens.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    blob = f"/blob/{project.repository_branch}/"
    base = build_book.site_path(project.repository_url)
    report = {
        "links": list(rules.link_faults(project.html, blob, project.root, base)),
        "sizes": list(rules.size_faults(project.html)),
    }
    axe = (npm_tools.package(project, "axe-core") / "axe.min.js").read_text(encoding="utf-8")
    pages = addresses(project.html, names)
    spawn = multiprocessing.get_context("spawn")
    with serve(project.html, base) as site, ProcessPoolExecutor(WORKERS, mp_context=spawn) as pool:
        jobs = [pool.submit(check_pages, site, share, axe, screens) for share in shares(project.html, pages, WORKERS)]
        if not names:
            jobs.append(pool.submit(check_places, site, project.html))
        for job in as_completed(jobs):
            for address, (faults, seconds) in job.result().items():
                report[address] = faults
                outcome = f"{len(faults)} faults" if faults else "in order"
                print(f"{address}: {outcome} ({seconds:.1f} s)", flush=True)
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
