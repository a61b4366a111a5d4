"""One decode step of a small model with the layer plan of a large one: what each layer scores and selects.

The plan decides who hands what to whom; the sizes only decide how much of it there is. So a model of forty narrow
layers shows the hand-over of the published one, in entries few enough to draw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from ds41.attention import Selection
from ds41.config import ModelConfig
from ds41.model import Model
from ds41.ops.selection import entries_of_blocks

_VOCABULARY = 64


@dataclass(frozen=True)
class LayerTrace:
    """What a layer that selects has scored and selected for the newest token: entries of its source, ascending."""

    scored: tuple[int, ...]
    selected: tuple[int, ...]


def small_plan(config: ModelConfig) -> ModelConfig:
    """The layer plan of ``config`` with small sizes: window 16, 8 entries selected, a pool of 6 blocks of 4."""
    layers = config.num_hidden_layers
    return replace(
        config,
        vocab_size=_VOCABULARY,
        hidden_size=64,
        num_attention_heads=2,
        head_dim=32,
        qk_rope_head_dim=16,
        q_lora_rank=32,
        o_lora_rank=32,
        o_groups=1,
        sliding_window=16,
        compress_ratios=config.compress_ratios[:layers],
        index_n_heads=4,
        index_head_dim=32,
        index_topk=8,
        candidate_topk_blocks=6,
        candidate_block_size=4,
        hc_mult=2,
        hc_sinkhorn_iters=1,
        moe_intermediate_size=32,
        n_routed_experts=2,
        num_experts_per_tok=1,
        engram_layer_ids=(),
        engram_num_embeddings=(),
        num_nextn_predict_layers=0,
        dspark_target_layer_ids=(),
    )


@lru_cache(maxsize=8)
def trace_decode(config: ModelConfig, tokens: int, seed: int = 0) -> dict[int, LayerTrace]:
    """Run ``tokens`` random ids through a model of ``config`` with random weights, the last one as a decode step.

    Returns:
        By layer, for every layer that selects. A layer that sees no more entries than it may select scores none.
    """
    if tokens < 2:
        raise ValueError(f"tokens is {tokens}; expected 2 or more, a prompt and a token to decode")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Model(config)
        ids = torch.randint(config.vocab_size, (tokens,))
    cache = model.new_cache(tokens)
    model.prefill(ids[:-1], cache)
    traces: dict[int, LayerTrace] = {}

    def note(indexer: torch.nn.Module, given: tuple, selection: Selection) -> None:
        visible = tokens // indexer.plan.ratio
        scored = _scored(config, visible, candidates=given[-1])
        traces[indexer.plan.index] = LayerTrace(scored, _present(selection.entries[0]))

    for plan in config.layers:
        if plan.owns_selection:
            model.layers[plan.index].attn.indexer.register_forward_hook(note)
    model.decode(ids[-1:], cache)
    return traces


def _scored(config: ModelConfig, visible: int, candidates: torch.Tensor | None) -> tuple[int, ...]:
    if visible <= config.index_topk:
        return ()
    if candidates is None:
        return tuple(range(visible))
    return _present(entries_of_blocks(candidates, config.candidate_block_size, torch.tensor([visible]))[0])


def _present(entries: torch.Tensor) -> tuple[int, ...]:
    return tuple(entry for entry in entries.tolist() if entry >= 0)
