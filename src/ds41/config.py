"""The published configuration and the per-layer plan that follows from it.

Reads both published forms: the nested Hugging Face ``config.json`` and the flat ``inference/config.json``.
Source: DeepSeek-V4.1-Flash ``config.json``, ``inference/config.json``; report sections 2.2, 2.3 and 4.2.1.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal

Half = Literal["encoder", "decoder"]
Mode = Literal["window", "full", "reindex", "reuse"]


class ConfigError(ValueError):
    """A configuration that no model can be built from; the message names key, value and expectation."""


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
        return self.mode == "full"

    @property
    def owns_selection(self) -> bool:
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
    """Every published key that a model of this family needs, under its Hugging Face name."""

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
        _validate(self)

    @classmethod
    def flash(cls) -> ModelConfig:
        """The published DeepSeek-V4.1-Flash configuration."""
        text = resources.files("ds41").joinpath("data/flash_config.json").read_text(encoding="utf-8")
        return cls.from_dict(json.loads(text), origin="the shipped flash_config.json")

    @classmethod
    def from_json(cls, path: str | Path) -> ModelConfig:
        """Read a published ``config.json``, nested (Hugging Face) or flat (inference).

        Raises:
            ConfigError: the file is missing, is not JSON, lacks keys, or describes no buildable model.
        """
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read configuration {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not a JSON text: {error}") from error
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise ConfigError(f"{path} is not JSON: {error.msg} at {where}") from error
        return cls.from_dict(data, origin=str(path))

    @classmethod
    def from_dict(cls, data: dict, origin: str = "the configuration") -> ModelConfig:
        """Build from a parsed configuration of either published form; ``origin`` names it in errors."""
        if not isinstance(data, dict):
            raise ConfigError(f"{origin} holds a {type(data).__name__}; expected an object with the model's keys")
        values = _from_nested(data, origin) if "text_config" in data else _from_flat(data, origin)
        known = {field.name: field for field in fields(cls)}
        missing = sorted(name for name in cls._required_names() if name not in values)
        if missing:
            raise ConfigError(f"{origin} lacks {', '.join(missing)}")
        unknown = sorted(set(values) - set(known))
        if unknown:
            warnings.warn(f"{origin}: keys without a meaning here, ignored: {', '.join(unknown)}", stacklevel=3)
        checked = {name: _typed(name, value, known[name].type, origin) for name, value in values.items() if name in known}
        return cls(**checked)

    @classmethod
    def _required_names(cls) -> list[str]:
        from dataclasses import MISSING

        return [field.name for field in fields(cls) if field.default is MISSING]

    @cached_property
    def layers(self) -> tuple[LayerPlan, ...]:
        """One plan for each backbone layer (draft layers have windows only and are not listed)."""
        return tuple(_plan(self, index) for index in range(self.num_hidden_layers))

    @property
    def decoder_start(self) -> int:
        """First decoder layer: the last KV source. No layer above it writes global state."""
        return self.kv_source_layer_ids[-1] if self.kv_source_layer_ids else self.num_hidden_layers


_NESTED_IGNORED = {
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "quantization_config",
    "text_config", "vision_config",
}  # fmt: skip
_TEXT_IGNORED = {
    "model_type", "num_key_value_heads", "hidden_act", "attention_bias", "attention_dropout", "use_cache",
    "tie_word_embeddings", "topk_method", "rope_scaling",
}  # fmt: skip
_ROPE_NAMES = {
    "factor": "rope_factor",
    "beta_fast": "rope_beta_fast",
    "beta_slow": "rope_beta_slow",
    "original_max_position_embeddings": "original_max_position_embeddings",
}
# The few keys that the family fixes: a file with another value describes another model.
_FIXED_TEXT = {
    "num_key_value_heads": 1, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
_FLAT_NAMES = {
    "dim": "hidden_size", "moe_inter_dim": "moe_intermediate_size", "n_layers": "num_hidden_layers",
    "n_mtp_layers": "num_nextn_predict_layers", "dspark_n_activated_experts": "dspark_num_experts_per_tok",
    "n_heads": "num_attention_heads", "n_activated_experts": "num_experts_per_tok", "score_func": "scoring_func",
    "route_scale": "routed_scaling_factor", "rope_head_dim": "qk_rope_head_dim", "norm_eps": "rms_norm_eps",
    "window_size": "sliding_window", "kv_source_layers": "kv_source_layer_ids",
    "index_source_layers": "index_source_layer_ids", "original_seq_len": "original_max_position_embeddings",
    "beta_fast": "rope_beta_fast", "beta_slow": "rope_beta_slow", "engram_pad_id": "engram_pad_token_id",
    "candidate_source_layer": "candidate_source_layer_id",
}  # fmt: skip
_FLAT_VISION_NAMES = {
    "vision_n_layers": "num_hidden_layers", "vision_dim": "hidden_size", "vision_n_heads": "num_attention_heads",
    "vision_inter_dim": "intermediate_size", "vision_patch_size": "patch_size", "vision_rope_theta": "rope_theta",
    "vision_downsample_ratio": "downsample_ratio", "vision_max_n_token": "max_image_tokens",
    "vision_min_pixels": "min_pixels", "vision_max_wh_ratio": "max_wh_ratio",
}  # fmt: skip


def _from_nested(data: dict, origin: str) -> dict:
    text = data["text_config"]
    if not isinstance(text, dict):
        raise ConfigError(f"{origin}: text_config is {text!r}; expected an object")
    for key, fixed in _FIXED_TEXT.items():
        if text.get(key, fixed) != fixed:
            raise ConfigError(f"{origin}: {key} is {text[key]!r}; this family has {fixed!r}")
    values = {key: value for key, value in data.items() if key not in _NESTED_IGNORED}
    values |= {key: value for key, value in text.items() if key not in _TEXT_IGNORED}
    rope = text.get("rope_scaling")
    if not isinstance(rope, dict):
        raise ConfigError(f"{origin}: rope_scaling is {rope!r}; expected an object with {', '.join(_ROPE_NAMES)}")
    if rope.get("rope_type") != "yarn":
        raise ConfigError(f"{origin}: rope_scaling.rope_type is {rope.get('rope_type')!r}; expected 'yarn'")
    values |= {name: rope[key] for key, name in _ROPE_NAMES.items() if key in rope}
    quantization = data.get("quantization_config") or {}
    values |= {key: quantization[key] for key in ("weight_block_size", "expert_dtype") if key in quantization}
    if isinstance(data.get("vision_config"), dict):
        vision = {key: value for key, value in data["vision_config"].items() if key != "model_type"}
        values["vision"] = _vision(vision, origin)
    return values


def _from_flat(data: dict, origin: str) -> dict:
    if "dim" not in data:
        raise ConfigError(f"{origin} has neither text_config (nested form) nor dim (flat form); not a DeepSeek-V4.1 config")
    vision = {_FLAT_VISION_NAMES[key]: value for key, value in data.items() if key in _FLAT_VISION_NAMES}
    values = {
        _FLAT_NAMES.get(key, key): value
        for key, value in data.items()
        if key not in _FLAT_VISION_NAMES and key != "dtype"
    }
    if vision:
        values["vision"] = _vision(vision, origin)
    return values


def _vision(values: dict, origin: str) -> VisionConfig:
    names = {field.name: field for field in fields(VisionConfig)}
    missing = sorted(set(names) - set(values) - {"max_wh_ratio"})
    if missing:
        raise ConfigError(f"{origin}: the vision configuration lacks {', '.join(missing)}")
    return VisionConfig(**{
        name: _typed(name, value, names[name].type, origin) for name, value in values.items() if name in names
    })


def _typed(name: str, value: object, annotation: str, origin: str) -> object:
    """Check one JSON value against the field's annotation; lists become tuples, integers may be floats."""
    def fail(expected: str) -> ConfigError:
        return ConfigError(f"{origin}: {name} is {value!r}; expected {expected}")

    def is_int(item: object) -> bool:
        return isinstance(item, int) and not isinstance(item, bool)

    if annotation.startswith("tuple[int"):
        if not isinstance(value, (list, tuple)) or not all(is_int(item) for item in value):
            raise fail("a list of integers")
        return tuple(value)
    if annotation == "int" and not is_int(value):
        raise fail("an integer")
    if annotation.startswith("float"):
        if value is None and "None" in annotation:
            return None
        if not is_int(value) and not isinstance(value, float):
            raise fail("a number")
        return float(value)
    if annotation == "str" and not isinstance(value, str):
        raise fail("a string")
    if annotation == "bool" and not isinstance(value, bool):
        raise fail("true or false")
    return value


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


