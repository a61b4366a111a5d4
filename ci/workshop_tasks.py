"""The exercises of a chapter's text cells: how each is called, what it asks, and what of that a slide shows."""

from __future__ import annotations

import re

import workshop_prose as prose
from workshop_prose import Block

WORDS = 40
_LABEL = re.compile(r"\*\*(\d\d\.\d[^*]*)\*\*\s*")


def tasks(found: list[Block]) -> list[tuple[str, Block]]:
    """The exercises of a text cell: what stands in bold before each, such as "04.1 · easy · 5 min", and the text."""
    named: list[tuple[str, list[str]]] = []
    for block in found:
        label = _LABEL.match(block.text) if block.kind == "paragraph" else None
        if label:
            named.append((label[1].strip(), [block.text[label.end() :].strip()]))
        elif named and block.kind != "heading":
            named[-1][1].append(prose.as_notes([block]))
    return [(label, Block("paragraph", "\n\n".join(filter(None, text)))) for label, text in named]


def shortened(text: str) -> str:
    """The sentences of an exercise that fit; what is asked with a question mark is always among them."""
    said = prose.sentences(text.split("\n\n")[0])
    asked = {at for at, sentence in enumerate(said) if sentence.rstrip("*").endswith("?")}
    left = WORDS - sum(prose.words(said[at]) for at in asked)
    kept = set(asked)
    for at, sentence in enumerate(said):
        if at not in asked:
            left -= prose.words(sentence)
            if left < 0 and kept:
                break
            kept.add(at)
    return " ".join(said[at] for at in sorted(kept))
