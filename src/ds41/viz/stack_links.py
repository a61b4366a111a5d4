"""Where the book is published, for figures that stand outside it.

Source: ds41's own.
"""

from __future__ import annotations

from importlib import metadata

_BOOK = "book/"


def documentation_address(package: str = "ds41") -> str | None:
    """The address of the built book, with a slash at its end: the package's project URL "Documentation".

    None where the package is not installed, or names no such address.
    """
    try:
        named = metadata.metadata(package).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    for entry in named:
        label, _, address = entry.partition(",")
        if label.strip().lower() == "documentation":
            return address.strip().rstrip("/") + "/"
    return None


def chapters_address(package: str = "ds41") -> tuple[str, str] | None:
    """Scheme and place of the folder that holds the chapters' pages: a figure's script joins the two.

    Apart, because no figure may have an address in it that a page could load.
    """
    address = documentation_address(package)
    if address is None:
        return None
    scheme, _, place = address.partition("://")
    return scheme, place + _BOOK


def page(chapter: str) -> str:
    """The file of a chapter's page, beside that of every other chapter."""
    return f"{chapter}.html"
