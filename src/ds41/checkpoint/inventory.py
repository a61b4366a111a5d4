"""Every tensor of an official checkpoint, computed from the configuration: name, shape and stored type.

Source: the header of the released checkpoint: 96,085 tensors, of which 93,418 make up backbone and Engram.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ds41.config import ConfigError, LayerPlan, ModelConfig
from ds41.weight_formats import BYTES_EACH, ENGRAM_ROWS, EXPERT_ROWS, SCALE_DTYPE, TileFormat, WeightFormat


class TensorInfo(NamedTuple):
    """One stored tensor. dtype: as safetensors names it: F32, BF16, F8_E4M3, F8_E8M0, I8 (two E2M1 each)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BYTES_EACH[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Weight:
    """One weight of the model: ``shape`` as it is computed with, ``stored`` either plainly or in a format."""

    name: str
    shape: tuple[int, ...]
    stored: Literal["F32", "BF16"] | WeightFormat

    @property
    def scale_name(self) -> str:
        """Where a format's scales lie: beside the codes."""
        return self.name.removesuffix("weight") + "scale"

    def tensors(self) -> dict[str, TensorInfo]:
        """The stored tensors that hold this weight, by name."""
        if isinstance(self.stored, str):
            return {self.name: TensorInfo(self.shape, self.stored)}
        codes, scales = self.stored.stored_shapes(self.shape)
        return {
            self.name: TensorInfo(codes, self.stored.weight_dtype),
            self.scale_name: TensorInfo(scales, SCALE_DTYPE),
        }


def inventory(config: ModelConfig) -> dict[str, TensorInfo]:
    """The tensors of backbone and Engram by official name; what else a checkpoint has: :func:`missing_parts`."""
    return {name: info for weight in weights(config) for name, info in weight.tensors().items()}


def missing_parts(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Official names of the parts that this package has no model for yet: "drafter" and "vision".

    A checkpoint may hold them; they are not read and not written.
    """
    drafter = [name for weight in _drafter(config) for name in weight.tensors()]
    return {"drafter": tuple(drafter), "vision": tuple(_vision_names(config))}


def weights(config: ModelConfig) -> Iterator[Weight]:
    """Backbone and Engram, in the order of the layers."""
    c = config
    yield Weight("embed.weight", (c.vocab_size, c.hidden_size), "BF16")
    for plan in c.layers:
        yield from _block(c, f"layers.{plan.index}", plan, c.n_routed_experts)
        if plan.index in c.engram_layer_ids:
            yield from _engram(c, f"layers.{plan.index}.engram", plan.index)
    yield Weight("norm.weight", (c.hidden_size,), "BF16")
    yield Weight("head.weight", (c.vocab_size, c.hidden_size), "BF16")


def _block(c: ModelConfig, prefix: str, plan: LayerPlan | None, experts: int) -> Iterator[Weight]:
    """A layer, or with ``plan`` None a draft layer, whose attention has a window only."""
    streams = c.hc_mult
    coefficients = 2 * streams + streams * streams
    for site in ("attn", "ffn"):
        yield Weight(f"{prefix}.hc_{site}_fn", (coefficients, streams * c.hidden_size), "F32")
        yield Weight(f"{prefix}.hc_{site}_base", (coefficients,), "F32")
        yield Weight(f"{prefix}.hc_{site}_scale", (3,), "F32")
        yield Weight(f"{prefix}.{site}_norm.weight", (c.hidden_size,), "BF16")
    yield from _attention(c, f"{prefix}.attn", plan)
    yield Weight(f"{prefix}.ffn.gate.weight", (experts, c.hidden_size), "BF16")
    yield Weight(f"{prefix}.ffn.gate.bias", (experts,), "F32")
    yield Weight(f"{prefix}.ffn.gate.bias_vl", (experts,), "F32")
    if c.n_shared_experts:
        width = c.n_shared_experts * c.moe_intermediate_size
        yield from _expert(c, f"{prefix}.ffn.shared_experts", width, _tiles(c))
    for expert in range(experts):
        yield from _expert(c, f"{prefix}.ffn.experts.{expert}", c.moe_intermediate_size, _expert_format(c))


def _attention(c: ModelConfig, prefix: str, plan: LayerPlan | None) -> Iterator[Weight]:
    tiles = _tiles(c)
    heads_width = c.num_attention_heads * c.head_dim
    yield Weight(f"{prefix}.wq_a.weight", (c.q_lora_rank, c.hidden_size), tiles)
    yield Weight(f"{prefix}.q_norm.weight", (c.q_lora_rank,), "BF16")
    yield Weight(f"{prefix}.wq_b.weight", (heads_width, c.q_lora_rank), tiles)
    yield Weight(f"{prefix}.wkv.weight", (c.head_dim, c.hidden_size), tiles)
    yield Weight(f"{prefix}.kv_norm.weight", (c.head_dim,), "BF16")
    yield Weight(f"{prefix}.attn_sink", (c.num_attention_heads,), "F32")
    yield Weight(f"{prefix}.wo_a.weight", (c.o_groups * c.o_lora_rank, heads_width // c.o_groups), tiles)
    yield Weight(f"{prefix}.wo_b.weight", (c.hidden_size, c.o_groups * c.o_lora_rank), tiles)
    if plan is None:
        return
    if plan.owns_kv:
        yield Weight(f"{prefix}.compressor.wkv.weight", (c.head_dim, c.hidden_size), "BF16")
        if plan.ratio > 1:
            yield Weight(f"{prefix}.compressor.wgate.weight", (c.head_dim, c.hidden_size), "BF16")
        yield Weight(f"{prefix}.compressor.norm.weight", (c.head_dim,), "BF16")
        yield Weight(f"{prefix}.indexer.wk.weight", (c.index_head_dim, c.head_dim), "BF16")
        yield Weight(f"{prefix}.indexer.k_norm.weight", (c.index_head_dim,), "BF16")
    if plan.owns_selection:
        yield Weight(f"{prefix}.indexer.wq_b.weight", (c.index_n_heads * c.index_head_dim, c.q_lora_rank), tiles)
        yield Weight(f"{prefix}.indexer.weights_proj.weight", (c.index_n_heads, c.hidden_size), "BF16")


def _expert(c: ModelConfig, prefix: str, width: int, stored: WeightFormat) -> Iterator[Weight]:
    yield Weight(f"{prefix}.w1.weight", (width, c.hidden_size), stored)
    yield Weight(f"{prefix}.w2.weight", (c.hidden_size, width), stored)
    yield Weight(f"{prefix}.w3.weight", (width, c.hidden_size), stored)


def _engram(c: ModelConfig, prefix: str, layer: int) -> Iterator[Weight]:
    rows = c.engram_num_embeddings[c.engram_layer_ids.index(layer)]
    columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads
    yield Weight(f"{prefix}.embed.weight", (rows, c.engram_head_dim), ENGRAM_ROWS)
    yield Weight(f"{prefix}.wkv.weight", ((c.hc_mult + 1) * c.hidden_size, columns * c.engram_head_dim), _tiles(c))
    yield Weight(f"{prefix}.q_weight", (c.hc_mult, c.hidden_size), "BF16")
    yield Weight(f"{prefix}.k_weight", (c.hc_mult, c.hidden_size), "BF16")


def _drafter(c: ModelConfig) -> Iterator[Weight]:
    """DSpark's draft layers; embedding and head are those of the backbone."""
    blocks = c.num_nextn_predict_layers
    if not blocks:
        return
    for block in range(blocks):
        yield from _block(c, f"mtp.{block}", None, c.dspark_n_routed_experts)
    last, rank = f"mtp.{blocks - 1}", c.dspark_markov_rank
    yield Weight("mtp.0.main_norm.weight", (c.hidden_size,), "BF16")
    width = len(c.dspark_target_layer_ids) * c.hidden_size
    yield Weight("mtp.0.main_proj.weight", (c.hidden_size, width), _tiles(c))
    yield Weight(f"{last}.norm.weight", (c.hidden_size,), "BF16")
    yield Weight(f"{last}.markov_head.embed.weight", (c.vocab_size, rank), "BF16")
    yield Weight(f"{last}.markov_head.head.weight", (c.vocab_size, rank), "BF16")
    yield Weight(f"{last}.confidence_head.proj.weight", (1, c.hidden_size + rank), "BF16")


def _vision_names(c: ModelConfig) -> Iterator[str]:
    if c.vision is None:
        return
    yield from ("vision.patch_embed.proj.weight", "vision.patch_embed.proj.bias")
    for block in range(c.vision.num_hidden_layers):
        for name in (
            "norm1.weight", "attn.wqkv.weight", "attn.wqkv.bias", "attn.wo.weight", "attn.wo.bias",
            "norm2.weight", "mlp.w1.weight", "mlp.w2.weight",
        ):  # fmt: skip
            yield f"vision.blocks.{block}.{name}"
    yield "vision.norm.weight"
    yield from (f"aligner.{matrix}.{part}" for matrix in ("w1", "w2") for part in ("weight", "bias"))
    yield from ("image_start", "image_end", "image_newline")


def _tiles(c: ModelConfig) -> TileFormat:
    return TileFormat(*c.weight_block_size)


def _expert_format(c: ModelConfig) -> WeightFormat:
    formats = {"fp4": EXPERT_ROWS, "fp8": _tiles(c)}
    if c.expert_dtype not in formats:
        raise ConfigError(f"expert_dtype is {c.expert_dtype!r}; expected 'fp4' or 'fp8'")
    return formats[c.expert_dtype]
