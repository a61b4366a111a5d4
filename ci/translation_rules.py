"""What must hold of a translation, whatever it says: what is no word stays, and numbers are written the German way."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ds41.language import numbers

# What a translation takes over unchanged: code, formulas, targets of links, roles' names, substitutions, addresses.
_KEPT = {
    # A role's text is no code, and its end opens none.
    "code": re.compile(r"\{[a-z:-]+\}`[^`]*`|(?<!`)(`[^`]+`)(?!`)"),
    # A price is no formula.
    "formula": re.compile(r"\$(?!\{\d)[^$]+\$"),
    "link": re.compile(r"\]\(([^)]*)\)"),
    "citation or role": re.compile(r"\{[a-z:-]+\}(?=`)"),
    "substitution": re.compile(r"\{\{.*?\}\}"),
}
_PLACES = re.compile(r"\{\w*[^{}]*\}|</?\w+>")
_FORMULA_TEXT = re.compile(r"\\text\{[^{}]*\}")
_SEPARATED = re.compile(r"\d[.,]\d")

_CODE = re.compile(
    r"`[^`]+`|\$[^$]+\$|\$\$.*?\$\$|\]\([^)]*\)|<code>.*?</code>|\{\{.*?\}\}|<[^>]*>|https?://\S+", re.DOTALL
)


def faults(text: str, translation: str, context: str) -> Iterator[str]:
    """Faults of one translation, as sentences."""
    if _edges(text) != _edges(translation):
        yield "begins or ends with other white space than the English"
    if context == "" or "`" in text:
        for name, pattern in _KEPT.items():
            missing = Counter(map(_wordless, pattern.findall(text)))
            missing.subtract(map(_wordless, pattern.findall(translation)))
            changed = {one: count for one, count in missing.items() if one and count}
            if changed:
                yield f"{name} not as in the English: {', '.join(changed)}"
    # Places may be used more than once, and none may be lost or made up.
    if set(_places(text)) != set(_places(translation)):
        yield f"places {sorted(set(_places(text)) ^ set(_places(translation)))} stand on one side only"
    if not _nested(translation) and _nested(text):
        yield "its tags do not close in order"
    yield from _number_faults(text, translation)


def _nested(text: str) -> bool:
    """Whether each numbered tag that has an end is ended after its beginning, the last one first."""
    ended = set(re.findall(r"</(\d+)>", text))
    opened: list[str] = []
    for slash, number in re.findall(r"<(/?)(\d+)>", text):
        if not slash:
            opened += [number] if number in ended else []
        elif not opened or opened.pop() != number:
            return False
    return not opened


def _wordless(kept: str) -> str:
    """A formula without its words, which are translated; other things as they are."""
    return _FORMULA_TEXT.sub(r"\\text{}", kept)


def _edges(text: str) -> tuple[str, str]:
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]


def _places(text: str) -> list[str]:
    return _PLACES.findall(_FORMULA_TEXT.sub("", re.sub(r"\{[a-z:-]+\}`[^`]*`|\{\{.*?\}\}", "", text)))


def _number_faults(text: str, translation: str) -> Iterator[str]:
    """Each number with a separator stands in the translation, with the separators of German."""
    english = Counter(_separated(text))
    german = Counter(_separated(translation, taken_as=numbers.german))
    english.subtract(german)
    wrong = {one: count for one, count in english.items() if count}
    for number, count in wrong.items():
        side = "is missing" if count > 0 else "is not in the English, or not written with a comma for its decimals"
        yield f"the number {number if count > 0 else numbers.german(number)} {side}"


def _separated(text: str, taken_as=str) -> list[str]:
    """The numbers of a text that have a separator, outside of code; those of a translation as English writes them."""
    bare = _CODE.sub(" ", text)
    if taken_as is str:
        return [one for one in numbers.take_out(bare)[1] if _SEPARATED.search(one)]
    # Swapping the separators of the whole text makes German numbers English ones.
    swapped = bare.translate(str.maketrans(".,", ",."))
    return [one for one in numbers.take_out(_names(swapped))[1] if _SEPARATED.search(one)]


def _names(swapped: str) -> str:
    """Without what German names by a number with a point: sections, versions, exercises."""
    return re.sub(
        r"(Abschnitte?n?|Kapiteln?|Aufgaben?|Version(?:en)?|Python|torch|[Tt]riton|CUDA|§) ?[\d,]+", " ", swapped
    )
