"""The Engram hash on a reader's own text: a token's window, its products, and the rows that they name.

Source: the released ``inference/engram.py``; :mod:`ds41.engram`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from html import escape

from ds41.config import ModelConfig
from ds41.engram import DEAD, hash_constants
from ds41.formats import WINDOW_KV
from ds41.tokenizer import FIRST_BYTE, byte_tokenizer, compression_map
from ds41.viz.diagram import Diagram, choices, table

_CONFIGS = {"released": ModelConfig.flash, "nano": ModelConfig.nano}
_GLYPHS = {0x09: "⇥", 0x0A: "⏎", 0x20: "␣"}
_LONGEST = 64
_BACK = ("this token", "1 back", "2 back", "3 back")
_ALL_EXACT = "Doubles happen to hold all products here."


def engram_explorer(text: str = "PARIS is not Paris", hash_of: str = "released-1", token: int | None = None) -> Diagram:
    """A text whose tokens, one byte each, can be chosen, beside the hash that names a token's rows.

    Args:
        text: shown first; 1 to 64 bytes of UTF-8. It can be edited on the page.
        hash_of: whose constants: "released-1", "released-14", "nano-1" or "nano-3".
        token: chosen first; default: the last.

    Raises:
        ValueError: constants that are none, a text too long or empty, or a token out of range.
    """
    hashes = _hashes()
    if hash_of not in hashes:
        raise ValueError(f"hash_of is {hash_of!r}; expected one of: {', '.join(hashes)}")
    content = list(text.encode("utf-8"))
    if not 1 <= len(content) <= _LONGEST:
        raise ValueError(f"text has {len(content)} bytes of UTF-8; expected 1 to {_LONGEST}")
    token = len(content) - 1 if token is None else token
    if not 0 <= token < len(content):
        raise ValueError(f"token is {token}; the text has tokens 0 to {len(content) - 1}")
    token_map = _token_map()
    chosen = Hashed(hashes[hash_of], [token_map[FIRST_BYTE + byte] for byte in content], token)
    return Diagram(
        kind="engram",
        title="The last four tokens name the rows: multiply, xor, take remainders",
        body=_controls(text, hash_of) + _picture(content, chosen),
        caption=_caption(content, chosen),
        table=_table(chosen),
        table_title="All rows of this token",
        data={
            "hashes": {name: one.data() for name, one in hashes.items()},
            "tokenMap": token_map,
            "firstByte": FIRST_BYTE,
            "glyphs": {str(byte): glyph for byte, glyph in _GLYPHS.items()},
            "back": _BACK,
            "allExact": _ALL_EXACT,
            "longest": _LONGEST,
            "token": token,
        },
        modules=("ngrams",),
    )


@dataclass(frozen=True)
class Hash:
    """One Engram layer's constants as Python integers; primes and offsets by order and head."""

    name: str
    multipliers: tuple[int, ...]
    primes: tuple[tuple[int, ...], ...]
    offsets: tuple[tuple[int, ...], ...]
    pad: int
    row_bytes: int

    @property
    def rows(self) -> int:
        return self.offsets[-1][-1] + self.primes[-1][-1]

    def data(self) -> dict:
        """For the script. Multipliers are text: a JSON number is a double, and they must stay exact."""
        return {
            "multipliers": [str(one) for one in self.multipliers],
            "primes": self.primes,
            "offsets": self.offsets,
            "pad": self.pad,
            "rows": self.rows,
            "rowBytes": self.row_bytes,
        }


class Hashed:
    """One token of a text on its way to its rows, in Python's unbounded integers."""

    def __init__(self, constants: Hash, ids: list[int], token: int) -> None:
        self.constants, self.ids, self.token = constants, ids, token
        self.window = self.window_at(token)
        factors = list(zip(self.masked(self.window), constants.multipliers, strict=True))
        self.products = [one * by for one, by in factors]
        self.hashes = _mix(self.products)
        self.rows = self._rows(self.hashes)
        through_doubles = self._rows(_mix([int(float(one) * float(by)) for one, by in factors]))
        self.wrong = sum(
            row != other
            for rows, others in zip(self.rows, through_doubles, strict=True)
            for row, other in zip(rows, others, strict=True)
        )

    def window_at(self, token: int) -> list[int]:
        size = len(self.constants.multipliers)
        return [self.ids[token - back] if back <= token else DEAD for back in range(size)]

    def masked(self, window: list[int]) -> list[int]:
        seen = window.index(DEAD) if DEAD in window else len(window)
        return window[:seen] + [self.constants.pad] * (len(window) - seen)

    def shared_order(self, other: int) -> int:
        """The largest n whose n-gram at ``other`` is the chosen token's; 0 if not even the 2-gram is."""
        same = 0
        for one, another in zip(self.masked(self.window), self.masked(self.window_at(other)), strict=True):
            if one != another:
                break
            same += 1
        return same if same >= 2 else 0

    def _rows(self, hashes: list[int]) -> list[list[int]]:
        return [
            [value % prime + offset for prime, offset in zip(primes, offsets, strict=True)]
            for value, primes, offsets in zip(hashes, self.constants.primes, self.constants.offsets, strict=True)
        ]


def _mix(products: list[int]) -> list[int]:
    mixed, hashes = products[0], []
    for product in products[1:]:
        mixed ^= product
        hashes.append(mixed)
    return hashes


