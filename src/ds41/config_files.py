"""The two published forms of a configuration file, read into one set of names, and one of them written.

``config.json`` nests the keys (``text_config``, ``vision_config``, ``rope_scaling``,
``quantization_config``); ``inference/config.json`` is flat and names some of them otherwise. Both give the
names of :class:`ds41.config.ModelConfig`; errors name a key as the file spells it.

Source: DeepSeek-V4.1-Flash ``config.json`` and ``inference/config.json``.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds41.config import ModelConfig


class ConfigError(ValueError):
    """A configuration that no model can be built from; the message names key, value and expectation."""


# Ten times the published file is about 40 kB; a device or a weight file never ends.
_LARGEST_FILE = 16 * 2**20


@dataclass(frozen=True)
class FileValues:
    """What one file says. values: by ModelConfig name, ``vision`` an inner dict or absent.

    spelling: the file's own key for each name that it spells otherwise.
    """

    origin: str
    values: dict
    spelling: dict

    def key(self, name: str) -> str:
        return self.spelling.get(name, name)

    def spelled(self, message: str) -> str:
        """A message about ModelConfig names, with the file's own keys in their place."""
        return re.sub(r"\w+", lambda word: self.key(word[0]), message)


def read_json(path: str | Path) -> object:
    """Parse a JSON file.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, or is not JSON.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise ConfigError(f"{path} has more than {_LARGEST_FILE:,} bytes; expected a configuration file")
        return json.loads(content.decode("utf-8"))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a JSON text: byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{path} is not JSON: {error.msg} ({where})") from error
    except (RecursionError, ValueError) as error:
        # Valid JSON may still be too deep, or hold an integer too long, for Python to read.
        raise ConfigError(f"cannot read configuration {path}: {error}") from error


def read_values(data: object, origin: str) -> FileValues:
    """Recognise the form of a parsed file and give its values under ModelConfig names."""
    if not isinstance(data, dict):
        raise ConfigError(f"{origin} holds a {type(data).__name__}; expected an object with the model's keys")
    if "text_config" in data:
        return _read_nested(data, origin)
    if "dim" in data:
        return _read_flat(data, origin)
    raise ConfigError(f"{origin} has neither text_config (nested form) nor dim (flat form): not a DeepSeek-V4.1 config")


def config_to_json(config: ModelConfig) -> dict:
    """The nested (Hugging Face) form of a configuration, ready for ``json.dumps``; reading it gives the same one."""
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(config).items()}
    vision = values.pop("vision")
    nested = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        **{key: values.pop(key) for key in _TOP_LEVEL},
        "quantization_config": _PUBLISHED_QUANTIZATION
        | {key: values.pop(key) for key in ("weight_block_size", "expert_dtype")},
    }
    rope = {"rope_type": "yarn"} | {key: values.pop(name) for key, name in _ROPE_NAMES.items()}
    nested["text_config"] = _PUBLISHED_TEXT | values | {"rope_scaling": rope}
    if vision is not None:
        nested["vision_config"] = {"model_type": "deepseek_v41_vision"} | vision
    return nested


def check_value(file: FileValues, name: str, value: object, annotation: str) -> object:
    """One JSON value as the field's annotation wants it: lists become tuples, integers serve as floats."""

    def fail(expected: str) -> ConfigError:
        return ConfigError(f"{file.origin}: {file.key(name)} is {reprlib.repr(value)}; expected {expected}")

    def is_int(item: object) -> bool:
        return isinstance(item, int) and not isinstance(item, bool)

    if annotation.startswith("tuple[int"):
        if not isinstance(value, (list, tuple)) or not all(is_int(item) for item in value):
            raise fail("a list of integers")
        if any(abs(item) >= 2**63 for item in value):
            raise fail("integers below 2^63")
        return tuple(value)
    if annotation == "int":
        if not is_int(value):
            raise fail("an integer")
        if abs(value) >= 2**63:
            raise fail("an integer below 2^63")
    if annotation.startswith("float"):
        if value is None and "None" in annotation:
            return None
        if not is_int(value) and not isinstance(value, float):
            raise fail("a number")
        # An integer may be too long for a float.
        if not abs(value) < math.inf or abs(value) > sys.float_info.max:
            raise fail("a finite number")
        return float(value)
    if annotation == "str" and not isinstance(value, str):
        raise fail("a string")
    if annotation == "bool" and not isinstance(value, bool):
        raise fail("true or false")
    return value


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
# What the nested form states beyond ModelConfig's keys; the same for the whole family.
_PUBLISHED_TEXT = {
    "model_type": "deepseek_v41_text", **_FIXED_TEXT, "attention_dropout": 0.0, "use_cache": True,
    "topk_method": "noaux_tc",
}  # fmt: skip
_PUBLISHED_QUANTIZATION = {"quant_method": "fp8", "activation_scheme": "dynamic", "scale_fmt": "ue8m0"}
_TOP_LEVEL = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id")
_FLAT_NAMES = {
    "dim": "hidden_size", "moe_inter_dim": "moe_intermediate_size", "n_layers": "num_hidden_layers",
    "n_mtp_layers": "num_nextn_predict_layers", "dspark_n_activated_experts": "dspark_num_experts_per_tok",
    "n_heads": "num_attention_heads", "n_activated_experts": "num_experts_per_tok",
    "score_func": "scoring_func", "route_scale": "routed_scaling_factor",
    "rope_head_dim": "qk_rope_head_dim", "norm_eps": "rms_norm_eps",
    "window_size": "sliding_window", "kv_source_layers": "kv_source_layer_ids",
    "index_source_layers": "index_source_layer_ids", "original_seq_len": "original_max_position_embeddings",
    "beta_fast": "rope_beta_fast", "beta_slow": "rope_beta_slow", "engram_pad_id": "engram_pad_token_id",
    "candidate_source_layer": "candidate_source_layer_id",
}  # fmt: skip
_FLAT_VISION_NAMES = {
    "vision_n_layers": "num_hidden_layers", "vision_dim": "hidden_size",
    "vision_n_heads": "num_attention_heads", "vision_inter_dim": "intermediate_size",
    "vision_patch_size": "patch_size", "vision_rope_theta": "rope_theta",
    "vision_downsample_ratio": "downsample_ratio", "vision_max_n_token": "max_image_tokens",
    "vision_min_pixels": "min_pixels", "vision_max_wh_ratio": "max_wh_ratio",
}  # fmt: skip


