"""The vision tower from a checkpoint.

Source: the released checkpoint's ``vision`` and ``aligner`` tensors.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ds41.checkpoint import load_part
from ds41.config import ModelConfig
from ds41.vision.tower import Vision


def load_vision(
    folder: str | Path,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    memory_limit: int | None = None,
) -> Vision:
    """Read the tower, the aligner and the image vectors that lie beside a model.

    Args, Raises: as :func:`ds41.checkpoint.load_checkpoint`.
    """

    def build(config: ModelConfig) -> Vision:
        return Vision(config, dtype)

    return load_part(folder, "vision", build, dtype, device, memory_limit)
