"""The headless Chromium that checks pages and diagrams, and what to do on a machine that has none."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
HOW_TO_GET = (
    "no Chromium found. Install one (Debian and Ubuntu: `apt-get install chromium`), or set CHROMIUM to the "
    "path of a Chromium or Chrome that is installed already"
)


class NoBrowserError(Exception):
    """There is no Chromium on this machine."""


def find() -> str:
    """The path of a Chromium: the one that CHROMIUM names, or the first of the usual names on the PATH."""
    named = os.environ.get("CHROMIUM")
    if named:
        if not shutil.which(named):
            raise NoBrowserError(f"CHROMIUM is {named!r}, which is not a program")
        return named
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise NoBrowserError(HOW_TO_GET)
    return found


def required() -> bool:
    """In CI a check that needs a browser may not be left out."""
    return bool(os.environ.get("CI"))


def without_browser(error: NoBrowserError, what: str) -> int:
    """The exit status for a check that could not run: a fault in CI, elsewhere a loud note."""
    print(f"{'error' if required() else 'SKIPPED'}: {what} was not checked: {error}", file=sys.stderr)
    return int(required())


@contextmanager
def chromium() -> Iterator:
    """A running headless Chromium as a playwright browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
