"""Rows to train and test on: source text, and retrieval tasks whose answers lie far back.

A needle is the line ``@kk=v-v`` and its query ``?kk=v-v``: two random bytes as key, two as value, asked for later.
Both take eight bytes and begin at an odd position, so that in a ratio-2 source each byte of a value shares its entry
with the mark before it: what is to be found and what it is found by lie together. Random bytes carry no loss, since
nothing could predict them; answers weigh more than text, since there are few of them.

Source: ds41's own.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, field
from typing import Literal, get_args

from ds41.tokenizer import FIRST_BYTE
from ds41.training.corpus import Corpus

Kind = Literal["source", "stream", "recall", "planted", "copy"]
"""Kinds of rows."""
KINDS: dict[Kind, str] = {
    "source": "text of files",
    "stream": "needles and queries in turn, so that distances grow with the row",
    "recall": "needles first, then queries of some of them",
    "planted": "needles planted into files at line ends, queries at the end",
    "copy": "a passage, text between, and the passage again",
}
"""What a row of each kind holds, in words."""
LINE = 8
"""Bytes of a needle's line and of a query's."""
VALUE = (4, 6)
"""Where a value's two bytes stand in a line."""
_KEY = (1, 2)
_ALPHABET = string.ascii_lowercase + string.digits
_KEYS = len(_ALPHABET) ** 2
_ANSWER_WEIGHT = 4.0
_FORM_WEIGHT = 0.1
BEGIN = 0
"""The id that every row begins with."""


@dataclass(frozen=True)
class Asked:
    """A query of a needle: where its answer stands, and where the needle does.

    query, needle: positions of their first tokens. distractors: needles between the two.
    """

    query: int
    needle: int
    distractors: int

    @property
    def answers(self) -> tuple[int, int]:
        """Positions of the two answer tokens; the token before each is the one that has to know."""
        return self.query + VALUE[0], self.query + VALUE[1]

    @property
    def values(self) -> tuple[int, int]:
        """Positions of the needle's two value tokens."""
        return self.needle + VALUE[0], self.needle + VALUE[1]


@dataclass
class Row:
    """One sequence. ids: its tokens. weights: what predicting each of them counts. asked: the queries in it. parity:
    of the positions at which lines begin."""

    parity: int = 1
    ids: list[int] = field(default_factory=lambda: [BEGIN])
    weights: list[float] = field(default_factory=lambda: [0.0])
    asked: list[Asked] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, text: bytes, weight: float) -> None:
        """Append the bytes of ``text`` as tokens; ``weight``: of each in the loss."""
        self.ids += [FIRST_BYTE + byte for byte in text]
        self.weights += [weight] * len(text)

    def align(self) -> None:
        """A blank where the next line would begin at a position of the other parity."""
        if len(self) % 2 != self.parity:
            self.add(b" ", 0.0)

    def cut(self, length: int) -> Row:
        """Exactly ``length`` tokens, filled up with blanks that do not count."""
        self.add(b"\n" * max(0, length - len(self)), 0.0)
        del self.ids[length:], self.weights[length:]
        self.asked = [asked for asked in self.asked if asked.answers[1] < length]
        return self


