"""How the experts' products are cut into programs on each kind of GPU, and in which type they are taken."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Targets whose matrix instructions tl.dot uses.
DOT_TARGETS = (80, 86, 89, 90, 100, 120)


@dataclass(frozen=True)
class ExpertTiles:
    """How a launch is cut: block_m rows of one expert, block_n of its outputs, block_k columns a step.

    dot: through tl.dot, otherwise by sums. warps and stages are Triton's.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    dot: bool

    @classmethod
    def of(cls, block_m: int, dtype: torch.dtype, target: int) -> ExpertTiles:
        """For tiles of block_m rows. target: compute capability, 0 for the interpreter."""
        if target == 75:
            return cls(block_m, 32, 128, 4, 1, False)
        if block_m < 16:
            raise ValueError(f"block_m is {block_m}; expected 16 or more, the fewest rows of a matrix instruction")
        if block_m == 16:
            # Few rows read many weights: small tiles, so that many programs read at once, each far ahead.
            return cls(16, 32, 128, 4, 4, True)
        return cls(block_m, 64, 64 if dtype == torch.bfloat16 else 32, 8, 3, True)

    @property
    def options(self) -> dict:
        """Sums may fuse product and addition: they are judged by their error, not by their bits."""
        return {"enable_fp_fusion": True, "num_stages": self.stages}


def rows_per_tile(pairs: int, experts: int, dtype: torch.dtype, target: int) -> int:
    """The block_m that wastes little on the rows that an even routing gives each expert."""
    if target == 75:
        return 4
    each = pairs / min(pairs, experts) if pairs else 0
    if each <= 16:
        return 16
    return 64 if each <= 64 or dtype != torch.bfloat16 else 128


def product_constants(dtype: torch.dtype, tiles: ExpertTiles, target: int) -> dict:
    """bf16 rows stay bf16 where there is a matrix unit for them. Others go through TF32: FP4 and fp16 fit it."""
    if target == 0:
        operand, precision = "fp32", "ieee"
    elif dtype == torch.bfloat16:
        operand, precision = "bf16", "ieee"
    else:
        operand, precision = "fp32", "tf32" if dtype == torch.float16 else "tf32x3"
    return {
        "OPERAND": operand,
        "PRECISION": precision,
        "DOT": tiles.dot,
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "BLOCK_K": tiles.block_k,
    }
