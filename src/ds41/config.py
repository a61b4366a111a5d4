"""The published configuration and the per-layer plan that follows from it.

Reads both published forms: the nested Hugging Face ``config.json`` and the flat ``inference/config.json``.

Source: DeepSeek-V4.1-Flash ``config.json``, ``inference/config.json``; report sections 2.2, 2.3 and 4.2.1.
"""

from __future__ import annotations

import json
import reprlib
import warnings
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

from ds41.config_checks import check_buildable
from ds41.config_files import ConfigError, FileValues, check_value, read_json, read_values

__all__ = ["ConfigError", "Half", "LayerPlan", "Mode", "ModelConfig", "VisionConfig"]

Half = Literal["encoder", "decoder"]
"""The half of the model that a layer is in: the decoder begins where the last source is."""
Mode = Literal["window", "full", "reindex", "reuse"]
"""What attends beyond the window: nothing, own entries, borrowed entries by an own selection, or a borrowed selection.
"""


@dataclass(frozen=True)
class LayerPlan:
    """What one backbone layer owns and borrows. Sources are layer ids, or None where the layer has none.

    mode: "window" sees only the sliding window; "full" owns main KV, index keys and a selection;
    "reindex" owns a selection over borrowed keys; "reuse" borrows all three.
    """

    index: int
    half: Half
    ratio: int
    mode: Mode
    kv_source: int | None
    index_source: int | None
    candidate_source: int | None

    @property
    def owns_kv(self) -> bool:
        """Whether the layer makes global KV of its own: Full layers do, the others borrow or have none."""
        return self.mode == "full"

    @property
    def owns_selection(self) -> bool:
        """Whether the layer selects entries itself: Full and Reindex layers do; Reuse layers take over a selection."""
        return self.mode in ("full", "reindex")


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """The vision tower's keys (``vision_config``)."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Every published key that a model of this family needs, under its Hugging Face name.

    Raises:
        ConfigError: values that contradict each other or that no model of the family has.
    """

    # Backbone
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-20
    max_position_embeddings: int = 1048576
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 2
    image_token_id: int = 129264

    # Attention: one latent of head_dim channels is key and value for all heads
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    rope_factor: float
    rope_beta_fast: float
    rope_beta_slow: float
    original_max_position_embeddings: int

    # Sharing plan: ratio per layer, and which layers own keys and selections
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int

    # Hyper-connections
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float

    # Mixture of experts
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    scoring_func: str
    routed_scaling_factor: float
    swiglu_limit: float
    norm_topk_prob: bool = True

    # Engram
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int

    # DSpark drafter
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int

    # Storage of the weights
    weight_block_size: tuple[int, int] = (32, 32)
    expert_dtype: str = "fp4"

    vision: VisionConfig | None = None

    def __post_init__(self) -> None:
        check_buildable(self)

    @classmethod
    def flash(cls) -> ModelConfig:
        """The published DeepSeek-V4.1-Flash configuration."""
        return cls._shipped("flash")

    @classmethod
    def mini(cls) -> ModelConfig:
        """The same pattern in 20 layers over bytes, sized to be trained on a 15 GB GPU."""
        return cls._shipped("mini")

    @classmethod
    def nano(cls) -> ModelConfig:
        """The same pattern in 10 layers over bytes, sized for two CPU cores."""
        return cls._shipped("nano")

    @classmethod
    def _shipped(cls, preset: str) -> ModelConfig:
        text = resources.files("ds41").joinpath(f"data/{preset}_config.json").read_text(encoding="utf-8")
        return cls.from_dict(json.loads(text), origin=f"the shipped {preset}_config.json")

    @classmethod
    def from_json(cls, path: str | Path) -> ModelConfig:
        """Read a published ``config.json``, nested (Hugging Face) or flat (inference).

        Raises:
            ConfigError: the file is missing, is not JSON, lacks keys, or describes no buildable model.
        """
        return cls.from_dict(read_json(path), origin=str(path))

    @classmethod
    def from_dict(cls, data: dict, origin: str = "the configuration") -> ModelConfig:
        """Build from a parsed configuration of either published form; ``origin`` names it in errors.

        Raises:
            ConfigError: a key is missing, unknown or of another type, or the values contradict each other.
        """
        file = read_values(data, origin)
        vision = file.values.pop("vision", None)
        values = _fields_of(cls, file)
        if vision is not None:
            tower = FileValues(origin, vision, file.spelling)
            values["vision"] = VisionConfig(**_fields_of(VisionConfig, tower, "vision."))
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {file.spelled(str(error))}") from None

    @cached_property
    def layers(self) -> tuple[LayerPlan, ...]:
        """One plan for each backbone layer (draft layers have windows only and are not listed)."""
        return tuple(_plan(self, index) for index in range(self.num_hidden_layers))

    @property
    def decoder_start(self) -> int:
        """First decoder layer: the last KV source. No layer above it writes global state."""
        return self.kv_source_layer_ids[-1] if self.kv_source_layer_ids else self.num_hidden_layers


def _fields_of(kind: type, file: FileValues, prefix: str = "") -> dict:
    """The file's values for the dataclass ``kind``, checked; a key without a meaning here is warned of."""
    known = {field.name: field for field in fields(kind)}
    needed = [field.name for field in known.values() if field.default is MISSING]
    missing = sorted(file.key(prefix + name) for name in needed if name not in file.values)
    if missing:
        raise ConfigError(f"{file.origin} lacks {', '.join(missing)}")
    unknown = sorted(set(file.values) - set(known))
    if unknown:
        names = [key if key.isidentifier() else reprlib.repr(key) for key in unknown[:10]]
        names += [f"and {len(unknown) - 10} more"] if len(unknown) > 10 else []
        warnings.warn(f"{file.origin}: keys without a meaning here, ignored: {', '.join(names)}", stacklevel=4)
    return {
        name: check_value(file, prefix + name, value, known[name].type)
        for name, value in file.values.items()
        if name in known
    }


def _plan(config: ModelConfig, index: int) -> LayerPlan:
    half: Half = "encoder" if index < config.decoder_start else "decoder"
    ratio = config.compress_ratios[index]
    if ratio == 0:
        return LayerPlan(index, half, 0, "window", None, None, None)
    kv_source = max(source for source in config.kv_source_layer_ids if source <= index)
    index_source = max(source for source in config.index_source_layer_ids if source <= index)
    if index == kv_source:
        mode: Mode = "full"
    elif index == index_source:
        mode = "reindex"
    else:
        mode = "reuse"
    candidate = config.candidate_source_layer_id
    # Layers that borrow the candidate source's own selection never apply the pool: it is built beside it.
    uses_pool = 0 <= candidate < index_source and kv_source == candidate
    return LayerPlan(index, half, ratio, mode, kv_source, index_source, candidate if uses_pool else None)