def _read_nested(data: dict, origin: str) -> FileValues:
    def section(holder: dict, key: str) -> dict:
        value = holder.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ConfigError(f"{origin}: {key} is {value!r}; expected an object")
        return value

    text = section(data, "text_config")
    for key, fixed in _FIXED_TEXT.items():
        if text.get(key, fixed) != fixed:
            raise ConfigError(f"{origin}: {key} is {text[key]!r}; this family has {fixed!r}")
    values = {key: value for key, value in data.items() if key not in _NESTED_IGNORED}
    values |= {key: value for key, value in text.items() if key not in _TEXT_IGNORED}
    rope = section(text, "rope_scaling")
    if rope.get("rope_type") != "yarn":
        raise ConfigError(f"{origin}: rope_scaling.rope_type is {rope.get('rope_type')!r}; expected 'yarn'")
    values |= {name: rope[key] for key, name in _ROPE_NAMES.items() if key in rope}
    quantization = section(data, "quantization_config")
    values |= {key: quantization[key] for key in ("weight_block_size", "expert_dtype") if key in quantization}
    vision = {key: value for key, value in section(data, "vision_config").items() if key != "model_type"}
    if vision:
        values["vision"] = vision
    spelling = {name: f"rope_scaling.{key}" for key, name in _ROPE_NAMES.items()}
    spelling |= {f"vision.{name}": f"vision_config.{name}" for name in _FLAT_VISION_NAMES.values()}
    return FileValues(origin, values, spelling)


def _read_flat(data: dict, origin: str) -> FileValues:
    vision = {_FLAT_VISION_NAMES[key]: value for key, value in data.items() if key in _FLAT_VISION_NAMES}
    values = {
        _FLAT_NAMES.get(key, key): value
        for key, value in data.items()
        if key not in _FLAT_VISION_NAMES and key != "dtype"
    }
    if vision:
        values["vision"] = vision
    spelling = {name: key for key, name in _FLAT_NAMES.items()}
    spelling |= {f"vision.{name}": key for key, name in _FLAT_VISION_NAMES.items()}
    return FileValues(origin, values, spelling)
