"""What the passes over built pages share: a change that must find its place, the head, addresses within the site.

The book's builder goes on with what Sphinx and its theme wrote. Where it does not find what it looks for, they are
others than it knows, and the book does not build.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class PageError(Exception):
    """A built page, or a file beside it, is not what the builder can work on."""


def replaced(
    text: str, pattern: str | re.Pattern[str], new: str | Callable[[re.Match[str]], str], what: str, count: int = 0
) -> str:
    """The text with matches of a pattern replaced, all or the first ``count``; a ``new`` text is taken as it is.

    Raises:
        PageError: nothing matches; it names ``what`` was looked for.
    """
    changed, found = re.subn(pattern, new if callable(new) else lambda _: new, text, count=count)
    if not found:
        raise PageError(f"has no {what}; expected what matches {getattr(pattern, 'pattern', pattern)}")
    return changed


def first_alone(text: str, pattern: str, what: str) -> str:
    """The text without all matches of a pattern but the first.

    Raises:
        PageError: nothing matches.
    """
    first = re.search(pattern, text)
    if first is None:
        raise PageError(f"has no {what}; expected what matches {pattern}")
    return text[: first.end()] + re.sub(pattern, "", text[first.end() :])


def add_to_head(page: str, tags: str) -> str:
    """The page with more lines at the end of its head.

    Raises:
        PageError: it has no head.
    """
    return replaced(page, "</head>", f"{tags}</head>", "end of a head", count=1) if tags else page


def to_root(path: Path, folder: Path) -> str:
    """What leads from a page to the site's folder: `../` for each folder between them."""
    return "../" * (len(path.relative_to(folder).parts) - 1)


def version(text: str) -> str:
    """A word that changes with a file's content, so that browsers do not keep an old one."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@contextmanager
def naming(path: Path, folder: Path) -> Iterator[None]:
    """Put a page's address within the site before what is wrong with it."""
    try:
        yield
    except PageError as error:
        raise PageError(f"{path.relative_to(folder).as_posix()} {error}") from error
