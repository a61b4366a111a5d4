"""Hundreds of sessions on one small model with few rows: nothing may be lost, mixed up, or leak.

    python benchmarks/session_load.py [--sessions 200] [--seconds 180] [--rows 6] [--clients 4] [--json FILE]

Clients in threads of their own hold several conversations each, of several tenants that share a beginning: they say
prompts of random length, take tokens of several answers in turn, cancel some, drop some, close sessions and open them
again by their ids, and take up a conversation of their tenant in the middle. Pages, rows, store and window pool are
far too small for all of them. What is checked:

lost        sessions whose conversation is not what was said and answered, or whose answer failed or never ended
wrong hits  turns that hit more tokens than any conversation of their tenant had in common with them
page leak   pages of the model's memory that nobody has given back when all is closed
RSS         resident memory of the process at intervals; growth is of the last fifth over the second
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from session_clients import FIRST_ID, MAX_TOKENS, Client
from timing import machine

from ds41 import ModelConfig
from ds41.cache import PageLayout
from ds41.model import Model
from ds41.serving import Engine, HostWindowPool, PrefixStore

FINGERPRINT = b"the model of a load test"
PAGE_TOKENS = 16
_PAGE_OF_MEMORY = os.sysconf("SC_PAGE_SIZE")


@functools.cache
def small_model() -> Model:
    """One layer of each kind that owns global KV and one above them; window 8, top-k 8, so all limits are passed."""
    config = dataclasses.replace(
        ModelConfig.nano(),
        num_hidden_layers=3,
        hidden_size=64,
        compress_ratios=(2, 1, 1),
        kv_source_layer_ids=(0, 1),
        index_source_layer_ids=(0, 1),
        candidate_source_layer_id=1,
        index_topk=8,
        candidate_topk_blocks=4,
        candidate_block_size=4,
        sliding_window=8,
        hc_mult=2,
        hc_sinkhorn_iters=2,
        n_routed_experts=2,
        num_experts_per_tok=1,
        engram_layer_ids=(1,),
        engram_num_embeddings=ModelConfig.nano().engram_num_embeddings[:1],
        num_nextn_predict_layers=0,
        dspark_target_layer_ids=(),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model(config).requires_grad_(False)


@dataclass
class Outcome:
    """What a run did and what went wrong."""

    sessions: int = 0
    opened_again: int = 0
    turns: int = 0
    cancelled: int = 0
    tokens_read: int = 0
    tokens_drawn: int = 0
    hit_live: int = 0
    hit_memory: int = 0
    hit_store: int = 0
    replayed: int = 0
    computed: int = 0
    windows: dict[str, int] = field(default_factory=dict)
    refused_stores: int = 0
    errors: list[str] = field(default_factory=list)
    lost: int = 0
    wrong_hits: int = 0
    damaged_pages: int = 0
    page_leak: int = 0
    seconds: float = 0.0
    rss_mb: list[float] = field(default_factory=list)

    @property
    def growth_mb(self) -> float:
        """Of resident memory: the mean of the last fifth of the samples less that of the second."""
        part = len(self.rss_mb) // 5
        if not part:
            return 0.0
        return sum(self.rss_mb[-part:]) / part - sum(self.rss_mb[part : 2 * part]) / part

    @property
    def good(self) -> bool:
        return not (self.errors or self.lost or self.wrong_hits or self.damaged_pages or self.page_leak)


class Load:
    """The engine under load, and what all clients share."""

    def __init__(self, engine: Engine, sessions: int, clients: int, seconds: float, turns: int, seed: int) -> None:
        self.engine, self.outcome = engine, Outcome(sessions=sessions)
        self.deadline, self.most_turns = time.monotonic() + seconds, turns
        self.lock = threading.Lock()
        # All conversations there ever were, by tenant, and hits to be held against them when nothing runs any more.
        self.conversations: dict[str, dict[int, list[int]]] = {}
        self.hits: list[tuple[str, int, list[int], int, int]] = []
        source = random.Random(seed)
        vocabulary = engine.model.config.vocab_size
        self.openings = [[source.randrange(FIRST_ID, vocabulary) for _ in range(length)] for length in (21, 32, 45)]
        self.clients = [
            Client(self, number, range(number, sessions, clients), source.randrange(2**32)) for number in range(clients)
        ]

    def run(self) -> None:
        """Until the time is over, or so many turns were said, and all answers are drawn."""
        for client in self.clients:
            client.start()
        every = max(0.2, (self.deadline - time.monotonic()) / 50)
        while any(client.is_alive() for client in self.clients):
            self.outcome.rss_mb.append(_resident_mb())
            self.clients[0].join(every)
            time.sleep(0 if self.clients[0].is_alive() else 0.05)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline or self.outcome.turns >= self.most_turns

    def check_hits(self) -> None:
        """A hit is at most what the turn has in common with another conversation, or with its own before it."""
        for tenant, number, ids, known, hit in self.hits:
            others = (held for other, held in self.conversations[tenant].items() if other != number)
            longest = max((common(ids, held) for held in others), default=0)
            self.outcome.wrong_hits += hit > max(longest, known)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def measure(
    sessions: int = 200,
    seconds: float = 180.0,
    rows: int = 6,
    clients: int = 4,
    turns: int = 2**31,
    store_mb: float = 2.0,
    pool_mb: float = 0.2,
    seed: int = 0,
) -> Outcome:
    """Load an engine until the time is over or ``turns`` were said, whichever comes first."""
    model = small_model()
    layout = PageLayout.of(model.config, PAGE_TOKENS)
    pages = (rows + 2) * (layout.pages_for(MAX_TOKENS) + 1) // 2
    with tempfile.TemporaryDirectory() as folder:
        store = PrefixStore(folder, layout, FINGERPRINT, budget_bytes=int(store_mb * 2**20), guaranteed_s=0)
        engine = Engine(
            model,
            store,
            HostWindowPool(int(pool_mb * 2**20)),
            max_tokens=MAX_TOKENS,
            rows=rows,
            pages=pages,
            step_tokens=96,
            fingerprint=FINGERPRINT,
        )
        with store:
            began = time.monotonic()
            load = Load(engine, sessions, clients, seconds, turns, seed)
            with engine:
                load.run()
            outcome = load.outcome
            outcome.seconds = time.monotonic() - began
            load.check_hits()
            outcome.damaged_pages = store.verify().damaged
            outcome.page_leak = engine._pages.pages - engine._pages.free_pages
    return outcome


def table(outcome: Outcome) -> Table:
    """What happened, a line each."""
    seconds = outcome.seconds
    lines = [
        ("sessions", f"{outcome.sessions:,}, opened again {outcome.opened_again:,}"),
        ("turns", f"{outcome.turns:,}, cancelled {outcome.cancelled:,}, {outcome.turns / seconds:.1f}/s"),
        ("tokens", f"{outcome.tokens_read:,} said, {outcome.tokens_drawn:,} answered, {seconds:.0f} s"),
        ("hits: live row", f"{outcome.hit_live:,} tokens"),
        ("hits: memory", f"{outcome.hit_memory:,} tokens"),
        ("hits: store", f"{outcome.hit_store:,} tokens"),
        ("replayed, computed", f"{outcome.replayed:,} tokens, {outcome.computed:,} tokens"),
        ("windows", ", ".join(f"{name} {count:,}" for name, count in sorted(outcome.windows.items()))),
        ("stores refused", f"{outcome.refused_stores:,}"),
        ("errors", f"{len(outcome.errors)} {'; '.join(sorted(set(outcome.errors))[:3])}"),
        ("lost sessions", f"{outcome.lost}"),
        ("wrong hits", f"{outcome.wrong_hits}"),
        ("damaged pages", f"{outcome.damaged_pages}"),
        ("page leak", f"{outcome.page_leak}"),
        ("RSS in MB", " ".join(f"{value:.0f}" for value in outcome.rss_mb[:: max(1, len(outcome.rss_mb) // 10)])),
        ("RSS growth", f"{outcome.growth_mb:+.1f} MB"),
    ]
    result = Table(title=f"Sessions under load; {machine(torch.device('cpu'))}", show_header=False)
    for line in lines:
        result.add_row(*line)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--clients", type=int, default=4, help="threads that take tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outcome = measure(options.sessions, options.seconds, options.rows, options.clients, seed=options.seed)
    Console(width=120).print(table(outcome))
    if options.json:
        options.json.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    return 0 if outcome.good else 1


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_OF_MEMORY / 2**20


if __name__ == "__main__":
    sys.exit(main())
