#!/usr/bin/env python3
"""The built book as one PDF, build/ds41.pdf: a title page, the contents, and every page in the order of _toc.yml.

    python ci/print_book.py                      the whole book
    python ci/print_book.py book/04-fp4          some pages

Headless Chromium prints each page as the print style sheet has it: solutions shown, figures still. pypdf puts them
together, with a bookmark for each chapter and its sections and a number on each page. Links between pages lead to the
published book.
"""

from __future__ import annotations

import argparse
import html
import io
import sys
from pathlib import Path

import book_rules as rules
import browser
import page_meta
import yaml
from page_markup import PageError
from page_meta import Site
from page_server import serve
from project import HERE, Project
from pypdf import PdfReader, PdfWriter

CONTENTS = "Contents"
FORMAT = {"format": "A4", "print_background": True, "prefer_css_page_size": True}
_SHEET = """<!doctype html><html lang="en"><meta charset="utf-8"><title>ds41</title><style>
@page { size: A4; margin: 0 }
body { margin: 0; font: 10pt/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1b1f24 }
section { position: relative; box-sizing: border-box; height: 297mm; padding: 40mm 24mm; break-after: page }
section:last-child { break-after: auto }
h1 { font-size: 30pt; line-height: 1.2; margin: 0 0 12mm } h2 { font-size: 18pt; margin: 0 0 8mm }
img { width: 100%; margin: 8mm 0 } ol { list-style: none; padding: 0; margin: 0 }
li { display: flex; gap: 1em; padding: 1.1mm 0 } li span { flex: 1 } li.part { margin-top: 3mm; font-weight: 600 }
footer { position: absolute; bottom: 9mm; left: 16mm; right: 16mm; display: flex; justify-content: space-between;
  font-size: 8pt; color: #57606a }
</style>"""


def print_page(page, site: str, address: str, published: str) -> bytes:
    """One built page as a PDF, its links into the book leading to the published one.

    Raises:
        PageError: a formula of it cannot be drawn.
    """
    page.goto(f"{site}/{address}", wait_until="load")
    faults = list(rules.math_faults(page))
    if faults:
        raise PageError(f"{address}: {'; '.join(faults)}")
    page.evaluate(
        """([site, published]) => {
          for (const link of document.querySelectorAll("main a[href]"))
            if (!link.getAttribute("href").startsWith("#")) link.href = link.href.replace(site, published);
        }""",
        [f"{site}/", published],
    )
    return page.pdf(**FORMAT, outline=True, tagged=True)


def front_matter(page, project: Project, site: str, starts: list[tuple[str, str, int]]) -> bytes:
    """Title page and contents; `starts` are the parts and chapters as (part, title, first page)."""
    picture = f"{site}/_static/ledger.svg"
    lines, last = [], ""
    for part, title, first in starts:
        if part != last:
            lines.append(f'<li class="part">{html.escape(part)}</li>')
            last = part
        lines.append(f"<li><span>{html.escape(title)}</span>{first}</li>")
    book, author = project.config["title"], project.config["author"]
    address = Site.of(project).address
    page.set_content(
        f"{_SHEET}<section><h1>{html.escape(book)}</h1><p>{html.escape(author)}</p>"
        f'<img src="{picture}" alt=""><p>{address}</p></section>'
        f"<section><h2>{CONTENTS}</h2><ol>{''.join(lines)}</ol></section>",
        wait_until="load",
    )
    return page.pdf(**FORMAT)


def footers(page, titles: list[str], first: int) -> bytes:
    """Sheets with nothing but a chapter's title and a number, one for each of `titles`."""
    sheets = "".join(
        f"<section><footer><span>{html.escape(title)}</span><span>{number}</span></footer></section>"
        for number, title in enumerate(titles, start=first)
    )
    page.set_content(f"{_SHEET}{sheets}", wait_until="load")
    return page.pdf(**FORMAT | {"print_background": False})


def parts(project: Project) -> dict[str, str]:
    """The caption that each page of _toc.yml stands under; "" for the first page."""
    toc = yaml.safe_load((project.root / "_toc.yml").read_text(encoding="utf-8"))
    captions = {}
    for part in toc.get("parts", []):
        for chapter in part.get("chapters", []):
            captions[chapter["file"]] = part.get("caption", "")
    return captions


def bind(project: Project, addresses: list[str], chromium, site: str) -> tuple[PdfWriter, int]:
    """The whole PDF and its number of pages."""
    page = chromium.new_page(color_scheme="light", reduced_motion="reduce")
    published = Site.of(project).address
    captions = parts(project)
    printed: list[tuple[str, str, PdfReader]] = []
    for address in addresses:
        title, _ = page_meta.describe((project.html / address).read_text(encoding="utf-8"))
        reader = PdfReader(io.BytesIO(print_page(page, site, address, published)))
        printed.append((captions.get(address.removesuffix(".html"), ""), title, reader))
        print(f"{address}: {len(reader.pages)} pages", flush=True)
    # Title page and contents take two; a longer list of contents is printed again with what it takes.
    front = PdfReader(io.BytesIO(front_matter(page, project, site, _starts(printed, 2))))
    if len(front.pages) != 2:
        front = PdfReader(io.BytesIO(front_matter(page, project, site, _starts(printed, len(front.pages)))))
    titles = [title for _, title, reader in printed for _ in reader.pages]
    numbers = PdfReader(io.BytesIO(footers(page, titles, len(front.pages) + 1)))
    page.close()
    writer = PdfWriter()
    writer.append(front, import_outline=False)
    for _, title, reader in printed:
        writer.append(reader, outline_item=title, import_outline=True)
    for sheet, footer in zip(writer.pages[len(front.pages) :], numbers.pages, strict=True):
        sheet.merge_page(footer)
        sheet.compress_content_streams()
    writer.add_metadata({"/Title": project.config["title"], "/Author": project.config["author"]})
    writer.page_mode = "/UseOutlines"
    writer.compress_identical_objects(remove_duplicates=True, remove_unreferenced=True)
    return writer, len(front.pages) + len(titles)


def _starts(printed: list[tuple[str, str, PdfReader]], before: int) -> list[tuple[str, str, int]]:
    starts, number = [], before + 1
    for part, title, reader in printed:
        starts.append((part, title, number))
        number += len(reader.pages)
    return starts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    project = Project(options.root)
    try:
        addresses = rules.addresses(project.html, options.pages or project.page_names)
        with browser.chromium() as chromium, serve(project.html, Site.of(project).path) as site:
            writer, pages = bind(project, addresses, chromium, site)
    except (browser.NoBrowserError, FileNotFoundError, PageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    target = project.build / "ds41.pdf"
    writer.write(target)
    print(f"{pages} pages, {target.stat().st_size / 1e6:.1f} MB: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