def _validate(c: ModelConfig) -> None:
    def require(condition: bool, message: str) -> None:
        if not condition:
            raise ConfigError(message)

    for name in (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "q_lora_rank",
        "o_lora_rank", "o_groups", "sliding_window", "index_n_heads", "index_head_dim", "index_topk", "hc_mult",
        "hc_sinkhorn_iters", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok",
    ):  # fmt: skip
        require(getattr(c, name) > 0, f"{name} is {getattr(c, name)}; expected a positive number")
    require(c.head_dim % 32 == 0, f"head_dim is {c.head_dim}; expected a multiple of 32, the window KV's block")
    require(c.index_head_dim % 32 == 0, f"index_head_dim is {c.index_head_dim}; expected a multiple of 32, the index key's block")
    smaller = min(c.head_dim, c.index_head_dim)
    require(
        c.qk_rope_head_dim % 2 == 0 and 0 < c.qk_rope_head_dim <= smaller,
        f"qk_rope_head_dim is {c.qk_rope_head_dim}; expected an even number from 2 to {smaller}",
    )
    require(
        c.num_attention_heads % c.o_groups == 0,
        f"num_attention_heads {c.num_attention_heads} does not divide into o_groups {c.o_groups}",
    )
    require(
        c.num_experts_per_tok <= c.n_routed_experts,
        f"num_experts_per_tok is {c.num_experts_per_tok}; there are only {c.n_routed_experts} routed experts",
    )
    require(
        len(c.engram_num_embeddings) == len(c.engram_layer_ids),
        f"engram_num_embeddings has {len(c.engram_num_embeddings)} entries for {len(c.engram_layer_ids)} engram_layer_ids",
    )
    _validate_schedule(c, require)


