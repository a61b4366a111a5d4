"""The two reference models built from their dequantised weights, without the checkpoint reader."""

import golden_io
import torch

from ds41 import ModelConfig
from ds41.model import Model

QUANTIZATION = {"fp32": "none", "fp32_cacheq": "cache", "fp32_fullq": "full", "bf16_native": "full"}
_TRANSPARENT = ("query", "window", "output", "keys")


def config_of(name: str) -> ModelConfig:
    return ModelConfig.from_json(golden_io.FOLDER / name / "config.json")


def dtype_of(mode: str) -> torch.dtype:
    return torch.bfloat16 if mode == "bf16_native" else torch.float32


def build(name: str, mode: str) -> Model:
    """The model in one mode, its token map the reference's own."""
    token_map = golden_io.load(name, "fp32")["engram.token_map"]
    model = Model(config_of(name), QUANTIZATION[mode], dtype_of(mode), token_map=token_map)
    weights = golden_io.weights(name)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(_weight(path, weights, parameter))
    return model.requires_grad_(False)


def _weight(path: str, weights: dict[str, torch.Tensor], parameter: torch.Tensor) -> torch.Tensor:
    parts = [part for part in path.split(".") if part not in _TRANSPARENT]
    name = ".".join(parts).replace("hc_attn.", "hc_attn_").replace("hc_ffn.", "hc_ffn_")
    if ".experts." in name:
        prefix, matrix = name.rsplit(".", 1)
        return torch.stack([weights[f"{prefix}.{e}.{matrix}.weight"] for e in range(parameter.shape[0])])
    return weights[name]
