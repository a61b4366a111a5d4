"""A chapter's prose for slides: Markdown taken apart into blocks, and the sentences of it that a slide shows.

What a slide shows is decided by rule, not by hand, so that it follows the chapter: bold text, the openings of
paragraphs, the bold beginnings of a list. The prose itself goes into the speaker's notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WORDS = 40
# A list is read at a glance, item by item.
LIST_WORDS = 64
_ANNOUNCED = 3

_CITATION = re.compile(r"\s*\{cite\}`[^`]*`")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_FENCE = re.compile(r"(`{3,}|:{3,})(.*)")
_ITEM = re.compile(r"(?:[-*+]|\d+\.)\s+")
# What no sentence ends inside of: code, formulas, links.
_WHOLE = re.compile(r"`[^`]*`|\$[^$]+\$|\[[^\]]*\]\([^)]*\)")
_END = re.compile(r"[.!?][*\"”“’')\]]*\s+(?=[*\"“„‚'(\[]*[A-ZÄÖÜ0-9\0])")
_ABBREVIATION = re.compile(
    r"\b(?:[A-Za-zÄÖÜäöü]|e\.g|i\.e|vs|cf|etc|Fig|Sec|No|Abb|Kap|Nr|bzw|ca|vgl|sog|evtl|usw|Abschn)\.$"
)


@dataclass(frozen=True)
class Block:
    """A piece of a text cell.

    Attributes:
        kind: "heading", "paragraph", "list", "math", "table", "note" (an admonition) or "code".
        text: its Markdown; of a note, what is inside; of a list, one item a line.
        level: of a heading.
        title: of a note.
    """

    kind: str
    text: str
    level: int = 0
    title: str = ""


def plain(text: str, address: Callable[[str], str | None]) -> str:
    """The Markdown without citations; links lead where `address` says, and are mere words where it says None."""

    def link(match: re.Match) -> str:
        target = address(match[2])
        return match[1] if target is None else f"[{match[1]}]({target})"

    return _LINK.sub(link, _CITATION.sub("", text))


def blocks(text: str) -> list[Block]:
    """The blocks of a Markdown text, in order."""
    found: list[Block] = []
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        fence = _FENCE.match(line)
        if not line.strip():
            at += 1
        elif fence:
            end = _find(lines, at + 1, lambda other, mark=fence[1]: other.strip() == mark)
            found.append(_fenced(fence[2].strip(), lines[at + 1 : end]))
            at = end + 1
        elif line.startswith("$$"):
            one = line.rstrip().endswith("$$") and len(line.strip()) > 2
            end = at if one else _find(lines, at + 1, lambda other: other.rstrip().endswith("$$"))
            found.append(Block("math", "\n".join(lines[at : end + 1])))
            at = end + 1
        elif line.startswith("#"):
            marks, title = line.split(" ", 1)
            found.append(Block("heading", title.strip(), level=len(marks)))
            at += 1
        else:
            end = _find(lines, at + 1, _opens_another)
            found.append(_running(lines[at:end]))
            at = end
    return found


def _find(lines: Sequence[str], start: int, stops: Callable[[str], bool]) -> int:
    return next((at for at in range(start, len(lines)) if stops(lines[at])), len(lines))


def _opens_another(line: str) -> bool:
    return not line.strip() or line.startswith(("#", "$$")) or _FENCE.match(line) is not None


def _fenced(info: str, lines: list[str]) -> Block:
    if info.startswith("{"):
        kept = [line for line in lines if not re.match(r":[\w-]+:", line)]
        return Block("note", "\n".join(kept).strip(), title=info.partition("}")[2].strip())
    return Block("code", "\n".join(lines))


def _running(lines: list[str]) -> Block:
    """A paragraph, a list or a table."""
    if lines[0].startswith("|"):
        return Block("table", "\n".join(lines))
    if not _ITEM.match(lines[0]):
        return Block("paragraph", " ".join(line.strip() for line in lines))
    items: list[str] = []
    for line in lines:
        if _ITEM.match(line):
            items.append(_ITEM.sub("", line, count=1).strip())
        else:
            items[-1] += " " + line.strip()
    return Block("list", "\n".join(items))


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph; bold that runs over several is bold in each."""
    kept: list[str] = []

    def keep(match: re.Match) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    guarded = _WHOLE.sub(keep, " ".join(text.split()))
    found, start = [], 0
    for end in _END.finditer(guarded):
        if not _ABBREVIATION.search(guarded[start : end.start() + 1]):
            found.append(guarded[start : end.end()].strip())
            start = end.end()
    found.append(guarded[start:].strip())
    whole, bold = [], False
    for sentence in filter(None, found):
        open_after = bold ^ (sentence.count("**") % 2 == 1)
        sentence = ("**" if bold else "") + sentence + ("**" if open_after else "")
        bold = open_after
        whole.append(re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], sentence).replace("****", ""))
    return whole


