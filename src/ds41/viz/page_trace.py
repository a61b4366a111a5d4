"""A decode step's attention over a small cache, tile by tile: where every key lies, and what a program holds.

The cache is a real one with records of the published widths, in pages of the published layout. Only the counts are
small: few tokens, a short window, few selected entries. Source of the walk: ``kernels/sparse_attention.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from ds41.cache import Cache
from ds41.config import ModelConfig
from ds41.ops.sparse_attention import sparse_attention

KEY_TILE = 16
SPLITS = 2
WINDOW = 32
SELECTED = 64
# Tokens of each sequence. The second has fewer entries than a query may select, so some lanes stay empty; the third
# is there for its pages, which lie between those of the first.
LENGTHS = (300, 50, 230)
WALKED = 2
# Bytes of one load of one thread.
LOAD = 16
_ACCUMULATORS = 4
_LARGEST_AT_FIRST = -1e30


@dataclass(frozen=True)
class Key:
    """One key of a query, and where its bytes are.

    kind: "window", "main" or "none", an empty place in the selection. token: the position it stands for. page, place:
    physical page and row in it of a main entry; for a window row page is -1 and place its slot in the ring. codes,
    scales: byte offsets, in the pool or in the ring's two buffers. first: the first ``LOAD`` bytes of the codes.
    first_scales: the scale bytes that belong to those.
    """

    kind: str
    token: int = -1
    page: int = -1
    place: int = -1
    codes: int = -1
    scales: int = -1
    first: bytes = b""
    first_scales: bytes = b""


@dataclass(frozen=True)
class Running:
    """One head's running softmax after a tile: the maximum in units of log 2, the sum, the first accumulators."""

    largest: float
    total: float
    sums: tuple[float, ...]


@dataclass(frozen=True)
class Walk:
    """One query: its row of the page table, its keys tile by tile, what a head holds after each, and the output."""

    sequence: int
    table: tuple[int, ...]
    tiles: tuple[tuple[Key, ...], ...]
    running: tuple[Running, ...]
    output: tuple[float, ...]


@lru_cache(maxsize=2)
def trace_walks(config: ModelConfig) -> tuple[Walk, ...]:
    """The newest token of each of ``WALKED`` sequences, in the last layer that owns keys, head 0.

    A program takes ``tiles / SPLITS`` tiles, so its running softmax begins anew there.
    """
    layer = config.kv_source_layer_ids[-1]
    generator = torch.Generator().manual_seed(41)
    cache = _filled(config, layer, generator)
    return tuple(_walk(config, cache, layer, sequence, generator) for sequence in range(WALKED))


def _filled(config: ModelConfig, layer: int, generator: torch.Generator) -> Cache:
    cache = Cache(config, max(LENGTHS) + 20, batch=len(LENGTHS), rollback=0, dtype=torch.float32)
    # Sequences grow in turns, as in serving, so their pages lie mixed.
    held = [0] * len(LENGTHS)
    while any(have < length for have, length in zip(held, LENGTHS, strict=True)):
        step = [min(cache.pool.layout.page_tokens, length - have) for have, length in zip(held, LENGTHS, strict=True)]
        cache.reserve(step)
        for sequence, (have, count) in enumerate(zip(held, step, strict=True)):
            _write(config, cache, layer, sequence, range(have, have + count), generator)
        cache.advance(step)
        held = [have + count for have, count in zip(held, step, strict=True)]
    return cache


