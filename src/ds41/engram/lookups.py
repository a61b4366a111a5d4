"""What a token reads from the Engram tables, and how long before its layer that is known.

Source: report section 2.4.2; the released configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

from ds41.config import ModelConfig
from ds41.formats import WINDOW_KV


@dataclass(frozen=True)
class Lookup:
    """One layer's reads for one token.

    rows: how many; row_bytes: stored bytes of each. layers_ahead: how many layers run between the moment the token
    id is known, and with it the rows, and the moment the layer needs them.
    """

    layer: int
    rows: int
    row_bytes: int
    layers_ahead: int

    @property
    def nbytes(self) -> int:
        """Bytes that one token reads from this table."""
        return self.rows * self.row_bytes


def lookups(config: ModelConfig) -> tuple[Lookup, ...]:
    """Every Engram layer's lookups, from the first layer up: twice 24 rows of 264 bytes as published."""
    rows = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    row_bytes = WINDOW_KV.bytes_per_row(config.engram_head_dim)
    return tuple(Lookup(layer, rows, row_bytes, layer) for layer in config.engram_layer_ids)


def link_speed(config: ModelConfig, tokens: int, seconds_per_layer: float) -> float:
    """Bytes per second that a link to the tables needs, so that no layer of a step waits for its rows.

    Rows are fetched in the order of the layers, beginning when the step's token ids are known; those of a table at
    layer L share the time of the L layers before it with all tables below.

    Args:
        tokens: tokens in the step. seconds_per_layer: time that one layer takes for all of them.

    Raises:
        ValueError: tokens below 1, or seconds not above 0.
    """
    if tokens < 1 or not seconds_per_layer > 0:
        raise ValueError(
            f"tokens is {tokens} and seconds_per_layer {seconds_per_layer}; expected a positive number of each"
        )
    reads = lookups(config)
    due = accumulate(tokens * read.nbytes for read in reads)
    times = [read.layers_ahead * seconds_per_layer for read in reads]
    return max((nbytes / time if time else math.inf for nbytes, time in zip(due, times, strict=True)), default=0.0)
