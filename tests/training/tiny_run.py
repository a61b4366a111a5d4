"""A run of a few seconds: five layers, one of each kind, and text that fits a page."""

from __future__ import annotations

import torch

from ds41.attention import SequenceMemory
from ds41.model import Model
from ds41.training.corpus import Corpus
from ds41.training.recipe import Recipe, Stage
from ds41.training.signals import Signals

# A window layer; a Full and a Reuse layer at ratio 2; a Full layer at ratio 1 that publishes a pool; a Reindex layer.
OVERRIDES = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "head_dim": 32,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "index_n_heads": 2,
    "qk_rope_head_dim": 8,
    "sliding_window": 8,
    "index_topk": 8,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 4,
    "hc_sinkhorn_iters": 2,
    "num_hidden_layers": 5,
    "compress_ratios": (0, 2, 2, 1, 1),
    "kv_source_layer_ids": (1, 3),
    "index_source_layer_ids": (1, 3, 4),
    "candidate_source_layer_id": 3,
    "dspark_target_layer_ids": (),
    "num_nextn_predict_layers": 0,
    "engram_layer_ids": (1,),
    "engram_num_embeddings": (24064,),
}


def tiny_corpus() -> Corpus:
    """Two files whose lines all differ."""
    return Corpus({f"{name}.py": "".join(f"{name}_{i} = {i * i}\n" for i in range(200)).encode() for name in "ab"})


def tiny_recipe(steps: int = 3, mix: dict | None = None, **settings) -> Recipe:
    """``steps`` steps of pre-training, then as many of post-training."""
    mix = {"stream": 1.0} if mix is None else mix
    stages = (Stage("pre", steps, 24, 4, mix), Stage("post", steps, 40, 4, mix, serving=True))
    return Recipe("nano", stages, overrides=OVERRIDES, **settings)


def tiny_model(quantization: str = "cache", seed: int = 0, **changes) -> Model:
    """Weights far larger than at the start of a run, so that scores and probabilities differ."""
    torch.manual_seed(seed)
    config = Recipe("nano", tiny_recipe().stages, overrides=OVERRIDES | {"initializer_range": 0.2} | changes).config()
    return Model(config, quantization)


def tiny_ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(16, 272, (rows, length), generator=torch.Generator().manual_seed(seed))


def read_signals(model: Model, ids: torch.Tensor, rounds: bool) -> Signals:
    """The signals of one pass."""
    with Signals(model) as signals:
        model(ids, memory=lambda step: signals.keep(SequenceMemory(model.config, step, rounds)))
    return signals
