"""A stand-in for the model: it feeds tokens to a cache as the model does, and knows what must then be in it.

A token is a number. Its rows follow from the number, the layer and the channel; an entry is the mean of the rows of
its group, of which the waiting ones come back out of the cache. All values are exact in float32.
"""

from __future__ import annotations

import torch
from small_configs import with_plan

from ds41.cache import DEAD, Cache, PagePool

WINDOW, LOOK_BACK = 5, 3
# A layer without a global branch, one that pools, one that does not, one that borrows.
TINY = with_plan(
    (0, 2, 1, 1),
    (1, 2),
    sliding_window=WINDOW,
    head_dim=32,
    index_head_dim=32,
    qk_rope_head_dim=16,
    engram_layer_ids=(1,),
    engram_num_embeddings=(1000,),
    engram_max_ngram_size=LOOK_BACK + 1,
)
MAIN, INDEX = 100, 200


def rows(tokens: torch.Tensor, kind: int) -> torch.Tensor:
    """The rows [M, 32] of ``tokens`` [M] in one layer (windows) or one layer and kind (entries)."""
    channel = torch.arange(TINY.head_dim)
    return ((tokens[:, None] * 389 + kind * 53 + channel * 17) % 1021 - 510).float() / 64


def poison(cache: Cache) -> None:
    """Fill pages and private rows with what must never be seen: NaN, or NaN scales."""
    poison_free_pages(cache.pool)
    for row in range(cache.batch):
        poison_private(cache, row)


def poison_free_pages(pool: PagePool) -> None:
    free = [page for page in range(pool.pages) if not pool.references(page)]
    for part in [pool.data] if pool.data is not None else [part for kept in pool._all_rows() for part in kept.parts]:
        part[free] = _poison_of(part)


def poison_private(cache: Cache, row: int) -> None:
    """Windows and open groups of one row; what its history lacks is DEAD, which is no poison but a value."""
    for ring in (cache._windows, *cache._open.values()):
        for part in ring.parts:
            part.unflatten(1, (cache.batch, -1))[:, row] = _poison_of(part)


def _poison_of(part: torch.Tensor) -> float:
    return 255 if part.dtype == torch.uint8 else float("nan")


def step(cache: Cache, new: dict[int, list[int]], accepted: dict[int, int] | None = None) -> None:
    """Append the tokens ``new[row]`` to each row; keep only the first ``accepted[row]`` of them if given."""
    counts = [len(new.get(row, ())) for row in range(cache.batch)]
    cache.reserve(counts)
    sequence = torch.tensor([row for row, count in enumerate(counts) for _ in range(count)], dtype=torch.int64)
    starts = torch.tensor(cache.lengths)[sequence]
    position = torch.tensor(
        [cache.lengths[row] + i for row, count in enumerate(counts) for i in range(count)], dtype=torch.int64
    )
    tokens = torch.tensor([t for row in range(cache.batch) for t in new.get(row, ())], dtype=torch.int64)
    for layer in range(TINY.num_hidden_layers):
        cache.write_window(layer, sequence, position, rows(tokens, layer))
    for source in cache.pool.layout.sources:
        main, index = rows(tokens, source.layer + MAIN), rows(tokens, source.layer + INDEX)
        closing = position % source.ratio == source.ratio - 1
        if source.ratio == 2:
            main, index = _pool_pairs(cache, source.layer, sequence, position, starts, main, index)
        cache.write_entries(
            source.layer, sequence[closing], position[closing] // source.ratio, main[closing], index[closing]
        )
    cache.write_history(sequence, position, tokens)
    cache.advance(counts if accepted is None else [accepted.get(row, 0) for row in range(cache.batch)])


def _pool_pairs(cache, layer, sequence, position, starts, main, index):
    """Means of each row and the one before it, which may wait in the cache; then the new waiting rows are written."""
    waits = (position == starts) & (position % 2 == 1)
    before, index_before = main.roll(1, 0), index.roll(1, 0)
    before[waits], index_before[waits] = cache.read_open(layer, sequence[waits], position[waits] - 1)
    first = position % 2 == 0
    cache.write_open(layer, sequence[first], position[first], main[first], index[first])
    return (before + main) / 2, (index_before + index) / 2


def expected_entries(tokens: list[int], layer: int, ratio: int, kind: int) -> torch.Tensor:
    """The entries [len(tokens) // ratio, 32] that a sequence of ``tokens`` has in one layer."""
    closed = tokens[: len(tokens) // ratio * ratio]
    return rows(torch.tensor(closed, dtype=torch.int64), layer + kind).view(-1, ratio, TINY.head_dim).mean(1)


def seen(cache: Cache, row: int) -> dict[str, torch.Tensor]:
    """Everything that the next token of a row may look at, read through the interface."""
    length = cache.lengths[row]
    found = {"history": cache.history(torch.tensor([row]))[0]}
    for source in cache.pool.layout.sources:
        count = length // source.ratio
        one, entry = torch.tensor([row]), torch.arange(count)[None]
        found[f"main {source.layer}"] = cache.gather_main(source.layer, one, entry)[0]
        found[f"index {source.layer}"] = cache.gather_index(source.layer, one, entry)[0]
        assert torch.equal(cache.index_keys(source.layer, row, 0, count), found[f"index {source.layer}"])
        waiting = torch.arange(count * source.ratio, length)
        if source.ratio > 1:
            value, gate = cache.read_open(source.layer, torch.full_like(waiting, row), waiting)
            found[f"value {source.layer}"], found[f"gate {source.layer}"] = value, gate
    for layer in range(TINY.num_hidden_layers):
        start = max(int(cache.window_start[layer, row]), length - WINDOW + 1, 0)
        position = torch.arange(start, length)
        found[f"window {layer}"] = cache.read_window(layer, torch.full_like(position, row), position)
    return found


def expected(tokens: list[int], window_start: int = 0, adopted: int = 0) -> dict[str, torch.Tensor]:
    """What :func:`seen` must find for a row of ``tokens``, the first ``adopted`` of them without a history."""
    length = len(tokens)
    ids = [tokens[length - k] if length - k >= adopted else DEAD for k in range(1, LOOK_BACK + 1)]
    found = {"history": torch.tensor(ids)}
    for layer, ratio in ((1, 2), (2, 1)):
        found[f"main {layer}"] = expected_entries(tokens, layer, ratio, MAIN)
        found[f"index {layer}"] = expected_entries(tokens, layer, ratio, INDEX)
        waiting = torch.tensor(tokens[length // ratio * ratio :], dtype=torch.int64)
        if ratio > 1:
            found[f"value {layer}"] = rows(waiting, layer + MAIN)
            found[f"gate {layer}"] = rows(waiting, layer + INDEX)
    start = max(window_start, length - WINDOW + 1, 0)
    for layer in range(TINY.num_hidden_layers):
        found[f"window {layer}"] = rows(torch.tensor(tokens[start:], dtype=torch.int64), layer)
    return found


def assert_same(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert found.keys() == right.keys()
    for name, value in found.items():
        assert torch.equal(value, right[name]), name


def assert_pages_counted(pool: PagePool, *caches: Cache) -> None:
    """Every page is free or referred to exactly as often as it stands in a table."""
    held: dict[int, int] = {}
    for cache in caches:
        for row, pages in enumerate(cache._table.pages):
            assert cache.page_table[row].tolist() == pages + [-1] * (cache.page_table.shape[1] - len(pages))
            for page in pages:
                held[page] = held.get(page, 0) + 1
    assert [pool.references(page) for page in range(pool.pages)] == [held.get(page, 0) for page in range(pool.pages)]
    assert pool.free_pages == pool.pages - len(held)