def make_row(
    kind: Kind,
    corpus: Corpus,
    generator: random.Random,
    length: int,
    queries: int | None = None,
    parity: Literal[0, 1] = 1,
) -> Row:
    """One row of ``length`` tokens, the begin token first.

    Args:
        parity: of the positions at which needles and queries begin. At 0 a ratio-2 source holds each byte of a value
            one entry behind the mark before it; models here are trained with 1.
        queries: how many a "recall" or "planted" row ends with; None draws it. A "planted" row has room for about
            one in 19 tokens; of more, the last ones are cut off.

    Raises:
        ValueError: an unknown kind, a length without room for a needle and its query, or with room for more needles
            than there are keys.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(map(repr, get_args(Kind)))}")
    if length < 2 + 2 * LINE:
        raise ValueError(f"length is {length}; expected {2 + 2 * LINE} or more, room for a needle and its query")
    if kind == "source":
        row = _source(corpus, generator, length)
    elif kind == "copy":
        row = _copy(corpus, generator, length)
    elif kind == "stream":
        row = _stream(generator, length, parity)
    else:
        most = max(1, (length - 2) // (2 * LINE))
        asked = queries if queries is not None else generator.randint(1, most)
        if not 1 <= asked <= most:
            raise ValueError(f"queries is {asked}; expected 1 to {most} in a row of {length}")
        build = _recall if kind == "recall" else _planted
        row = build(corpus, generator, length, asked, parity)
    return row.cut(length)


def line_text(key: str, value: str) -> str:
    """A needle or query without its mark: two characters of key, two of value."""
    return f"{key}={value[0]}-{value[1]}\n"


class _Needles:
    """The needles of a row: keys of their own, and where each was put."""

    def __init__(self, row: Row, generator: random.Random) -> None:
        self.row, self.generator = row, generator
        self.values: dict[str, str] = {}
        self.places: dict[str, tuple[int, int]] = {}

    def plant(self) -> None:
        self.row.align()
        if len(self.values) == _KEYS:
            raise ValueError(f"the row has room for more than {_KEYS} needles, and there are no more keys; take less")
        key = self._word()
        while key in self.values:
            key = self._word()
        self.places[key] = (len(self.row), len(self.values))
        self.values[key] = self._word()
        self._line("@", key, self.values[key], 0.0)

    def ask(self, key: str) -> None:
        self.row.align()
        place, number = self.places[key]
        self.row.asked.append(Asked(len(self.row), place, len(self.values) - 1 - number))
        self._line("?", key, self.values[key], _ANSWER_WEIGHT)

    def draw(self) -> str:
        return self.generator.choice(list(self.values))

    def _line(self, mark: str, key: str, value: str, weight: float) -> None:
        text = (mark + line_text(key, value)).encode()
        for place in range(LINE):
            counts = weight if place in VALUE else 0.0 if place in _KEY else _FORM_WEIGHT
            self.row.add(text[place : place + 1], counts)

    def _word(self) -> str:
        return "".join(self.generator.choices(_ALPHABET, k=2))


def _source(corpus: Corpus, generator: random.Random, length: int) -> Row:
    row = Row()
    row.add(corpus.read(generator, length - 1), 1.0)
    return row


def _stream(generator: random.Random, length: int, parity: int) -> Row:
    row = Row(parity)
    needles = _Needles(row, generator)
    needles.plant()
    while len(row) + LINE <= length:
        if generator.random() < 0.5:
            needles.plant()
        else:
            needles.ask(needles.draw())
    return row


def _recall(corpus: Corpus, generator: random.Random, length: int, queries: int, parity: int) -> Row:
    row = Row(parity)
    needles = _Needles(row, generator)
    for _ in range(max(queries, (length - 2) // LINE - queries)):
        needles.plant()
    for key in generator.sample(list(needles.values), queries):
        needles.ask(key)
    return row


def _planted(corpus: Corpus, generator: random.Random, length: int, queries: int, parity: int) -> Row:
    """Needles at line ends of real text: as many as queries, at least two, spread over the row."""
    row = Row(parity)
    needles = _Needles(row, generator)
    count = max(2, queries)
    # Room for alignment blanks and for the line ends of the pieces.
    text = corpus.read(generator, max(0, length - 2 - (LINE + 2) * count - (LINE + 1) * queries))
    cuts = sorted(generator.randrange(len(text) + 1) for _ in range(count))
    start = 0
    for cut in cuts:
        cut = max(start, text.find(b"\n", cut) + 1 if text.find(b"\n", cut) >= 0 else cut)
        row.add(text[start:cut], 1.0)
        needles.plant()
        start = cut
    row.add(text[start:], 1.0)
    for key in generator.sample(list(needles.values), queries):
        needles.ask(key)
    return row


def _copy(corpus: Corpus, generator: random.Random, length: int) -> Row:
    """A passage of between an eighth and three eighths of the row, text, and the passage once more."""
    row = Row()
    passage = corpus.read(generator, generator.randint(length // 8, 3 * length // 8))
    between = corpus.read(generator, max(0, length - 1 - 2 * len(passage)))
    row.add(passage, 1.0)
    row.add(between, 1.0)
    # Its first bytes say only that a copy begins.
    known = min(LINE, len(passage))
    row.add(passage[:known], 0.0)
    row.add(passage[known:], 1.0)
    return row
