"""Every tensor of an official checkpoint, computed from the configuration: name, shape and stored type.

Source: the header of the released checkpoint: 96,085 tensors, of which 93,418 make up backbone and Engram, 2,401 the
drafter and 266 the vision tower with its aligner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from ds41.config import ConfigError, LayerPlan, ModelConfig, VisionConfig
from ds41.weight_formats import BYTES_EACH, ENGRAM_ROWS, EXPERT_ROWS, SCALE_DTYPE, TileFormat, WeightFormat

Part = Literal["model", "drafter", "vision"]
"""What can be read by itself: backbone with Engram, the drafter, the vision tower with its aligner."""
PARTS: tuple[Part, ...] = get_args(Part)
"""All values of :data:`Part`."""


class TensorInfo(NamedTuple):
    """One stored tensor. dtype: as safetensors names it: F32, BF16, F8_E4M3, F8_E8M0, I8 (two E2M1 each)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor as it is stored."""
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


def inventory(config: ModelConfig, parts: Part | Sequence[Part] = PARTS) -> dict[str, TensorInfo]:
    """The tensors of a checkpoint by official name, or of some of its parts."""
    return {name: info for weight in weights(config, parts) for name, info in weight.tensors().items()}


def weights(config: ModelConfig, parts: Part | Sequence[Part] = PARTS) -> Iterator[Weight]:
    """The weights of a checkpoint's parts, part after part.

    Raises:
        ValueError: an unknown part.
    """
    for part in (parts,) if isinstance(parts, str) else parts:
        if part not in _WEIGHTS:
            raise ValueError(f"part is {part!r}; expected one of {', '.join(map(repr, PARTS))}")
        yield from _WEIGHTS[part](config)


def _model(c: ModelConfig) -> Iterator[Weight]:
    """Backbone and Engram, in the order of the layers."""
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


def _vision(c: ModelConfig) -> Iterator[Weight]:
    """The tower, the aligner, and what stands around an image's vectors; all of it BF16."""
    if c.vision is None:
        return
    for name, shape in _vision_shapes(c, c.vision):
        yield Weight(name, shape, "BF16")


def _vision_shapes(c: ModelConfig, v: VisionConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = v.hidden_size
    yield "vision.patch_embed.proj.weight", (width, 3 * v.patch_size**2)
    yield "vision.patch_embed.proj.bias", (width,)
    for block in range(v.num_hidden_layers):
        prefix = f"vision.blocks.{block}"
        yield f"{prefix}.norm1.weight", (width,)
        yield f"{prefix}.attn.wqkv.weight", (3 * width, width)
        yield f"{prefix}.attn.wqkv.bias", (3 * width,)
        yield f"{prefix}.attn.wo.weight", (width, width)
        yield f"{prefix}.attn.wo.bias", (width,)
        yield f"{prefix}.norm2.weight", (width,)
        yield f"{prefix}.mlp.w1.weight", (2 * v.intermediate_size, width)
        yield f"{prefix}.mlp.w2.weight", (width, v.intermediate_size)
    yield "vision.norm.weight", (width,)
    yield "aligner.w1.weight", (c.hidden_size, width * int(v.downsample_ratio) ** 2)
    yield "aligner.w1.bias", (c.hidden_size,)
    yield "aligner.w2.weight", (c.hidden_size, c.hidden_size)
    yield "aligner.w2.bias", (c.hidden_size,)
    for role in ("start", "newline", "end"):
        yield f"image_{role}", (c.hidden_size,)


_WEIGHTS: dict[Part, Callable[[ModelConfig], Iterator[Weight]]] = {
    "model": _model, "drafter": _drafter, "vision": _vision,
}  # fmt: skip


def _tiles(c: ModelConfig) -> TileFormat:
    return TileFormat(*c.weight_block_size)


def _expert_format(c: ModelConfig) -> WeightFormat:
    formats = {"fp4": EXPERT_ROWS, "fp8": _tiles(c)}
    if c.expert_dtype not in formats:
        raise ConfigError(f"expert_dtype is {c.expert_dtype!r}; expected 'fp4' or 'fp8'")
    return formats[c.expert_dtype]
