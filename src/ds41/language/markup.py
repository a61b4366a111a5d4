"""The texts of a figure's HTML, found and translated where they stand.

A text is a run of words and inline tags between two block tags, or a spoken attribute. As a message it has ``{1}``,
``{2}``, ... for its numbers and ``<1>``, ``</1>``, ... for tags with attributes, so that one translation serves a
figure in all its states. What stands in an element with ``translate="no"`` is no language, text of a model or names;
such an inline tag within a text is a place, as ``<1>``. Worker names such as prefill-0 are no words.

Source: ds41's own.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape, unescape

from ds41.language import numbers

_TAG = r"</?[A-Za-z](?:\"[^\"]*\"|'[^']*'|[^<>\"'])*>"
_TOKEN = re.compile(rf"<!--.*?-->|<(style|script)\b[^>]*>.*?</\1>|{_TAG}", re.DOTALL)
_NAME = re.compile(r"</?([A-Za-z][\w-]*)")
_INLINE = frozenset(("a", "abbr", "b", "bdi", "br", "code", "em", "i", "kbd", "small", "strong", "sub", "sup", "var"))
_VOID = frozenset(("br", "input", "wbr", "hr", "img"))
_SPOKEN = re.compile(r'(?<=\s)(aria-label|aria-valuetext|aria-roledescription|alt|title|placeholder)="([^"]*)"')
_CODE = r"<code\b[^>]*>.*?</code>"
_UNTRANSLATED = re.compile(r'<[^>]*\stranslate="no"')
_KEPT = re.compile(r'<([a-z]+)\b[^<>]*\stranslate="no"[^<>]*>.*?</\1>', re.DOTALL)
_KEPT_OR_CODE = rf"{_KEPT.pattern}|{_CODE}"
_PLACE = re.compile(r"<(/?)(\d+)>")
_WORD = re.compile(r"[A-Za-zµ]{2}")
_WORKER = re.compile(r"[a-z]+-\d+")
# Each line of a text in a plot is an element of its own.
_LINES = re.compile(r'(<g(?: id="[^"]*text_\d+")?>\s*)((?:<text\b[^>]*>[^<]*</text>\s*){2,})(?=</g>)')
_LINE = re.compile(r"(<text\b[^>]*>)([^<]*)(</text>)")

Translate = Callable[[str], "str | None"]
"""From a message to its translation; None where there is none."""


def rewrite(html: str, translate: Translate) -> str:
    """The HTML with each of its texts translated; one without a translation stays as it is."""
    written: list[str] = []
    end = 0
    for match in _LINES.finditer(html):
        written += _flow(html[end : match.start()], translate), match[1], _lines(match[2], translate)
        end = match.end()
    return "".join([*written, _flow(html[end:], translate)])


def _flow(html: str, translate: Translate) -> str:
    written: list[str] = []
    run: list[str] = []
    end = 0
    for match in _TOKEN.finditer(html):
        if match.start() < end:
            # Within what is not to be translated.
            continue
        if match.start() > end:
            run.append(html[end : match.start()])
        end = match.end()
        name = _NAME.match(match[0])
        if _UNTRANSLATED.search(match[0]) and name[1] not in _VOID:
            end = _end_of_element(html, match.end(), name[1])
            if name[1] in _INLINE:
                run.append(html[match.start() : end])
                continue
            written += _run(_nodes(run), translate), html[match.start() : end]
            run = []
        elif name and name[1] in _INLINE:
            run.append(match[0])
        else:
            written += _run(_nodes(run), translate), _tag(match[0], translate)
            run = []
    return "".join([*written, _run(_nodes([*run, html[end:]]), translate)])


def _end_of_element(html: str, start: int, name: str) -> int:
    """Where the element ends whose first tag ends at `start`; the end of the text if its last tag is missing."""
    depth = 1
    for match in re.compile(rf"<(/?){name}\b[^>]*>").finditer(html, start):
        depth += -1 if match[1] else 1
        if depth == 0:
            return match.end()
    return len(html)


def plain(text: str, translate: Translate) -> str:
    """A text without markup, such as an attribute or a word of a figure's data, translated; else as it is."""
    message, found = numbers.take_out(" ".join(text.split()))
    if not has_words(text):
        return numbers.localise(text)
    translated = translate(message)
    return text if translated is None else numbers.put_in(translated, found, numbers.german)


def has_words(text: str) -> bool:
    """Whether there is something to translate in a text without markup."""
    return _WORD.search(numbers.take_out(text)[0]) is not None and not _WORKER.fullmatch(text.strip())


@dataclass
class _Node:
    """A text (no tags), an element, or, without an end, one that is not to be translated or a tag whose partner stands
    in another run."""

    head: str
    children: list[_Node] = field(default_factory=list)
    end: str = ""

    @property
    def html(self) -> str:
        return self.head + "".join(child.html for child in self.children) + self.end

    @property
    def is_code(self) -> bool:
        return self.head.startswith("<code") and not self.is_kept

    @property
    def is_kept(self) -> bool:
        """Whether it is an element with translate="no", whole."""
        return _KEPT.fullmatch(self.head) is not None

    @property
    def has_words(self) -> bool:
        if self.head.startswith("<"):
            return self.is_code or any(child.has_words for child in self.children)
        return has_words(unescape(self.head))


