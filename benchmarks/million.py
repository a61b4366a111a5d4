"""One decode step at a million tokens, on the published attention dimensions, through the packed cache.

    python benchmarks/million.py [--tokens 1048576] [--rounds 5] [--json FILE]

Allocates the pages of one sequence and fills every byte, then decodes one token through a Full, a Reindex and a Reuse
layer (layers 20, 24 and 25) at several lengths of that sequence, which share the pages. Weights are random; the work
does not depend on their values. Multiply-adds of a layer are counted by torch, those of its index scores from
the keys it scored; "read" are the bytes of records that it takes from pages and window.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from origin import origin
from rich.console import Console
from rich.table import Table
from timing import in_turn, machine
from torch.utils.flop_counter import FlopCounterMode

from ds41 import ModelConfig, ledger
from ds41.attention import Attention, CacheMemory
from ds41.cache import Cache, PagePool
from ds41.step import Step

LAYERS = {"Full": 20, "Reindex": 24, "Reuse": 25}
_FILL = 2**15
# The decoded token may copy a shared page before it writes.
_SPARE_PAGES = 2


class CountingMemory(CacheMemory):
    """A cache that adds up the bytes of the records it hands out."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        entry, self._window = ledger.Storage.published(cache.config), 0
        self._main_record, self._index_record = entry.main.nbytes, entry.index.nbytes
        self._window_record = entry.window.nbytes
        self.index_bytes = self.other_bytes = 0

    def window(self, layer, step, rows):
        keys, choice = super().window(layer, step, rows)
        self.other_bytes += (keys.shape[0] - rows.shape[0]) * self._window_record
        return keys, choice

    def main_entries(self, layer, sequence, entry):
        self.other_bytes += int((entry >= 0).sum()) * self._main_record
        return super().main_entries(layer, sequence, entry)

    def index_keys(self, layer, sequence, start, stop):
        self.index_bytes += (stop - start) * self._index_record
        return super().index_keys(layer, sequence, start, stop)

    def index_entries(self, layer, sequence, entry):
        self.index_bytes += int((entry >= 0).sum()) * self._index_record
        return super().index_entries(layer, sequence, entry)


@dataclass(frozen=True)
class Row:
    """One layer at one length."""

    tokens: int
    layer: str
    milliseconds: float
    macs: int
    indexer_macs: int
    index_bytes: int
    other_bytes: int


def filled_pool(config: ModelConfig, tokens: int) -> tuple[PagePool, Cache]:
    """Pages for ``tokens`` tokens with random entries in every source."""
    page = PagePool(config, 1).layout.page_tokens
    pool = PagePool(config, tokens // page + _SPARE_PAGES)
    cache = Cache(config, tokens, pool=pool)
    generator = torch.Generator().manual_seed(0)
    for start in range(0, tokens, _FILL):
        count = min(_FILL, tokens - start)
        cache.reserve([count])
        for plan in config.layers:
            if plan.owns_kv:
                entry = torch.arange(start // plan.ratio, (start + count) // plan.ratio)
                main = torch.randn(len(entry), config.head_dim, generator=generator)
                index = torch.randn(len(entry), config.index_head_dim, generator=generator)
                cache.write_entries(plan.index, torch.zeros_like(entry), entry, main, index)
        cache.advance([count])
    return pool, cache


def measure(attentions: dict, pool: PagePool, pages: list[int], tokens: int, rounds: int) -> list[Row]:
    """Decode the token at position ``tokens - 1`` through each layer."""
    config = ModelConfig.flash()
    cache = Cache(config, tokens, pool=pool)
    cache.adopt(0, pages[: pool.layout.pages_for(tokens - 1)], tokens - 1)
    # The windows of the sequence hold rows, as after a prefill.
    cache.window_start.zero_()
    ring = torch.arange(tokens - 1 - config.sliding_window, tokens - 1)
    for layer in LAYERS.values():
        cache.write_window(layer, torch.zeros_like(ring), ring, torch.randn(len(ring), config.head_dim))
    cache.reserve([1])
    step, x = Step.of([1], [tokens - 1]), torch.randn(1, config.hidden_size, dtype=torch.bfloat16)
    selections: dict = {}

    def run(name, memory=None):
        return attentions[name](x, step, memory or CacheMemory(cache), selections)

    rows = []
    with torch.no_grad():
        timings = in_turn({name: lambda name=name: run(name) for name in LAYERS}, rounds, torch.device("cpu"))
        for name in LAYERS:
            memory = CountingMemory(cache)
            with FlopCounterMode(display=False) as counter:
                run(name, memory)
            scored = memory.index_bytes // memory._index_record
            # A dot product for every head, and the weighted sum over heads.
            indexer_macs = scored * config.index_n_heads * (config.index_head_dim + 1)
            total = counter.get_total_flops() // 2
            rows.append(
                Row(tokens, name, timings[name].best * 1e3, total, indexer_macs, memory.index_bytes, memory.other_bytes)
            )
    cache.reset(0)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=2**20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = ModelConfig.flash()
    pool, cache = filled_pool(config, options.tokens)
    pages = cache.pages_of(0)
    held = len(pages) * pool.layout.nbytes
    print(f"pages for {options.tokens:,} tokens: {held:,} bytes ({held // options.tokens} a token), every one written")
    print(f"the ledger says {ledger.global_bytes(config, options.tokens):,}; this process holds {_resident():,}")
    torch.manual_seed(0)
    attentions = {
        name: Attention(config, config.layers[layer], "cache", torch.bfloat16).requires_grad_(False)
        for name, layer in LAYERS.items()
    }
    lengths = [tokens for tokens in (2**16, 2**17, 2**18, 2**19, 2**20) if tokens <= options.tokens]
    rows = [row for tokens in lengths for row in measure(attentions, pool, pages, tokens, options.rounds)]
    _print(rows)
    by_place = {(row.tokens, row.layer): row for row in rows}
    first, last = lengths[0], lengths[-1]
    full, pool_row = by_place[last, "Full"], by_place[last, "Reindex"]
    print(f"indexer work at {last:,}: Full / Reindex = {full.indexer_macs / pool_row.indexer_macs:.2f}")
    change = by_place[last, "Reindex"].milliseconds / by_place[first, "Reindex"].milliseconds
    print(f"Reindex at {last:,} over {first:,}: {change:.3f} of the time")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory of this process: {peak:,} bytes; {machine(torch.device('cpu'))}")
    if options.json:
        result = {
            **origin("cpu"),
            "page_bytes": held,
            "peak_bytes": peak,
            "rows": [vars(row) for row in rows],
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def _resident() -> int:
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _print(rows: list[Row]) -> None:
    table = Table(title="one decode step of one layer")
    for heading in ("tokens", "layer", "ms", "M multiply-adds", "of it indexer", "index keys read", "other KV read"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for row in rows:
        table.add_row(
            f"{row.tokens:,}",
            row.layer,
            f"{row.milliseconds:.1f}",
            f"{row.macs / 1e6:,.1f}",
            f"{row.indexer_macs / 1e6:,.1f}",
            f"{row.index_bytes:,}",
            f"{row.other_bytes:,}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
