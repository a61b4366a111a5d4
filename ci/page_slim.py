"""Built pages without bytes that no reader sees: what matplotlib and Pygments write at length, said shortly.

A page of this book is some twenty plots, each drawn twice, and a thousand lines of highlighted code. matplotlib names
every group, indents every line and gives six decimals; Pygments puts a span around every name and bracket, also
where its colour is that of plain text.
"""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from page_markup import PageError

_PLOT = re.compile(r'<svg class="(?:ds-wide|ds-narrow|)" role="img".*?</svg>', re.DOTALL)
_CODE = re.compile(r'<div class="highlight">.*?</div>', re.DOTALL)
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
_ROUNDED = {"d", "points", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx", "cy"}
# What a child takes from its group anyway may stand at the group alone.
_INHERITED = {"fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin", "stroke-dasharray"}
_INHERITED |= {"stroke-dashoffset", "fill-opacity", "stroke-opacity"}
_TEXT_TAGS = {"text", "tspan", "style", "title", "desc"}


def slim_plots(page: str) -> str:
    """The page with the same plots in fewer bytes; a hundredth of a point is the finest step that is kept."""
    return _PLOT.sub(lambda match: _slim_plot(match[0]), page)


def _slim_plot(svg: str) -> str:
    # HTML's named characters are unknown to XML.
    root = ElementTree.fromstring(re.sub(r"&(?!amp;|lt;|gt;|quot;|#)\w+;", lambda m: html.unescape(m[0]), svg))
    text = ElementTree.tostring(root, encoding="unicode")
    used = dict.fromkeys(re.findall(r"url\(#([^)]+)\)", text) + re.findall(r'href="#([^"]+)"', text))
    short = {name: f"{_family(name)}{number}" for number, name in enumerate(used)}
    for element in root.iter():
        _shorten(element, short)
    _flatten(root)
    return ElementTree.tostring(root, encoding="unicode")


def _family(name: str) -> str:
    """A prefix of ids that tells this drawing of this figure from all others on the page."""
    found = re.match(r"ds-fig-(\w+)-(?:ds-)?(\w)", name)
    return "p" + "".join(found.groups()) if found else name


def _shorten(element: ElementTree.Element, short: dict[str, str]) -> None:
    for name, value in list(element.attrib.items()):
        if name == "id":
            if value in short:
                element.set("id", short[value])
            else:
                del element.attrib["id"]
        elif name == "href" and value.startswith("#"):
            element.set("href", f"#{short[value[1:]]}")
        elif name == "clip-path":
            element.set(name, re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{short[m[1]]})", value))
        elif name == "d":
            value = re.sub(r"\s+", " ", _NUMBER.sub(_round, value)).strip()
            element.set("d", re.sub(r" ?([A-Za-z]) ?", r"\1", value))
        elif name in _ROUNDED:
            element.set(name, _NUMBER.sub(_round, value))
        elif name == "style":
            # The page's style sheet chooses the font.
            parts = [part.strip() for part in value.split(";") if part.strip()]
            kept = [re.sub(r":\s+", ":", part) for part in parts if not part.startswith("font-family")]
            element.set("style", ";".join(kept))
        elif name == "transform":
            if re.fullmatch(r"rotate\(-?0[ ,].*\)", value):
                del element.attrib[name]
            else:
                place = re.sub(r"translate\([^)]*\)", lambda m: _NUMBER.sub(_round, m[0]), value)
                element.set(name, re.sub(r"(rotate\(\S+ )([^)]*)", lambda m: m[1] + _NUMBER.sub(_round, m[2]), place))


def _round(match: re.Match) -> str:
    value = round(float(match[0]), 2)
    return "0" if value == 0 else f"{value:g}" if abs(value) < 1000 else f"{value:.2f}".rstrip("0").rstrip(".")


def _flatten(element: ElementTree.Element) -> None:
    """Groups that say nothing give their place to their children; a style that all children share moves up."""
    if element.tag not in _TEXT_TAGS:
        element.text = None
    children: list[ElementTree.Element] = []
    for child in list(element):
        _flatten(child)
        child.tail = None if element.tag not in _TEXT_TAGS else child.tail
        plain = child.tag in ("g", "defs") and not child.attrib
        if child.tag == "g" and plain:
            children.extend(child)
        elif not (plain and len(child) == 0):
            children.append(child)
    element[:] = children
    styles = {child.get("style") for child in children}
    if element.tag == "g" and len(children) > 1 and len(styles) == 1 and not element.get("style"):
        style = styles.pop()
        if style and {part.partition(":")[0] for part in style.split(";")} <= _INHERITED:
            element.set("style", style)
            for child in children:
                del child.attrib["style"]


def plain_classes(pygments_css: str) -> set[str]:
    """Classes of code to which the style sheet gives the colour of plain text and nothing else, in every theme.

    Raises:
        PageError: the style sheet has no rules of the form that is known here.
    """
    rules = re.findall(r'(html\[data-theme="\w+"\]) \.highlight(?: \.(\w+))? \{([^}]*)\}', pygments_css)
    base = {theme: _declarations(body).get("color") for theme, name, body in rules if not name}
    if not base or None in base.values() or {theme for theme, _, _ in rules} != set(base):
        raise PageError("pygments.css does not give plain text a colour in rules for each html[data-theme]")
    plain: dict[str, set[bool]] = {}
    for theme, name, body in rules:
        if name:
            plain.setdefault(name, set()).add(_declarations(body) == {"color": base[theme]})
    return {name for name, answers in plain.items() if answers == {True}}


def _declarations(body: str) -> dict[str, str]:
    pairs = (part.partition(":") for part in body.split(";") if ":" in part)
    return {name.strip(): value.strip() for name, _, value in pairs}


def slim_code(page: str, plain: set[str]) -> str:
    """The page without spans around code that looks like plain text."""
    span = re.compile(rf'<span class="(?:{"|".join(sorted(plain))})">([^<]*)</span>')
    return _CODE.sub(lambda match: span.sub(r"\1", match[0]).replace("<span></span>", ""), page)
