"""What one decoded token reads and computes in attention, layer by layer.

Sparse attention does not re-read its whole cache. A layer reads its window, the entries that it selected or
borrowed a selection of, and, if it selects for itself, index keys: all of them in a Full layer, the candidate
pool in a Reindex layer. So the bytes grow with the context only through the Full layers' index keys.

Source: report sections 2.3.1 and 2.3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds41.config import LayerPlan, ModelConfig
from ds41.ledger import Storage, check_tokens


@dataclass(frozen=True)
class LayerRead:
    """KV bytes that one layer reads for one decoded token of one sequence."""

    layer: int
    mode: str
    window: int
    main: int
    index: int

    @property
    def total(self) -> int:
        """Bytes of window, main entries and index keys together."""
        return self.window + self.main + self.index


def decode_reads(config: ModelConfig, tokens: int, storage: Storage | None = None) -> tuple[LayerRead, ...]:
    """KV bytes read by each layer for the token at the end of a context of ``tokens`` tokens, itself included.

    A layer that sees no more entries than ``index_topk`` takes them all and scores none, so it reads no keys.

    Raises:
        TypeError: ``tokens`` is no whole number.
        ValueError: ``tokens`` is negative.
    """
    tokens = check_tokens(tokens)
    storage = storage or Storage.published(config)
    window = min(tokens, config.sliding_window) * storage.window.nbytes
    return tuple(
        LayerRead(
            layer.index,
            layer.mode,
            window,
            min(_entries(layer, tokens), config.index_topk) * storage.main.nbytes,
            scored_entries(config, layer, tokens) * storage.index.nbytes,
        )
        for layer in config.layers
    )


def kv_bytes_read(config: ModelConfig, tokens: int, storage: Storage | None = None) -> int:
    """KV bytes that one sequence's decode step reads in all; about 191 MB at 2^20 tokens, of 936 MB kept."""
    return sum(read.total for read in decode_reads(config, tokens, storage))


def scored_entries(config: ModelConfig, layer: LayerPlan, tokens: int) -> int:
    """Index keys that a layer scores for one query: none, the candidate pool, or every visible entry."""
    entries = _entries(layer, tokens)
    if not layer.owns_selection or entries <= config.index_topk:
        return 0
    if layer.candidate_source is None:
        return entries
    return min(entries, config.candidate_topk_blocks * config.candidate_block_size)


def index_macs(config: ModelConfig, tokens: int) -> dict[int, int]:
    """Multiply-adds of the index scores for one query, by layer: heads × channels × scored entries.

    At 2^20 tokens 4,294,967,296 in layer 20 and 67,108,864 in each Reindex layer, 64 times fewer.

    Raises:
        TypeError: ``tokens`` is no whole number.
        ValueError: ``tokens`` is negative.
    """
    tokens = check_tokens(tokens)
    per_entry = config.index_n_heads * config.index_head_dim
    return {
        layer.index: per_entry * scored_entries(config, layer, tokens)
        for layer in config.layers
        if layer.owns_selection
    }


def attention_flops(config: ModelConfig, tokens: int) -> int:
    """Operations of the core attention for one query, all layers: scores and weighted values of all heads.

    Raises:
        TypeError: ``tokens`` is no whole number.
        ValueError: ``tokens`` is negative.
    """
    tokens = check_tokens(tokens)
    keys = sum(
        min(tokens, config.sliding_window) + min(_entries(layer, tokens), config.index_topk) for layer in config.layers
    )
    return 2 * 2 * config.num_attention_heads * config.head_dim * keys


def _entries(layer: LayerPlan, tokens: int) -> int:
    """Entries that the last token sees: of its own group too, if it closes it."""
    return tokens // layer.ratio if layer.ratio else 0
