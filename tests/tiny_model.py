"""A model of five layers, one of each kind: small enough to run hundreds of turns, random weights."""

import dataclasses

import golden_model
import torch

from ds41.model import Model

# A window layer; Full and Reuse at ratio 2; a Full layer at ratio 1 that publishes a pool, and a Reindex layer.
CONFIG = dataclasses.replace(
    golden_model.config_of("tinyA"),
    num_hidden_layers=5,
    compress_ratios=(0, 2, 2, 1, 1),
    kv_source_layer_ids=(1, 3),
    index_source_layer_ids=(1, 3, 4),
    candidate_source_layer_id=3,
    hc_sinkhorn_iters=2,
    n_routed_experts=4,
    num_experts_per_tok=2,
    engram_layer_ids=(),
    engram_num_embeddings=(),
    num_nextn_predict_layers=0,
    dspark_target_layer_ids=(),
)


def build(seed: int = 3, **options) -> Model:
    torch.manual_seed(seed)
    return Model(CONFIG, **options).requires_grad_(False)
