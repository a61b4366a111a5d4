"""A checkpoint over bytes with a drafter and a vision tower, five layers and random weights: it loads in no time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import drafting_model
import torch

from ds41.checkpoint import save_checkpoint
from ds41.config import ModelConfig, VisionConfig
from ds41.dspark import Drafter
from ds41.model import Model
from ds41.tokenizer import byte_tokenizer
from ds41.vision import Vision

_NANO = ModelConfig.nano()
CONFIG = dataclasses.replace(
    drafting_model.CONFIG,
    **{
        name: getattr(_NANO, name)
        for name in ("vocab_size", "bos_token_id", "eos_token_id", "image_token_id", "dspark_noise_token_id")
    },
    max_position_embeddings=1024,
    vision=VisionConfig(
        num_hidden_layers=1,
        hidden_size=16,
        num_attention_heads=1,
        intermediate_size=16,
        patch_size=14,
        rope_theta=10000,
        downsample_ratio=3,
        max_image_tokens=64,
        min_pixels=7056,
    ),
)


def save(folder: Path, parts: tuple[str, ...] = ("drafter", "vision")) -> str:
    """Write it, with the parts that are named; the folder's path."""
    torch.manual_seed(0)
    modules = {"drafter": Drafter(CONFIG), "vision": Vision(CONFIG)}
    chosen = {name: modules[name] for name in parts}
    save_checkpoint(Model(CONFIG), folder, byte_tokenizer(), **chosen)
    return str(folder)
