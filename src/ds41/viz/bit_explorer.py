"""The small floats bit by bit: one element code under one scale byte, its fields, value and neighbours.

Source: OCP Microscaling Formats (MX) v1.0; :mod:`ds41.small_floats`.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from html import escape

from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, BlockFormat
from ds41.small_floats import e2m1_values, e4m3_values, e8m0_values
from ds41.viz.diagram import Diagram, choices, table

FORMATS = {"main": MAIN_KV, "index": INDEX_KEY, "window": WINDOW_KV}
# Codes to each side of the chosen one where the whole number line would not fit.
_REACH = 4
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class SmallFloat:
    """A number type as its bit fields; a value is significand times two to the power of (exponent - bias)."""

    name: str
    sign: int
    exponent: int
    mantissa: int
    bias: int
    values: tuple[float, ...]

    @property
    def bits(self) -> int:
        return self.sign + self.exponent + self.mantissa

    def fields(self, code: int) -> list[tuple[str, str]]:
        """(name, bits as text) from the highest bit down."""
        text = f"{code:0{self.bits}b}"
        split = self.sign + self.exponent
        parts = [("sign", text[: self.sign]), ("exponent", text[self.sign : split]), ("mantissa", text[split:])]
        return [(name, bits) for name, bits in parts if bits]

    def reading(self, code: int) -> str:
        """The value spelled out: ``+1.5 × 2¹``."""
        if math.isnan(self.values[code]):
            return "not a number"
        magnitude = code & ((1 << (self.exponent + self.mantissa)) - 1)
        exponent, mantissa = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        subnormal = exponent == 0 and self.mantissa > 0
        power = (1 if subnormal else exponent) - self.bias
        sign = ("−" if code >> (self.bits - 1) else "+") if self.sign else ""
        significand = f"{(0 if subnormal else 1) + mantissa / (1 << self.mantissa):g} × " if self.mantissa else ""
        note = " (no hidden one)" if subnormal else ""
        return f"{sign}{significand}2{superscript(power)}{note}"


TYPES = {
    "e2m1": SmallFloat("E2M1", 1, 2, 1, 1, tuple(e2m1_values())),
    "e4m3": SmallFloat("E4M3", 1, 4, 3, 7, tuple(e4m3_values())),
    "e8m0": SmallFloat("E8M0", 0, 8, 0, 127, tuple(e8m0_values())),
}


def bit_explorer(block_format: str = "main", code: int = 0b0101, scale: int = 0x34) -> Diagram:
    """Bits that can be switched: an element code, a scale byte, and the number that the two store.

    Args:
        block_format: "main", "index" or "window", shown first.
        code: element code shown first.
        scale: scale byte shown first.

    Raises:
        ValueError: a format that is none, or a code or byte out of range.
    """
    if block_format not in FORMATS:
        raise ValueError(f"block_format is {block_format!r}; expected one of: {', '.join(FORMATS)}")
    chosen = FORMATS[block_format]
    codes = 1 << TYPES[chosen.element].bits
    if not 0 <= code < codes:
        raise ValueError(f"code is {code}; {TYPES[chosen.element].name} has codes 0 to {codes - 1}")
    if not 0 <= scale < 256:
        raise ValueError(f"scale is {scale}; expected a byte, 0 to 255")
    return Diagram(
        kind="bits",
        title="A stored number is a small float times its block’s scale",
        body=_body(block_format, code, scale),
        caption=_caption(chosen, code, scale),
        table=_table(),
        table_title="The three number types",
        data={
            "formats": {name: format_data(one) for name, one in FORMATS.items()},
            "format": block_format,
            "code": code,
            "scale": scale,
            "reach": _REACH,
        },
        modules=("codec",),
    )


def format_data(block_format: BlockFormat) -> dict:
    """A block format for the scripts."""
    return {
        "name": block_format.name,
        "element": block_format.element,
        "scale": block_format.scale,
        "block": block_format.block,
        "amaxFloor": block_format.amax_floor,
    }


def minus(text: str) -> str:
    """A number's text with the minus sign that lines up with plus."""
    return text.replace("-", "−")


def show(x: float, digits: int = 4) -> str:
    """A number for people, powers of ten only far from one; the scripts' ``show`` gives the same text."""
    if math.isnan(x):
        return "NaN"
    if x == 0:
        return "−0" if math.copysign(1, x) < 0 else "0"
    # Halves away from zero, as JavaScript does.
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_HALF_UP)
    rounded = context.create_decimal_from_float(x).normalize()
    power = rounded.adjusted()
    if -4 <= power < 6:
        return minus(f"{rounded:f}")
    return f"{minus(f'{rounded.scaleb(-power):f}')} × 10{superscript(power)}"


def superscript(power: int) -> str:
    return str(power).translate(_SUPERSCRIPT)


def _body(name: str, code: int, scale: int) -> str:
    chosen = FORMATS[name]
    element, scales = TYPES[chosen.element], TYPES[chosen.scale]
    product = element.values[code] * scales.values[scale]
    picker = choices(
        "format",
        "Stored as",
        [
            ("main", "Main KV", "E2M1 × E4M3"),
            ("index", "Index key", "E2M1 × E8M0"),
            ("window", "Window KV", "E4M3 × E8M0"),
        ],
        name,
    )
    return (
        '<div class="ds-pair">'
        + _operand("element", "element", element, code)
        + _operand("scale", f"scale of {chosen.block} elements", scales, scale)
        + f'<p class="ds-product"><span class="ds-label">stored number</span><b>{show(product, 6)}</b></p></div>'
        + f'<div class="ds-line" aria-hidden="true">{_line(element, code, scales.values[scale])}</div>'
        + f'<form class="ds-controls">{picker}</form>'
        + '<p class="ds-controls ds-label">Switch bits, or step along the line with the up and down keys on a bit.</p>'
    )


