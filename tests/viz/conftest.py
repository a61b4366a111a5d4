"""A browser for the figures: one Chromium for a file of tests, a fresh page for each look.

Not for the session: Playwright allows one at a time in a process, and other tests open theirs.
"""

from __future__ import annotations

import os
from pathlib import Path

import browser as ci_browser
import npm_tools
import pytest
from project import Project

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def chromium():
    try:
        with ci_browser.chromium() as running:
            yield running
    except ci_browser.NoBrowserError as error:
        _without(str(error))


@pytest.fixture(scope="session")
def axe_source():
    try:
        folder = npm_tools.package(Project(ROOT), "axe-core")
    except npm_tools.NpmError as error:
        _without(str(error))
    return (folder / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def look(chromium):
    """look(html, ...) -> a page that shows ``html``; any error or request of the page fails the test at its end."""
    contexts, faults = [], []

    def open_page(html, theme="light", width=760, markers="", script=True):
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=theme, java_script_enabled=script
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"page error: {error}"))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: faults.append(f"request: {request.url[:120]}"))
        page.set_content(
            f'<!doctype html><html lang="en" {markers}><head><meta charset="utf-8"><title>figure</title>'
            '<meta name="viewport" content="width=device-width"><style>body{margin:0;padding:0 16px}</style></head>'
            f"<body><main><h1>Page</h1>{html}</main></body></html>"
        )
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _without(reason: str):
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
