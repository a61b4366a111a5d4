"""ds41 beside Hugging Face transformers' DeepSeek-V4: cache bytes, prefill, decode, memory; one shape, one run.

    python benchmarks/peers.py [--tokens 8192] [--chunk 512] [--steps 16] [--json FILE]

Both models have the attention of their release (heads of 512, index keys of 128, window 128, top-k 512) and the same
small rest: hidden size, experts, vocabulary. The layers are those of the releases, 40 and 43. Weights are random,
bfloat16, on the CPU. Each model runs in a process of its own, so that peak memory is its own, on one thread, and times
are the process's CPU time, which a busy machine changes little. "bytes a token" come from the tensors that the cache
holds: how much they grow between half the context and all of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from origin import origin
from rich.console import Console
from rich.table import Table
from timing import machine

from ds41 import Model, ModelConfig

SHAPE = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "q_lora_rank": 128,
    "o_groups": 4,
    "o_lora_rank": 64,
    "index_n_heads": 8,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}


class Ours:
    """ds41 with packed pages."""

    def __init__(self, tokens: int) -> None:
        no_engram = {"engram_layer_ids": (), "engram_num_embeddings": ()}
        self.model = Model(dataclasses.replace(ModelConfig.flash(), **SHAPE, **no_engram), dtype=torch.bfloat16)
        self.page = 64
        self.cache = self.model.new_cache(tokens + 64, page_tokens=self.page)

    def prefill(self, ids: torch.Tensor) -> None:
        self.model.prefill(ids, self.cache, chunk_tokens=len(ids))

    def decode(self, token: int) -> int:
        return int(self.model.decode(token, self.cache).argmax())

    def cache_bytes(self) -> int:
        """Bytes of the pages in use, the windows, the open groups and the history."""
        pages = len(self.cache.pages_of(0)) * self.cache.pool.layout.nbytes
        return pages + self.cache.window_bytes + self.cache.open_group_bytes + self.cache.history_bytes


class Transformers:
    """transformers' DeepSeek-V4 with its own cache."""

    def __init__(self, tokens: int) -> None:
        from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

        config = DeepseekV4Config(**SHAPE, dtype="bfloat16", pad_token_id=0)
        self.model = DeepseekV4ForCausalLM(config).to(torch.bfloat16).eval()
        self.cache = None

    def prefill(self, ids: torch.Tensor) -> None:
        out = self.model(ids[None], past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values

    def decode(self, token: int) -> int:
        ids = torch.tensor([[token]])
        out = self.model(ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values
        return int(out.logits[0, -1].argmax())

    def cache_bytes(self) -> int:
        """Bytes of every tensor that hangs on the cache object, each memory counted once."""
        memories = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in _tensors(self.cache)}
        return sum(memory.nbytes() for memory in memories.values())


PEERS = {"ds41": Ours, "transformers": Transformers}


def _tensors(value, seen: set | None = None):
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, seen)
    elif hasattr(value, "__dict__") and "Config" not in type(value).__name__:
        yield from _tensors(vars(value), seen)


@torch.no_grad()
def measure(name: str, tokens: int, chunk: int, steps: int) -> dict:
    """Prefill in chunks, then decode; seconds, bytes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    peer = PEERS[name](tokens + steps)
    ids = torch.randint(3, SHAPE["vocab_size"], (tokens,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, half = time.process_time(), 0
    for at in range(0, tokens, chunk):
        peer.prefill(ids[at : at + chunk])
        if at + chunk == tokens // 2:
            half = peer.cache_bytes()
    prefill = time.process_time() - start
    full = peer.cache_bytes()
    token, seconds = 3, []
    for _ in range(steps):
        start = time.process_time()
        token = peer.decode(token)
        seconds.append(time.process_time() - start)
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in peer.model.parameters()),
        "bytes_per_token": (full - half) / (tokens - tokens // 2),
        "cache_bytes": full,
        "prefill_s": prefill,
        # The first step may still allocate.
        "decode_ms": min(seconds[1:]) * 1e3,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "model_bytes": before * 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--only", choices=PEERS, help="measure one of them and print JSON")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.tokens % (2 * options.chunk):
        parser.error(f"--tokens is {options.tokens}; expected a multiple of twice --chunk, {2 * options.chunk}")
    if options.only:
        print(json.dumps(measure(options.only, options.tokens, options.chunk, options.steps)))
        return 0
    sizes = ["--tokens", str(options.tokens), "--chunk", str(options.chunk), "--steps", str(options.steps)]
    results = []
    for name in PEERS:
        command = [sys.executable, __file__, *sizes, "--only", name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        results.append(json.loads(run.stdout.splitlines()[-1]))
    _print(results, options.tokens)
    if options.json:
        result = {**origin("cpu"), "tokens": options.tokens, "results": results}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def _print(results: list[dict], tokens: int) -> None:
    rows = {
        "parameters": ("parameters", "{:,}", False),
        "cache, bytes a token": ("bytes_per_token", "{:,.1f}", True),
        "cache, bytes in all": ("cache_bytes", "{:,}", True),
        "prefill, CPU s": ("prefill_s", "{:.1f}", True),
        "decode, CPU ms a token": ("decode_ms", "{:.1f}", True),
        "peak memory, bytes": ("peak_bytes", "{:,}", True),
    }
    table = Table(title=f"{tokens:,} tokens of context, {machine(torch.device('cpu'))}")
    for heading in ("", *(result["name"] for result in results), "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    for label, (key, form, compared) in rows.items():
        values = [result[key] for result in results]
        ratio = f"{values[1] / values[0]:.2f}" if compared else ""
        table.add_row(label, *(form.format(value) for value in values), ratio)
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