def _validate_schedule(c: ModelConfig, require) -> None:
    layers, drafts = c.num_hidden_layers, c.num_nextn_predict_layers
    require(
        len(c.compress_ratios) in (layers, layers + drafts),
        f"compress_ratios has {len(c.compress_ratios)} entries; expected {layers} layers, or {layers + drafts} with the draft layers",
    )
    for index, ratio in enumerate(c.compress_ratios):
        require(ratio in (0, 1, 2), f"compress_ratios[{index}] is {ratio}; expected 0, 1 or 2")
        require(index < layers or ratio == 0, f"compress_ratios[{index}] is {ratio}; draft layers have a window only, so 0")
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        ids = getattr(c, name)
        require(list(ids) == sorted(set(ids)), f"{name} is {list(ids)}; expected ascending layer ids, none twice")
        for source in ids:
            require(0 <= source < layers, f"{name} names layer {source}; there are layers 0 to {layers - 1}")
            require(c.compress_ratios[source] > 0, f"{name} names layer {source}, whose ratio is 0: it has no global branch")
    for source in c.kv_source_layer_ids:
        require(
            source in c.index_source_layer_ids,
            f"kv_source_layer_ids names layer {source}, index_source_layer_ids does not: its keys would have no selection",
        )
    for index in range(layers):
        ratio = c.compress_ratios[index]
        if ratio == 0:
            continue
        kv_source = max((s for s in c.kv_source_layer_ids if s <= index), default=None)
        require(kv_source is not None, f"layer {index} has ratio {ratio} and no KV source at or below it in kv_source_layer_ids")
        require(
            c.compress_ratios[kv_source] == ratio,
            f"layer {index} reads at ratio {ratio}, its KV source {kv_source} writes at ratio {c.compress_ratios[kv_source]}",
        )
    candidate = c.candidate_source_layer_id
    if candidate >= 0:
        require(
            candidate in c.kv_source_layer_ids,
            f"candidate_source_layer_id is {candidate}; expected one of the KV sources {list(c.kv_source_layer_ids)}, or -1",
        )
        guaranteed = c.candidate_topk_blocks * c.candidate_block_size - (c.candidate_block_size - 1)
        require(
            guaranteed >= c.index_topk,
            f"candidate_topk_blocks {c.candidate_topk_blocks} x candidate_block_size {c.candidate_block_size} guarantees only "
            f"{guaranteed} candidates; index_topk needs {c.index_topk}",
        )
