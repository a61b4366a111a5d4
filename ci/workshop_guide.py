"""The instructor's guide of the workshop's kit: the built workshop page as a file of its own, and on paper."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import browser
from project import Project
from workshop_plan import PAGE, WorkshopError

_ARTICLE = re.compile(r'<article class="bd-article">(.*?)</article>', re.DOTALL)
_TITLE = re.compile(r"<h1>(.*?)</h1>", re.DOTALL)
_HEADERLINK = re.compile(r'<a class="headerlink".*?</a>', re.DOTALL)
_ADDRESS = re.compile(r'\b(href|src)="(?![a-z][a-z0-9+.-]*:|#)([^"]*)"')
_TAG = re.compile(r"<[^>]+>")
_STYLE = """
:root { color-scheme: light dark }
body { margin: 0 auto; padding: 1.5rem 1rem; max-width: 46rem; font: 1rem/1.55 system-ui, sans-serif;
  color: light-dark(#1b1f24, #e6e8eb); background: light-dark(#fff, #121212) }
a { color: light-dark(#0b62a6, #6cb6ff) } h1, h2 { line-height: 1.25 } h2 { margin-top: 2rem }
table { border-collapse: collapse; width: 100%; font-size: .9rem; display: block; overflow-x: auto }
th, td { border-top: 1px solid light-dark(#d8dde3, #343a41); padding: .3rem .6rem .3rem 0; text-align: left;
  vertical-align: top } td p { margin: 0 } .text-right { text-align: right; white-space: nowrap }
pre { background: light-dark(#f3f5f7, #1f2328); padding: .6rem .9rem; overflow-x: auto; border-radius: 4px }
@media print { @page { size: A4; margin: 18mm 16mm } :root { color-scheme: light } body { max-width: none; padding: 0;
  font-size: 10pt } table { display: table; font-size: 8.5pt } tr, pre { break-inside: avoid }
  h2, h3 { break-after: avoid } }
"""


def built_page(project: Project, language: str) -> Path:
    """Where the builder puts the workshop page of a language."""
    return project.html / ("" if language == "en" else language) / f"{PAGE}.html"


def page(project: Project, language: str, book: str = "book") -> str:
    """The guide as one HTML file that lies beside the folder `book` of the built book.

    Raises:
        WorkshopError: the book has not been built with its workshop page, or the theme writes pages otherwise.
    """
    path = built_page(project, language)
    if not path.exists():
        raise WorkshopError(f"{path} is missing: run `make book` (`{PAGE}` has to stand in _toc.yml)")
    found = _ARTICLE.search(path.read_text(encoding="utf-8"))
    title = _TITLE.search(found[1]) if found else None
    if title is None:
        raise WorkshopError(f'{path} has no <article class="bd-article"> with a title: the theme has changed')
    place = path.parent.relative_to(project.html).as_posix()
    text = _ADDRESS.sub(rf'\1="{book}/{place}/\2"', _HEADERLINK.sub("", found[1]))
    heading = _TAG.sub("", _HEADERLINK.sub("", title[1]))
    return (
        f'<!doctype html>\n<html lang="{language}">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading, quote=False)}</title>\n<style>{_STYLE}</style>\n<main>{text}</main>\n</html>\n"
    )


def print_page(html: Path) -> Path:
    """Print the guide beside itself as a PDF.

    Raises:
        NoBrowserError: there is no Chromium.
    """
    target = html.with_suffix(".pdf")
    with browser.chromium() as chromium:
        sheet = chromium.new_page(color_scheme="light")
        sheet.goto(html.resolve().as_uri(), wait_until="load")
        sheet.pdf(path=str(target), prefer_css_page_size=True, print_background=True, tagged=True, outline=True)
    return target
