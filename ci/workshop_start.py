"""The first page of the workshop's kit, START.html: what it holds, and three commands, in each of its languages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape

from ds41 import language as spoken
from ds41.language import LANGUAGES, say

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --page: #fff; --grid: #d8dde3; --link: #0b62a6; --code: #f3f5f7 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --page: #121212; --grid: #343a41; --link: #6cb6ff; --code: #1f2328 } }
body { margin: 0 auto; padding: 2rem 1rem; max-width: 76rem; color: var(--ink); background: var(--page);
  font: 1rem/1.55 system-ui, sans-serif }
main { display: grid; gap: 2rem 3rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)) }
a { color: var(--link) } h1 { line-height: 1.2 } h2, h3 { margin: 1.5rem 0 .5rem }
pre { background: var(--code); padding: .75rem 1rem; overflow-x: auto; border-radius: 4px } section { min-width: 0 }
table { border-collapse: collapse; width: 100% }
td { border-top: 1px solid var(--grid); padding: .4rem .75rem .4rem 0; vertical-align: top }
td:first-child { white-space: nowrap }
"""


@dataclass(frozen=True)
class Kit:
    """What a kit holds, as far as its first page says it.

    Attributes:
        wheel: file name of the package's wheel.
        languages: codes, in order.
        wheels: whether the wheels of all dependencies are there.
    """

    title: str
    version: str
    wheel: str
    languages: tuple[str, ...]
    wheels: bool


@contextmanager
def speaking(code: str) -> Iterator[None]:
    """Speak a language, and afterwards the one from before."""
    before = spoken.current()
    spoken.use(code)
    try:
        yield
    finally:
        spoken.use(before)


def page(kit: Kit) -> str:
    """The whole page; every language has a column, side by side where there is room."""
    columns = []
    for code in kit.languages:
        with speaking(code):
            columns.append(_column(kit, code))
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(kit.title)}: workshop {escape(kit.version)}</title>\n<style>{_STYLE}</style>\n"
        f"<h1>{escape(kit.title)}</h1>\n<main>\n{''.join(columns)}</main>\n</html>\n"
    )


def commands(kit: Kit, code: str) -> list[str]:
    """What a participant types in the unpacked folder, in a fresh environment of Python."""
    offline = "--no-index --find-links wheels " if kit.wheels else ""
    return [
        f"python -m pip install {offline}-r requirements.txt wheel/{kit.wheel}",
        "ds41 doctor --workshop",
        f"jupyter lab notebooks/{code}/exercises",
    ]


def contents(kit: Kit, code: str) -> list[tuple[Sequence[str], str]]:
    """The kit's parts in one language: the places to open, and what they are."""
    book = "book/" if code == "en" else f"book/{code}/"
    return [
        ((f"guide-{code}.html", f"guide-{code}.pdf"), say("Guide for instructors: preparation, two plans, goals")),
        ((f"slides/{code}/index.html",), say("Slides of every chapter; the key S shows the speaker's notes")),
        (
            (f"handout/ledger-{code}.pdf", f"handout/ledger-{code}.html"),
            say("Handout: the ledger of 890 bytes on one page"),
        ),
        ((f"notebooks/{code}/exercises/",), say("Notebooks for participants, with hints and checks")),
        ((f"notebooks/{code}/solved/",), say("The same notebooks, executed and solved")),
        ((f"{book}index.html",), say("The book, to read without a network")),
        (("model/nano/",), say("The small trained model, in the official format")),
        (("requirements.txt", "wheel/"), say("What a machine must have beforehand, and the package")),
        (("MANIFEST.txt", "LICENSE"), say("Size and SHA-256 of every file; the licence")),
    ]


def _column(kit: Kit, code: str) -> str:
    rows = "".join(
        f"<tr><td>{'<br>'.join(f'<a href={chr(34)}{place}{chr(34)}>{place}</a>' for place in places)}</td>"
        f"<td>{escape(what)}</td></tr>\n"
        for places, what in contents(kit, code)
    )
    if kit.wheels:
        network = say("No network is needed: the wheels of all packages are in wheels/, for one platform.")
    else:
        network = say("The first command needs a network, once and before the workshop; nothing else does.")
    typed = escape("\n".join(commands(kit, code)))
    return (
        f'<section lang="{code}">\n<h2>{escape(LANGUAGES[code])}</h2>\n'
        f"<p>{escape(say('Workshop kit, version {version}.', version=kit.version))} {escape(network)}</p>\n"
        f"<h3>{escape(say('Three commands, in a fresh environment with Python 3.11 or newer'))}</h3>\n"
        f"<pre><code>{typed}</code></pre>\n"
        f"<p>{escape(say('The second says whether this machine is ready, and how to mend what is not.'))}</p>\n"
        f"<h3>{escape(say('What is in it'))}</h3>\n<table>\n{rows}</table>\n</section>\n"
    )
