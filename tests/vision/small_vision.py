"""The published vision sizes, and a tower small enough to recompute by loops."""

import dataclasses

import torch

from ds41.config import ModelConfig, VisionConfig
from ds41.vision import Vision

FLASH = ModelConfig.flash().vision
TINY = VisionConfig(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=2,
    intermediate_size=48,
    patch_size=14,
    rope_theta=10000,
    downsample_ratio=3,
    max_image_tokens=64,
    min_pixels=15876,
)
CONFIG = dataclasses.replace(ModelConfig.nano(), vision=TINY)


def build(seed: int = 0, dtype: torch.dtype = torch.float32) -> Vision:
    """A tiny vision part in which no parameter is left at zero or one, so that none can be forgotten unnoticed."""
    model = Vision(CONFIG, dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(dtype), alpha=0.2)
    return model