def _write(
    config: ModelConfig, cache: Cache, layer: int, sequence: int, tokens: range, generator: torch.Generator
) -> None:
    if not tokens:
        return
    position = torch.arange(tokens.start, tokens.stop)
    row = torch.full_like(position, sequence)

    def rows(channels: int) -> torch.Tensor:
        return torch.randn(len(tokens), channels, generator=generator)

    ratio = config.layers[layer].ratio
    closed = position[(position + 1) % ratio == 0]
    index = torch.randn(len(closed), config.index_head_dim, generator=generator)
    cache.write_entries(layer, row[: len(closed)], closed // ratio, rows(config.head_dim)[: len(closed)], index)
    cache.write_window(layer, row, position, rows(config.head_dim))


def _walk(config: ModelConfig, cache: Cache, layer: int, sequence: int, generator: torch.Generator) -> Walk:
    newest, ratio = LENGTHS[sequence] - 1, config.layers[layer].ratio
    entries = (newest + 1) // ratio
    window = torch.arange(newest - WINDOW + 1, newest + 1)
    chosen = torch.randperm(entries, generator=generator)[:SELECTED].sort().values
    selected = torch.full((SELECTED,), -1)
    selected[: len(chosen)] = chosen
    keys = [_window_key(cache, layer, sequence, int(position)) for position in window]
    keys += [_main_key(cache, layer, sequence, int(entry), ratio) for entry in selected]

    sequences = torch.tensor([sequence])
    rows = cache.read_window(layer, sequences.expand(WINDOW), window)
    values = torch.cat((rows, cache.gather_main(layer, sequences, selected[None])[0]))
    usable = torch.cat((window, selected)) >= 0
    # Large enough for a few keys to stand out, as they do for a trained query.
    query = 3 * torch.randn(config.head_dim, generator=generator)
    tiles = [slice(start, start + KEY_TILE) for start in range(0, len(keys), KEY_TILE)]
    running, part = [], len(tiles) // SPLITS
    for number, tile in enumerate(tiles):
        before = None if number % part == 0 else running[-1]
        running.append(_fold(query, values[tile], usable[tile], before))
    output = sparse_attention(query[None, None], values[None], usable[None], torch.zeros(1))[0, 0]
    return Walk(
        sequence=sequence,
        table=tuple(cache.page_table[sequence].tolist()),
        tiles=tuple(tuple(keys[tile]) for tile in tiles),
        running=tuple(_shown(*state) for state in running),
        output=tuple(output[:_ACCUMULATORS].tolist()),
    )


def _fold(query: torch.Tensor, keys: torch.Tensor, usable: torch.Tensor, before: tuple | None) -> tuple:
    """One tile into a head's running softmax: the arithmetic of the kernel, in float32."""
    largest, total, sums = before or (torch.tensor(_LARGEST_AT_FIRST), torch.tensor(0.0), torch.zeros_like(query))
    logits = keys @ query * (len(query) ** -0.5 / math.log(2))
    top = torch.maximum(largest, torch.where(usable, logits, _LARGEST_AT_FIRST).max())
    weights = torch.where(usable, torch.exp2(logits - top), 0.0)
    fade = torch.exp2(largest - top)
    return top, total * fade + weights.sum(), sums * fade + weights @ keys


def _shown(largest: torch.Tensor, total: torch.Tensor, sums: torch.Tensor) -> Running:
    return Running(float(largest), float(total), tuple(sums[:_ACCUMULATORS].tolist()))


def _window_key(cache: Cache, layer: int, sequence: int, position: int) -> Key:
    slot = int(cache.window_slots(torch.tensor([sequence]), torch.tensor([position])))
    codes, scales = (part[slot] for part in cache.window_plane(layer))
    return Key(
        "window",
        token=position,
        place=slot,
        codes=slot * codes.numel(),
        scales=slot * scales.numel(),
        first=bytes(codes[:LOAD].tolist()),
        first_scales=bytes(scales[:1].tolist()),
    )


def _main_key(cache: Cache, layer: int, sequence: int, entry: int, ratio: int) -> Key:
    if entry < 0:
        return Key("none")
    page, place = (int(part) for part in cache.places(layer, torch.tensor([sequence]), torch.tensor([entry])))
    source, pool = cache.pool.layout.source(layer), cache.pool
    codes, scales = (
        page * pool.layout.nbytes + plane.offset + place * plane.row_bytes
        for plane in (source.main_codes, source.main_scales)
    )
    data = pool.data.flatten()
    return Key(
        "main",
        token=entry * ratio,
        page=page,
        place=place,
        codes=codes,
        scales=scales,
        first=bytes(data[codes : codes + LOAD].tolist()),
        first_scales=bytes(data[scales : scales + 2 * LOAD // 16].tolist()),
    )
