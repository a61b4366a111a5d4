"""The byte ledger: what one sequence of N tokens keeps, component by component and layer by layer.

For the published configuration the global KV (main entries and index keys) is 890 bytes per token exactly, and
356 * (3 * floor(N/2) + N) bytes after N tokens: an entry is written when its group of ``ratio`` tokens closes.
The 890 leave out what does not grow with the sequence: the windows, the open groups, the Engram history.

Source: report sections 1, 2.3 and 2.4.4; the decomposition itself is not printed there.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from operator import index

from ds41.config import LayerPlan, ModelConfig
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV
from ds41.records import Plane, Record, Row, bf16, sum_formula, total, v4_entry

_FP32_BYTES = 4
_TOKEN_ID_BYTES = 8  # The Engram hash works on int64 ids.


@dataclass(frozen=True)
class Storage:
    """The three records that a design stores: main entry, index key, window entry."""

    name: str
    main: Record
    index: Record
    window: Record

    @classmethod
    def published(cls, config: ModelConfig) -> Storage:
        """The formats that the model was trained with: 288, 68 and 528 bytes for the published sizes."""
        return cls(
            "V4.1 formats",
            Record.packed(MAIN_KV, config.head_dim),
            Record.packed(INDEX_KEY, config.index_head_dim),
            Record.packed(WINDOW_KV, config.head_dim),
        )

    @classmethod
    def v4(cls, config: ModelConfig) -> Storage:
        """V4's formats at this configuration's sizes: 584 bytes for an entry, 68 for a key."""
        entry = v4_entry(config.head_dim, config.qk_rope_head_dim)
        return cls("V4 formats", entry, Record.packed(INDEX_KEY, config.index_head_dim), entry)

    @classmethod
    def mxfp8(cls, config: ModelConfig) -> Storage:
        """Main entries in the window's MXFP8, as vLLM keeps them by default on SM100: 528 and 68 bytes."""
        entry = Record.packed(WINDOW_KV, config.head_dim)
        return cls("MXFP8 main", entry, Record.packed(INDEX_KEY, config.index_head_dim), entry)

    @classmethod
    def bf16(cls, config: ModelConfig) -> Storage:
        """Two bytes for every channel, as the released inference code's buffers do."""
        entry = bf16(config.head_dim)
        return cls("BF16", entry, bf16(config.index_head_dim), entry)


def planes(
    config: ModelConfig, storage: Storage | None = None, *, shared: bool = True, compressed: bool = True
) -> tuple[Plane, ...]:
    """The global KV of a configuration, two planes (main, index) for each layer that owns keys.

    Args:
        storage: the records; the trained formats if None.
        shared: False lets every layer with a global branch own its keys instead of borrowing them.
        compressed: False writes one entry per token everywhere, whatever the layer's ratio.
    """
    storage = storage or Storage.published(config)
    return tuple(
        Plane(f"layer {layer.index}", component, 1, layer.ratio if compressed else 1, record)
        for layer in _owners(config, shared)
        for component, record in (("main", storage.main), ("index", storage.index))
    )


def bytes_per_token(
    config: ModelConfig, storage: Storage | None = None, *, shared: bool = True, compressed: bool = True
) -> Fraction:
    """Global KV bytes per token; 890 for the published configuration. Arguments as in :func:`planes`."""
    return total(planes(config, storage, shared=shared, compressed=compressed))


def global_bytes(
    config: ModelConfig,
    tokens: int,
    storage: Storage | None = None,
    *,
    shared: bool = True,
    compressed: bool = True,
) -> int:
    """Exact bytes of the global KV of one sequence of ``tokens`` tokens. Arguments as in :func:`planes`.

    Raises:
        ValueError: ``tokens`` is negative.
        TypeError: ``tokens`` is no whole number.
    """
    tokens = check_tokens(tokens)
    return sum(plane.nbytes(tokens) for plane in planes(config, storage, shared=shared, compressed=compressed))


def entries_per_token(config: ModelConfig) -> Fraction:
    """Entries that all owning layers together write per token; 5/2 for the published configuration."""
    return sum((Fraction(1, layer.ratio) for layer in _owners(config)), Fraction(0))


def entry_bytes(config: ModelConfig) -> int:
    """Bytes of one entry, main record and index key together; 356 for the published sizes."""
    storage = Storage.published(config)
    return storage.main.nbytes + storage.index.nbytes


def by_source(config: ModelConfig) -> tuple[Row, ...]:
    """Bytes per token of each layer that owns keys: 178, 178, 178 and 356."""
    return tuple(
        _row(f"layer {layer.index}", [p for p in planes(config) if p.name == f"layer {layer.index}"])
        for layer in _owners(config)
    )


