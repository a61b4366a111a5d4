"""A model of five layers over bytes, with windows of 16: the least that the probe's prompts fit."""

import dataclasses

import tiny_model
import torch

from ds41.model import Model

WINDOW = 16
CONFIG = dataclasses.replace(tiny_model.CONFIG, vocab_size=272, sliding_window=WINDOW)


def build(quantization: str = "none", seed: int = 3) -> Model:
    torch.manual_seed(seed)
    return Model(CONFIG, quantization).requires_grad_(False)