def _nodes(run: list[str]) -> list[_Node]:
    """The run as a tree."""
    levels: list[list[_Node]] = [[]]
    for part in run:
        name = _NAME.match(part)
        if name is None or name[1] in _VOID or _KEPT.fullmatch(part):
            levels[-1].append(_Node(part))
        elif not part.startswith("</"):
            levels[-1].append(_Node(part))
            levels.append([])
        elif len(levels) > 1 and _NAME.match(levels[-2][-1].head)[1] == name[1]:
            children = levels.pop()
            levels[-1][-1].children, levels[-1][-1].end = children, part
        else:
            levels[-1].append(_Node(part))
    return [node for level in levels for node in level]


def _run(nodes: list[_Node], translate: Translate) -> str:
    """Words and inline tags. What stands before and after the words, or around all of them, is no part of the text."""
    worded = [i for i, node in enumerate(nodes) if node.has_words]
    if not worded or all(nodes[i].is_code for i in worded):
        return "".join(_unworded(node, translate) for node in nodes)
    first, last = worded[0], worded[-1] + 1
    before, core, after = nodes[:first], nodes[first:last], nodes[last:]
    if len(core) == 1 and core[0].end:
        middle = _tag(core[0].head, translate) + _run(core[0].children, translate) + core[0].end
    else:
        html = "".join(node.html for node in core)
        lead, trail = re.match(r"\s*", html)[0], re.search(r"\s*$", html)[0]
        middle = lead + _text(html.strip(), translate) + trail
    return "".join(
        [*(_unworded(node, translate) for node in before), middle, *(_unworded(node, translate) for node in after)]
    )


def _unworded(node: _Node, translate: Translate) -> str:
    if node.is_code or node.is_kept:
        return node.html
    head = _tag(node.head, translate) if node.head.startswith("<") else numbers.localise(node.head)
    return head + "".join(_unworded(child, translate) for child in node.children) + node.end


def _tag(tag: str, translate: Translate) -> str:
    """A tag with what it says to a screen reader translated; comments, styles and scripts stay as they are."""
    if re.match(r"<(!|style\b|script\b)", tag):
        return tag
    return _SPOKEN.sub(lambda match: f'{match[1]}="{escape(plain(unescape(match[2]), translate))}"', tag)


def _text(html: str, translate: Translate) -> str:
    tags: list[str] = []
    places: list[str] = []

    def place(match: re.Match) -> str:
        """A tag as the message has it: bare ones as they are, others by number, code whole."""
        tag = match[0]
        if _KEPT.fullmatch(tag):
            tags.append(tag)
            return f"<{len(tags)}>"
        if tag.startswith("<code"):
            return tag
        if tag.startswith("</"):
            return places.pop() if places else tag
        name = _NAME.match(tag)[1]
        bare = tag == f"<{name}>"
        if not bare:
            tags.append(_tag(tag, translate))
        if name not in _VOID:
            places.append(f"</{name}>" if bare else f"</{len(tags)}>")
        return tag if bare else f"<{len(tags)}>"

    def tag_again(match: re.Match) -> str:
        index = int(match[2])
        if not 1 <= index <= len(tags):
            raise ValueError(f"{translated!r} has a place {match[0]}; there are {len(tags)} tags")
        return f"</{_NAME.match(tags[index - 1])[1]}>" if match[1] else tags[index - 1]

    message = " ".join(re.sub(rf"{_KEPT_OR_CODE}|{_TAG}", place, html, flags=re.DOTALL).split())
    for escaped, quote in (("&#x27;", "'"), ("&quot;", '"')):
        message = message.replace(escaped, quote)
    message, found = _numbers_out(message)
    translated = translate(message)
    if translated is None:
        return html
    # What code holds in braces is no place.
    parts = re.split(rf"({_CODE})", translated, flags=re.DOTALL)
    parts[::2] = [numbers.put_in(part, found, numbers.german) for part in parts[::2]]
    return _PLACE.sub(tag_again, "".join(parts))


def _numbers_out(message: str) -> tuple[str, list[str]]:
    """A message without its numbers; code and tags keep theirs."""
    kept = re.findall(rf"{_CODE}|<[^<>]*>", message, re.DOTALL)
    # A private character stands in for each.
    bare, found = numbers.take_out(re.sub(rf"{_CODE}|<[^<>]*>", "\ue000", message, flags=re.DOTALL))
    pieces = bare.split("\ue000")
    return "".join(piece + one for piece, one in zip(pieces, [*kept, ""], strict=True)), found


def _lines(group: str, translate: Translate) -> str:
    """The lines of one text of a plot, translated as one and broken into as many at most."""
    lines = _LINE.findall(group)
    text = " ".join(unescape(words).strip() for _, words, _ in lines)
    translated = plain(text, translate)
    if translated == text:
        return group
    broken = _broken(translated, len(lines))
    texts = iter([*broken, *[""] * (len(lines) - len(broken))])
    return _LINE.sub(lambda match: f"{match[1]}{escape(next(texts), quote=False)}{match[3]}", group)


def _broken(text: str, count: int) -> list[str]:
    """The text in at most ``count`` lines, the longest of them as short as can be."""
    width = -(-len(text) // count)
    while len(lines := textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)) > count:
        width += 1
    return lines
