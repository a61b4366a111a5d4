"""A figure in the language that is spoken: its HTML, the data that its script draws, and the script's own words.

Source: ds41's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ds41.language import markup
from ds41.language.catalogue import Catalogue

_DATA = re.compile(r'(<script type="application/json" class="ds-data">)(.*?)(</script>)', re.DOTALL)
_WORDS = "const WORDS = {};"
_LOCALE = 'const LOCALE = "en-US";'
# What stands in a message for the name of a device, and from where on private characters stand in for the names.
_DEVICE, _MARK = "{device}", 0xE001
# Keys of a figure's data under which labels stand.
_LABELS = frozenset(("edges", "held", "labels"))
_TAG = re.compile(r"<[a-z]+\b[^>]*>")
_SCRIPT = re.compile(r"<script>.*?</script>", re.DOTALL)


def localise(html: str, catalogue: Catalogue, devices: Sequence[str] = ()) -> str:
    """A figure's HTML in the language of ``catalogue``; what it lacks stays English, and is noted there.

    Args:
        html: as a diagram or a plot shows itself in a notebook.
        catalogue: the translations.
        devices: names of the devices that it may tell of. Messages have ``{device}`` in their place.
    """
    marks = {chr(_MARK + number): name for number, name in enumerate(devices)}
    for mark, name in marks.items():
        html = html.replace(name, mark)
    html = _localised(html, _Places(catalogue, "".join(marks)))
    for mark, name in marks.items():
        # In JSON the mark is written as an escape.
        html = html.replace(mark, name).replace(json.dumps(mark).strip('"'), name)
    return html


class _Places(Catalogue):
    """A catalogue whose messages have a place for the device, of which a text has a mark."""

    def __init__(self, catalogue: Catalogue, marks: str) -> None:
        super().__init__(catalogue.language, catalogue.texts)
        self._catalogue = catalogue
        self._marks = marks

    def find(self, text: str, context: str = "") -> str | None:
        mark = next((mark for mark in self._marks if mark in text), None)
        if mark is None:
            return self._catalogue.find(text, context)
        found = self._catalogue.find(text.replace(mark, _DEVICE), context)
        return None if found is None else found.replace(_DEVICE, mark)


def _localised(html: str, catalogue: Catalogue) -> str:
    html = _DATA.sub(lambda match: f"{match[1]}{_data(match[2], catalogue)}{match[3]}", html)
    html = markup.rewrite(html, catalogue.find)
    return _SCRIPT.sub(lambda match: _script(match[0], catalogue), html)


def _data(text: str, catalogue: Catalogue) -> str:
    translated = _walk(json.loads(text), catalogue)
    written = json.dumps(translated, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return written.replace("<", "\\u003c")


def _walk(value: object, catalogue: Catalogue) -> object:
    """Every text of the data. A word alone may be an identifier; one that is said stands under the key "say"."""
    if isinstance(value, dict):
        if value.keys() == {"say"}:
            return {"say": markup.plain(value["say"], catalogue.find)}
        return {key: _labels(one, catalogue) if key in _LABELS else _walk(one, catalogue) for key, one in value.items()}
    if isinstance(value, list):
        return [_walk(one, catalogue) for one in value]
    if not isinstance(value, str):
        return value
    if _TAG.search(value):
        return markup.rewrite(value, catalogue.find)
    if " " in value.strip():
        # Without words they are coordinates.
        return markup.plain(value, catalogue.find) if markup.has_words(value) else value
    return value


def _labels(value: object, catalogue: Catalogue) -> object:
    """Labels beside arrows, each a list that begins with two texts; what is none of these is data like other data."""
    if isinstance(value, dict):
        return {key: _labels(one, catalogue) for key, one in value.items()}
    if isinstance(value, list) and all(isinstance(one, list) for one in value):
        return [_labels(one, catalogue) for one in value]
    if isinstance(value, list) and len(value) > 1 and all(isinstance(one, str) for one in value):
        return [markup.plain(one, catalogue.find) for one in value[:2]] + value[2:]
    return _walk(value, catalogue)


def _script(script: str, catalogue: Catalogue) -> str:
    if _WORDS not in script:
        return script
    words = {
        message: text
        for message, text in catalogue.of("script")
        # The dictionary of a figure holds what its script may say, and little more.
        if all(part in script for part in re.split(r"\{\d+\}", message))
    }
    written = json.dumps(words, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    return script.replace(_WORDS, f"const WORDS = {written};").replace(_LOCALE, f'const LOCALE = "{catalogue.locale}";')
