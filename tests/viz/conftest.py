"""A browser for the figures: one Chromium for the files of this folder, an empty page for each look.

Not for the session: Playwright allows one at a time in a process, and other tests open theirs.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import browser as ci_browser
import npm_tools
import pytest
from project import Project

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
_running, _shared = ExitStack(), []


@pytest.fixture(scope="module")
def chromium(pages):
    return pages.chromium


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem):
    """After the last test of this folder in a row, the browser is closed."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path.parent != FOLDER:
            _close()


def pytest_sessionfinish():
    """A session that was stopped has no last test."""
    _close()


def _close() -> None:
    _shared.clear()
    _running.close()


@pytest.fixture(scope="session")
def axe_source():
    try:
        folder = npm_tools.package(Project(ROOT), "axe-core")
    except npm_tools.NpmError as error:
        _without(str(error))
    return (folder / "axe.min.js").read_text(encoding="utf-8")


class Pages:
    """Pages that tests borrow one after the other, because to open one takes longer than most tests.

    ``faults``: errors and requests of any page since the list was last emptied.
    """

    def __init__(self, chromium) -> None:
        self.chromium, self._free, self.faults = chromium, {True: [], False: []}, []

    def borrow(self, script: bool):
        """An empty page, with or without JavaScript."""
        if self._free[script]:
            return self._free[script].pop()
        page = self.chromium.new_context(java_script_enabled=script).new_page()
        page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self.faults.append(f"request: {request.url[:120]}"))
        return page

    def give_back(self, page, script: bool) -> None:
        """Take a page back: another document has another window, and the pointer is where it was at first."""
        page.goto("about:blank")
        page.mouse.move(0, 0)
        self._free[script].append(page)


@pytest.fixture(scope="module")
def pages():
    if not _shared:
        try:
            _shared.append(Pages(_running.enter_context(ci_browser.chromium())))
        except ci_browser.NoBrowserError as error:
            _without(str(error))
    return _shared[0]


@pytest.fixture
def look(pages):
    """look(html, ...) -> a page that shows ``html``; any error or request of the page fails the test at its end.

    ``own``: a page that no other test gets, for one whose clock is replaced.
    """
    used = []

    def open_page(html, theme="light", width=760, markers="", script=True, own=False):
        page = pages.borrow(script)
        used.append((page, script, own))
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=theme, reduced_motion="no-preference")
        page.set_content(
            f'<!doctype html><html lang="en" {markers}><head><meta charset="utf-8"><title>figure</title>'
            '<meta name="viewport" content="width=device-width"><style>body{margin:0;padding:0 16px}</style></head>'
            f"<body><main><h1>Page</h1>{html}</main></body></html>"
        )
        return page

    yield open_page
    for page, script, own in used:
        if own:
            page.context.close()
        else:
            pages.give_back(page, script)
    faults, pages.faults[:] = [*pages.faults], []
    assert faults == []


def _without(reason: str):
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
