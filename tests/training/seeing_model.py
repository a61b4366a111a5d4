"""A model over bytes that takes pictures, small enough to train its tower in a second."""

import dataclasses

import drafting_model
import torch

from ds41.config import VisionConfig
from ds41.model import Model

TOWER = VisionConfig(
    num_hidden_layers=1,
    hidden_size=32,
    num_attention_heads=2,
    intermediate_size=48,
    patch_size=14,
    rope_theta=10000,
    downsample_ratio=3,
    max_image_tokens=64,
    min_pixels=7056,
)
CONFIG = dataclasses.replace(
    drafting_model.CONFIG, vocab_size=272, image_token_id=4, dspark_noise_token_id=3, vision=TOWER
)


def build() -> Model:
    torch.manual_seed(0)
    return Model(CONFIG).requires_grad_(False)