def words(text: str) -> int:
    return len(text.split())


def key_sentences(paragraphs: Iterable[str], budget: int = WORDS) -> list[str]:
    """What a slide shows of some paragraphs, each as what is left of it.

    Bold sentences come first, then the opening of each paragraph, then what follows on an opening, as far as
    `budget` words go. One sentence is always among them, however long.
    """
    texts = [sentences(paragraph) for paragraph in paragraphs]
    chosen: list[set[int]] = [set() for _ in texts]
    left = budget

    def take(paragraph: int, sentence: int) -> bool:
        nonlocal left
        count = words(texts[paragraph][sentence])
        if sentence in chosen[paragraph] or (count > left and any(chosen)):
            return False
        chosen[paragraph].add(sentence)
        left -= count
        return True

    for number, text in enumerate(texts):
        for at, sentence in enumerate(text):
            if "**" in sentence:
                take(number, at)
    for number, text in enumerate(texts):
        if text:
            take(number, 0)
    for number, text in enumerate(texts):
        at = 1
        # What leans on a sentence that is not there makes no sense.
        while at < len(text) and at - 1 in chosen[number] and (at in chosen[number] or take(number, at)):
            at += 1
    return [_ended(text, taken) for text, taken in zip(texts, chosen, strict=True) if taken]


def _ended(text: Sequence[str], taken: set[int]) -> str:
    """The sentences that were taken, without an end that only announces what is not there."""
    last = max(taken)
    if last + 1 < len(text) and len(taken) > 1 and words(text[last]) <= _ANNOUNCED and "**" not in text[last]:
        taken = taken - {last}
    return re.sub(r":$", ".", " ".join(text[at] for at in sorted(taken)))


def list_points(block: Block) -> list[str]:
    """The points of a list: what is bold in each item, or else its first sentence."""
    points = []
    for item in block.text.split("\n"):
        bold = _BOLD.match(item)
        points.append(f"**{bold[1]}**" if bold else sentences(item)[0])
    while len(points) > 1 and sum(map(words, points)) > LIST_WORDS:
        points.pop()
    return points


def first_bold(text: str) -> str:
    """The first bold text without its marks; "" if there is none."""
    bold = _BOLD.search(text)
    return " ".join(bold[1].split()) if bold else ""


def as_notes(found: Iterable[Block]) -> str:
    """Blocks as Markdown for the speaker: notes of the text become paragraphs, headings bold lines."""
    parts = []
    for block in found:
        if block.kind == "heading":
            parts.append(f"**{block.text}**")
        elif block.kind == "note":
            parts.extend([f"**{block.title}**", block.text])
        elif block.kind == "list":
            parts.append("\n".join(f"- {item}" for item in block.text.split("\n")))
        elif block.kind == "code":
            parts.append(f"```\n{block.text}\n```")
        else:
            parts.append(block.text)
    return "\n\n".join(parts)
