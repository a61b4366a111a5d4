"""The weights' ledger: parameters and stored bytes of each group, in all and as one decoded token touches them.

Counts every tensor of the released checkpoint from the configuration: 551,566,180,464 parameters of the backbone (the
"552B"), 196,928,504,320 of Engram (the "196B"), 14,225,362,530 of the draft layers and 485,268,480 of the vision part.
Bytes are those of the checkpoint's formats: FP8 with one E8M0 scale per tile, FP4 experts with one per 32
channels, BF16 and FP32 for the rest.

Source: the released configuration; report sections 2.4 and 4.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ds41.config import ConfigError, LayerPlan, ModelConfig

_EXPERT_BLOCK = 32


@dataclass(frozen=True)
class Weights:
    """parameters: numbers, scales not among them. nbytes: as stored, scales included."""

    parameters: int = 0
    nbytes: int = 0

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.parameters + other.parameters, self.nbytes + other.nbytes)

    def __mul__(self, copies: int) -> Weights:
        return Weights(self.parameters * copies, self.nbytes * copies)

    __rmul__ = __mul__


def plain(count: int, bytes_each: int = 2) -> Weights:
    """Tensors without scales: BF16 by default, 4 bytes for FP32."""
    return Weights(count, count * bytes_each)


def fp8(config: ModelConfig, rows: int, columns: int) -> Weights:
    """One FP8 matrix with an E8M0 scale for each tile of ``weight_block_size``."""
    tile_rows, tile_columns = config.weight_block_size
    tiles = -(-rows // tile_rows) * -(-columns // tile_columns)
    return Weights(rows * columns, rows * columns + tiles)


def _fp4(rows: int, columns: int) -> Weights:
    return Weights(rows * columns, rows * (-(-columns // 2) + -(-columns // _EXPERT_BLOCK)))


def attention(config: ModelConfig, layer: LayerPlan) -> Weights:
    """One layer's attention: the common projections, and what its mode adds (compressor, indexer)."""
    c = config
    heads_out = c.num_attention_heads * c.head_dim
    weights = (
        fp8(c, c.q_lora_rank, c.hidden_size)
        + fp8(c, heads_out, c.q_lora_rank)
        + fp8(c, c.head_dim, c.hidden_size)
        + fp8(c, c.o_groups * c.o_lora_rank, heads_out // c.o_groups)
        + fp8(c, c.hidden_size, c.o_groups * c.o_lora_rank)
        + plain(c.q_lora_rank + c.head_dim)
        + plain(c.num_attention_heads, bytes_each=4)
    )
    if layer.owns_kv:
        projections = 2 if layer.ratio > 1 else 1
        weights += plain(projections * c.head_dim * c.hidden_size + c.head_dim)
        weights += plain(c.index_head_dim * c.head_dim + c.index_head_dim)
    if layer.owns_selection:
        weights += fp8(c, c.index_n_heads * c.index_head_dim, c.q_lora_rank)
        weights += plain(c.index_n_heads * c.hidden_size)
    return weights


def expert(config: ModelConfig) -> Weights:
    """One routed expert: three matrices, 35,389,440 parameters in 18,800,640 bytes as published.

    Raises:
        ConfigError: ``expert_dtype`` is neither FP4 nor FP8.
    """
    c = config
    if c.expert_dtype == "fp8":
        return shared_expert(c)
    if c.expert_dtype == "fp4":
        up, down = _fp4(c.moe_intermediate_size, c.hidden_size), _fp4(c.hidden_size, c.moe_intermediate_size)
        return 2 * up + down
    raise ConfigError(f"expert_dtype is {c.expert_dtype!r}; expected 'fp4' or 'fp8'")


def shared_expert(config: ModelConfig) -> Weights:
    """One shared expert: three FP8 matrices."""
    c = config
    return 2 * fp8(c, c.moe_intermediate_size, c.hidden_size) + fp8(c, c.hidden_size, c.moe_intermediate_size)


def router(config: ModelConfig) -> Weights:
    """The gate, and its two selection biases (text, image)."""
    return plain(config.n_routed_experts * config.hidden_size) + plain(2 * config.n_routed_experts, 4)


def hyper_connections(config: ModelConfig) -> Weights:
    """One layer's mixing coefficients, FP32, and its two norms: an attention and an FFN site."""
    streams = config.hc_mult
    outputs = 2 * streams + streams * streams
    return plain(2 * (outputs * streams * config.hidden_size + outputs + 3), 4) + plain(2 * config.hidden_size)


def engram_projection(config: ModelConfig) -> Weights:
    """One Engram layer without its table: key and value projection, and the two gate weights."""
    c = config
    rows_width = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
    return fp8(c, (c.hc_mult + 1) * c.hidden_size, rows_width) + plain(2 * c.hc_mult * c.hidden_size)


def engram_table(config: ModelConfig) -> Weights:
    """All Engram tables: FP8 rows with one scale per 32 channels. They live in host memory."""
    rows, width = sum(config.engram_num_embeddings), config.engram_head_dim
    return Weights(rows * width, rows * (width + width // 32))


def engram_row_bytes(config: ModelConfig) -> int:
    """Bytes of table rows that one token looks up in all Engram layers: 2 × 24 × 264 as published."""
    row = config.engram_head_dim + config.engram_head_dim // 32
    rows = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    return len(config.engram_layer_ids) * rows * row


def head(config: ModelConfig) -> Weights:
    """The output matrix, BF16; the embedding has the same size."""
    return plain(config.vocab_size * config.hidden_size)


def backbone(config: ModelConfig) -> Weights:
    """Every backbone weight, embedding and head included: the "552B"."""
    experts = config.n_routed_experts * expert(config)
    layers = sum(
        (_outside_experts(config, layer) + experts for layer in config.layers),
        Weights(),
    )
    return layers + 2 * head(config) + plain(config.hidden_size)


def engram(config: ModelConfig) -> Weights:
    """Both Engram modules, tables included: the "196B"."""
    return engram_table(config) + len(config.engram_layer_ids) * engram_projection(config)


def drafter(config: ModelConfig) -> Weights:
    """The draft layers, 14,225,362,530 parameters as published; embedding and head are the backbone's.

    A window is all that their attention has, and their experts are fewer. Beside the layers: what joins the target's
    streams, the last norm, the Markov head and the confidence head. Nothing for a configuration without draft layers.
    """
    if not config.num_nextn_predict_layers:
        return Weights()
    c = replace(config, n_routed_experts=config.dspark_n_routed_experts)
    window = LayerPlan(c.num_hidden_layers, "decoder", 0, "window", None, None, None)
    layer = _outside_experts(c, window) + c.n_routed_experts * expert(c)
    markov = plain(2 * c.vocab_size * c.dspark_markov_rank)
    confidence = plain(c.hidden_size + c.dspark_markov_rank)
    joined = fp8(c, c.hidden_size, len(c.dspark_target_layer_ids) * c.hidden_size)
    return c.num_nextn_predict_layers * layer + joined + plain(2 * c.hidden_size) + markov + confidence


def vision(config: ModelConfig) -> Weights:
    """The vision tower, its aligner and the three vectors around an image, BF16: 485,268,480 parameters as published.

    Nothing for a configuration without a vision part.
    """
    v = config.vision
    if v is None:
        return Weights()
    width, hidden = v.hidden_size, config.hidden_size
    attention_site = 3 * width * width + 3 * width + width * width + width
    block = attention_site + 3 * width * v.intermediate_size + 2 * width
    patches = 3 * v.patch_size**2 * width + width
    aligner = hidden * width * int(v.downsample_ratio) ** 2 + hidden * hidden + 2 * hidden
    return plain(patches + v.num_hidden_layers * block + width + aligner + 3 * hidden)


def active(config: ModelConfig, half: str | None = None) -> Weights:
    """What one token runs through, the head and the embedding left aside.

    Args:
        half: "encoder" or "decoder" for one half alone; None for both. As published 7.89B parameters in the
            encoder ("8B in prefill") and 15.47B in both ("16B in decode").

    Raises:
        ValueError: a half that is none.
    """
    if half not in (None, "encoder", "decoder"):
        raise ValueError(f"half is {half!r}; expected 'encoder', 'decoder' or None")
    chosen = [layer for layer in config.layers if half in (None, layer.half)]
    experts = config.num_experts_per_tok * expert(config)
    weights = sum((_outside_experts(config, layer) + experts for layer in chosen), Weights())
    modules = sum(layer.index in config.engram_layer_ids for layer in chosen)
    return weights + modules * engram_projection(config)


def read_per_step(config: ModelConfig, batch: int = 1) -> float:
    """Bytes of weights that one decode step reads from device memory for ``batch`` sequences, in expectation.

    Everything outside the routed experts is read once for the whole batch, the head with it. Of E routed experts
    a layer reads those that any token picked: E * (1 - (1 - k/E)**batch) if the picks are even and independent,
    which is the largest expectation; real routing is uneven and reads fewer. Engram rows come from the host.

    Raises:
        ValueError: ``batch`` below 1.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; expected 1 or more")
    share = config.num_experts_per_tok / config.n_routed_experts
    picked = config.n_routed_experts * (1 - (1 - share) ** batch)
    outside = sum((_outside_experts(config, layer) for layer in config.layers), head(config))
    outside += len(config.engram_layer_ids) * engram_projection(config) + plain(config.hidden_size)
    return outside.nbytes + config.num_hidden_layers * picked * expert(config).nbytes


def _outside_experts(config: ModelConfig, layer: LayerPlan) -> Weights:
    shared = config.n_shared_experts * shared_expert(config)
    return attention(config, layer) + shared + router(config) + hyper_connections(config)
