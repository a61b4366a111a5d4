"""Values that several claims of the article are compared with, each from the library's own formulas.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from types import MappingProxyType

from ds41 import economics, flops, ledger, reads, roofline, weights, window_cone
from ds41.checkpoint import Part, TensorInfo, inventory
from ds41.config import Half, Mode, ModelConfig
from ds41.systems import System, from_config, system

FLASH = ModelConfig.flash()
MILLION = FLASH.max_position_embeddings
POOL = FLASH.candidate_topk_blocks * FLASH.candidate_block_size
V4_KEY = "deepseek-v4-flash"
# Eight of the largest device that was sold when the model came out, for statements about a node.
NODE, DEVICE = 8, "H200"


def layers(half: Half | None = None, mode: Mode | None = None) -> int:
    """Layers of one half, of one mode, or of both."""
    return sum(half in (None, plan.half) and mode in (None, plan.mode) for plan in FLASH.layers)


@cache
def tensors(part: Part | None = None) -> Mapping[str, TensorInfo]:
    """The released checkpoint's tensors by name."""
    return MappingProxyType(inventory(FLASH, part) if part else inventory(FLASH))


def layers_with(name: str, half: Half | None = None) -> int:
    """Layers, of one half or of both, whose attention holds a tensor, such as ``compressor.wgate``."""
    return sum(
        half in (None, plan.half) and f"layers.{plan.index}.attn.{name}.weight" in tensors() for plan in FLASH.layers
    )


def v4() -> System:
    return system(V4_KEY)


def contexts(pool_gib: int, kept: System | None = None, live: bool = False) -> Fraction:
    """Million-token contexts in a pool; live: each with its windows."""
    found = economics.capacity(kept or from_config(FLASH), pool_gib * economics.GIB)
    return found.live_contexts if live else found.contexts


def halved_kv_saves(tokens: int, batch: int = 1) -> float:
    """Part of a decode step's time on a node that goes away when every KV byte is halved."""
    step = roofline.decode_step(FLASH, tokens, roofline.DEVICES[DEVICE], batch=batch, devices=NODE)
    halved = max(step.bandwidth_seconds * (1 - step.kv_share / 2), step.compute_seconds)
    return 1 - halved / step.seconds


def full_node_kv_share() -> float:
    """KV's part of the bytes that a node filled with million-token contexts reads in a step."""
    device = roofline.DEVICES[DEVICE]
    pool = economics.node_pool_bytes(FLASH, device, NODE)
    batch = int(economics.capacity(from_config(FLASH), pool).live_contexts)
    return roofline.decode_step(FLASH, MILLION, device, batch=batch, devices=NODE).kv_share


def node_sessions(kept: System) -> int:
    """Million-token sessions, windows included, on eight devices of 80 GB."""
    pool = economics.node_pool_bytes(FLASH, roofline.DEVICES["H100"], NODE)
    return int(economics.capacity(kept, pool).live_contexts)


def device_rest_gib() -> float:
    """What the backbone's weights leave of one device of 80 GiB."""
    return 80 - weights.backbone(FLASH).nbytes / economics.GIB


def share_read(tokens: int = MILLION) -> float:
    """Part of the cache that a decode step reads."""
    return reads.kv_bytes_read(FLASH, tokens) / (ledger.global_bytes(FLASH, tokens) + ledger.window_bytes(FLASH))


def hit_price_share() -> float:
    """Part of the list price that found tokens are in a long session: 100 turns of a coding agent."""
    prices = economics.PRICES["USD"]
    session = economics.session(100, 30_000, 1_800, 500, prices)
    return float(session.hit_tokens * prices.hit / 10**6 / session.price)


def prefill_ratio(tokens: int) -> float:
    """Operations of a prefill that stops half-way, over those of a full one."""
    return flops.prefill(FLASH, tokens, "bounded").total / flops.prefill(FLASH, tokens).total


@cache
def _cold(prompt: int) -> int:
    return flops.prefill(FLASH, prompt, "bounded", logits=0).total


def bounded_replay_percent(prompt: int) -> float:
    """Operations of a replay of the last window through the encoder, in per cent of the prompt's own prefill."""
    window = FLASH.sliding_window
    layers_run = flops.by_layer(FLASH, window, cached=prompt - window)
    return 100 * sum(layer.total for layer in layers_run[: FLASH.decoder_start]) / _cold(prompt)


def exact_replay_percent(prompt: int) -> float:
    """The same for exact windows of all layers, every token fed again in full depth."""
    fed = window_cone.exact(FLASH, prompt).tokens
    return 100 * flops.prefill(FLASH, fed, cached=prompt - fed, logits=0).total / _cold(prompt)


def kept(*, shared: bool, compressed: bool) -> Fraction:
    return ledger.bytes_per_token(FLASH, shared=shared, compressed=compressed)


def index_share(layer: int, tokens: int = MILLION) -> float:
    """A layer's part of all index scores of one query."""
    macs = reads.index_macs(FLASH, tokens)
    return macs[layer] / sum(macs.values())


def other_window(window: int) -> ModelConfig:
    """The published configuration with another window."""
    return replace(FLASH, sliding_window=window)
