"""The floor of every kernel: what it must move and compute in one decode step, and the time that takes at full rate.

Each kernel's own file counts its bytes and operations; here they get the sizes of a step. Devices are those of
:mod:`ds41.roofline`, by datasheet.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ds41.config import ModelConfig
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, BlockFormat
from ds41.roofline import Device


@dataclass(frozen=True)
class KernelFloor:
    """One launch of an operator: its name, the bytes that it moves at least, and its operations.

    Operations count a multiply-add as two. What a kernel computes in integers or float32 is counted with the rest,
    though matrix units do not take it.
    """

    name: str
    nbytes: int
    operations: int

    def seconds(self, device: Device) -> float:
        """No launch is faster: the bytes at the memory's rate, or the operations at the rate of 16-bit products."""
        return max(self.nbytes / device.bandwidth, self.operations / device.half_flops)

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.operations / self.nbytes


def kernel_floors(config: ModelConfig, tokens: int, batch: int = 1) -> list[KernelFloor]:
    """One decode step of ``batch`` sequences with ``tokens`` tokens each: every operator once, in 16-bit activations.

    The indexer's operators are those of the last source, which has an entry for every token, and of a layer that
    selects from its pool.

    Raises:
        ValueError: a batch below 1.
    """
    from ds41.kernels.attention_plan import sparse_attention_packed_cost
    from ds41.kernels.cache_write import write_rows_cost
    from ds41.kernels.engram import engram_rows_cost, hash_rows_cost
    from ds41.kernels.engram_write import engram_write_cost
    from ds41.kernels.grouped_experts import distinct_experts, experts_packed_cost
    from ds41.kernels.hyper_connections import hyper_collapse_cost, hyper_connection_site_cost
    from ds41.kernels.index_scores import index_scores_of_pool_packed_cost, index_scores_packed_cost
    from ds41.kernels.norm import rms_norm_rows_cost
    from ds41.kernels.pooled_write import write_pooled_cost
    from ds41.kernels.router import route_tokens_cost
    from ds41.kernels.selection import select_blocks_cost, select_top_cost
    from ds41.kernels.swiglu import swiglu_rows_cost

    if batch < 1:
        raise ValueError(f"batch is {batch}; expected 1 or more")
    c, half = config, 2
    entries = tokens // c.layers[c.decoder_start].ratio
    width, rotated = c.head_dim, c.qk_rope_head_dim
    blocks = min(c.candidate_topk_blocks, -(-entries // c.candidate_block_size))
    visited = round(distinct_experts(batch, c.num_experts_per_tok, c.n_routed_experts))
    columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads
    index = (c.index_n_heads, c.index_head_dim)

    def write(fmt: BlockFormat, channels: int, latent: bool = False) -> tuple[int, int]:
        return write_rows_cost(batch, channels, rotated, fmt.element, fmt.block, half, latent)

    costs = {
        "hyper_connection_site": hyper_connection_site_cost(batch, c.hidden_size, half),
        "hyper_collapse": hyper_collapse_cost(batch, c.hidden_size, half),
        "rms_norm_rows": rms_norm_rows_cost(batch, c.q_lora_rank, half),
        "write_rows, window": write(WINDOW_KV, width),
        "write_rows, main KV": write(MAIN_KV, width, latent=True),
        "write_rows, index key": write(INDEX_KEY, c.index_head_dim),
        "write_pooled": write_pooled_cost(batch, width, rotated, MAIN_KV.element, MAIN_KV.block, half),
        "index_scores_packed": index_scores_packed_cost(batch, entries, *index),
        "select_blocks": select_blocks_cost(batch, entries, c.candidate_block_size, blocks),
        "select_top, all": select_top_cost(batch, entries, c.index_topk),
        "index_scores_of_pool_packed": index_scores_of_pool_packed_cost(batch, blocks, c.candidate_block_size, *index),
        "select_top, pool": select_top_cost(batch, blocks * c.candidate_block_size, c.index_topk),
        "sparse_attention_packed": sparse_attention_packed_cost(
            batch, c.num_attention_heads, width, c.sliding_window, min(c.index_topk, entries), half, rotated // 2
        ),
        "route_tokens": route_tokens_cost(batch, c.n_routed_experts, c.num_experts_per_tok),
        "swiglu_rows": swiglu_rows_cost(batch, c.n_shared_experts * c.moe_intermediate_size, half),
        "experts_packed": experts_packed_cost(
            batch, c.num_experts_per_tok, c.n_routed_experts, c.hidden_size, c.moe_intermediate_size, half, visited
        ),
        "hash_rows": hash_rows_cost(batch, len(c.engram_layer_ids), c.engram_max_ngram_size, c.engram_n_heads),
        "engram_rows": engram_rows_cost(batch, columns, c.engram_head_dim, half),
        "engram_write": engram_write_cost(batch, c.hc_mult, c.hidden_size, half),
    }
    return [KernelFloor(name, *cost) for name, cost in costs.items()]
