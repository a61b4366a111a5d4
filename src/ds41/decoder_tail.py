"""How much of a prompt the layers above the last source have to run on.

They own no global entries, so what a prefill leaves in them is windows, and the logits of the last token. "full" runs
them on every token. "bounded" runs them on the last window and lets their own windows begin there. "exact" runs each
of them on just those tokens that the windows above it follow from: one window for the last layer, and one window less
one token more for every layer below it.

Source: report section 3.2.2.
"""

from __future__ import annotations

from typing import Literal, get_args

from ds41.cache import Cache
from ds41.config import ModelConfig

Decoder = Literal["full", "bounded", "exact"]


def check_decoder(decoder: str) -> None:
    if decoder not in get_args(Decoder):
        raise ValueError(f"decoder is {decoder!r}; expected 'full', 'bounded' or 'exact'")


def exact_tail_rows(config: ModelConfig) -> int:
    """Tokens that have to leave the last source for windows as a full prefill leaves them; 2,414 as published."""
    above = config.num_hidden_layers - 1 - config.decoder_start
    return config.sliding_window + max(0, above - 1) * (config.sliding_window - 1)


def tail_starts(config: ModelConfig, length: int, end: int, decoder: Decoder, drafts: bool = False) -> dict[int, int]:
    """From which position on each layer gives an output, for a prompt of tokens ``length`` to ``end - 1``.

    A layer that is not named gives one for each token that it is given. drafts: a drafter follows, whose windows are
    made of what enters the last layers; those tokens have to come out of the last one.
    """
    check_decoder(decoder)
    first, last = config.decoder_start, config.num_hidden_layers - 1
    if decoder == "full" or first > last:
        return {}
    if decoder == "bounded":
        return {first: max(length, end - config.sliding_window)}
    starts, rows = {}, exact_tail_rows(config)
    for layer in range(first, last):
        starts[layer] = max(length, end - rows)
        rows -= config.sliding_window - 1
    return starts | {last: max(length, end - (config.sliding_window if drafts else 1))}


def begin_tail(cache: Cache, row: int, starts: dict[int, int]) -> None:
    """Let the windows of the layers above begin where their first row will be, if the prompt begins before."""
    length = cache.lengths[row]
    for layer, start in starts.items():
        if start > length and layer + 1 < cache.window_layers:
            cache.window_start[layer + 1 :, row] = start


class Tails:
    """Where the outputs of each layer begin, for each of the sequences that a step may prefill."""

    def __init__(self, sequences: int) -> None:
        self.rows: list[dict[int, int]] = [{} for _ in range(sequences)]

    def set(self, row: int, starts: dict[int, int]) -> None:
        """What :func:`tail_starts` gave for the prompt of ``row``; nothing for a sequence that decodes."""
        self.rows[row] = starts

    def of(self, layer: int) -> list[int] | None:
        """For each sequence the first position whose output ``layer`` gives; None if it gives all."""
        if not any(layer in starts for starts in self.rows):
            return None
        return [starts.get(layer, 0) for starts in self.rows]

    def outputs(self, row: int, length: int, count: int) -> int:
        """How many of a sequence's next ``count`` tokens, after ``length``, come out of the last layer."""
        return max(0, min(count, length + count - max(self.rows[row].values(), default=0)))