def _operand(role: str, label: str, kind: SmallFloat, code: int) -> str:
    bit = kind.bits
    groups = ""
    for name, text in kind.fields(code):
        buttons = ""
        for digit in text:
            bit -= 1
            pressed = "true" if digit == "1" else "false"
            buttons += (
                f'<button type="button" class="ds-bit" data-role="{role}" data-bit="{bit}" '
                f'aria-pressed="{pressed}" aria-label="{role} {name}, bit {bit}: {digit}">{digit}</button>'
            )
        groups += f'<span class="ds-bit-field"><span>{buttons}</span><small>{name}</small></span>'
    return (
        f'<div class="ds-operand" data-operand="{role}"><p class="ds-label">{escape(label)}, {kind.name}</p>'
        f'<div class="ds-bits-row">{groups}</div>'
        f'<p class="ds-reading">{kind.reading(code)} = <b>{show(kind.values[code], 6)}</b></p></div>'
    )


def _shown_codes(kind: SmallFloat, code: int) -> list[int]:
    """Codes on the number line, ascending by value: all of E2M1, of larger types the nearest."""
    order = [c for c in range(1 << kind.bits) if not math.isnan(kind.values[c])]
    if kind.sign:
        # Minus zero stands where zero stands.
        order.remove(1 << (kind.bits - 1))
    order.sort(key=lambda c: kind.values[c])
    if len(order) <= 16:
        return order
    if math.isnan(kind.values[code]):
        return []
    value = kind.values[code]
    here = next(i for i, c in enumerate(order) if kind.values[c] == value)
    first = min(max(here - _REACH, 0), len(order) - 2 * _REACH - 1)
    return order[first : first + 2 * _REACH + 1]


def _line(kind: SmallFloat, code: int, scale: float) -> str:
    """The numbers that an element can take under this scale, the chosen one marked."""
    codes = _shown_codes(kind, code)
    if not codes or math.isnan(scale):
        return '<span class="ds-nothing">not a number: nothing to place on a line</span>'
    low, high = kind.values[codes[0]], kind.values[codes[-1]]
    marks = ""
    for place, c in enumerate(codes):
        value = kind.values[c]
        here = value == kind.values[code]
        # The levels of E2M1 crowd around zero: half steps go without a number, and on a narrow page one and two.
        if len(codes) == 15:
            named, roomy = value == int(value) and abs(value) != 3, abs(value) in (1, 2)
        else:
            named, roomy = True, place % 2 == 1
        text = f"<span>{show(value * scale, 3)}</span>" if here or named else ""
        classes = "ds-tick" + (" ds-here" if here else " ds-roomy" if roomy else "")
        marks += f'<i class="{classes}" style="left:{100 * (value - low) / (high - low):.3f}%">{text}</i>'
    return f'<i class="ds-axis"></i>{marks}'


def _caption(chosen: BlockFormat, code: int, scale: int) -> str:
    element, scales = TYPES[chosen.element], TYPES[chosen.scale]
    factor = scales.values[scale]
    head = f"Code <code>{code:0{element.bits}b}</code> under scale byte <code>0x{scale:02X}</code>"
    if math.isnan(element.values[code]) or math.isnan(factor):
        return f"{head} is not a number; the encoder never writes it."
    value = element.values[code]
    text = f"{head} stores {show(value, 6)} × {show(factor, 6)} = <b>{show(value * factor, 6)}</b>."
    if factor <= 0:
        return f"{text} The encoder writes no scale that is zero or negative."
    values = sorted({v for v in element.values if not math.isnan(v)})
    here = values.index(value)
    below = show(values[here - 1] * factor) if here else None
    above = show(values[here + 1] * factor) if here + 1 < len(values) else None
    if below and above:
        return f"{text} Its neighbours under this scale are {below} and {above}."
    extreme = "largest" if below else "smallest"
    return f"{text} It is the {extreme} under this scale; its neighbour is {below or above}."


def _table() -> str:
    rows = []
    for kind in TYPES.values():
        positive = sorted(v for v in kind.values if v > 0)
        rows.append(
            (
                kind.name,
                f"{kind.sign} + {kind.exponent} + {kind.mantissa}",
                kind.bias,
                plain(positive[0]),
                plain(positive[-1]),
                sum(math.isnan(v) for v in kind.values),
            )
        )
    levels = ", ".join(f"{v:g}" for v in e2m1_values()[:8])
    header = ("type", "sign + exponent + mantissa bits", "bias", "smallest above 0", "largest", "NaN codes")
    return (
        table(header, rows, numeric=(2, 5))
        + f"<p>E2M1 codes 000 to 111: {levels}; with the sign bit set, their negatives.</p>"
    )


def plain(value: float) -> str:
    """A power of two as such where its decimal digits would be many."""
    mantissa, exponent = math.frexp(value)
    if mantissa != 0.5 or abs(exponent) <= 4:
        return f"{value:g}"
    return f"2{superscript(exponent - 1)}"
