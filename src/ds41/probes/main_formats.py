"""What main KV can be rounded to: FP4 as deployed, FP8, bf16, nothing at all, or FP4 of latents that have grown."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds41.attention.memory import RoundTrip
from ds41.formats import MAIN_KV, WINDOW_KV
from ds41.probes.rounding import Rounding, predicted_float_rounding, predicted_rounding


@dataclass(frozen=True)
class Unrounded:
    """No rounding."""

    def fake_quantize(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` itself."""
        return x


@dataclass(frozen=True)
class BFloat16:
    """Main KV kept in bfloat16, 1024 bytes a row of the published model."""

    def fake_quantize(self, x: torch.Tensor) -> torch.Tensor:
        """Nearest bfloat16 numbers, in the type of ``x``."""
        return x.to(torch.bfloat16).to(x.dtype)


@dataclass(frozen=True)
class Scaled:
    """What ``inner`` leaves of a latent whose norm weight has grown by ``factor``, brought back to its old size.

    Grown weights also scale logits and outputs, which share their softmax and their heads with the window, so no
    other weight can take that back. Here only the format sees the grown latent.
    """

    inner: RoundTrip
    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor is {self.factor}; expected a number above zero")

    def fake_quantize(self, x: torch.Tensor) -> torch.Tensor:
        """``inner(factor * x) / factor``; the factor itself is exact where it is a power of two."""
        return self.inner.fake_quantize(x * self.factor) / self.factor


UNROUNDED = Unrounded()
MAIN_FORMATS: dict[str, RoundTrip] = {"FP4": MAIN_KV, "FP8": WINDOW_KV, "bf16": BFloat16()}


def predicted_format(main_format: RoundTrip) -> Rounding | None:
    """What the format must do to Gaussian rows of root mean square 1; None for one unknown."""
    if isinstance(main_format, Scaled):
        return predicted_rounding(main_format.factor) if main_format.inner is MAIN_KV else None
    if main_format is MAIN_KV:
        return predicted_rounding()
    if main_format is WINDOW_KV:
        return predicted_float_rounding(mantissa_bits=3)
    if isinstance(main_format, BFloat16):
        return predicted_float_rounding(mantissa_bits=7)
    return Rounding(0.0, 1.0) if isinstance(main_format, Unrounded) else None
