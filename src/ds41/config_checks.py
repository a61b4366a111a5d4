"""What must hold before a model can be built from a configuration.

The sharing plan's rules: report section 2.3; the released inference code's layer constructor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds41.config_files import ConfigError

if TYPE_CHECKING:
    from ds41.config import ModelConfig


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def check_buildable(c: ModelConfig) -> None:
    """Refuse a configuration that no model of this family can be built from.

    Raises:
        ConfigError: the first fault found: a size, then the sharing plan.
    """
    for name in (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "q_lora_rank",
        "o_lora_rank", "o_groups", "sliding_window", "index_n_heads", "index_head_dim", "index_topk",
        "hc_mult", "hc_sinkhorn_iters", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok",
        "rope_theta", "compress_rope_theta", "rope_factor", "original_max_position_embeddings",
        "max_position_embeddings",
    ):  # fmt: skip
        _require(getattr(c, name) > 0, f"{name} is {getattr(c, name)}; expected a positive number")
    for name in (
        "n_shared_experts", "num_nextn_predict_layers", "engram_n_heads", "engram_head_dim",
        "engram_vocab_size", "engram_compressed_vocab_size", "dspark_block_size", "dspark_markov_rank",
        "dspark_n_routed_experts", "dspark_num_experts_per_tok", "rms_norm_eps", "hc_eps",
    ):  # fmt: skip
        _require(getattr(c, name) >= 0, f"{name} is {getattr(c, name)}; expected zero or more")
    for name, block, user in (("head_dim", 32, "window KV"), ("index_head_dim", 32, "index key")):
        _require(
            getattr(c, name) % block == 0,
            f"{name} is {getattr(c, name)}; expected a multiple of {block}, the block of the {user} format",
        )
    smaller = min(c.head_dim, c.index_head_dim)
    _require(
        c.qk_rope_head_dim % 2 == 0 and 0 < c.qk_rope_head_dim <= smaller,
        f"qk_rope_head_dim is {c.qk_rope_head_dim}; expected an even number from 2 to {smaller}",
    )
    _require(
        c.num_attention_heads % c.o_groups == 0,
        f"num_attention_heads {c.num_attention_heads} does not divide into o_groups {c.o_groups}",
    )
    _require(
        c.num_experts_per_tok <= c.n_routed_experts,
        f"num_experts_per_tok is {c.num_experts_per_tok}; there are only {c.n_routed_experts} routed experts",
    )
    _require(
        len(c.engram_num_embeddings) == len(c.engram_layer_ids),
        f"engram_num_embeddings has {len(c.engram_num_embeddings)} entries "
        f"for {len(c.engram_layer_ids)} engram_layer_ids",
    )
    _require(
        not c.engram_layer_ids or c.engram_max_ngram_size >= 2,
        f"engram_max_ngram_size is {c.engram_max_ngram_size}; expected 2 or more",
    )
    _require(
        len(c.weight_block_size) == 2 and min(c.weight_block_size) > 0,
        f"weight_block_size is {list(c.weight_block_size)}; expected two positive numbers",
    )
    _check_sharing_plan(c)


def _check_sharing_plan(c: ModelConfig) -> None:
    layers, drafts = c.num_hidden_layers, c.num_nextn_predict_layers
    _require(
        len(c.compress_ratios) in (layers, layers + drafts),
        f"compress_ratios has {len(c.compress_ratios)} entries; expected {layers} layers, "
        f"or {layers + drafts} with the draft layers",
    )
    for index, ratio in enumerate(c.compress_ratios):
        _require(ratio in (0, 1, 2), f"compress_ratios[{index}] is {ratio}; expected 0, 1 or 2")
        _require(
            index < layers or ratio == 0,
            f"compress_ratios[{index}] is {ratio}; draft layers have a window only, so 0",
        )
    for name in (
        "kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids", "dspark_target_layer_ids",
    ):  # fmt: skip
        ids = getattr(c, name)
        _require(list(ids) == sorted(set(ids)), f"{name} is {list(ids)}; expected ascending layer ids, none twice")
        for layer in ids:
            _require(0 <= layer < layers, f"{name} names layer {layer}; there are layers 0 to {layers - 1}")
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        for source in getattr(c, name):
            _require(
                c.compress_ratios[source] > 0,
                f"{name} names layer {source}, whose ratio is 0: it has no global branch",
            )
    for source in c.kv_source_layer_ids:
        _require(
            source in c.index_source_layer_ids,
            f"kv_source_layer_ids names layer {source}, index_source_layer_ids does not: "
            "its keys would have no selection",
        )
    for index in range(layers):
        ratio = c.compress_ratios[index]
        if ratio == 0:
            continue
        kv_source = max((s for s in c.kv_source_layer_ids if s <= index), default=None)
        _require(
            kv_source is not None,
            f"layer {index} has ratio {ratio} and no KV source at or below it in kv_source_layer_ids",
        )
        _require(
            c.compress_ratios[kv_source] == ratio,
            f"layer {index} reads at ratio {ratio}, "
            f"its KV source {kv_source} writes at ratio {c.compress_ratios[kv_source]}",
        )
    candidate = c.candidate_source_layer_id
    if candidate >= 0:
        _require(
            candidate in c.kv_source_layer_ids,
            f"candidate_source_layer_id is {candidate}; "
            f"expected one of the KV sources {list(c.kv_source_layer_ids)}, or -1",
        )
        for name in ("candidate_topk_blocks", "candidate_block_size"):
            _require(getattr(c, name) > 0, f"{name} is {getattr(c, name)}; expected a positive number")
        guaranteed = c.candidate_topk_blocks * c.candidate_block_size - (c.candidate_block_size - 1)
        _require(
            guaranteed >= c.index_topk,
            f"candidate_topk_blocks {c.candidate_topk_blocks} x candidate_block_size "
            f"{c.candidate_block_size} guarantees only {guaranteed} candidates; "
            f"index_topk needs {c.index_topk}",
        )