def by_component(config: ModelConfig) -> tuple[Row, ...]:
    """Bytes per token of main entries and of index keys: 720 and 170."""
    kinds = (("main", "main KV"), ("index", "index keys"))
    return tuple(_row(name, [p for p in planes(config) if p.component == kind]) for kind, name in kinds)


def window_bytes(config: ModelConfig, draft: bool = False) -> int:
    """Bytes of all sliding windows of one sequence: constant, and not part of the 890.

    Every backbone layer keeps one ring of ``sliding_window`` entries; ``draft`` adds those of the draft layers.
    2,703,360 for the published configuration, 2,906,112 with its three draft layers.
    """
    layers = config.num_hidden_layers + (config.num_nextn_predict_layers if draft else 0)
    return layers * config.sliding_window * Storage.published(config).window.nbytes


def open_group_bytes(config: ModelConfig, tokens: int | None = None) -> int:
    """Bytes of the tokens that wait for their group to close: fp32 value and gate rows of each owning layer.

    0 wherever ``tokens`` is a multiple of the ratios; None gives the largest there can be, 12 KiB for the
    published configuration (report section 2.3.1).

    Raises:
        TypeError: ``tokens`` is no whole number.
        ValueError: ``tokens`` is negative.
    """
    if tokens is not None:
        tokens = check_tokens(tokens)
    waiting = sum(layer.ratio - 1 if tokens is None else tokens % layer.ratio for layer in _owners(config))
    return waiting * 2 * config.head_dim * _FP32_BYTES


def engram_history_bytes(config: ModelConfig) -> int:
    """Bytes of the last token ids, which the next n-grams need: one history serves every Engram layer."""
    if not config.engram_layer_ids:
        return 0
    return (config.engram_max_ngram_size - 1) * _TOKEN_ID_BYTES


def sequence_rows(config: ModelConfig, tokens: int, draft: bool = False) -> tuple[Row, ...]:
    """Everything that one live sequence of ``tokens`` tokens keeps, in bytes.

    Raises:
        TypeError: ``tokens`` is no whole number.
        ValueError: ``tokens`` is negative.
    """
    tokens = check_tokens(tokens)
    storage = Storage.published(config)
    rows = []
    for component, name in (("main", "main KV"), ("index", "index keys")):
        kept = [plane for plane in planes(config) if plane.component == component]
        entries = sum(plane.entries(tokens) for plane in kept)
        size = sum(plane.nbytes(tokens) for plane in kept)
        record = storage.main if component == "main" else storage.index
        rows.append(Row(name, Fraction(size), f"{entries:,} entries × {record.nbytes}"))
    layers = config.num_hidden_layers + (config.num_nextn_predict_layers if draft else 0)
    window = f"{layers} layers × {config.sliding_window} × {storage.window.nbytes}"
    rows.append(Row("windows", Fraction(window_bytes(config, draft)), window, note="constant"))
    waiting = open_group_bytes(config, tokens)
    row = 2 * config.head_dim * _FP32_BYTES
    rows.append(Row("open groups", Fraction(waiting), f"{waiting // row} tokens × {row}", note="fp32 value and gate"))
    history = engram_history_bytes(config)
    ids = f"{history // _TOKEN_ID_BYTES} ids × {_TOKEN_ID_BYTES}"
    rows.append(Row("Engram history", Fraction(history), ids, note="the tables themselves are weights"))
    return tuple(rows)


def sequence_bytes(config: ModelConfig, tokens: int, draft: bool = False) -> int:
    """Bytes that one live sequence keeps in all: the sum of :func:`sequence_rows`."""
    return int(sum(row.bytes for row in sequence_rows(config, tokens, draft)))


def window_equivalent_tokens(config: ModelConfig) -> Fraction:
    """Tokens whose global KV weighs as much as the windows: about 3,037; below, the window is the bigger part.

    Raises:
        ValueError: the configuration keeps no global KV.
    """
    per_token = bytes_per_token(config)
    if per_token == 0:
        raise ValueError("kv_source_layer_ids is empty: this configuration keeps no global KV")
    return Fraction(window_bytes(config)) / per_token


def check_tokens(tokens: int) -> int:
    """A context length as an int.

    Raises:
        TypeError: it is not a whole number. ValueError: it is negative.
    """
    try:
        count = index(tokens)
    except TypeError:
        raise TypeError(f"tokens is {tokens!r}; expected a whole number") from None
    if count < 0:
        raise ValueError(f"tokens is {count}; expected zero or more")
    return count


def _owners(config: ModelConfig, shared: bool = True) -> list[LayerPlan]:
    return [layer for layer in config.layers if layer.owns_kv or (not shared and layer.ratio > 0)]


def _row(name: str, kept: list[Plane]) -> Row:
    return Row(name, total(tuple(kept)), sum_formula(tuple(kept)))
