"""Prompts of several kinds with hits in places of several kinds, drawn from a seed; whatever no model was trained on.

Code and prose come from Python's own standard library, files of the held-out split. Needles have the form of
:mod:`ds41.training.tasks` and are written over the text, so that prompts of all kinds are alike but for them.

Source: ds41's own.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pydoc_data.topics import topics
from typing import Literal, get_args

from ds41.probes.replay_distance import Request
from ds41.tokenizer import FIRST_BYTE
from ds41.training.corpus import Corpus, standard_library
from ds41.training.tasks import BEGIN, LINE, VALUE, line_text

Kind = Literal["code", "prose", "repeated", "needle outside", "needle within"]
"""Kinds of texts."""
KINDS: dict[Kind, str] = {
    "code": "source files",
    "prose": "the language reference",
    "repeated": "one piece of code again and again, shorter than two windows",
    "needle outside": "code with a needle just before the tokens that are fed again; its query follows the hit",
    "needle within": "the same with the needle among the tokens that are fed again",
}
"""What a text of each kind is, in words."""
Place = Literal["short", "page edge", "even", "odd"]
"""Kinds of places where a hit ends."""
PLACES: dict[Place, str] = {
    "short": "a hit of less than a window",
    "page edge": "a hit of whole pages",
    "even": "inside a page, every group closed",
    "odd": "inside a page, a group of two left open",
}
"""What each place is, in words."""
_REFERENCE = "pydoc_data/topics.py"
_KEY_LETTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True)
class Texts:
    """What prompts are cut from."""

    code: Corpus
    prose: Corpus

    @classmethod
    def standard_library(cls) -> Texts:
        """Held-out source files, and Python's language reference, which is one of them."""
        files = dict(standard_library("held-out").files)
        files.pop(_REFERENCE, None)
        return cls(Corpus(files), Corpus({name: text.encode() for name, text in topics.items()}))


@dataclass(frozen=True)
class Shape:
    """How long prompts are and where hits may lie, in tokens.

    window: the model's ``sliding_window``. page_tokens: of a page. reach: tokens after the hit that are compared.
    latest: the last page edge that is drawn. Longer hits than ``earliest`` have more than two windows before them.

    Raises:
        ValueError: a window or reach too short for two lines, pages of an odd number, or ``latest`` before
            ``earliest``.
    """

    window: int
    page_tokens: int = 16
    reach: int = 64
    latest: int = 160

    def __post_init__(self) -> None:
        if self.page_tokens < 4 or self.page_tokens % 2 or self.window < 2 * LINE or self.reach < 2 * LINE:
            raise ValueError(
                f"window is {self.window}, page_tokens {self.page_tokens}, reach {self.reach}; expected {2 * LINE} or "
                f"more for window and reach, an even number of 4 or more for page_tokens"
            )
        if self.latest < self.earliest:
            raise ValueError(f"latest is {self.latest}; expected {self.earliest} or more")

    @property
    def earliest(self) -> int:
        """The first page edge that is drawn: a needle, and another one, have room before its replay."""
        return -(-(2 * self.window + 4 * LINE) // self.page_tokens) * self.page_tokens

    @property
    def tokens(self) -> int:
        """Tokens of a text: up to the last hit that is drawn, and what is compared after it."""
        return self.latest + self.page_tokens + self.reach + 1


def requests(kind: Kind, texts: Texts, seed: int, shape: Shape) -> dict[Place, Request]:
    """One hit in each place, all in the same text; of one page, but for the short one.

    Needle kinds have no short hit, and a needle of their own for each place.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(map(repr, get_args(Kind)))}")
    # The needle kinds have the same text as code, and one another's needles and hits.
    of_needle = kind.startswith("needle")
    generator = random.Random(f"replay {'needle' if of_needle else kind} {seed}")
    ids = _text(kind, texts, generator, shape)
    edge = shape.page_tokens * generator.randint(shape.earliest // shape.page_tokens, shape.latest // shape.page_tokens)
    hits: dict[Place, int] = {
        "short": generator.randrange(2, shape.window),
        "page edge": edge,
        "even": edge + generator.randrange(2, shape.page_tokens, 2),
        "odd": edge + generator.randrange(1, shape.page_tokens, 2),
    }
    if not of_needle:
        return {place: Request(tuple(ids), hit) for place, hit in hits.items()}
    gap = 2 * generator.randrange(1 + shape.window // 8)
    end = -gap - shape.window if kind == "needle outside" else -gap - 2
    key, other = ("".join(pair) for pair in generator.sample(list(product(_KEY_LETTERS, repeat=2)), 2))
    value, wrong = ("".join(generator.choices(_KEY_LETTERS, k=2)) for _ in range(2))
    del hits["short"]
    return {place: with_needle(ids, hit, hit + end, (key, value), (other, wrong)) for place, hit in hits.items()}


def with_needle(
    ids: Sequence[int], hit: int, end: int, needle: tuple[str, str], other: tuple[str, str] | None = None
) -> Request:
    """Write a needle so that it ends at ``end`` or one token before, and its query right after the hit.

    Args:
        needle: key and value, two bytes each. other: a second needle with another key, before the first.

    Raises:
        ValueError: no room, a key or value that is not two bytes, or the same key twice.
    """
    needles = [needle] if other is None else [other, needle]
    if any(len(part.encode()) != 2 for pair in needles for part in pair) or len({key for key, _ in needles}) < len(
        needles
    ):
        raise ValueError(f"needles are {needles}; expected two bytes for each key and value, and different keys")
    # Lines begin at odd positions, as in training.
    ids, begin, query = list(ids), end - LINE - (end - LINE + 1) % 2, hit + 1 - hit % 2
    if begin - LINE * (len(needles) - 1) < 2 or end > hit or query + LINE > len(ids):
        raise ValueError(
            f"{len(ids)} tokens and a hit of {hit} have no room for {len(needles)} needles up to {end} and a query"
        )
    begin -= LINE * (len(needles) - 1)
    _write(ids, begin - 1, b"\n" + b"".join(f"@{line_text(*one)}".encode() for one in needles))
    _write(ids, hit - 1, b"\n" + b" " * (query - hit) + f"?{line_text(*needle)}".encode())
    return Request(tuple(ids), hit, (query + VALUE[0], query + VALUE[1] + 1))


def _text(kind: Kind, texts: Texts, generator: random.Random, shape: Shape) -> list[int]:
    source = texts.prose if kind == "prose" else texts.code
    count = shape.tokens - 1
    text = source.read(generator, count)
    if kind == "repeated":
        piece = text[: generator.randint(shape.window // 4, 2 * shape.window)]
        text = (piece * -(-count // len(piece)))[:count]
    return [BEGIN, *(FIRST_BYTE + byte for byte in text)]


def _write(ids: list[int], at: int, text: bytes) -> None:
    ids[at : at + len(text)] = [FIRST_BYTE + byte for byte in text]