@lru_cache(maxsize=1)
def _hashes() -> dict[str, Hash]:
    found = {}
    for preset, load in _CONFIGS.items():
        config = load()
        constants = hash_constants(config)
        # The released pad token, id 2, has compressed id 2, and so has that of the byte vocabulary.
        pad = _token_map()[config.engram_pad_token_id]
        for place, layer in enumerate(config.engram_layer_ids):
            primes = constants.primes[place].tolist()
            offsets = constants.offsets[place].reshape(constants.primes[place].shape).tolist()
            found[f"{preset}-{layer}"] = Hash(
                f"layer {layer}",
                tuple(constants.multipliers[place].tolist()),
                tuple(map(tuple, primes)),
                tuple(map(tuple, offsets)),
                pad,
                WINDOW_KV.bytes_per_row(config.engram_head_dim),
            )
    return found


@lru_cache(maxsize=1)
def _token_map() -> list[int]:
    return compression_map(byte_tokenizer(), ModelConfig.nano().vocab_size).tolist()


def _glyph(byte: int) -> str:
    """A byte as one sign: printable ASCII as itself, white space as its picture, the rest in hexadecimal."""
    return _GLYPHS.get(byte) or (chr(byte) if 0x20 < byte < 0x7F else f"{byte:02X}")


def _controls(text: str, hash_of: str) -> str:
    options = [(name, one.name, name.split("-")[0]) for name, one in _hashes().items()]
    return (
        '<form class="ds-controls"><label class="ds-field"><span>Your text, one token a byte</span>'
        f'<input type="text" name="text" maxlength="{_LONGEST}" autocomplete="off" spellcheck="false" '
        f'value="{escape(text)}"></label>{choices("hash", "Constants", options, hash_of)}</form>'
    )


def _picture(content: list[int], chosen: Hashed) -> str:
    return (
        f'<div class="ds-tokens" role="group" aria-label="Tokens">{_tokens(content, chosen)}</div>'
        '<p class="ds-key" aria-hidden="true">Same rows as the chosen token: '
        f"<span>{_bars(2)}2-gram</span><span>{_bars(3)}2- and 3-gram</span><span>{_bars(4)}all</span></p>"
        f'<div class="ds-factors">{_factors(content, chosen)}</div>'
        f'<div class="ds-orders">{_orders(chosen)}</div>'
    )


def _tokens(content: list[int], chosen: Hashed) -> str:
    chips = ""
    for place, byte in enumerate(content):
        back = chosen.token - place
        shared = 0 if back == 0 else chosen.shared_order(place)
        inside = " ds-inside" if 0 < back < len(chosen.window) else ""
        name = f"Token {place}: {_glyph(byte)}" + (f", ends in the same {shared}-gram" if shared else "")
        chips += (
            f'<button type="button" class="ds-token{inside}" data-token="{place}" '
            f'aria-pressed="{"true" if back == 0 else "false"}" tabindex="{0 if back == 0 else -1}" '
            f'aria-label="{escape(name)}">{escape(_glyph(byte))}{_bars(shared)}</button>'
        )
    return chips


def _bars(order: int) -> str:
    """One bar for a 2-gram, two for a 3-gram."""
    return f'<span class="ds-shared">{"<i></i>" * (order - 1)}</span>' if order else ""


def _factors(content: list[int], chosen: Hashed) -> str:
    rows = ""
    masked = chosen.masked(chosen.window)
    for back, multiplier in enumerate(chosen.constants.multipliers):
        place = chosen.token - back
        hidden = chosen.window[back] == DEAD
        glyph = "–" if hidden else escape(_glyph(content[place]))
        ids = f"pad → {masked[back]}" if hidden else f"{FIRST_BYTE + content[place]} → {masked[back]}"
        rows += (
            f'<p><span class="ds-label">{_BACK[back]}</span><b>{glyph}</b><span class="ds-ids">{ids}</span>'
            f'<span class="ds-times">× {multiplier:,}</span>'
            f'<span class="ds-product">= {chosen.products[back]:,}</span></p>'
        )
    return rows


def _orders(chosen: Hashed) -> str:
    orders = ""
    for place, (value, rows) in enumerate(zip(chosen.hashes, chosen.rows, strict=True)):
        heads, primes, offsets = "", chosen.constants.primes[place], chosen.constants.offsets[place]
        for row, prime, offset in zip(rows, primes, offsets, strict=True):
            at = f"{100 * (row - offset) / prime:.2f}"
            heads += f'<span class="ds-head"><i style="left:{at}%"></i><span>{row:,}</span></span>'
        orders += (
            f'<p><b>{place + 2}-gram</b> <span class="ds-label">xor of {place + 2} products</span> '
            f'<span class="ds-hash">{value:,}</span></p><div class="ds-heads">{heads}</div>'
        )
    return orders


def _caption(content: list[int], chosen: Hashed) -> str:
    columns = sum(map(len, chosen.rows))
    text = (
        f"<b>Token {chosen.token}, {escape(_glyph(content[chosen.token]))}</b>, reads {columns} of "
        f"{chosen.constants.rows:,} rows, {columns * chosen.constants.row_bytes:,} bytes. "
    )
    if chosen.wrong:
        text += f"Through doubles it would read {chosen.wrong} other rows."
    else:
        text += _ALL_EXACT
    if DEAD in chosen.window:
        text += " The text begins within the window, so the pad token’s id stands in for what is missing."
    return text


def _table(chosen: Hashed) -> str:
    rows = []
    for place, found in enumerate(chosen.rows):
        for head, row in enumerate(found):
            prime, offset = chosen.constants.primes[place][head], chosen.constants.offsets[place][head]
            rows.append((f"{place + 2}-gram", head, f"{prime:,}", f"{row - offset:,}", f"{row:,}"))
    return table(("order", "head", "prime", "remainder", "row"), rows, numeric=(1, 2, 3, 4))
