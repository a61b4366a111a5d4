"""A drafter from a checkpoint.

Source: the released checkpoint's ``mtp`` tensors.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ds41.checkpoint import load_part
from ds41.config import ModelConfig
from ds41.dspark.drafter import Drafter
from ds41.linear import Quantization


def load_drafter(
    folder: str | Path,
    quantization: Quantization = "cache",
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    memory_limit: int | None = None,
) -> Drafter:
    """Read the draft layers that lie beside a model (``mtp.*``).

    Args, Raises: as :func:`ds41.checkpoint.load_checkpoint`; take the model's own quantization and dtype.
    """

    def build(config: ModelConfig) -> Drafter:
        return Drafter(config, quantization, dtype)

    return load_part(folder, "drafter", build, dtype, device, memory_limit)
